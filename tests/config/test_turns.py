"""Which task an algorithm that reads rewards of turns, or their states, goes with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import groupwise
from groupwise.config.validate import _require_steps, _require_turns_once
from groupwise.core.errors import UsageError

#: A task of episodes, one that scores steps, and one that does neither.
EPISODES = SimpleNamespace(max_turns=3)
STEPS = SimpleNamespace(steps=lambda sample, completion: [])
NEITHER = SimpleNamespace()


def planned(kind: str, task: Any, **settings: object) -> tuple[Any, Any]:
    return groupwise.algorithm("grpo", {"advantage.kind": kind, **settings}), task


def test_rewards_of_turns_come_from_episodes_and_from_scores_of_steps():
    for kind in ("turn-to-go", "process-zscore"):
        _require_steps(*planned(kind, EPISODES))
        _require_steps(*planned(kind, STEPS))
        with pytest.raises(UsageError, match=r"it needs scores of steps, and .* has none"):
            _require_steps(*planned(kind, NEITHER))
    with pytest.raises(UsageError, match=r'set algorithm\.shaping\.kind = "steps"'):
        _require_steps(*planned("turn-to-go", EPISODES, **{"shaping.kind": "outcome"}))


def test_states_come_from_episodes_alone():
    _require_steps(*planned("gigpo", EPISODES))
    with pytest.raises(UsageError, match=r"gigpo\(.* in one state, and .* plays no turns"):
        _require_steps(*planned("gigpo", STEPS))


def test_a_turns_reward_counts_once():
    """ppo reads rewards of steps and the score; an episode's score is the sum of those of its steps."""

    def require(task: Any = EPISODES, rewards: tuple[str, ...] = (), learned: bool = False, **settings: object) -> None:
        rewards: Any = SimpleNamespace(weights=dict.fromkeys(rewards, 1.0))
        _require_turns_once(groupwise.algorithm("ppo", settings).shaping, task, rewards, learned)

    twice = r'^algorithm\.shaping: an episode.s score .* step_scale = 1 .*shaping\.kind = "steps"'
    doubled: list[dict[str, Any]] = [{}, {"rewards": ("task", "form")}, {"advantage.kind": "turn-to-go"}]
    for given in doubled:
        with pytest.raises(UsageError, match=twice):
            require(**given)
    single: list[dict[str, Any]] = [
        {"task": STEPS},
        {"rewards": ("form",)},
        {"learned": True},
        {"shaping.kind": "steps"},
        {"shaping.step_scale": 0.0},
        {"shaping.scale": 0.0},
    ]
    for given in single:
        require(**given)
