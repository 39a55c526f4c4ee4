"""Families of models, each through the command line: trained, killed, resumed, adapted, exported, loaded again."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from benchmarks.architectures.build import kinds, save_small
from benchmarks.architectures.sizes import WINDOW
from safetensors.torch import load_file
from torch import Tensor

from groupwise.health.checks import LEARNER_IS_ENGINE
from groupwise.journal.journal import read_metrics
from groupwise.models.adapters.lora import Adapters, read_adapters
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.models.load import load_policy
from groupwise.training import checkpoint
from tests.command_process import CommandProcess
from tests.runs.test_run import assert_same_run, go_on, wait_for
from tests.runs.tiny_runs import rollouts, step_rows

#: Kinds of models: those that people take, of which the first is in the suite, and their neighbours.
TODAY = (
    "gpt_oss gemma3_text gemma3 olmo3 mistral gemma2 cohere2 granite qwen3_next qwen3_5_text lfm2 falcon_h1 nemotron_h"
)
NEIGHBOURS = (
    "exaone4 phi3 glm4 glm4_moe deepseek_v3 qwen3_moe mixtral ernie4_5_moe smollm3 starcoder2 hunyuan_v1_dense "
    "hunyuan_v1_moe granitemoe olmoe minimax_m2 jetmoe"
)
FAMILIES = [*TODAY.split(), *NEIGHBOURS.split()]
STEPS, ANSWER = 5, 5 * WINDOW
#: Steps of answers as long as five windows.
RECIPE = f"""
seed = 1
steps = {STEPS}
threads = 1
prompts_per_step = 3
samples_per_prompt = 4
updates_per_batch = 2
[task]
use = "{Path(__file__).parent / "scored_by_length.py"}:Characters"
[algorithm]
name = "grpo"
[sampling]
max_new_tokens = {ANSWER}
[learner]
learning_rate = 3e-4
[evaluation]
problems = 0
[checkpoint]
every = 1
keep = 9
[journal]
report = false
"""
ADAPTER = AdapterSettings(rank=4)
LAST = f"checkpoints/step-{STEPS:06}/policy"


#: Findings about settings, which a random model of any family may have in five steps.
TRUE_OF_SO_SHORT_A_RUN = {
    "completions cut off",
    "gradient stopped",
    "learning rate too small",
    "one sign stopped",
    "ratio tails",
}


@dataclass(frozen=True)
class Family:
    """A family's folder, the model in it, and a place for runs.

    own  the model that is in the folder
    """

    place: Path
    own: Any

    @property
    def folder(self) -> Path:
        return self.place / "model"

    def begun(self, name: str, *changes: str) -> CommandProcess:
        recipe = self.place / "recipe.toml"
        recipe.write_text(RECIPE)
        keys = (f"name={name}", f"model={self.folder}", f"runs={self.place}", *changes)
        return CommandProcess("train", str(recipe), *(word for key in keys for word in ("--set", key)), threads=1)

    def trained(self, name: str, *changes: str) -> Path:
        run = self.place / name
        return run if run.exists() else done(self.begun(name, *changes), run)


def done(process: CommandProcess, run: Path) -> Path:
    told = process.communicate(timeout=300)
    assert process.returncode == 0, told
    return run


def some() -> list[Any]:
    """All families, of which all but the first are slow tests."""
    first, *others = FAMILIES
    return [first, *(pytest.param(name, marks=pytest.mark.slow) for name in others)]


@pytest.fixture(scope="module", params=some())
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    place = tmp_path_factory.mktemp("family")
    kind = getattr(transformers, kinds()[request.param])
    return Family(place, kind.from_pretrained(save_small(request.param, place / "model")).eval())


def tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder's files."""
    return {name: x for path in folder.glob("*.safetensors") for name, x in load_file(path).items()}


def without_types(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration without the type of the numbers, which saving writes into its parts too."""
    parts = {key: without_types(value) if isinstance(value, dict) else value for key, value in config.items()}
    return {key: value for key, value in parts.items() if key != "dtype"}


def assert_sound(run: Path) -> None:
    """Engine and learner agree, no check fails, nothing false is warned of, and answers were as long as they may be."""
    rows = step_rows(run)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    for row in rows:
        assert row["checks"][LEARNER_IS_ENGINE.name]["value"] < 1e-4
        verdicts = {name: check["verdict"] for name, check in row["checks"].items()}
        assert "fail" not in verdicts.values(), verdicts
        assert row["updates_skipped"] == 0
    assert max(answer["tokens"] for answer in rollouts(run)) == ANSWER
    warned = set(re.findall("warning, (.*?):", (run / "log.txt").read_text()))
    assert warned <= TRUE_OF_SO_SHORT_A_RUN


def parts_of_text(model: Any) -> tuple[Any, Any]:
    """The parts that train: of a model with a vision tower, what reads and writes text."""
    return getattr(model.base_model, "language_model", model), model.get_output_embeddings()


@torch.no_grad()
def of_one_rounding(model: Any, ids: Tensor) -> float:
    """What the model's logits change by if each of its weights is rounded once more, up or down."""
    before, signs = model(input_ids=ids).logits, torch.Generator().manual_seed(0)
    for weight in model.parameters():
        weight *= 1 + 2**-24 * torch.randn(weight.shape, generator=signs).sign()
    return float((model(input_ids=ids).logits - before).abs().max())


def test_it_trains(family: Family) -> None:
    run = family.trained("grpo")
    assert_sound(run)
    now = type(family.own).from_pretrained(run / LAST)
    # A bias that only the choice of experts reads has no gradient.
    weights = {n: w for n, w in family.own.named_parameters() if not n.endswith("correction_bias")}
    text = {id(weight) for part in parts_of_text(family.own) for weight in part.parameters()}
    still = {name for name, weight in weights.items() if torch.equal(weight, now.get_parameter(name))}
    assert still == {name for name, weight in weights.items() if id(weight) not in text}


@pytest.mark.slow
def test_it_trains_by_ratios_of_sequences(family: Family) -> None:
    assert_sound(family.trained("gspo", "algorithm.name=gspo"))


@pytest.mark.slow
def test_it_is_killed_and_goes_on_to_the_bit(family: Family) -> None:
    whole, cut = family.trained("grpo"), family.place / "cut"
    process = family.begun("cut")
    wait_for(lambda: any(row["step"] >= 3 for row in read_metrics(cut)), process)
    process.kill()
    told = process.communicate()
    assert process.returncode == -signal.SIGKILL, told
    assert checkpoint.steps(cut / "checkpoints")[-1] < STEPS
    assert_same_run(whole, done(go_on(cut, threads=1), cut))


def test_what_it_exports_is_the_folder_that_came_in_with_the_weights_of_the_run(family: Family) -> None:
    run, folder = family.trained("grpo"), family.place / "exported"
    done(CommandProcess("export", str(run), str(folder)), folder)
    back, said = type(family.own).from_pretrained(folder, output_loading_info=True)
    assert not any(said[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    before, after = (json.loads((place / "config.json").read_text()) for place in (family.folder, folder))
    assert without_types(after) == without_types(before)
    were, are = tensors(family.folder), tensors(folder)
    assert {name: x.shape for name, x in are.items()} == {name: x.shape for name, x in were.items()}
    trained = type(family.own).from_pretrained(run / LAST).state_dict()
    assert back.state_dict().keys() == trained.keys()
    assert all(torch.equal(x, trained[name]) for name, x in back.state_dict().items())


@pytest.mark.slow
def test_its_adapters_train_and_are_merged_as_they_were_trained(family: Family) -> None:
    run = family.trained("adapted", "algorithm.name=gspo", f"adapter.rank={ADAPTER.rank}")
    folder = family.place / "merged"
    assert_sound(run)
    done(CommandProcess("export", str(run), str(folder)), folder)
    model = load_policy(family.folder).model
    adapters = Adapters(model, ADAPTER, seed=1)
    first = {name: matrix.detach().clone() for name, matrix in adapters.matrices.items()}
    read_adapters(run / LAST, adapters)
    assert [name for name, matrix in adapters.matrices.items() if torch.equal(matrix, first[name])] == []
    back = type(family.own).from_pretrained(folder).eval()
    ids = torch.randint(2, 258, (2, ANSWER), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        merged, adapted = (each(input_ids=ids).logits for each in (back, model))
        plain = family.own(input_ids=ids).logits
    assert float((adapted - plain).abs().max()) > 1e-3
    # Merged, a weight is rounded; apart, the product with it, the product with B A, and their sum are.
    assert float((merged - adapted).abs().max()) < max(1e-5, 3 * of_one_rounding(back, ids))
    assert tensors(folder).keys() == tensors(family.folder).keys()
