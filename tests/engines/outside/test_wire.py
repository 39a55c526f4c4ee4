"""What crosses to another process and back is the same to the bit, and nothing of it is pickled."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from groupwise.core.channel import Channel
from groupwise.core.engine import Finished, Request, Sampling
from groupwise.core.processes import codec
from groupwise.core.processes.codec import Message
from groupwise.core.records import Completion, Span, Support
from groupwise.engines.outside import wire
from tests.engines.outside.made import assert_same

Ends = tuple[Channel, Channel]
SUPPORT = Support(torch.tensor([1, 5, 7, 2], dtype=torch.int32), torch.tensor([0, 3, 4]))
ROUTES = torch.arange(4 * 3 * 2).reshape(4, 3, 2)
WAYS = {
    "plain": [[Completion.of_one_turn((5, 6), (-0.1, -1 / 3), "stop", 3)], [], [
        Completion.of_one_turn((2**31, 0), (-1e-300, -0.0), "length", 3, stop="\n"),
        Completion.of_one_turn((1,), (-float("inf"),), "stop", 2**40),
    ]],
    "supports": [[Completion.of_one_turn((5, 6), (-0.5, -0.25), "stop", 0, support=SUPPORT)] * 2],
    "routes": [[Completion.of_one_turn((5, 6), (-0.5, -0.25), "stop", 0, routes=ROUTES.byte())] * 2],
    "routes above 256 experts": [[Completion.of_one_turn((5,), (-0.5,), "stop", 0, routes=ROUTES.short())]],
    "spans": [[Completion((5, 6, 7), (-0.5, 0.0, -0.25), "stop", (
        Span(0, 1, True, 1), Span(1, 2, False, 1), Span(2, 3, True, 2)
    ))]],
    "nothing": [],
}  # fmt: skip


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Both ends of a connection."""
    ours, theirs = map(Channel, socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.mark.parametrize("groups", WAYS.values(), ids=WAYS)
def test_completions_cross_a_socket_to_the_bit(groups: list[list[Completion]], ends: Ends) -> None:
    ours, theirs = ends
    sent = wire.answer_message(groups, 11)
    sender = threading.Thread(target=codec.send, args=(theirs, {"answer": sent.content}, sent.arrays))
    sender.start()
    came = codec.receive(ours, 5.0)
    sender.join()
    answer = wire.answer_of(Message(came.content["answer"], came.arrays))
    back = answer.groups
    assert answer.tokens_run == 11
    assert_same(groups, back)
    held = [t for group in back for c in group for t in (c.routes, c.support and c.support.ids) if t is not None]
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in held), "a part would hold the whole"


def test_arrays_of_any_size_come_whole_and_the_next_message_is_the_next(ends: Ends) -> None:
    ours, theirs = ends
    large = torch.arange(3_000_000).numpy()

    def speak() -> None:
        codec.send(theirs, {"first": 1}, {"large": large, "none": large[:0], "turned": large[:6].reshape(2, 3).T})
        theirs.send({"second": 2})

    speaker = threading.Thread(target=speak)
    speaker.start()
    content, arrays = codec.receive(ours, 20.0)
    assert content == {"first": 1}
    assert (arrays["large"] == large).all()
    assert arrays["none"].shape == (0,)
    assert arrays["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert ours.receive(5.0) == {"second": 2}
    speaker.join()


def test_half_a_message_ends_in_time(ends: Ends) -> None:
    ours, theirs = ends
    theirs.send({"arrays": {"tokens": ["int64", [4]]}})
    theirs.send_raw(b"\0" * 31)
    with pytest.raises(TimeoutError):
        codec.receive(ours, 0.2)


def test_a_peer_that_ends_within_an_array_is_an_end(ends: Ends) -> None:
    ours, theirs = ends
    theirs.send({"arrays": {"tokens": ["int64", [4]]}})
    theirs.send_raw(b"\0" * 31)
    theirs.close()
    with pytest.raises(EOFError):
        codec.receive(ours, 5.0)


def test_a_question_is_the_one_that_was_asked(ends: Ends) -> None:
    requests = (Request((5, 9), 4, 2**62 + 1), Request((1, 6), 1, 0, max_new_tokens=3, hold=True, held=2))
    sampling = Sampling(
        temperature=0.7,
        top_p=0.1 + 0.2,
        min_p=1e-9,
        logit_bias={7: -0.1},
        stop=("\n", "é"),
        stop_ids=(3, 4),
        min_new_tokens=2,
        max_new_tokens=9,
    )
    ours, theirs = ends
    theirs.send(wire.question(requests, sampling, listens=True))
    content = ours.receive(5.0)
    assert wire.requests_of(content) == requests
    assert wire.sampling_of(content).model_dump() == sampling.model_dump()
    assert content["listens"] is True
    done = Finished(1, 0, (5, 6), "stop")
    theirs.send(wire.finished_message(done))
    assert wire.finished_of(ours.receive(5.0)) == done


def test_nothing_in_the_folder_of_the_child_pickles() -> None:
    folder = Path(wire.__file__).parent
    assert len(list(folder.glob("*.py"))) > 5
    forbidden = ("import pickle", "torch.load", "torch.save", "multiprocessing")
    assert not [(path.name, word) for path in folder.glob("*.py") for word in forbidden if word in path.read_text()]
