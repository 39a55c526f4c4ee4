"""Several engines answer as one does, whatever their number, and with one of them lost."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import groupwise
from groupwise.core.engine import Request, Sampling
from groupwise.core.errors import UsageError
from groupwise.core.peer import PeerLost
from groupwise.engines.make import make_engine
from groupwise.engines.outside.client import RemoteEngine, Replicas
from groupwise.engines.outside.connection import SERVER
from groupwise.engines.outside.spec import newest_weights
from groupwise.engines.settings import EngineSettings
from groupwise.models.load import Policy
from tests.engines.outside.made import MANY, SAMPLINGS, assert_alike, listening, noted, weights
from tests.runs.tiny_runs import own_processes, tiny_run
from tests.warm import warm_starts


@pytest.fixture(scope="module", autouse=True)
def _forked() -> Iterator[None]:
    with warm_starts():
        yield


@pytest.fixture(scope="module")
def engines(experts: Policy) -> Iterator[dict[int, Any]]:
    """One inside, three children, and two of these as two engines."""
    three = make_engine(policy=experts, settings=EngineSettings(process="child", count=3))
    assert isinstance(three, Replicas)
    yield {
        1: make_engine(policy=experts, settings=EngineSettings()),
        2: Replicas(three._members[:2], three._weights),
        3: three,
    }
    three.close()


def test_each_answers_its_part_and_the_tokens_that_were_computed_are_those_of_one(engines: dict[int, Any]) -> None:
    computed = {}
    for count, engine in engines.items():
        members = [member.tokens_run for member in engines[3]._members]
        before = engine.tokens_run
        engine.generate(MANY, SAMPLINGS["plain"])
        computed[count] = engine.tokens_run - before
    assert computed[1] == computed[2] == computed[3]
    parts = [m.tokens_run - b for m, b in zip(engines[3]._members, members, strict=True)]
    assert all(part > computed[3] / 6 for part in parts)


def test_what_an_engine_holds_is_gone_on_from_there(engines: dict[int, Any]) -> None:
    """Turns of episodes that end at different times, so that their places in a call change."""
    sampling = Sampling(max_new_tokens=4, logit_bias={1: -100.0})
    prompts = [Request((4, 5, 6 + i), samples=2, seed=i, hold=True) for i in range(5)]
    ends = {}
    for count, engine in engines.items():
        first = engine.generate(prompts, sampling)
        live = [
            Request((*p.tokens, *c.tokens, 9), 1, seed=p.seed + 50, first=j, held=len(p.tokens) + len(c.tokens))
            for p, group in zip(prompts, first, strict=True)
            for j, c in enumerate(group)
            if (p.seed + j) % 3
        ]
        before = engine.tokens_run
        ends[count] = engine.generate(live, sampling), engine.tokens_run - before
    for count in (2, 3):
        assert_alike(ends[count][0], ends[1][0])
        assert ends[count][1] == ends[1][1] == len(ends[1][0]) * 5, (
            "two tokens of the history, and three that were drawn"
        )


def test_where_one_does_not_start_none_is_left(experts: Policy, tmp_path: Any) -> None:
    starts = tmp_path / "starts"
    program = tmp_path / "python"
    program.write_text(
        f'#!/bin/sh\nif mkdir {starts} 2>/dev/null; then echo planted >&2; exit 3; fi\nexec {sys.executable} "$@"\n'
    )
    program.chmod(0o755)
    settings = EngineSettings(process="child", count=2, python=str(program))
    before = own_processes(SERVER)
    with pytest.raises(UsageError, match=r"did not start: it ended: exit code 3 \(planted\)"):
        make_engine(policy=experts, settings=settings)
    assert own_processes(SERVER) == before


def test_one_that_does_not_start_leaves_the_weights_to_those_that_do(experts: Policy) -> None:
    """Another may be about to send them to its process, at that moment."""

    def lost(again: bool) -> Any:
        raise PeerLost("planted")

    weights = newest_weights(experts)
    try:
        with pytest.raises(UsageError, match="planted"):
            RemoteEngine(
                experts, EngineSettings(process="child"), routes=False, note=print, reach=lost, weights=weights
            )
        assert os.fstat(weights._host.descriptor).st_size == weights._host.array().nbytes > 0
    finally:
        weights.close()


@pytest.mark.slow
def test_engines_at_two_addresses_answer_as_one_and_each_with_its_part(
    engines: dict[int, Any], experts: Policy
) -> None:
    with listening() as here, listening() as there:
        settings = EngineSettings(address=f"{here.address},{there.address}")
        assert settings.address == f"{here.address}, {there.address}"
        several = make_engine(policy=experts, settings=settings)
        assert isinstance(several, Replicas)
        try:
            for version, scale in ((31, 0.9), (32, 1.0)):
                several.load_weights(weights(experts, scale).items(), version)
                engines[1].load_weights(weights(experts, scale).items(), version)
                sampling = SAMPLINGS["plain"]
                assert_alike(several.generate(MANY, sampling), engines[1].generate(MANY, sampling))
            assert all(member.tokens_run for member in several._members)
        finally:
            several.close()
        assert noted(here, "has gone")
        assert noted(there, "has gone")


@pytest.mark.parametrize(
    ("text", "words"), [("a:7001,a:7001", "there twice"), ("a:7001,", "HOST:PORT"), ("a:7001, b:0", "port 0")]
)
def test_addresses_that_are_none_are_one_line(text: str, words: str, tmp_path: Any) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        groupwise.train("quickstart", tiny_run(tmp_path, engine__address=text))
    assert "\n" not in str(refused.value)
