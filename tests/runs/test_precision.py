"""Whole runs that are not in float32: the limits they go by, and that a resumed run goes by the same."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import groupwise
from groupwise.commands.build.engine import TOLERANCE
from groupwise.commands.train.train import resume
from groupwise.core.errors import CheckFailed
from groupwise.diagnostics.tolerance import Tolerance
from groupwise.engines.local.cache import RowCache
from groupwise.engines.local.engine import LocalEngine
from groupwise.health.checks import GAP_IS_LEVEL, LEARNER_IS_ENGINE, RATIOS_AVERAGE_ONE
from groupwise.journal.journal import read_metrics
from groupwise.training import checkpoint
from tests.runs.test_run import assert_same_run, weights
from tests.runs.tiny_runs import step_rows

BF16 = {"learner__precision": "bf16", "engine__precision": "bf16", "reference__precision": "bf16"}


def limits(folder: Path) -> list[float]:
    return [row["checks"][LEARNER_IS_ENGINE.name]["limit"] for row in read_metrics(folder) if "checks" in row]


def cut_back(whole: Path, name: str) -> Path:
    folder = whole.parent / name
    shutil.copytree(whole, folder)
    (checkpoint.folder_of(folder / "checkpoints", 3) / checkpoint.MANIFEST).unlink()
    return folder


def test_a_resumed_run_has_the_same_bits_and_the_limits_that_it_began_with(small):
    changes = small(**BF16, steps=3, checkpoint__keep=3, learner__learning_rate=1e-4)
    whole = groupwise.train("quickstart", {**changes, "name": "whole"}).folder
    kept = (whole / TOLERANCE).read_text()
    again = cut_back(whole, "again")
    assert resume(again).finished
    assert_same_run(whole, again)
    assert (again / TOLERANCE).read_text() == kept
    wider, damaged = cut_back(whole, "wider"), cut_back(whole, "damaged")
    tolerance = Tolerance.model_validate_json(kept)
    assert tolerance.engine is not None
    other = tolerance.model_copy(update={"engine": tolerance.engine.scaled(2.0)})
    (wider / TOLERANCE).write_text(other.model_dump_json())
    (damaged / TOLERANCE).write_text(kept[: len(kept) // 2])
    assert resume(wider).finished
    assert resume(damaged).finished
    assert limits(wider)[-1] == pytest.approx(2 * limits(whole)[-1], rel=1e-12)
    assert limits(damaged) == limits(whole)
    assert "cannot be read: it is measured again" in (damaged / "log.txt").read_text()


def test_a_float16_engine_has_limits_of_its_own_and_goes_on_to_the_bit(small):
    changes = small(engine__precision="fp16", reference__precision="fp16", steps=3, checkpoint__keep=3)
    whole = groupwise.train("quickstart", {**changes, "name": "whole"}).folder
    for row in step_rows(whole):
        assert 1e-5 < row["checks"][LEARNER_IS_ENGINE.name]["value"] < row["checks"][LEARNER_IS_ENGINE.name]["limit"]
        assert {check["verdict"] for check in row["checks"].values()} <= {"pass", "not measured"}
    again = cut_back(whole, "again")
    assert resume(again).finished
    assert_same_run(whole, again)
    assert limits(again) == limits(whole)
    assert max(limits(whole)) < 0.01, "a third of what bfloat16 would be allowed"


@pytest.mark.slow
def test_rounding_that_grew_is_measured_again_before_a_check_is_believed(small):
    """As if the policy had rounded ten thousand times less when the run began; the bits stay as they are."""
    changes = small(**BF16, steps=3, checkpoint__keep=3, learner__learning_rate=1e-4)
    whole = groupwise.train("quickstart", {**changes, "name": "whole"}).folder
    narrow = cut_back(whole, "narrow")
    began = Tolerance.model_validate_json((whole / TOLERANCE).read_text())
    names = ("passes", "engine", "probe", "reference")
    less = {name: getattr(began, name).scaled(1e-4) for name in names}
    (narrow / TOLERANCE).write_text(Tolerance(**less, tilt=began.tilt).model_dump_json())
    assert resume(narrow).finished
    assert (narrow / "rollouts.jsonl").read_text() == (whole / "rollouts.jsonl").read_text()
    assert all(torch.equal(tensor, weights(narrow)[name]) for name, tensor in weights(whole).items())
    now = Tolerance.model_validate_json((narrow / TOLERANCE).read_text())
    for name in names:
        assert getattr(now, name).mean == pytest.approx(getattr(began, name).mean, rel=0.9)
    assert "step 3: tolerance measured again: learner = engine: rounding" in (narrow / "log.txt").read_text()


def test_a_run_in_float32_measures_nothing(small):
    folder = groupwise.train("quickstart", small(steps=1)).folder
    assert not (folder / TOLERANCE).exists()
    (row,) = step_rows(folder)
    assert not {GAP_IS_LEVEL.name, RATIOS_AVERAGE_ONE.name} & row["checks"].keys()
    assert row["checks"][LEARNER_IS_ENGINE.name]["limit"] == 1e-4


@pytest.mark.parametrize("engine", ["same", "bf16"])
def test_a_support_that_is_not_told_is_found_in_bf16(engine: str, small, monkeypatch):
    real = LocalEngine.generate

    def truncated(self: Any, requests: Any, sampling: Any, *listener: Any) -> Any:
        answers = real(self, requests, sampling.replace(top_p=0.8), *listener)
        return [tuple(dataclasses.replace(c, support=None) for c in group) for group in answers]

    monkeypatch.setattr(LocalEngine, "generate", truncated)
    changes = small(steps=1, learner__precision="bf16", engine__precision=engine, prompts_per_step=16)
    with pytest.raises(CheckFailed, match=r"step 1: .*'the mean of learner / engine is 1' is "):
        groupwise.train("quickstart", changes)
    log = (Path(str(changes["runs"])) / "quickstart" / "log.txt").read_text()
    assert log.count("tolerance measured again") in (0, 4 if engine == "bf16" else 3)  # a line for each comparison


def test_a_bf16_learner_leaves_the_probe_of_a_float32_engine_exact(small):
    folder = groupwise.train("quickstart", small(steps=1, learner__precision="bf16")).folder
    (row,) = step_rows(folder)
    probe = row["checks"]["engine and learner agree after a weight load"]
    assert probe["limit"] == 1e-4
    assert probe["value"] < 1e-5
    assert row["checks"][LEARNER_IS_ENGINE.name]["value"] > 1e-4


@pytest.mark.slow
def test_rotary_positions_that_are_wrong_far_into_a_completion_are_said(small, monkeypatch: pytest.MonkeyPatch) -> None:
    real = RowCache.prepare

    def prepare(self: RowCache, ahead: int, last: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        positions, mask = real(self, ahead, last)
        return (positions + 0.2 * (positions >= 150)).clamp(max=last), mask

    monkeypatch.setattr(RowCache, "prepare", prepare)
    long = {"sampling__max_new_tokens": 190, "sampling__min_new_tokens": 180, "prompts_per_step": 4}
    changes = small(steps=5, learner__learning_rate=1e-5, learner__precision="bf16", engine__precision="bf16", **long)
    folder = groupwise.train("quickstart", changes).folder
    assert all(check["verdict"] != "fail" for row in step_rows(folder) for check in row["checks"].values())
    assert "from token 128 of a completion on" in (folder / "log.txt").read_text()
