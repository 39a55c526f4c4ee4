"""A run that begins with another run's policy, and whose reference is one of choice."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.commands.check.model import model_path
from groupwise.commands.train.train import resume
from groupwise.config import recipe
from groupwise.config.resolve import resolve
from groupwise.core.errors import UsageError
from groupwise.journal.journal import read_metrics
from groupwise.journal.run_policy import RunPolicy, run_policy
from groupwise.models.load import digest, load_policy
from groupwise.training import checkpoint
from tests.runs.test_run import assert_goes_on, timeless
from tests.runs.tiny_runs import cut_back, tiny_run, weights_after

CHECK = "KL to the reference is 0 at step 0"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return groupwise.train("quickstart", tiny_run(tmp_path_factory.mktemp("source"))).folder


@pytest.fixture
def few(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    return partial(tiny_run, tmp_path)


def check_of(run: Path) -> dict[str, Any]:
    return next(row["checks"][CHECK] for row in read_metrics(run) if row["step"] == 1 and "checks" in row)


def test_a_run_begins_with_the_policy_of_another_and_goes_on_without_it(source: Path, few, tmp_path: Path):
    """The step is written down and the policy copied: the other run may go on, lose the checkpoint, or be gone."""
    other = tmp_path / "other"
    shutil.copytree(source, other)
    whole = groupwise.train("quickstart", few(start=str(other), name="whole"))
    assert "warm_start" not in tomllib.loads((whole.folder / "recipe.toml").read_text())
    assert tomllib.loads((whole.folder / "recipe.toml").read_text())["start"] == f"{other}:2"
    assert digest(load_policy(whole.folder / "start").model) == weights_after(source, 2)
    assert check_of(whole.folder)["verdict"] == "pass"
    own = json.loads((source / "summary.json").read_text())
    assert whole.summary["heldout_before"] == own["heldout_after"]
    shutil.rmtree(other)
    assert_goes_on(whole.folder, 2)


def test_an_earlier_step_is_another_start(source: Path, few):
    run = groupwise.train("quickstart", few(start=f"{source}:1", steps=1))
    assert digest(load_policy(run.folder / "start").model) == weights_after(source, 1) != weights_after(source, 2)


def test_a_run_is_taken_where_a_models_folder_is(source: Path, few, tmp_path: Path):
    """`model = RUN` is its newest good checkpoint's policy, in train and in check."""
    damaged = tmp_path / "damaged"
    shutil.copytree(source, damaged)
    (checkpoint.folder_of(damaged / "checkpoints", 2) / "state.json").unlink()
    plan = resolve(recipe.load("quickstart", few(model=str(damaged), warm_start__steps=0)))
    assert digest(load_policy(model_path(plan.recipe, plan.task, tmp_path / "into")).model) == weights_after(source, 1)
    run = groupwise.train("quickstart", few(model=str(damaged), warm_start__steps=0, steps=1))
    assert tomllib.loads((run.folder / "recipe.toml").read_text())["model"] == f"{damaged}:1"
    assert digest(load_policy(run.folder / "start").model) == weights_after(source, 1)


def test_adapters_are_merged_into_what_is_begun_with(few):
    adapted = groupwise.train("quickstart", few(steps=1, adapter__rank=4)).folder
    run = groupwise.train("quickstart", few(start=str(adapted), adapter__rank=2, steps=1))
    base = json.loads((run.folder / "checkpoints" / "step-000001" / "policy" / "adapters.json").read_text())
    assert base["digest"] == digest(load_policy(run.folder / "start").model)
    assert run.summary["heldout_before"] is not None
    assert check_of(run.folder)["verdict"] == "pass"


def test_another_reference_is_not_measured_against_the_start_and_goes_on_exactly(source: Path, few, tmp_path: Path):
    folder = tmp_path / "reference"
    shutil.copytree(source / "checkpoints" / "step-000001" / "policy", folder)
    whole = groupwise.train("quickstart", few(start=str(source), reference__model=str(folder))).folder
    first = next(row for row in read_metrics(whole) if "kl_mean" in row)
    assert check_of(whole)["verdict"] == "not measured"
    assert first["kl_mean"] > 0
    cause = f"{CHECK}: not measured (reference.model = '{folder}' is another policy than the run starts from)"
    assert cause in (whole / "log.txt").read_text()
    cut = assert_goes_on(whole, 2)
    cut_back(cut, 2)
    shutil.rmtree(folder)
    shutil.copytree(source / "checkpoints" / "step-000002" / "policy", folder)
    with pytest.raises(UsageError, match=r"the run's reference was policy \w+, and what is made or loaded now is"):
        resume(cut)


def test_a_reference_that_is_the_start_under_another_name_is_measured(source: Path, few):
    run = groupwise.train("quickstart", few(start=str(source), reference__model=f"{source}:2", steps=1)).folder
    assert check_of(run)["verdict"] == "pass"
    assert digest(load_policy(run / "reference").model) == weights_after(source, 2)


@pytest.mark.parametrize(("rank", "precision"), [(0, "same"), (0, "bf16"), (4, "same")])
def test_a_renewed_reference_is_the_policy_of_its_step_and_goes_on_exactly(rank, precision, few, tmp_path: Path):
    """Renewed after steps 2 and 4: the KL of step 3 begins at 0, and a resume after step 3 has step 2's."""
    changes = {"adapter.rank": rank} if rank else {}
    changes |= {"reference.every": 2, "reference.precision": precision, "checkpoint.keep": 9, "updates_per_batch": 1}
    whole = groupwise.train("quickstart", {**few(steps=4), **changes}).folder
    kl = {row["step"]: row["kl_mean"] for row in read_metrics(whole) if "kl_mean" in row}
    assert kl[2] > 10 * abs(kl[3])
    assert kl[4] > 10 * abs(kl[3])
    if precision == "same":
        assert kl[3] == pytest.approx(0, abs=1e-9)
    assert "step 2: the reference is the policy after this step" in (whole / "log.txt").read_text()
    saved = {s: (checkpoint.folder_of(whole / "checkpoints", s) / "reference.safetensors") for s in (1, 2, 3, 4)}
    assert [path.is_file() for path in saved.values()] == [False, True, True, True]
    assert saved[2].read_bytes() == saved[3].read_bytes() != saved[4].read_bytes()
    cut, last = tmp_path / "runs" / "cut", "checkpoints/step-000004"
    shutil.copytree(whole, cut)
    cut_back(cut, 4)
    resume(cut)
    assert timeless(cut) == timeless(whole)
    for name in ("reference.safetensors", "optimizer.safetensors"):
        assert (cut / last / name).read_bytes() == (whole / last / name).read_bytes()


def test_what_names_a_run(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.toml").touch()  # as beside a person's own recipe
    for name in ("run", "run:3", "model"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.toml").touch()
    (tmp_path / "model" / "config.json").touch()
    run = tmp_path / "run"
    assert run_policy(str(run)) == RunPolicy(run, None)
    assert run_policy(f"{run}:12") == RunPolicy(run, 12)
    assert run_policy(f"{run}:3") == RunPolicy(tmp_path / "run:3", None), "a folder of that very name comes first"
    assert str(RunPolicy(run, 12)) == f"{run}:12"
    for other in ("", ":3", f"{run}:", f"{run}:x", f"{run}:-1", "owner/name", str(tmp_path / "model")):
        assert run_policy(other) is None
