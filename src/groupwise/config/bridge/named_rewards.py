"""Reward functions that a file of TRL's names, as tables of a recipe."""

import re
from collections.abc import Mapping
from typing import Any

from groupwise.config.bridge.rules import Keys, Rule, Whole, not_here

#: Where a function of the file's own is to be moved.
OWN_FILE = "rewards.py:"

#: TRL's rewards that a recipe has itself.
OVERLONG = {"algorithm.shaping.overlong_cache": 0.2, "algorithm.shaping.limit": 1280}

OWN_REWARDS: Mapping[str, Keys] = {
    "accuracy_reward": {"task.check": "math", "task.answer": "solution", "rewards.task.weight": 1.0},
    "get_soft_overlong_punishment": OVERLONG,
}


def reward_names(value: Any) -> list[str]:
    """List the functions that `reward_funcs` names."""
    return [str(name) for name in ([value] if isinstance(value, str) else list(value or []))]


def _rewards(value: Any, whole: Whole) -> Keys:
    keys: dict[str, Any] = {}
    names, weights = reward_names(value), whole.get("reward_weights") or []
    for at, full in enumerate(names):
        module, _, function = full.rpartition(".")
        name = re.sub(r"\W", "_", function)
        weight = weights[at] if at < len(weights) else 1.0
        if not module and function in OWN_REWARDS:
            keys |= OWN_REWARDS[function]
            keys |= {"rewards.task.weight": float(weight)} if "task.check" in OWN_REWARDS[function] else {}
            continue
        place = f"{module or 'trl.rewards'}:" if module or function in TRL_REWARDS else OWN_FILE
        keys[f"rewards.{name}.use"] = f"{place}{function}"
        keys |= {f"rewards.{name}.weight": float(weight)} if weights else {}
    if set(keys) <= {"rewards.task.weight", "task.check", "task.answer", *OVERLONG}:
        keys.pop("rewards.task.weight", None)  # the task's own score trains where no reward has a table
    return keys


TRL_REWARDS = ("think_format_reward", "reasoning_accuracy_reward")


def _reward_weights(value: Any, whole: Whole) -> Keys:
    return _rewards(whole["reward_funcs"], whole) if whole.get("reward_funcs") else not_here("no rewards in the file")


REWARDS: Mapping[str, Rule] = {"reward_funcs": _rewards, "reward_weights": _reward_weights}
