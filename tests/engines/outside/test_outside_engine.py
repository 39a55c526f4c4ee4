"""An engine in a child gives the bits of the one inside, whatever happens to its process.

One child serves the whole file: it is started again by the tests that end it.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from groupwise.core.engine import Finished, Request, Sampling
from groupwise.core.errors import RunError, UsageError
from groupwise.engines.make import make_engine
from groupwise.engines.outside import connection
from groupwise.engines.outside.client import RemoteEngine
from groupwise.engines.settings import EngineSettings
from groupwise.models.load import Policy
from tests.core.test_children import ended
from tests.engines.outside.completions import assert_same, fields
from tests.warm import warm_starts

REQUESTS = [
    Request((4, 5, 6), samples=3, seed=1),
    Request((7,), samples=4, seed=2**62),
    Request((4, 5, 6, 12, 2), samples=2, seed=3, max_new_tokens=5),
]
#: Eight completions that end in the first eight steps, and many that go on for a while after them.
LONG = [
    *(Request((4, 5, 6), samples=1, seed=limit, max_new_tokens=limit) for limit in range(1, 9)),
    Request((7, 8), samples=48, seed=9),
]
ENDLESS = Sampling(max_new_tokens=200, logit_bias={1: -100.0})
SAMPLINGS = {
    "plain": Sampling(max_new_tokens=20),
    "colder, over a support": Sampling(max_new_tokens=12, temperature=0.7, top_p=0.8, top_k=6, min_p=0.01),
    "ends of its own": Sampling(max_new_tokens=20, stop=("1", "=2"), stop_ids=(3,), min_new_tokens=2),
    "greedy with biases": Sampling(max_new_tokens=9, temperature=0, logit_bias={5: -100.0, 7: 0.1}),
    "penalised": Sampling(max_new_tokens=9, repetition_penalty=1.3),
}


@pytest.fixture(scope="module", autouse=True)
def _forked() -> Iterator[None]:
    with warm_starts():
        yield


@pytest.fixture(scope="module")
def both(experts: Policy) -> Iterator[Any]:
    """The engine inside, the one in a child, and what the latter has noted."""
    notes: list[str] = []
    inside = make_engine(policy=experts, settings=EngineSettings(), routes=True)
    child = make_engine(policy=experts, settings=EngineSettings(process="child"), routes=True, note=notes.append)
    assert isinstance(child, RemoteEngine)
    yield SimpleNamespace(inside=inside, child=child, notes=notes)
    child.close()


def weights(policy: Policy, scale: float) -> dict[str, torch.Tensor]:
    """The policy's weights, each a little different."""
    return {name: parameter.detach() * scale for name, parameter in policy.model.named_parameters()}


def test_the_child_declares_what_the_engine_declares(both: Any) -> None:
    for name in ("routes", "keeps_support", "options", "precision", "version"):
        assert getattr(both.child, name) == getattr(both.inside, name), name


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_completions_have_the_bits_of_the_engine_inside(both: Any, sampling: Sampling) -> None:
    expected = both.inside.generate(REQUESTS, sampling)
    assert_same(both.child.generate(REQUESTS, sampling), expected)
    assert all(c.routes is not None for group in expected for c in group)
    assert both.child.generate([], sampling) == []


def test_completions_are_told_as_they_end_each_once(both: Any) -> None:
    told: list[Finished] = []
    groups = both.child.generate(REQUESTS, SAMPLINGS["plain"], told.append)
    inside: list[Finished] = []
    both.inside.generate(REQUESTS, SAMPLINGS["plain"], inside.append)
    assert told == inside
    assert len(told) == sum(map(len, groups))
    assert [groups[done.request][done.sample].tokens for done in told] == [done.tokens for done in told]


def test_what_the_engine_refuses_is_refused_in_the_same_words(both: Any) -> None:
    asked = [
        ([], Sampling(stop_ids=(99,))),
        ([Request((4,) * 510, 1, 0)], Sampling(max_new_tokens=9)),
        ([Request((99,), 1, 0)], Sampling(max_new_tokens=9)),
    ]
    for requests, sampling in asked:
        words = []
        for engine in (both.inside, both.child):
            with pytest.raises(UsageError) as error:
                engine.generate(requests, sampling)
            words.append(str(error.value))
        assert words[0] == words[1]
    pid = both.child.pid
    both.child.generate(REQUESTS, SAMPLINGS["plain"])
    assert both.child.pid == pid, "a refusal is an answer"


def test_loaded_weights_are_those_that_sample(both: Any, experts: Policy) -> None:
    before = both.child.generate(REQUESTS, SAMPLINGS["plain"])
    for engine in (both.inside, both.child):
        engine.load_weights(weights(experts, 1.1).items(), version=5)
        assert engine.version == 5
    after = both.child.generate(REQUESTS, SAMPLINGS["plain"])
    assert_same(after, both.inside.generate(REQUESTS, SAMPLINGS["plain"]))
    assert {c.version for group in after for c in group} == {5}
    assert fields(after[0][0]) != fields(before[0][0])


def test_weights_that_do_not_arrive_whole_change_nothing_and_say_why(
    both: Any, experts: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, version = both.child.generate(REQUESTS, SAMPLINGS["plain"]), both.child.version
    given = weights(experts, 1.2)
    missing = list(given)[3]
    lacking = {name: tensor for name, tensor in given.items() if name != missing}
    for wrong, words in (
        (lacking, f"which keeps version {version}: missing: {missing}"),
        ({**given, "no.such": torch.zeros(2)}, f"which keeps version {version}: unexpected: no.such"),
        ({**given, missing: torch.zeros(2)}, f"of another shape: {missing} (2,) for "),
    ):
        with pytest.raises(RunError) as error:
            both.child.load_weights(wrong.items(), version=6)
        assert words in str(error.value)
        assert "\n" not in str(error.value)
    write = both.child._weights.write

    def written_wrong(tensors: Any, version: int) -> Any:
        stamp = write(tensors, version)
        os.pwrite(both.child._weights.descriptor, b"?", 5000)
        return stamp

    with monkeypatch.context() as patch:
        patch.setattr(both.child._weights, "write", written_wrong)
        with pytest.raises(RunError) as error:
            both.child.load_weights(given.items(), version=6)
    assert str(error.value).startswith("the weights of version 6 did not arrive whole: their checksum is ")
    assert both.child.version == version
    assert_same(both.child.generate(REQUESTS, SAMPLINGS["plain"]), before)
    for engine in (both.inside, both.child):
        engine.load_weights(given.items(), version=7)
    expected = both.inside.generate(REQUESTS, SAMPLINGS["plain"])
    assert_same(both.child.generate(REQUESTS, SAMPLINGS["plain"]), expected)


def test_a_child_that_stalls_is_named_within_its_deadline(both: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    both.child.generate(LONG, ENDLESS)  # the first time may take longer
    monkeypatch.setattr(both.child, "_settings", both.child._settings.replace(deadline=1.5, restarts=0))
    pid, stopped = both.child.pid, []

    def stop(_: Finished) -> None:
        if not stopped:
            os.kill(pid, signal.SIGSTOP)
            stopped.append(time.monotonic())

    with pytest.raises(RunError) as error:
        both.child.generate(LONG, ENDLESS, stop)
    assert 1.0 < time.monotonic() - stopped[0] < 6.0
    assert str(error.value) == (
        "the engine's process is lost, and engine.restarts = 0: it gave no sign of progress for 1.5 seconds; resume "
        "the run to go on from its newest checkpoint"
    )
    assert both.child.pid is None
    assert ended(pid)


def killed_while_decoding(both: Any, seed: int) -> None:
    """Kills the child after one of the completions has ended, at random, and compares what comes of it."""
    expected = both.inside.generate(LONG, ENDLESS)
    both.child.generate(REQUESTS[:1], SAMPLINGS["plain"])
    count, pid, told = random.Random(seed).randint(1, 8), both.child.pid, []
    both.notes.clear()
    before = both.child.restarts

    def kill(done: Finished) -> None:
        told.append(done)
        if len(told) == count:
            os.kill(pid, signal.SIGKILL)

    assert_same(both.child.generate(LONG, ENDLESS, kill), expected)
    assert both.child.pid != pid
    assert both.child.restarts == before + 1
    assert len({(done.request, done.sample) for done in told}) == len(told) == sum(map(len, expected))
    assert all(expected[done.request][done.sample].tokens == done.tokens for done in told)
    (note,) = both.notes
    assert note == (
        "engine       its process is lost: it ended: killed by SIGKILL; it is started again (1 of 2 in a row) and "
        "asked the same"
    )


def test_a_child_that_is_killed_while_it_decodes_answers_all_the_same(both: Any) -> None:
    """After a load: the new process gets the weights of that version, and the buffers of the beginning."""
    killed_while_decoding(both, seed=0)


@pytest.mark.slow
def test_ten_kills_at_random_moments(both: Any) -> None:
    for seed in range(10):
        killed_while_decoding(both, seed)


def test_a_listener_that_fails_ends_the_question_and_not_the_engine(both: Any) -> None:
    class Broken(Exception):
        pass

    def fail(_: Finished) -> None:
        raise Broken

    with pytest.raises(Broken):
        both.child.generate(REQUESTS, SAMPLINGS["plain"], fail)
    assert both.child.pid is None, "what it still answers would be taken for the next answer"


def test_a_flood_of_output_does_no_harm_and_a_closed_engine_is_gone(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SERVER", "tests.engines.outside.flooding")
    requests = [Request((4, 5, 6), samples=8, seed=1)]
    expected = make_engine(policy=policy, settings=EngineSettings()).generate(requests, SAMPLINGS["plain"])
    flooded = make_engine(policy=policy, settings=EngineSettings(process="child"))
    assert isinstance(flooded, RemoteEngine)
    for _ in range(3):
        assert_same(flooded.generate(requests, SAMPLINGS["plain"]), expected)
    pid, descriptor = flooded.pid, flooded._weights.descriptor
    assert pid is not None
    flooded.close()
    flooded.close()
    assert ended(pid)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    for use in (lambda: flooded.generate(requests, SAMPLINGS["plain"]), lambda: flooded.load_weights([], version=1)):
        with pytest.raises(RunError, match=r"^the engine is closed$"):
            use()


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("exec sleep 600", "it gave no sign of progress for 0.5 seconds"),
        ("exit 3", "it ended: exit code 3"),
        ("echo no such library >&2; exit 1", "it ended: exit code 1 (no such library)"),
        ("kill -9 $$", "it ended: killed by SIGKILL"),
        (f"exec {sys.executable} -S \"$@\"", "it ended: exit code 1 (ModuleNotFoundError: No module named "),
    ],
    ids=["silent", "ends", "says why", "killed", "without libraries"],
)  # fmt: skip
def test_an_interpreter_that_does_not_start_an_engine_is_one_line(
    program: str, words: str, policy: Policy, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    seconds = 0.5 if "sleep" in program else 60.0
    settings = EngineSettings(process="child", python=str(python), start_deadline=seconds)
    with pytest.raises(UsageError) as error:
        make_engine(policy=policy, settings=settings)
    said = str(error.value)
    assert said.startswith(f"engine.python = {str(python)!r}: the engine's process did not start: {words}")
    assert "\n" not in said
