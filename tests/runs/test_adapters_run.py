"""A run that trains adapters: it goes on to the bit after a stop, is evaluated, and leaves an ordinary model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import groupwise
from groupwise.commands.build.policy import export
from groupwise.commands.evaluate import evaluate_policies
from groupwise.commands.train.train import resume
from groupwise.config import recipe_files
from groupwise.core.errors import UsageError
from groupwise.journal.journal import read_metrics
from groupwise.journal.kept import create_recipe
from groupwise.models.adapters.packed import round_base
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.models.load import digest, load_policy
from groupwise.training import checkpoint
from tests.conftest import SMALL
from tests.moe_policy import save_moe
from tests.runs.test_run import timeless
from tests.runs.tiny_runs import cut_back, step_rows, tiny_run

ADAPTED: dict[str, Any] = {"adapter.rank": 4, "evaluation.every": 2}
MOE: dict[str, Any] = {"routing.replay": "engine", "learner.learning_rate": 3e-4}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, warm_cache: Path) -> groupwise.Run:
    runs = tmp_path_factory.mktemp("adapters") / "runs"
    runs.mkdir()
    (runs / ".cache").symlink_to(warm_cache)
    return groupwise.train("quickstart", {**SMALL, **ADAPTED, "runs": str(runs), "checkpoint.keep": 4})


@pytest.fixture
def other(run: groupwise.Run, tmp_path: Path) -> Callable[[int], Path]:
    def copied(step: int) -> Path:
        folder = tmp_path / "runs" / run.folder.name
        shutil.copytree(run.folder.parent, folder.parent, symlinks=True)
        cut_back(folder, step + 1)
        return folder

    return copied


def saved(folder: Path) -> dict[str, bytes]:
    newest, _ = checkpoint.newest_good(folder / "checkpoints")
    assert newest is not None
    files = (path for path in newest.rglob("*") if path.suffix == ".safetensors")
    return {str(path.relative_to(newest)): path.read_bytes() for path in files}


def assert_same(a: Path, b: Path) -> None:
    assert timeless(a) == timeless(b)
    assert (a / "rollouts.jsonl").read_text() == (b / "rollouts.jsonl").read_text()
    assert saved(a) == saved(b)
    assert saved(a).keys() == {"policy/adapters.safetensors", "optimizer.safetensors"}


def test_every_check_passes_and_the_checkpoint_is_small(run: groupwise.Run, warm_cache: Path):
    rows = step_rows(run.folder)
    for row in rows:
        assert {check["verdict"] for check in row["checks"].values()} <= {"pass", "not measured"}
        assert row["checks"]["learner = engine"]["verdict"] == "pass"
        assert row["learning_rate"] == pytest.approx(1e-2), "ten times the recipe's"
    assert rows[-1]["kl_mean"] > 0
    policy = run.folder / "checkpoints" / "step-000004" / "policy"
    assert sorted(path.name for path in policy.iterdir()) == ["adapters.json", "adapters.safetensors"]
    policies = [path.parent for path in warm_cache.glob("*/config.json") if "ForCausalLM" in path.read_text()]
    bases = {digest(load_policy(folder).model) for folder in policies}
    assert json.loads((policy / "adapters.json").read_text())["digest"] in bases


def test_resuming_an_earlier_checkpoint_gives_the_same_bits(run: groupwise.Run, other: Callable[[int], Path]):
    folder = other(2)
    assert resume(folder).finished
    assert_same(run.folder, folder)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"rank": 8}, "adapter.rank = 8 and these adapters have 4: it cannot change in a run"),
        ({"rank": 0}, "it holds adapters and no model; .* goes on with the adapter.rank that it began with"),
    ],
)
def test_another_rank_is_refused_before_anything_is_trained(
    section: dict[str, Any], words: str, other: Callable[[int], Path]
):
    folder = other(2)
    path = folder / "recipe.toml"
    create_recipe(folder, recipe_files.dump({**recipe_files.read_table(path), "adapter": section}))
    with pytest.raises(UsageError, match=words) as error:
        resume(folder)
    assert "\n" not in str(error.value)
    assert max(row["step"] for row in read_metrics(folder)) == 2


def test_what_is_exported_loads_without_peft_and_answers_the_same(run: groupwise.Run, tmp_path: Path, capsys):
    done = export(run.folder, tmp_path / "new" / "policy", None, print)
    assert done == 4
    folder = tmp_path / "new" / "policy"
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.get_input_embeddings().weight.shape[0] == len(AutoTokenizer.from_pretrained(folder))
    assert not any("lora" in name for name, _ in model.named_modules())
    own = evaluate_policies([str(run.folder)]).evaluation
    assert own.avg_at_k == run.summary["heldout_after"]
    assert evaluate_policies([str(folder)], str(run.folder), {}).evaluation == own
    assert digest(run.policy().model) == digest(load_policy(folder).model)
    export(run.folder, tmp_path / "earlier", 1, print)
    assert digest(load_policy(tmp_path / "earlier").model) != digest(load_policy(folder).model)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".partial")] == []


def test_a_run_without_adapters_is_exported_as_its_checkpoint_has_it(small, tmp_path: Path):
    folder = groupwise.train("quickstart", small(steps=2)).folder
    assert export(folder, tmp_path / "policy", None, print) == 2
    policy = folder / "checkpoints" / "step-000002" / "policy"
    assert {p.name: p.read_bytes() for p in policy.iterdir()} == {
        p.name: p.read_bytes() for p in (tmp_path / "policy").iterdir()
    }


def test_what_cannot_be_exported_is_refused_and_nothing_is_written(run: groupwise.Run, tmp_path: Path):
    taken = tmp_path / "taken"
    taken.mkdir()
    for folder, step, words in (
        (taken, None, "taken: it exists already, and is not written over"),
        (tmp_path / "new", 9, r"it has no checkpoint of step 9; there are 1, 2, 3, 4"),
    ):
        with pytest.raises(UsageError, match=words):
            export(run.folder, folder, step, print)
    with pytest.raises(UsageError, match="not a run folder"):
        export(taken, tmp_path / "new", None, print)
    assert list(tmp_path.iterdir()) == [taken]
    assert not list(taken.iterdir())


@pytest.mark.slow
def test_a_mixture_of_experts_replays_through_its_adapters_and_is_exported(small, tmp_path: Path):
    policy = save_moe(tmp_path / "policy", initializer_range=0.1)
    run = groupwise.train("quickstart", small(**MOE, model=str(policy), adapter__rank=4))
    rows = step_rows(run.folder)
    for row in rows:
        assert {check["verdict"] for check in row["checks"].values()} <= {"pass", "not measured"}
        assert row["checks"]["learner = engine"]["verdict"] == "pass"
        assert row["routing.used_changed"] == 0
    export(run.folder, tmp_path / "exported", None, print)
    evaluated = evaluate_policies([str(tmp_path / "exported")], str(run.folder), {}).evaluation
    assert evaluated == evaluate_policies([str(run.folder)]).evaluation
    assert evaluated.avg_at_k == run.summary["heldout_after"]
    newest, _ = checkpoint.newest_good(run.folder / "checkpoints")
    assert newest is not None
    base = json.loads((newest / "policy" / "adapters.json").read_text())["base"]
    plain, merged = (load_policy(Path(path)).model for path in (base, tmp_path / "exported"))
    for (key, a), (_, b) in zip(plain.named_parameters(), merged.named_parameters(), strict=True):
        assert torch.equal(a, b) == (not key.endswith("proj.weight") and "experts" not in key), key


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
def test_a_run_over_4_bits_agrees_with_itself_goes_on_to_the_bit_and_is_exported_as_it_was_sampled(
    precision: str, tmp_path: Path
):
    pytest.importorskip("bitsandbytes")
    changes = {"adapter__rank": 4, "adapter__base": "nf4", "steps": 3, "checkpoint__keep": 4}
    changes |= {"learner__precision": precision, "engine__precision": precision}
    whole, cut = (groupwise.train("quickstart", tiny_run(tmp_path, name=name, **changes)) for name in ("whole", "cut"))
    for row in step_rows(whole.folder):
        assert row["checks"]["learner = engine"]["verdict"] == "pass"
        assert {check["verdict"] for check in row["checks"].values()} <= {"pass", "not measured"}
    assert row["kl_mean"] > 0
    cut_back(cut.folder, 2)
    assert resume(cut.folder).finished
    assert_same(whole.folder, cut.folder)
    export(whole.folder, tmp_path / "exported", None, print)
    base, exported = (load_policy(tmp_path / name).model for name in ("model", "exported"))
    round_base(base, AdapterSettings(rank=4, base="nf4"))
    read = load_file(whole.folder / "checkpoints" / "step-000003" / "policy" / "adapters.safetensors")
    for name, weight in exported.named_parameters():
        a, b = (read.get(f"{name}.lora_{half}") for half in "AB")
        delta = 0 if a is None or b is None else 8.0 * b @ a
        torch.testing.assert_close(weight.detach(), base.get_parameter(name).detach() + delta, rtol=1e-5, atol=1e-6)
