"""A whole run, small: it ends, it is the same twice, and it goes on after a stop as if it had never stopped."""

from __future__ import annotations

import json
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import groupwise
from groupwise.commands.train.train import resume
from groupwise.core.errors import UsageError
from groupwise.core.machine.clock import Clock
from groupwise.health.checks import ENGINE_IS_LOADED, LEARNER_IS_ENGINE, LIVE_IS_OLD, WEIGHTS_REACH_TOTAL
from groupwise.journal.journal import read_metrics
from groupwise.reports.page.page import page_of_run
from groupwise.training import checkpoint
from tests.command_process import CommandProcess
from tests.conftest import SMALL
from tests.runs.tiny_runs import cut_back, step_rows


def timeless(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not k.endswith("seconds")} for row in read_metrics(folder)]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    newest, _ = checkpoint.newest_good(folder / "checkpoints")
    assert newest is not None
    (file,) = (newest / "policy").glob("*.safetensors")  # of the model, or of its adapters
    return load_file(file)


def assert_same_run(a: Path, b: Path) -> None:
    assert timeless(a) == timeless(b)
    for name in ("rollouts.jsonl", "heldout.jsonl"):
        assert (a / name).read_text() == (b / name).read_text() if (a / name).exists() else not (b / name).exists()
    first, second = weights(a), weights(b)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[k], second[k]) for k in first)


def assert_goes_on(whole: Path, *steps: int) -> Path:
    """Resume a copy of a run from before each of these steps, the latest first, and require its bits -> the copy."""
    cut = whole.with_name(f"{whole.name}-cut")
    shutil.copytree(whole, cut)
    for step in steps:
        cut_back(cut, step)
        assert resume(cut).finished
        assert_same_run(whole, cut)
    return cut


@pytest.fixture(scope="module", params=["grpo", "dapo"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, warm_cache: Path) -> groupwise.Run:
    """A run with all its checkpoints, under a schedule, so that the count of updates is seen to go on."""
    runs = tmp_path_factory.mktemp("whole")
    (runs / ".cache").symlink_to(warm_cache)
    changes = {"algorithm.name": request.param, "learner.schedule": "linear", "learner.warmup_updates": 2}
    often = {"evaluation.every": 2, "checkpoint.keep": 4, "runs": str(runs)}
    return groupwise.train("quickstart", {**SMALL, **changes, **often})


@pytest.fixture
def cut(whole: groupwise.Run, tmp_path: Path) -> Path:
    (tmp_path / ".cache").symlink_to(whole.folder.parent / ".cache")
    return Path(shutil.copytree(whole.folder, tmp_path / "cut"))


def test_a_run_leaves_what_it_promises(whole: groupwise.Run):
    name, folder = whole.summary["algorithm"], whole.folder
    assert json.loads((folder / "summary.json").read_text()) == whole.summary
    assert whole.summary["steps"] == 4
    ends = [f"{what}_{when}" for what in ("heldout", "length") for when in ("before", "after")]
    assert min(whole.summary[key] for key in (*ends, "seconds_total", "seconds_training")) >= 0
    assert whole.summary["checks"]["learner = engine"]["steps"] > 0
    rows = read_metrics(folder)
    assert [r["step"] for r in rows] == [0, 1, 2, 2, 3, 4, 4]
    for row in step_rows(folder):
        verdicts = {check: told["verdict"] for check, told in row["checks"].items()}
        assert "fail" not in verdicts.values()
        for check in (LIVE_IS_OLD, LEARNER_IS_ENGINE, WEIGHTS_REACH_TOTAL, ENGINE_IS_LOADED):
            assert verdicts[check.name] == "pass"
        assert ("kl_mean" in row) == (name == "grpo")
    held = [json.loads(line) for line in (folder / "heldout.jsonl").read_text().splitlines()]
    for row in (r for r in rows if "evaluation" in r):
        own, evaluation = [line for line in held if line["step"] == row["step"]], row["evaluation"]
        assert len(own) == evaluation["problems"] * evaluation["samples"]
        assert len({line["group"] for line in own}) == evaluation["problems"]
        assert statistics.fmean(line["score"] >= 1 for line in own) == pytest.approx(evaluation["avg_at_k"])
        assert statistics.fmean(line["tokens"] for line in own) == pytest.approx(evaluation["length_mean"])
        assert {line["version"] for line in own} == {row["step"]}
    shown = page_of_run(folder).runs[0].rollouts
    assert shown is not None
    assert {group.step for group in shown.groups if group.fate == "heldout"} == {0, 2, 4}
    assert "of evaluations 96 of 96 completions" in shown.words
    last = folder / "checkpoints" / "step-000004" / "policy"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(last), AutoTokenizer.from_pretrained(last)
    assert model.get_input_embeddings().weight.shape[0] == len(tokenizer)


def test_phases_add_up_to_the_wall_clock(whole: groupwise.Run):
    steps = sum(sum(row["seconds"].values()) for row in step_rows(whole.folder))
    assert steps == pytest.approx(whole.summary["seconds_training"], abs=1e-3)
    assert whole.summary["seconds_training"] < whole.summary["seconds_total"]
    assert accounted(whole.folder, whole.summary) == pytest.approx(whole.summary["seconds_total"], rel=0.01, abs=0.05)
    first, *rest = read_metrics(whole.folder)
    assert first["seconds"]["start"] > 0
    assert [r["step"] for r in rest if "save" in r["seconds"]] == [2, 3, 4], "the last one is after the last line"
    assert not any("start" in r["seconds"] or "lost" in r["seconds"] for r in rest)


def test_a_run_that_is_cut_off_goes_on_to_the_same_bits_and_its_seconds_add_up(whole: groupwise.Run, cut: Path):
    about = json.loads((cut / "about.json").read_text())
    before = (cut / "machine.jsonl").read_text().splitlines()
    cut_back(cut, 3)
    with (cut / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "half a li')
    run = resume(cut)
    assert_same_run(whole.folder, cut)
    assert accounted(cut, run.summary) == pytest.approx(run.summary["seconds_total"], rel=0.01, abs=0.05)
    seconds = {row["step"]: row["seconds"] for row in step_rows(cut)}
    assert [step for step, own in seconds.items() if own.get("start")] == [3]
    assert seconds[3]["lost"] > 0, "what saving the checkpoint took until its state was written"
    after = (cut / "machine.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in after] == [1, 2, 3, 4]
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, True, False, False]
    told = json.loads((cut / "about.json").read_text())
    assert [entry["step"] for entry in told["resumed"]] == [2]
    assert about["started"] == told["started"] < told["resumed"][0]["started"]
    (cut / "about.json").unlink()
    resume(cut)
    told = json.loads((cut / "about.json").read_text())
    assert [entry["step"] for entry in told["resumed"]] == [4]
    assert abs(told["started"] - about["started"]) < 60, "an older run began when its recipe was written"


def test_a_damaged_checkpoint_is_told_and_seconds_go_on_from_the_one_before(whole, cut: Path, capfd, monkeypatch):
    damaged = cut / "checkpoints" / "step-000004" / "policy" / "model.safetensors"
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    real, before = checkpoint.read_state, {"seconds_total": 2000.0, "seconds_training": 1000.0}
    monkeypatch.setattr(checkpoint, "read_state", lambda folder: {**real(folder), **before})
    run = resume(cut)
    told = capfd.readouterr().err
    assert "step-000004 is damaged (policy/model.safetensors does not match its hash); falling back" in told
    assert_same_run(whole.folder, cut)
    assert 1000 < run.summary["seconds_training"] < 1060
    assert 2000 < run.summary["seconds_total"] < 2060


def test_the_same_seed_is_the_same_run_and_another_rate_is_not(whole: groupwise.Run, tmp_path: Path):
    """Of its recipe, which says all of it."""
    (tmp_path / ".cache").symlink_to(whole.folder.parent / ".cache")
    recipe = {"runs": str(tmp_path), "name": "again"}
    again = groupwise.train(str(whole.folder / "recipe.toml"), recipe).folder
    assert_same_run(whole.folder, again)
    other = groupwise.train(str(whole.folder / "recipe.toml"), {**recipe, "name": "b", "learner.learning_rate": 2e-3})
    assert timeless(again)[-1] != timeless(other.folder)[-1]


def test_a_phase_has_the_seconds_between_its_switch_and_the_next(monkeypatch):
    times = iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0, 21.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    clock = Clock()
    for phase in ("generate", "update", "generate"):
        clock.switch(phase)
    assert clock.lap() == {"other": 1.0, "generate": 2.0 + 4.0, "update": 3.0}
    assert clock.lap() == {"other": 5.0}
    assert clock.total == 21.0


def accounted(folder: Path, summary: dict[str, Any]) -> float:
    return sum(sum(row["seconds"].values()) for row in read_metrics(folder)) + summary["seconds_after"]


@pytest.mark.parametrize(("name", "verdict"), [("rloo", "pass"), ("grpo", "not measured")])
def test_one_update_on_a_batch_takes_the_old_log_probabilities_only_where_they_are_read(name, verdict, small):
    """RLOO's KL in the reward reads them; without that the first ratio is 1 by construction."""
    run = groupwise.train("quickstart", small(algorithm__name=name, updates_per_batch=1, steps=1))
    row = step_rows(run.folder)[0]
    assert row["checks"]["live = old on the first update"]["verdict"] == verdict


def test_the_longest_completion_that_is_told_to_fit_does_and_no_longer_one(small):
    with pytest.raises(UsageError, match=r"positions; set it to at most \d+,") as told:
        groupwise.train("quickstart", small(steps=1, sampling__max_new_tokens=1000))
    most = int(re.findall(r"at most (\d+),", str(told.value))[0])
    with pytest.raises(UsageError, match=f"positions; set it to at most {most},"):
        groupwise.train("quickstart", small(steps=1, sampling__max_new_tokens=most + 1))
    assert groupwise.train("quickstart", small(steps=1, sampling__max_new_tokens=most)).summary["steps"] == 1


def by_dotted_key(changes: dict[str, Any]) -> dict[str, Any]:
    """Tables within `changes` as dotted keys: the command line has no other way to write one."""
    flat: dict[str, Any] = {}
    for key, value in changes.items():
        flat |= (
            by_dotted_key({f"{key}.{name}": part for name, part in value.items()})
            if isinstance(value, dict)
            else {key: value}
        )
    return flat


def start(changes: dict[str, Any], threads: int | None = None) -> CommandProcess:
    settings = [
        part for key, value in by_dotted_key(changes).items() for part in ("--set", f"{key}={json.dumps(value)}")
    ]
    return CommandProcess("train", "quickstart", *settings, threads=threads)


def go_on(folder: Path, threads: int | None = None) -> CommandProcess:
    return CommandProcess("train", "--resume", str(folder), threads=threads)


def wait_for(condition, process: CommandProcess, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)


def test_sigterm_saves_at_the_next_step_and_says_how_to_go_on(small):
    changes = small(name="cut", steps=14)
    folder = Path(changes["runs"]) / "cut"
    process = start(changes)
    wait_for(lambda: len(read_metrics(folder)) > 3, process)
    process.send_signal(signal.SIGTERM)
    told = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, told
    assert f"go on with: groupwise train --resume {folder}" in told
    done = read_metrics(folder)[-1]["step"]
    assert 0 < done < 14
    assert checkpoint.steps(folder / "checkpoints")[-1] == done
    process = go_on(folder)
    told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    assert_same_run(groupwise.train("quickstart", {**changes, "name": "whole"}).folder, folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "dapo"])
def test_the_quickstart_learns_to_show_its_work(name: str, tmp_path):
    """The main job as a stranger runs it, in a process of its own: the bars of the README."""
    words = ["--set", f"runs={tmp_path}", "--set", "name=whole", "--set", f"algorithm.name={name}"]
    command = [sys.executable, "-m", "groupwise.cli", "train", "quickstart", *words]
    process = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert process.returncode == 0, process.stderr
    summary = json.loads((tmp_path / "whole" / "summary.json").read_text())
    assert summary["heldout_problems"] >= 512
    assert summary["heldout_before"] <= 0.60
    assert summary["heldout_after"] >= 0.92
    assert summary["length_after"] >= 1.5 * summary["length_before"]
    assert summary["seconds_total"] <= 240


def test_top_p_and_top_k_train_on_the_sampled_distribution(small):
    """Ratios are 1 and the engine gap is nil with truncated sampling too, through surplus groups and a resume."""
    changes = small(algorithm__name="dapo", sampling__top_p=0.9, sampling__top_k=8, sampling__temperature=1.3)
    whole = groupwise.train("quickstart", {**changes, "checkpoint.keep": 4}).folder
    for row in step_rows(whole):
        assert row["checks"]["live = old on the first update"]["verdict"] == "pass"
        assert row["checks"]["learner = engine"]["value"] < 1e-4
    assert_goes_on(whole, 3)
