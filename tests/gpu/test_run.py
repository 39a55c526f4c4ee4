"""Whole runs on a GPU: checks pass, a resumed run has the bits of one that was not cut, memory is as planned."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.commands.train.train import resume
from groupwise.journal.journal import read_metrics
from groupwise.models.load import digest
from groupwise.tasks.arithmetic import Arithmetic
from groupwise.training import checkpoint
from groupwise.training.start.initial_policy import starting_policy
from groupwise.training.start.warm_start import WarmStart
from tests.runs.test_run import timeless
from tests.runs.tiny_runs import cut_back, tiny_run

GPU: dict[str, Any] = {"device": "cuda"}
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def tensors_after(run: Path, step: int) -> dict[str, bytes]:
    folder = checkpoint.folder_of(run / "checkpoints", step)
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.safetensors"))}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm__name": "gspo", "sampling__top_p": 0.9},
        {"algorithm__name": "ppo"},
        {"adapter__rank": 4, "adapter__alpha": 8},
        {"learner__recompute": True, "learner__shared_prefixes": False},
        {"learner__precision": "bf16", "engine__precision": "bf16"},
        {"engine__process": "child"},
        {"rollout__ahead": 1},
        {"learner__moments": "host"},
        {"learner__moments": "8bit"},
        {"adapter__rank": 4, "adapter__alpha": 8, "adapter__base": "nf4"},
    ],
    ids=repr,
)
def test_a_run_that_is_taken_up_again_is_the_run(changes: dict[str, Any], tmp_path: Path) -> None:
    if {"8bit", "nf4"} & {*map(str, changes.values())}:
        pytest.importorskip("bitsandbytes")
    whole = groupwise.train("quickstart", tiny_run(tmp_path, name="whole", steps=3, **GPU, **changes))
    checks = [check for row in read_metrics(whole.folder) for check in row.get("checks", {}).values()]
    assert {check["verdict"] for check in checks} == {"pass", "not measured"}
    cut = groupwise.train("quickstart", tiny_run(tmp_path, name="cut", steps=3, **GPU, **changes))
    cut_back(cut.folder, 2)
    resume(cut.folder)
    assert timeless(whole.folder) == timeless(cut.folder)
    assert (whole.folder / "rollouts.jsonl").read_bytes() == (cut.folder / "rollouts.jsonl").read_bytes()
    assert tensors_after(whole.folder, 3) == tensors_after(cut.folder, 3)


@pytest.mark.parametrize(
    "host",
    [
        {"learner__moments": "host"},
        {"reference__offload": True},
        {"critic__offload": True, "critic__moments": "host"},
    ],
    ids=repr,
)
def test_a_run_with_more_of_it_on_the_host_is_the_run(host: dict[str, Any], tmp_path: Path) -> None:
    algorithm = {"algorithm__name": "ppo" if "critic__offload" in host else "grpo"}
    runs = [
        groupwise.train("quickstart", tiny_run(tmp_path, name=name, steps=3, **GPU, **algorithm, **changes)).folder
        for name, changes in (("device", {}), ("host", host))
    ]
    assert (runs[0] / "rollouts.jsonl").read_bytes() == (runs[1] / "rollouts.jsonl").read_bytes()
    assert tensors_after(runs[0], 3) == tensors_after(runs[1], 3)


def test_a_warm_start_of_a_tiny_policy_has_the_same_bits_again(tmp_path: Path) -> None:
    task: Any = Arithmetic()
    made = []
    for name in ("one", "other"):
        warm = WarmStart(steps=40)
        policy = starting_policy("tiny-dense", task, warm, 0, tmp_path / name, "cuda", lambda *_: None)
        made.append(digest(policy.model))
    assert made[0] == made[1]


SHORT: dict[str, Any] = {
    "steps": 2,
    "prompts_per_step": 4,
    "warm_start.steps": 20,
    "warm_start.demonstrations": 100,
    "evaluation.problems": 8,
    "journal.report": False,
}
FEW_PAIRS: dict[str, Any] = {"preference.pairs": 64, "preference.heldout_pairs": 16, "preference.epochs": 1}


@pytest.mark.parametrize(
    ("recipe", "changes"),
    [
        ("quickstart-moe", {"routing.replay": "engine"}),
        ("rlhf", FEW_PAIRS),
        ("rlhf", {**FEW_PAIRS, "preference.offload": True, "critic.offload": True}),
        ("chain", {}),
        ("code-tiny", {}),
        ("guess-number", {}),
        ("grid-world", {}),
    ],
)
def test_recipes_run_and_agree_with_themselves(recipe: str, changes: dict[str, Any], tmp_path: Path) -> None:
    run = groupwise.train(recipe, {**SHORT, **changes, **GPU, "runs": str(tmp_path)})
    checks = [check for row in read_metrics(run.folder) for check in row.get("checks", {}).values()]
    assert "fail" not in {check["verdict"] for check in checks}
    assert run.summary["steps"] == 2


@pytest.mark.parametrize("shape", [0, 1, 2, 3, 4])
def test_memory_is_as_planned(shape: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    memory_plan = importlib.import_module("memory_plan")
    memory_plan.make_models(tmp_path)
    recipe, settings = list(memory_plan.shapes(tmp_path, None).values())[shape]
    measured = memory_plan.in_a_process(tmp_path / "runs", recipe, {**settings, **GPU})
    assert measured["planned"] == pytest.approx(measured["measured"], rel=0.15), json.dumps(measured)
