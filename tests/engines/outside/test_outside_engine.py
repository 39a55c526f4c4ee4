"""An engine in another process gives the bits of the one inside, whatever happens to that process; several give its
tokens.

The processes serve the whole file: they are started again by the tests that end them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from groupwise.core.engine import Finished, Request, Sampling
from groupwise.core.errors import ProcessLost, RunError, UsageError
from groupwise.core.processes.place import HERE
from groupwise.engines.local import engine as local_engine
from groupwise.engines.make import make_engine
from groupwise.engines.outside import connection
from groupwise.engines.outside.client import RemoteEngine, Replicas
from groupwise.engines.outside.newest import NewestWeights
from groupwise.engines.settings import EngineSettings
from groupwise.models.load import Policy
from tests.core.test_children import ended
from tests.engines.outside.made import (
    ENDLESS,
    LONG,
    MANY,
    REQUESTS,
    SAMPLINGS,
    assert_alike,
    assert_same,
    fields,
    listening,
    noted,
    process_of,
    weights,
)
from tests.engines.outside.test_card_weights import WAY, Memory
from tests.warm import warm_starts

PLAIN = SAMPLINGS["plain"]


@pytest.fixture(scope="module")
def engines(experts: Policy) -> Iterator[Any]:
    """The engine inside, others by where they are, what they have noted, and the server of the one at an address."""
    notes: list[str] = []

    def make(**settings: Any) -> Any:
        return make_engine(policy=experts, settings=EngineSettings(**settings), routes=True, note=notes.append)

    with warm_starts(), listening() as there:
        three = make(process="child", count=3)
        assert isinstance(three, Replicas)
        by_place = {"child": make(process="child"), "three": three, "address": make(address=there.address)}
        by_place["two"] = Replicas(three._members[:2], three._weights)
        yield SimpleNamespace(inside=make(), **by_place, notes=notes, there=there, versions=itertools.count(1))
        for place in ("child", "three", "address"):
            by_place[place].close()


@pytest.fixture(params=["child", "two", "three", "address"])
def pair(request: pytest.FixtureRequest, engines: Any, experts: Policy) -> Any:
    """The engine inside and another one, with the same new weights."""
    other, version = getattr(engines, request.param), next(engines.versions)
    for engine in (engines.inside, other):
        engine.load_weights(weights(experts, 1.0).items(), version)
    engines.notes.clear()
    same = assert_alike if request.param in ("two", "three") else assert_same
    victim = getattr(other, "_members", [other])[-1]
    return SimpleNamespace(
        inside=engines.inside, other=other, same=same, victim=victim, version=version, place=request.param
    )


@pytest.fixture
def child(engines: Any, experts: Policy) -> Any:
    version = next(engines.versions)
    for engine in (engines.inside, engines.child):
        engine.load_weights(weights(experts, 1.0).items(), version)
    return engines.child


def test_it_declares_what_the_engine_inside_declares(pair: Any) -> None:
    for name in ("routes", "keeps_support", "keeps_top", "options", "precision", "version"):
        assert getattr(pair.other, name) == getattr(pair.inside, name), name


def test_the_likely_ids_are_those_of_the_engine_inside(pair: Any) -> None:
    requests = [replace(request, top=5) for request in REQUESTS]
    sampling = Sampling(max_new_tokens=9, temperature=0.7, logit_bias={5: -100.0})
    ours, theirs = (engine.generate(requests, sampling) for engine in (pair.inside, pair.other))
    pair.same(ours, theirs)
    for one, other in zip(sum(ours, ()), sum(theirs, ()), strict=True):
        assert one.top.ids.shape == (len(one.tokens), 5)
        assert torch.equal(one.top.ids, other.top.ids)
        torch.testing.assert_close(one.top.logp, other.top.logp, rtol=1e-5, atol=1e-5)


def test_in_float16_they_are_those_of_the_engine_inside_and_refuse_the_same_weights(experts: Policy) -> None:
    beyond = weights(experts, 1.0) | {"lm_head.weight": torch.full_like(experts.model.lm_head.weight, 7e4)}
    answers, words = [], []
    with warm_starts(), listening() as there:
        places: list[dict[str, Any]] = [{}, {"process": "child"}, {"address": there.address}]
        for place in places:
            engine = make_engine(policy=experts, settings=EngineSettings(precision="fp16", **place))
            with contextlib.closing(engine):
                assert engine.precision == "fp16"
                engine.load_weights(weights(experts, 1.01).items(), 3)
                answers.append(engine.generate(REQUESTS, PLAIN))
                with pytest.raises(RunError, match=r"^lm_head\.weight .*: the engine keeps version 3; ") as error:
                    engine.load_weights(beyond.items(), 4)
            words.append(str(error.value))
    for other in answers[1:]:
        assert_same(other, answers[0])
    assert len(set(words)) == 1


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_completions_are_those_of_the_engine_inside(pair: Any, sampling: Sampling) -> None:
    for requests in (REQUESTS, MANY, MANY[:1], []):
        expected = pair.inside.generate(requests, sampling)
        pair.same(pair.other.generate(requests, sampling), expected)
        assert all(c.routes is not None for group in expected for c in group)


def test_completions_are_told_as_they_end_each_once(pair: Any) -> None:
    told: list[Finished] = []
    groups = pair.other.generate(MANY, PLAIN, told.append)
    assert len({(done.request, done.sample) for done in told}) == len(told) == sum(map(len, groups))
    assert [groups[done.request][done.sample].tokens for done in told] == [done.tokens for done in told]
    inside: list[Finished] = []
    pair.inside.generate(MANY, PLAIN, inside.append)
    assert told == inside or pair.same is assert_alike


def test_what_the_engine_refuses_is_refused_in_the_same_words(pair: Any) -> None:
    asked = [
        ([], Sampling(stop_ids=(99,))),
        ([Request((4,) * 510, 1, 0)], Sampling(max_new_tokens=9)),
        ([Request((99,), 1, 0)], Sampling(max_new_tokens=9)),
    ]
    pair.other.generate(REQUESTS, PLAIN)
    pid = pair.victim.pid
    for requests, sampling in asked:
        words = []
        for engine in (pair.inside, pair.other):
            with pytest.raises(UsageError) as error:
                engine.generate(requests, sampling)
            words.append(str(error.value))
        assert words[0] == words[1]
    pair.other.generate(REQUESTS, PLAIN)
    assert pair.victim.pid == pid, "a refusal is an answer"


def test_loaded_weights_are_those_that_sample(pair: Any, engines: Any, experts: Policy) -> None:
    before, version = pair.other.generate(REQUESTS, PLAIN), next(engines.versions)
    for engine in (pair.inside, pair.other):
        engine.load_weights(weights(experts, 1.1).items(), version)
        assert engine.version == version
    after = pair.other.generate(REQUESTS, PLAIN)
    pair.same(after, pair.inside.generate(REQUESTS, PLAIN))
    assert {c.version for group in after for c in group} == {version}
    assert fields(after[0][0]) != fields(before[0][0])


def test_weights_that_do_not_arrive_whole_change_nothing_and_say_why(
    pair: Any, experts: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, given = pair.other.generate(REQUESTS, PLAIN), weights(experts, 1.2)
    missing, keeps = list(given)[3], f"which keeps version {pair.version}: "
    lacking = {name: tensor for name, tensor in given.items() if name != missing}
    for wrong, words in (
        (lacking, f"{keeps}missing: {missing}"),
        ({**given, "no.such": torch.zeros(2)}, f"{keeps}unexpected: no.such"),
        ({**given, missing: torch.zeros(2)}, f"of another shape: {missing} (2,) for "),
    ):
        with pytest.raises(RunError) as error:
            pair.other.load_weights(wrong.items(), version=999)
        assert words in str(error.value)
        assert "\n" not in str(error.value)
    shared = pair.other._weights._host
    write, array = shared.write, shared.array

    def written_wrong(tensors: Any, version: int) -> Any:
        stamp = write(tensors, version)
        os.pwrite(shared.descriptor, b"?", 5000)
        return stamp

    def changed() -> np.ndarray:
        data = array().copy()
        data[5000] ^= 1
        return data

    with monkeypatch.context() as patch:
        patch.setattr(shared, *(("array", changed) if pair.place == "address" else ("write", written_wrong)))
        with pytest.raises(RunError, match=r"^the weights of version 999 did not arrive whole: their checksum is "):
            pair.other.load_weights(given.items(), version=999)
    assert pair.other.version == pair.version
    pair.same(pair.other.generate(REQUESTS, PLAIN), before)


def killed_while_decoding(pair: Any, engines: Any, seed: int) -> None:
    """Kill a process after one of the completions has ended, at random, and compare what comes of it."""
    expected = pair.inside.generate(LONG, ENDLESS)
    pair.other.generate(LONG, Sampling(max_new_tokens=1))
    # Of several processes the one that is killed may have ended its part before the others.
    most = 1 if isinstance(pair.other, Replicas) else 8
    count, told, before = random.Random(seed).randint(1, most), list[Finished](), pair.other.restarts
    killed = process_of(engines.there.server) if pair.place == "address" else pair.victim.pid
    engines.notes.clear()

    def kill(done: Finished) -> None:
        told.append(done)
        if len(told) == count:
            with contextlib.suppress(ProcessLookupError):
                os.kill(killed, signal.SIGKILL)

    pair.same(pair.other.generate(LONG, ENDLESS, kill), expected)
    assert pair.other.restarts == before + 1
    assert killed != (process_of(engines.there.server) if pair.place == "address" else pair.victim.pid)
    assert len({(done.request, done.sample) for done in told}) == len(told) == sum(map(len, expected))
    assert all(expected[done.request][done.sample].tokens == done.tokens for done in told)
    (note,) = engines.notes
    how = (
        "it closed its connection; groupwise serve at 127.0.0.1:" if pair.place == "address" else "it ended: killed by"
    )
    assert note.startswith(f"engine       its process is lost: {how}")
    assert note.endswith("; it is started again (1 of 2 in a row) and asked the same")


def test_one_that_is_killed_while_it_decodes_answers_all_the_same(pair: Any, engines: Any) -> None:
    """After a load: the new process gets the weights of that version, and the buffers of the beginning."""
    killed_while_decoding(pair, engines, seed=0)
    assert pair.place != "address" or noted(engines.there, "has lost its engine: killed by SIGKILL")


@pytest.mark.slow
def test_ten_kills_at_random_moments(pair: Any, engines: Any) -> None:
    for seed in range(10):
        killed_while_decoding(pair, engines, seed)


def test_a_child_that_stalls_is_named_within_its_deadline(child: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    child.generate(LONG, ENDLESS)  # the first time may take longer
    monkeypatch.setattr(child, "_settings", child._settings.replace(deadline=1.5, restarts=0))
    pid, stopped = child.pid, []

    def stop(_: Finished) -> None:
        if not stopped:
            os.kill(pid, signal.SIGSTOP)
            stopped.append(time.monotonic())

    with pytest.raises(RunError) as error:
        child.generate(LONG, ENDLESS, stop)
    assert 1.0 < time.monotonic() - stopped[0] < 6.0
    assert str(error.value) == (
        "the engine's process is lost, and engine.restarts = 0: it gave no sign of progress for 1.5 seconds; resume "
        "the run to go on from its newest checkpoint"
    )
    assert child.pid is None
    assert ended(pid)


def test_one_that_stalls_as_it_starts_again_is_waited_for_no_longer_than_it_once_took(
    child: Any, engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for the ten minutes that a first start may take; and the run says how long it waits."""
    reach, again = child._reach, []

    def stopped(is_again: bool) -> Any:
        reached = reach(is_again)
        os.kill(reached.line.pid, signal.SIGSTOP)
        again.append(time.monotonic())
        return reached

    child.generate(LONG, ENDLESS)
    assert 0 <= child._silence < 60
    monkeypatch.setattr(child, "_settings", child._settings.replace(deadline=1.0, restarts=1, start_deadline=600))
    monkeypatch.setattr(child, "_silence", 0.3)
    monkeypatch.setattr(child, "_reach", stopped)
    engines.notes.clear()
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(ProcessLost, match=r"it gave no sign of progress for 1\.5 seconds"):
        child.generate(LONG, ENDLESS)
    assert time.monotonic() - again[0] < 10
    (note,) = engines.notes
    assert (
        "; the run waits, up to 1.5 seconds without a sign of progress; it is started again (1 of 1 in a row)" in note
    )


def test_a_listener_that_fails_ends_the_question_and_not_the_engine(child: Any) -> None:
    class Broken(Exception):
        pass

    def fail(_: Finished) -> None:
        raise Broken

    with pytest.raises(Broken):
        child.generate(REQUESTS, SAMPLINGS["plain"], fail)
    assert child.pid is None, "what it still answers would be taken for the next answer"


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
    pid, descriptor = flooded.pid, flooded._weights._host.descriptor
    assert pid is not None
    flooded.close()
    flooded.close()
    assert ended(pid)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    for use in (lambda: flooded.generate(requests, SAMPLINGS["plain"]), lambda: flooded.load_weights([], version=1)):
        with pytest.raises(RunError, match=r"^the engine is closed$"):
            use()


@pytest.mark.parametrize("place", ["inside", "child", "two"])
def test_an_engine_that_samples_in_rows_where_slots_were_wanted_says_why_once(
    place: str, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place == "inside":
        monkeypatch.setattr(local_engine, "LocalEngine", partial(local_engine.LocalEngine, slots=True))
        monkeypatch.setattr(local_engine, "make_slots", lambda *_, **__: (None, "no kernel here"))
    monkeypatch.setattr(connection, "SERVER", "tests.engines.outside.without_slots")
    notes: list[str] = []
    settings: dict[str, Any] = {"inside": {}, "child": {"process": "child"}, "two": {"process": "child", "count": 2}}
    with warm_starts():
        make_engine(policy=policy, settings=EngineSettings(**settings[place]), note=notes.append).close()
    assert notes == ["engine       rows: no kernel here"]


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
    assert said.endswith("; give the same command again") == ("exit code" not in words)


def test_an_engine_that_slept_gives_the_same_completions(pair: Any) -> None:
    """Be there no load between: it is loaded before it samples."""
    before = pair.inside.generate(REQUESTS, PLAIN)
    for engine in (pair.inside, pair.other):
        engine.sleep()
        engine.sleep()
    assert_same(pair.inside.generate(REQUESTS, PLAIN), before)
    pair.same(pair.other.generate(REQUESTS, PLAIN), before)
    assert pair.other.version == pair.version


def test_a_process_without_a_gpu_says_so_and_gets_the_weights_through_memory(engines: Any, experts: Policy) -> None:
    """A run that takes its child for one on its GPU, and lays the weights out there: here no child has a GPU."""
    memory, notes = Memory(), list[str]()
    newest = NewestWeights({}, memory.weights(), notes.append)
    newest.write({**dict(experts.model.named_buffers()), **weights(experts, 1.0)}, 0)
    settings = EngineSettings(process="child")
    reach = connection.reach_place(HERE, None, 60.0)
    child = RemoteEngine(experts, settings, True, notes.append, reach, newest, owns_weights=True)
    try:
        assert notes == [f"{WAY}: torch finds no GPU there"]
        assert memory.released == list(memory.buffers), "its handle was opened by nobody"
        version = next(engines.versions)
        for engine in (engines.inside, child):
            engine.load_weights(weights(experts, 0.9).items(), version)
        assert_same(child.generate(REQUESTS, PLAIN), engines.inside.generate(REQUESTS, PLAIN))
    finally:
        child.close()
    assert len(notes) == 1


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["asleep", "falling asleep"])
def test_a_process_that_is_lost_asleep_is_started_again_with_the_newest_weights(
    engines: Any, child: Any, experts: Policy, lost: str
) -> None:
    before, restarts = engines.inside.generate(REQUESTS, PLAIN), child.restarts
    if lost == "asleep":
        child.sleep()
    os.kill(child.pid, signal.SIGKILL)
    child.sleep()
    assert_same(child.generate(REQUESTS, PLAIN), before)
    assert child.restarts == restarts + 1
    for engine in (engines.inside, child):
        engine.sleep()
        engine.load_weights(weights(experts, 0.9).items(), next(engines.versions))
    (mine, theirs) = (engine.generate(REQUESTS, PLAIN) for engine in (child, engines.inside))
    assert [[c.tokens for c in group] for group in mine] == [[c.tokens for c in group] for group in theirs]
