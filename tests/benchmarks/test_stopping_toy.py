"""The stopping toy: which credit is the true gradient, by the parts that train: docs/concepts/credit.md."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def toy(module: Any) -> ModuleType:
    return module("stopping_toy")


def share(toy: ModuleType, words: str) -> list[float]:
    row = next(row for name, row in toy.CREDITS.items() if name.startswith(words))
    return [toy.expected(one, row) / toy.truth(one) for one in toy.TOYS]


def test_the_true_gradient_is_the_slope_of_what_is_earned(toy):
    for one in toy.TOYS:

        def earned(p: float, pays=one.pays) -> float:
            return sum(p**t * reward for t, reward in enumerate(pays))

        p, h = one.go_on, 1e-6
        slope = (earned(p + h) - earned(p - h)) / (2 * h) * p * (1 - p)
        assert toy.truth(one) == pytest.approx(slope, rel=1e-8)


def test_leave_one_out_and_turn_to_go_are_exact_and_the_groups_mean_is_smaller_by_one_episode(toy):
    assert share(toy, "mean of the other episodes") == pytest.approx([1, 1], abs=1e-12)
    assert share(toy, "turns to go") == pytest.approx([1, 1], abs=1e-12)
    assert share(toy, "mean of the group's episodes") == pytest.approx([7 / 8, 7 / 8], abs=1e-12)


def test_centring_by_turn_index_sees_nothing_and_process_supervision_nothing_or_the_reverse(toy):
    assert share(toy, "rewards centred by turn index") == pytest.approx([0, 0], abs=1e-12)
    equal, falling = share(toy, "process supervision")
    assert equal == pytest.approx(0, abs=1e-12)
    assert falling < -0.1
    assert all(0.5 < one < 0.9 for one in share(toy, "to go, the episode itself"))


def test_a_mean_per_sequence_is_a_bias_of_its_own(toy):
    assert all(one < 0.75 for one in share(toy, "`turn-to-go` weighed by"))


def test_the_table_of_the_docs_is_what_the_command_prints(toy):
    assert toy.table() in (ROOT / "docs" / "concepts" / "credit.md").read_text()
