"""The atlas: weights are those of the parts' gradients, and every pair of algorithms can be compared."""

from __future__ import annotations

import math
from itertools import permutations
from pathlib import Path

import pytest
import torch

import groupwise
from groupwise.algorithms.atlas import PROBABILITIES, page, table, weight
from groupwise.algorithms.catalog import CATALOG
from groupwise.algorithms.explain import compare


@pytest.mark.parametrize("name", CATALOG)
def test_on_policy_every_weight_is_one(name: str) -> None:
    for p in PROBABILITIES:
        for sign in (1, -1):
            assert weight(CATALOG[name], torch.tensor([1.0]), sign, p).item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(("name", "expected"), [("grpo", (0.5, 0.0)), ("reinforce", (0.5, 2.0)), ("topr", (1.0, 1.0))])
def test_known_weights(name: str, expected: tuple[float, float]) -> None:
    found = weight(CATALOG[name], torch.tensor([0.5, 2.0]), 1, 0.5)
    assert found.tolist() == pytest.approx(expected)


#: Algorithms whose loss has no stop-gradient: its slope is its gradient.
SMOOTH = [
    name
    for name, row in CATALOG.items()
    if "sg[" not in row.trust.equation + row.ratio.equation and name not in ("fipo", "dr-grpo")
]


@pytest.mark.parametrize("p", PROBABILITIES)
@pytest.mark.parametrize("name", SMOOTH)
def test_a_weight_is_the_slope_of_the_loss_by_finite_differences(name: str, p: float) -> None:
    """A batch of one completion of one token, which every aggregate but dr-grpo's constant gives the weight 1."""
    algo = groupwise.algorithm(name)
    algo, step = groupwise.algorithm(name, {"kl.beta": 0.0}) if algo.kl.in_loss else algo, 1e-6
    mask = torch.ones(1, 1, dtype=torch.bool)
    for ratio in [ratio for ratio in (0.7, 0.9998, 1.7) if p / ratio <= 1]:
        for sign in (1.0, -1.0):
            old = torch.tensor([[math.log(p / ratio)]], dtype=torch.float64)
            live = torch.tensor([[math.log(p)]], dtype=torch.float64)
            values = [algo.loss(live + e, old, torch.tensor([sign]), mask).value for e in (step, -step)]
            slope = -float(values[0] - values[1]) / (2 * step) * sign
            found = weight(algo, torch.tensor([ratio], dtype=torch.float64), int(sign), p).item()
            assert found == pytest.approx(slope, abs=1e-6)


def test_where_the_old_probability_would_be_above_one_there_is_no_weight() -> None:
    assert math.isnan(weight(CATALOG["grpo"], torch.tensor([0.5]), 1, 0.99).item())
    assert "r=0.5" in table()


def test_most_algorithms_are_smooth() -> None:
    assert len(SMOOTH) > len(CATALOG) / 2
    assert "-0.00" not in table()


def test_every_pair_is_compared() -> None:
    for one, other in permutations(CATALOG, 2):
        words = compare(one, other)
        assert words.startswith(f"{one} against {other}: what differs")
        assert ("nothing: the two rows are the same" in words) == (one == other)


def test_the_page_is_todays() -> None:
    assert (Path(__file__).parents[2] / "docs/reference/atlas.md").read_text() == page(), "run make docs"
