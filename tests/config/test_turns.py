"""Which task an algorithm that reads rewards of turns, or their states, goes with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import groupwise
from groupwise.config.validate import of_turns

#: A task of episodes, one that scores steps, and one that does neither.
EPISODES = SimpleNamespace(max_turns=3)
STEPS = SimpleNamespace(steps=lambda sample, completion: [])
NEITHER = SimpleNamespace()
NO_STEPS = "it needs scores of steps, and "
NO_TURNS = " in one state, and "
NONE_THERE = 'set algorithm.shaping.kind = "steps"'
#: ppo reads rewards of steps and the score; an episode's score is the sum of those of its steps.
TWICE = "algorithm.shaping: an episode's score is what its turns brought, and step_scale = 1 "


@pytest.mark.parametrize(
    ("name", "keys", "task", "given", "words"),
    [
        *(
            ("grpo", {"advantage.kind": kind}, task, {}, NO_STEPS if task is NEITHER else "")
            for kind in ("turn-to-go", "process-zscore")
            for task in (EPISODES, STEPS, NEITHER)
        ),
        ("grpo", {"advantage.kind": "turn-to-go", "shaping.kind": "outcome"}, EPISODES, {}, NONE_THERE),
        ("grpo", {"advantage.kind": "gigpo"}, EPISODES, {}, ""),
        ("grpo", {"advantage.kind": "gigpo"}, STEPS, {}, NO_TURNS),
        ("ppo", {}, EPISODES, {}, TWICE),
        ("ppo", {}, EPISODES, {"rewards": ("task", "form")}, TWICE),
        ("ppo", {"shaping.step_scale": 1.0, "advantage.lam": 0.9}, EPISODES, {}, TWICE),
        ("ppo", {}, STEPS, {}, ""),
        ("ppo", {}, EPISODES, {"rewards": ("form",)}, ""),
        ("ppo", {}, EPISODES, {"learned": True}, ""),
        ("ppo", {"shaping.kind": "steps"}, EPISODES, {}, ""),
        ("ppo", {"shaping.step_scale": 0.0}, EPISODES, {}, ""),
        ("ppo", {"shaping.scale": 0.0}, EPISODES, {}, ""),
    ],
)
def test_rewards_of_turns_and_their_states_come_from_what_has_them_and_count_once(
    name: str, keys: dict[str, Any], task: Any, given: dict[str, Any], words: str
):
    rewards: Any = SimpleNamespace(weights=dict.fromkeys(given.get("rewards", ()), 1.0))
    refusals = list(of_turns(groupwise.algorithm(name, keys), task, rewards, given.get("learned", False)))
    assert len(refusals) == bool(words)
    assert all(words in refusal for refusal in refusals)
