"""Laws of what comes back over a wire: all that was asked for and nothing else, or one line."""

from __future__ import annotations

import dataclasses
import math
import socket
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from groupwise.core.channel import Channel
from groupwise.core.engine import Finished, Request, Sampling
from groupwise.core.errors import RunError
from groupwise.core.peer import Peer
from groupwise.core.processes import codec
from groupwise.core.processes.codec import Message
from groupwise.core.records import Completion, SamplerTop
from groupwise.engines.outside import wire
from groupwise.engines.outside.process import Asked, EngineProcess
from groupwise.engines.outside.wire import Generated

Change = Callable[[dict[str, Any], dict[str, Any]], object]
REQUESTS, SAMPLING = [Request((3, 4), 1, 0, max_new_tokens=3), Request((3,), 1, 0)], Sampling(max_new_tokens=2)
RIGHT = [[Completion.of_one_turn((6, 1, 14), (-1.0, -0.5, 1e-7), "length", 3)],
         [Completion.of_one_turn((1,), (0.0,), "stop", 2)]]  # fmt: skip


def element(name: str, value: object) -> Change:
    """Another first element of an array."""

    def change(_: dict[str, Any], arrays: dict[str, Any]) -> None:
        arrays[name] = np.array([value, *arrays[name][1:]])

    return change


def field(**named: Any) -> Change:
    return lambda content, _: content.update(named)


def span(**named: Any) -> Change:
    return lambda content, _: content["spans"][0][0].update(named)


WRONG: dict[str, tuple[Change, str]] = {
    "an id beyond the vocabulary": (element("tokens", 15), "completion 0: id 15 is not one of the model's, .* 0 to 14"),
    "an id below 0": (element("tokens", -1), "id -1 is not"),
    "half an id": (element("tokens", 0.5), "id 0.5 is not"),
    "NaN": (element("logp_engine", np.nan), "a log-probability of nan"),
    "-inf": (element("logp_engine", -np.inf), "a log-probability of -inf"),
    "a probability above 1": (element("logp_engine", 0.1), "a log-probability of 0.1"),
    "no finish": (field(finish=[None, "stop"]), "finish is None, where it is one of stop, length"),
    "another finish": (field(finish=["abort", "stop"]), "finish is 'abort'"),
    "a stop string of its own": (field(stop=["x", ""]), "a stop string that was not asked for"),
    "another count": (field(groups=[2, 0]), "2 completions of 2 requests for 2 of 2|tokens"),
    "a request less": (field(groups=[1]), "1 completions of 1 requests for 2 of 2"),
    "more than it has": (field(groups=[1, 1, 10**9]), "IndexError"),
    "too many tokens": (lambda c, _: c.update(tokens=[1, 3], spans=[c["spans"][1], c["spans"][0]]), "3 tokens, where"),
    "the future": (span(version=4), "sampled by version 4 of the weights, which has version 3"),
    "before the start": (span(version=-1), "version -1"),
    "an environment's": (span(own=False), "span"),
    "a mark that is a number": (span(own=1), "spans that are no engine's"),
    "a start that is half a number": (span(start=0.0), "spans that are no engine's"),
    "what a terminal obeys": (span(version="\x1b[2J"), "spans that are no engine's"),
    "a count below 0": (field(groups=[2, -1]), "ValueError|islice"),
    "supports of a type that torch half knows": (
        lambda c, a: (c.update(support_ids=[3, None], support_start=[4, None]),
                      a.update(support_ids=np.array([1, 2, 14], np.uint64), support_start=np.arange(4))),
        "sampling supports are not ids",
    ),
    "experts below 0": (
        lambda c, a: (c.update(routes=[4, None]), a.update(routes=np.full((4, 1, 1), -1, np.int16))), "experts of shape"
    ),
    "a gap": (span(start=1), "without gaps"),
    "an unknown origin": (span(whence=1), "KeyError"),
    "work not to be done": (field(tokens_run=10**30), "tokens were computed"),
    "supports outside": (
        lambda c, a: (c.update(support_ids=[3, None], support_start=[4, None]),
                      a.update(support_ids=np.array([1, 2, 15], np.int32), support_start=np.arange(4))),
        "sampling supports are not ids from 0 to 14",
    ),
    "experts of other tokens": (
        lambda c, a: (c.update(routes=[3, None]), a.update(routes=np.zeros((3, 1, 1), np.uint8))), "for 4 tokens"
    ),
    "likely ids that were not asked for": (
        lambda c, a: (c.update(top=[True, False]),
                      a.update(top_ids=np.zeros((3, 1), np.int32), top_logp=np.zeros((3, 1), np.float32))),
        "its most likely ids are not 0 from 0 to 14 for each token"
    ),
    "nothing": (lambda c, _: c.clear(), "KeyError"),
}  # fmt: skip


def asked(messages: list[Message], on_finish: Callable[[Finished], None] | None = None) -> wire.Generated:
    """What a run gets of an engine that sends these."""
    ours, theirs = map(Channel, socket.socketpair())
    line: Any = Peer(ours)
    line.pid = None

    def other() -> None:
        theirs.receive(5)
        for content, arrays in messages:
            codec.send(theirs, content, arrays)

    thread = threading.Thread(target=other)
    thread.start()
    process = EngineProcess(line, "engine.address = 'gpu-1:7001'")
    process._vocabulary, process._version = 15, 3  # as `start` and `load` have them
    try:
        return process.generate(REQUESTS, SAMPLING, on_finish, 5.0)
    finally:
        thread.join()
        ours.close()
        theirs.close()


def answer(change: Change = lambda content, arrays: None) -> Message:
    content, arrays = wire.answer_message(RIGHT, 5)
    changed = dict(arrays)
    change(content, changed)
    return Message({"answer": content}, changed)


def test_a_right_answer_is_taken() -> None:
    done = Finished(1, 0, (1,), "stop")
    told: list[Finished] = []
    came = asked([Message(wire.finished_message(done), {}), answer()], told.append)
    assert [[c.tokens for c in group] for group in came.groups] == [[(6, 1, 14)], [(1,)]]
    assert told == [done]


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_answer_is_refused_in_one_line_that_names_the_engine(name: str) -> None:
    change, words = WRONG[name]
    with pytest.raises(RunError, match=rf"^engine.address = 'gpu-1:7001': what came back is no answer .*({words})"):
        asked([answer(change)])


TOPS: dict[str, tuple[Any, Any]] = {
    "none": (None, None),
    "of two ids": (np.zeros((3, 2), np.int32), np.zeros((3, 2), np.float32)),
    "beyond the vocabulary": (np.full((3, 4), 15, np.int32), np.zeros((3, 4), np.float32)),
    "below 0": (np.full((3, 4), -1, np.int32), np.zeros((3, 4), np.float32)),
    "NaN": (np.zeros((3, 4), np.int32), np.full((3, 4), np.nan, np.float32)),
    "above 1": (np.zeros((3, 4), np.int32), np.full((3, 4), 0.5, np.float32)),
    "of half numbers": (np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32)),
}


@pytest.mark.parametrize("name", TOPS)
def test_likely_ids_that_were_asked_for_are_there_and_are_ids(name: str) -> None:
    logp = torch.tensor([[-0.5, -1, -9, -math.inf]] * 3)
    good = SamplerTop(torch.tensor([[0, 14, 3, 7]] * 3, dtype=torch.int32), logp)
    ids, logp = TOPS[name]
    bad = None if ids is None else SamplerTop(torch.from_numpy(ids), torch.from_numpy(logp))
    asked_for = Asked([dataclasses.replace(REQUESTS[0], top=4)], SAMPLING, vocabulary=15, version=3)
    asked_for.require_answer(Generated([(dataclasses.replace(RIGHT[0][0], top=good),)], 5))
    with pytest.raises(ValueError, match="its most likely ids are not 4 from 0 to 14 for each token"):
        asked_for.require_answer(Generated([(dataclasses.replace(RIGHT[0][0], top=bad),)], 5))


def test_what_is_repeated_of_an_answer_holds_nothing_that_a_terminal_obeys() -> None:
    for name in ("tokens_run", "finish", "stop"):
        with pytest.raises(RunError) as error:
            asked([answer(field(**{name: "\x1b[2J" if name == "tokens_run" else ["\x1b[2J", "stop"]}))])
        assert str(error.value).isprintable()


@pytest.mark.parametrize(
    "done",
    [Finished(2, 0, (1,), "stop"), Finished(0, 1, (1,), "stop"), Finished(-1, 0, (1,), "stop"),
     Finished(0, 0, (15,), "stop"), Finished(0, 0, (1,), "x"), Finished(1, 0, (1, 1, 1), "stop")],
)  # fmt: skip
def test_a_completion_that_was_not_asked_for_is_not_heard_of(done: Finished) -> None:
    told: list[Finished] = []
    with pytest.raises(RunError, match="what came back is no answer to what was asked: "):
        asked([Message(wire.finished_message(done), {}), answer()], told.append)
    assert not told


@pytest.mark.parametrize("arrays", [{"tokens": ["int64", [-1]]}, {"tokens": ["O", [1]]}, {"tokens": ["x", [1]]}, 5])
def test_arrays_that_cannot_be_are_refused(arrays: Any) -> None:
    ours, theirs = map(Channel, socket.socketpair())
    line: Any = Peer(ours)
    line.pid = None
    theirs.send({"answer": {}, "arrays": arrays})
    theirs.send_raw(b"\0" * 8)
    with pytest.raises(RunError, match="what came back is no answer to what was asked: "):
        EngineProcess(line).generate(REQUESTS, SAMPLING, None, 5.0)
    ours.close()
    theirs.close()
