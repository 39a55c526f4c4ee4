"""Runs whose loss reads the sampler's most likely ids: they go on exactly, and what cannot be is one line."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.core.errors import UsageError
from tests.runs.test_run import assert_goes_on
from tests.runs.tiny_runs import tiny_run, weights_after

NAMED = {"algorithm__name": "score-centering", "checks__witness": "stop", "checks__witness_every": 1}


@pytest.mark.parametrize("kind", ["centered", "centered-tis", "centered-mis"])
def test_a_run_whose_completions_wait_in_checkpoints_goes_on_exactly(tmp_path: Path, kind: str):
    """Half sampled, with their likely ids; the witness reads loss and gradient a second time, and stops at nothing."""
    few = partial(tiny_run, tmp_path, **NAMED, algorithm__trust__kind=kind, algorithm__trust__k=4)
    whole = groupwise.train("quickstart", few(steps=3, rollout__turn_tokens=2)).folder
    log = (whole / "log.txt").read_text()
    assert "with the 4 most likely ids of each token, which the loss reads: 32 bytes a token" in log
    assert "witness: the loss is by its definition: pass" in log
    assert_goes_on(whole, 3, 2)


def test_all_ids_of_the_vocabulary_are_those_of_more_than_it_has_and_change_what_is_learned(tmp_path: Path):
    runs = [
        groupwise.train("quickstart", tiny_run(tmp_path, **NAMED, name=f"run{k}", **{"algorithm.trust.k": k})).folder
        for k in (16, 128, 1)
    ]
    weights = [weights_after(run, 2) for run in runs]
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.slow
def test_an_engine_in_a_child_gives_the_run_of_the_one_inside(tmp_path: Path):
    inside, child = (
        groupwise.train("quickstart", tiny_run(tmp_path, **NAMED, name=f"run{i}", **more)).folder
        for i, more in enumerate(({}, {"engine.process": "child"}))
    )
    assert weights_after(inside, 2) == weights_after(child, 2)


@pytest.mark.parametrize("cut", [{"sampling.top_p": 0.9}, {"sampling.top_k": 3}, {"sampling.min_p": 0.1}])
def test_a_sampling_that_leaves_ids_out_is_refused_in_a_line(tmp_path: Path, cut: dict[str, Any]):
    (key,) = cut
    with pytest.raises(UsageError, match=rf"algorithm\.trust\.kind, centered.*, with {key} = .*take {key} out") as said:
        groupwise.train("quickstart", {**tiny_run(tmp_path, **NAMED), **cut})
    assert "\n" not in str(said.value)
