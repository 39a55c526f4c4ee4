"""What a planted bug is, and the runs that bugs are planted in: seconds each, with the tiniest policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Bug:
    """A change of the source that someone might really make.

    path   the path of a run that it is in
    file   below src/groupwise
    old    text that the file has exactly once
    new    what is put there
    kind   of the runs in which it has an effect
    first  the step of its first effect; 0: before the first step
    given  keys beside those of the kind
    missed why a run cannot find it; "" if it does
    """

    name: str
    path: str
    file: str
    old: str
    new: str
    kind: str = "tiny"
    first: int = 1
    given: Mapping[str, Any] = field(default_factory=dict)
    missed: str = ""


@dataclass(frozen=True)
class Kind:
    """A kind of run: a recipe with other keys.

    stop_after  the step after which it is stopped, to be resumed; 0: it is not
    """

    recipe: str
    given: Mapping[str, Any]
    stop_after: int = 0


#: What all runs have: small batches, so that a bug must show on few tokens.
COMMON: Mapping[str, Any] = {
    "prompts_per_step": 8,
    "samples_per_prompt": 4,
    "updates_per_batch": 2,
    "warm_start.steps": 150,
    "warm_start.demonstrations": 1000,
    "sampling.max_new_tokens": 12,
    "evaluation.problems": 16,
    "evaluation.samples": 1,
    "evaluation.every": 0,
    "checkpoint.every": 50,
    "checkpoint.keep": 1,
    "journal.report": False,
    "learner.learning_rate": 1e-3,
    "threads": 1,
}
SUMS: Mapping[str, Any] = {**COMMON, "task.operands": [2, 3], "task.largest": 4}
PPO: Mapping[str, Any] = {**SUMS, "algorithm.name": "ppo", "passes_per_batch": 2}
ENVIRONMENT: Mapping[str, Any] = {**COMMON, "sampling.max_new_tokens": 48, "warm_start.steps": 250}
TWO_REWARDS: Mapping[str, Any] = {
    **SUMS,
    "rewards.task.weight": 1.0,
    "rewards.format.pattern": "[0-9]+",
    "rewards.format.weight": 0.2,
}

KINDS: Mapping[str, Kind] = {
    "tiny": Kind("quickstart", SUMS),
    "cut": Kind("quickstart", {**SUMS, "learner.tokens_per_microbatch": 24}),
    "cool": Kind("quickstart", {**SUMS, "sampling.temperature": 0.7}),
    "nucleus": Kind("quickstart", {**SUMS, "sampling.top_p": 0.9}),
    "biased": Kind("quickstart", {**SUMS, "sampling.logit_bias": {"5": 1.0}}),
    "bonus": Kind("quickstart", {**SUMS, "algorithm.entropy_coefficient": 0.01}),
    "falling": Kind("quickstart", {**SUMS, "learner.schedule": "linear", "learner.warmup_updates": 1}),
    "decayed": Kind("quickstart", {**SUMS, "learner.weight_decay": 0.1}),
    "dapo": Kind("quickstart", {**SUMS, "algorithm.name": "dapo", "task.largest": 9}),
    "rewards": Kind("quickstart", TWO_REWARDS),
    "apart": Kind("quickstart", {**TWO_REWARDS, "scoring.combine": "after"}),
    "corrected": Kind("quickstart", {**SUMS, "algorithm.mismatch.kind": "tis", "engine.precision": "bf16"}),
    "renewed": Kind("quickstart", {**SUMS, "reference.every": 1}),
    "critic": Kind("quickstart", PPO),
    "reward model": Kind("rlhf", {**COMMON, "preference.pairs": 200, "preference.heldout_pairs": 100}),
    "experts": Kind(
        "quickstart-moe",
        {**SUMS, "routing.replay": "learner", "routing.load_balance": 0.01},
    ),
    "turns": Kind("guess-number", ENVIRONMENT),
    "walk": Kind("grid-world", {**ENVIRONMENT, "warm_start.steps": 100, "task.max_turns": 6}),
    "segments": Kind("quickstart", {**SUMS, "rollout.turn_tokens": 4}),
    "adapters": Kind("quickstart", {**SUMS, "adapter.rank": 4}),
    "ranks": Kind("quickstart", {**SUMS, "learner.ranks": 2, "learner.tokens_per_microbatch": 24}),
    "resumed": Kind("quickstart", {**SUMS, "learner.schedule": "linear"}, stop_after=2),
    "resumed critic": Kind("quickstart", PPO, stop_after=2),
}

LONG: Mapping[str, Any] = {"checkpoint.every": 100, "checks.witness_every": 20, "evaluation.every": 200}
HALF: Mapping[str, Any] = {"learner.precision": "bf16", "engine.precision": "bf16"}
#: Sound runs in which each check that fails is a false alarm.
CLEAN: Mapping[str, Kind] = (
    {
        name: Kind(KINDS[name].recipe, {**KINDS[name].given, **LONG, "learner.learning_rate": 3e-4})
        for name in ("tiny", "experts", "critic", "turns", "adapters")
    }
    | {
        f"{name}-bf16": Kind(
            "quickstart", {**SUMS, **LONG, **HALF, "learner.learning_rate": 3e-4, "algorithm.name": name}
        )
        for name in ("grpo", "gspo", "cispo", "dppo-tv", "vespo")
    }
    | {"smollm2": Kind("times-tables", {**LONG, "steps": 100, "evaluation.every": 0, "checkpoint.every": 10})}
)
