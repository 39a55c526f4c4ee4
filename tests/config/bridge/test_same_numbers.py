"""Numbers of TRL's GRPOConfig arrive: those of the benchmark's own call, and TRL's defaults where a file is silent."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.parts.advantage import GroupMean, GroupZScore, LengthWeightedMean, RewardZScore
from groupwise.algorithms.parts.aggregate import Constant, SequenceMean, TokenMean
from groupwise.algorithms.parts.divergence import BinaryKL, TotalVariation
from groupwise.algorithms.parts.kl import K2, K3, KL, K3Ratio
from groupwise.algorithms.parts.off_policy import GammaWeight, OffPolicyMask, Tapered
from groupwise.algorithms.parts.ratio import SequenceRatio, SequenceSum, TokenRatio
from groupwise.algorithms.parts.trust import Cispo, Clip, SoftGate
from groupwise.algorithms.settings import algorithm
from groupwise.config import recipe
from groupwise.config.bridge.given import Given, read
from groupwise.config.bridge.recipe import imported
from groupwise.config.bridge.trl import DEFAULTS, RULES
from groupwise.config.recipe import Recipe
from groupwise.core.files.jsonl import flat

ROOT = Path(__file__).parents[3]
TRL = ROOT / "benchmarks" / "trl"
#: What a trainer of TRL's is given beside its config.
BESIDE = {"model": "m", "dataset_name": "d"}
#: The defaults of TRL 1.16.0, read from its GRPOConfig and the TrainingArguments that it extends, for every option that
#: has a rule here and a default that is a value; bf16 stands for what None becomes there.
OF_TRL: dict[str, Any] = {
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-08,
    "beta": 0.0,
    "bf16": True,
    "entropy_coef": 0.0,
    "epsilon": 0.2,
    "eval_strategy": "no",
    "gradient_accumulation_steps": 1,
    "gradient_checkpointing": True,
    "importance_sampling_level": "token",
    "learning_rate": 1e-06,
    "loss_type": "dapo",
    "lr_scheduler_type": "linear",
    "mask_truncated_completions": False,
    "max_completion_length": 512,
    "max_grad_norm": 1.0,
    "max_steps": -1,
    "multi_objective_aggregation": "sum_then_normalize",
    "num_generations": 8,
    "num_iterations": 1,
    "num_train_epochs": 3.0,
    "per_device_train_batch_size": 8,
    "ref_model_sync_steps": 512,
    "repetition_penalty": 1.0,
    "report_to": "none",
    "sapo_temperature_neg": 1.05,
    "sapo_temperature_pos": 1.0,
    "save_steps": 500,
    "save_strategy": "steps",
    "scale_rewards": "group",
    "sync_ref_model": False,
    "temperature": 1.0,
    "top_entropy_quantile": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "use_bias_correction_kl": True,
    "use_vllm": False,
    "vllm_importance_sampling_clip_max": 3.0,
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "sequence_mask",
    "warmup_steps": 0,
    "weight_decay": 0.0,
}
#: Of these a recipe keeps its own where a file is silent: when it evaluates changes nothing of what it trains.
OWN_DEFAULT = ("eval_strategy",)


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The arguments of GRPOConfig that the benchmark's learning curves are made with, without TRL."""
    for name, made in {"trl": {"GRPOConfig": dict, "GRPOTrainer": object}, "datasets": {"Dataset": object}}.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**made))  # type: ignore[arg-type]
    monkeypatch.syspath_prepend(str(TRL))
    before = set(sys.modules)
    import learn_theirs  # pyright: ignore[reportMissingImports]

    yield learn_theirs.configuration(quickstart(learn_theirs.CHANGES), "outputs/run")
    for name in set(sys.modules) - before:
        if str(TRL) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def quickstart(changes: dict[str, Any]) -> Recipe:
    """The recipe on groupwise's side of that benchmark."""
    return recipe.load("quickstart", {**changes, "seed": 3})


def from_file(options: dict[str, Any], folder: Path) -> Recipe:
    """Import options from a file, and read back the recipe that is written."""
    (folder / "grpo.yaml").write_text(yaml.safe_dump({**BESIDE, **options}))
    (folder / "recipe.toml").write_text(imported(read(str(folder / "grpo.yaml"))).text())
    return recipe.load(str(folder / "recipe.toml"))


def objective(of: Recipe) -> Algorithm:
    """Make the parts that a recipe names."""
    table = dict(of.algorithm)
    return algorithm(str(table.pop("name")), table)


def numbers(of: Recipe) -> dict[str, Any]:
    """What decides the updates: sizes, sampling, optimizer, objective."""
    parts = objective(of)
    slots = ("advantage", "ratio", "trust", "aggregate", "entropy_coefficient")
    return {
        "steps": of.steps,
        "batch": (of.prompts_per_step, of.samples_per_prompt, of.updates_per_batch, of.passes_per_batch or 1),
        "seed": of.seed,
        "tokens": of.sampling.max_new_tokens,
        "temperature": of.sampling.temperature,
        "learner": {key: getattr(of.learner, key) for key in LEARNER},
        "objective": {slot: getattr(parts, slot) for slot in slots},
        "beta": parts.kl.beta,
    }


LEARNER = (
    "learning_rate", "schedule", "warmup_updates", "weight_decay", "clip_norm", "beta1", "beta2", "epsilon",
    "precision",
)  # fmt: skip


def test_the_benchmarks_config_gives_the_recipe_that_it_was_measured_against(
    theirs: dict[str, Any], tmp_path: Path
) -> None:
    import learn_theirs  # pyright: ignore[reportMissingImports]

    ours = numbers(quickstart(learn_theirs.CHANGES))
    assert ours["objective"]["advantage"] == GroupZScore(epsilon=1e-6)
    ours["objective"]["advantage"] = GroupZScore(epsilon=1e-4)  # TRL's own, which no option of it sets
    assert numbers(from_file(theirs, tmp_path)) == ours
    assert (ours["learner"]["learning_rate"], ours["batch"], ours["beta"]) == (0.0003, (64, 8, 2, 1), 0.0)
    assert theirs["loss_type"] == "grpo"


def test_a_file_that_is_silent_trains_as_one_that_writes_out_every_default() -> None:
    said = {name: value for name, value in OF_TRL.items() if name not in OWN_DEFAULT}
    silent, whole = (
        dict(flat(imported(Given("run.yaml", False, False, {**options, **BESIDE, "max_steps": 10})).table))
        for options in ({}, said)
    )
    assert silent == whole


def test_a_default_that_a_rule_reads_is_trls() -> None:
    here = {name: value for name, value in DEFAULTS.items() if name in OF_TRL}
    assert here == {name: OF_TRL[name] for name in here}
    assert set(DEFAULTS) - set(OF_TRL) == {"num_processes", "lora_r", "lora_alpha"}, "those of others' classes"
    assert set(OF_TRL) <= set(RULES)


@pytest.mark.parametrize(
    ("options", "key", "expected"),
    [
        ({"learning_rate": 3e-6}, "learner.learning_rate", 3e-6),
        ({"num_generations": 4}, "samples_per_prompt", 4),
        ({"per_device_train_batch_size": 32}, "prompts_per_step", 4),
    ],
)
def test_a_size_or_a_rate_arrives(options: dict[str, Any], key: str, expected: Any, tmp_path: Path) -> None:
    assert attrgetter(key)(from_file({"max_steps": 10, **options}, tmp_path)) == expected


@pytest.mark.parametrize(
    ("options", "key", "expected"),
    [
        ({}, "aggregate", TokenMean()),
        ({"epsilon": 0.1}, "trust", Clip(epsilon_low=0.1, epsilon_high=0.1)),
        ({"epsilon": 0.1, "epsilon_high": 0.28}, "trust", Clip(epsilon_low=0.1, epsilon_high=0.28)),
        ({"beta": 0.04}, "kl", KL(beta=0.04, estimator=K3Ratio())),
        ({"beta": 0.04, "use_bias_correction_kl": False}, "kl", KL(beta=0.04, estimator=K3())),
        ({"loss_type": "grpo"}, "aggregate", SequenceMean()),
        ({"loss_type": "dr_grpo"}, "aggregate", Constant(limit=512)),
        ({}, "advantage", GroupZScore(epsilon=1e-4)),
        ({"scale_rewards": True}, "advantage", GroupZScore(epsilon=1e-4)),
        ({"scale_rewards": None}, "advantage", GroupZScore(epsilon=1e-4)),
        ({"loss_type": "luspo"}, "advantage", GroupZScore(epsilon=1e-4)),
        ({"scale_rewards": "none"}, "advantage", GroupMean()),
        ({"scale_rewards": "batch"}, "advantage", GroupMean(whiten=True)),
        ({"loss_type": "vespo"}, "trust", GammaWeight(2.0, 3.0, 3.0, 2.0)),
        ({"loss_type": "vespo", "vespo_k_neg": 4.0}, "trust", GammaWeight(2.0, 3.0, 4.0, 2.0)),
        ({"loss_type": "vespo", "importance_sampling_level": "token"}, "ratio", SequenceSum()),
        ({"loss_type": "luspo", "importance_sampling_level": "sequence"}, "ratio", SequenceRatio()),
        ({"loss_type": "luspo"}, "ratio", TokenRatio()),
        ({"loss_type": "luspo", "epsilon": 2e-3, "epsilon_high": 2.5e-3}, "trust", Clip(2e-3, 2.5e-3)),
        ({"loss_type": "luspo"}, "aggregate", Constant(limit=1)),
        ({"off_policy_mask_threshold": 0.3, "delta": 4.0}, "trust", OffPolicyMask(0.2, 0.2, 4.0, delta=0.3)),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "advantage", RewardZScore(epsilon=1e-4)),
        (
            {"multi_objective_aggregation": "normalize_then_sum", "scale_rewards": "none"},
            "advantage",
            RewardZScore(epsilon=1e-4),
        ),
    ],
)
def test_a_part_of_the_objective_arrives(options: dict[str, Any], key: str, expected: Any, tmp_path: Path) -> None:
    assert getattr(objective(from_file({"max_steps": 10, **options}, tmp_path)), key) == expected


ACTOR, LOSS = "actor_rollout_ref.actor.", "actor_rollout_ref.actor.policy_loss."
#: What verl's losses are with its defaults: bounds of 0.2, a second clip or a cap of 3.
HELD = Tapered(low_positive=0.8, high_positive=1.2, low_negative=0.8, high_negative=1.2)
LIKELIHOOD = Tapered(low_positive=1.0, high_positive=1.0, low_negative=1.0, high_negative=1.0)


@pytest.mark.parametrize(
    ("options", "key", "expected"),
    [
        ({"loss_mode": "dppo_tv"}, "trust", TotalVariation(0.2, 0.2, 3.0)),
        ({"loss_mode": "dppo_tv", "clip_ratio_high": 0.15, "clip_ratio_c": 20.0}, "trust", TotalVariation(0.2, 0.15)),
        ({"loss_mode": "dppo_kl", "clip_ratio_low": 0.05}, "trust", BinaryKL(0.05, 0.2, 3.0)),
        ({"loss_mode": "dro", "dro_beta": 0.5}, "trust", LIKELIHOOD),
        ({"loss_mode": "dro", "dro_beta": 0.5}, "kl", KL(beta=0.5, estimator=K2(), against="old")),
        ({"loss_mode": "dro", "dro_beta": 0.5, "use_kl_loss": True}, "kl", KL(0.5, K2(), against="old")),
        ({"loss_mode": "gpg"}, "trust", LIKELIHOOD),
        ({"loss_mode": "gpg"}, "kl", KL(beta=0.0)),
        ({"loss_mode": "cispo"}, "trust", HELD),
        ({"loss_mode": "cispo", "clip_ratio_low": 10, "clip_ratio_high": 0.2}, "trust", Cispo(0.0, 0.2)),
        ({"loss_mode": "sapo"}, "trust", SoftGate()),
        ({"loss_mode": "sapo", "loss_agg_mode": "token-mean"}, "aggregate", SequenceMean()),
        ({"clip_ratio": 0.3}, "trust", Clip(0.2, 0.2, 3.0)),
        ({"clip_ratio": 0.3, "clip_ratio_low": None, "clip_ratio_high": None}, "trust", Clip(0.3, 0.3, 3.0)),
        ({"clip_ratio": 0.3, "clip_ratio_low": None}, "trust", Clip(0.3, 0.2, 3.0)),
        ({"clip_ratio_high": None}, "trust", Clip(0.2, 0.2, 3.0)),
        ({"clip_ratio": None, "clip_ratio_high": None}, "trust", Clip(0.2, 0.2, 3.0)),
        ({"clip_ratio": 0.1, "clip_ratio_low": None, "loss_mode": "dppo_kl"}, "trust", BinaryKL(0.1, 0.2, 3.0)),
        ({"clip_ratio_high": 0.28}, "trust", Clip(0.2, 0.28, 3.0)),
        ({"adv_estimator": "opo"}, "advantage", LengthWeightedMean()),
        ({"adv_estimator": "opo"}, "trust", Clip(0.2, 0.2, 3.0)),
        ({"adv_estimator": "gdpo"}, "advantage", RewardZScore()),
        ({"adv_estimator": "gdpo", "norm_adv_by_std_in_grpo": False}, "advantage", RewardZScore()),
        ({"adv_estimator": "grpo_vectorized", "norm_adv_by_std_in_grpo": False}, "advantage", GroupZScore()),
    ],
)
def test_a_part_of_verls_objective_arrives(options: dict[str, Any], key: str, expected: Any, tmp_path: Path) -> None:
    """verl's estimator, loss and bounds, as its own functions read them: see benchmarks/parity.py."""
    places = {
        "adv_estimator": "algorithm.",
        "norm_adv_by_std_in_grpo": "algorithm.",
        "loss_mode": LOSS,
        "dro_beta": LOSS,
    }
    whole = {f"{places.get(name, ACTOR)}{name}": value for name, value in {"adv_estimator": "grpo", **options}.items()}
    (tmp_path / "recipe.toml").write_text(imported(Given("run.yaml", True, False, whole)).text())
    assert getattr(objective(recipe.load(str(tmp_path / "recipe.toml"))), key) == expected
