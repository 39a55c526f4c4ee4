"""What is read of a run, against numbers made by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from groupwise.claims import readings


def evaluation(step: int, rate: float) -> dict[str, Any]:
    return {"step": step, "evaluation": {"avg_at_k": rate, "length_mean": 100.0 + step, "truncated_share": 0.0}}


def steps(count: int) -> list[dict[str, Any]]:
    """Steps whose pass rate is step / 100, without wrong answers in the even ones."""
    return [
        {
            "step": step,
            "pass_rate": step / 100,
            "length_wrong_mean": 50.0 + step if step % 2 else None,
            "generated_tokens": 1000,
            "seconds": {"generate": 2.0, "update": 1.0, "annotate": 0.5},
        }
        for step in range(1, count + 1)
    ]


def test_heldout_rates_and_curves() -> None:
    told = readings.of_steps(steps(20), [evaluation(0, 0.2), evaluation(10, 0.6), evaluation(20, 0.5)])
    assert told["heldout"] == [[0, 0.2], [10, 0.6], [20, 0.5]]
    assert (told["heldout_start"], told["heldout_end"], told["heldout_best"]) == (0.2, 0.5, 0.6)
    assert told["heldout_mean"] == 0.55  # without the one before training
    assert told["pass_rate.start"] == pytest.approx(0.02)
    assert told["pass_rate.end"] == pytest.approx(0.155)
    assert told["pass_rate.mean"] == pytest.approx(0.105)
    assert told["length_wrong_mean.end"] == 65.0  # steps 11, 13, 15, 17, 19
    assert told["curves"]["length_wrong_mean"][:3] == [51.0, None, 53.0]
    assert "entropy_mean" not in told["curves"]
    assert told["heldout_length_end"] == 120.0


def test_what_a_run_cost() -> None:
    machine = [{"memory_peak_mib": 300.0}, {"memory_peak_mib": 400.5}]
    told = readings.of_machine(steps(4), {"seconds_training": 14.0}, machine)
    assert told == {
        "seconds_training": 14.0,
        "seconds_generate": 8.0,
        "seconds_update": 4.0,
        "generated_tokens": 4000.0,
        "memory_peak_mib": 400.5,
    }


def row(update: int, old: Any, live: Any, share: Any, advantage: float, score: float, **given: Any) -> dict[str, Any]:
    """A line of rollouts.jsonl of a completion of two tokens."""
    return {
        "advantage": advantage,
        "score": score,
        "pieces": ["a", "b"],
        "per_token": {"logp_old": old, **given},
        "updates": [{"update": update, "logp_live": live, "share": share}],
    }


RARE, LIKELY = math.log(0.04), math.log(0.95)
ROWS = [
    row(1, [RARE, LIKELY], [RARE, LIKELY], 1.0, 1.0, 1.0),  # the first update: every ratio is 1
    row(2, [RARE, LIKELY], [RARE + 1, LIKELY], [0.0, 1.0], 1.0, 1.0),
    row(3, LIKELY, [LIKELY - 1, LIKELY - 1], 0.0, -1.0, 0.0),
    row(2, LIKELY, LIKELY, 1.0, 0.0, 1.0),  # without an advantage nothing is trained
    {"advantage": None, "score": 1.0},  # dropped
]


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    return readings.of_tokens(readings.seen_rows(ROWS))


def test_stopped_tokens_by_their_old_probability(told: dict[str, Any]) -> None:
    assert told["by_probability"] == {
        "tokens": [1, 0, 0, 0, 3],
        "stopped_positive": [1, 0, 0, 0, 0],
        "stopped_negative": [0, 0, 0, 0, 2],
    }
    assert told["probability_stopped_positive"] == pytest.approx(0.04)
    assert told["probability_stopped_negative"] == pytest.approx(0.95)
    assert told["stopped_tokens"] == 0.75


def test_ratios_inside_a_completion(told: dict[str, Any]) -> None:
    assert told["ratio_far"] == 0.75  # e^1 and twice e^-1
    assert told["variance_median"] == pytest.approx(0.125)  # of 0.25 and 0
    assert told["variance_above"] == 0.5
    gates = [1 / math.cosh(x / 2) ** 2 for x in (math.e - 1, 0.0, math.exp(0.5) - 1)]
    assert told["gate_gap"] == pytest.approx(abs((gates[0] + gates[1]) / 2 - gates[2]) / 2, rel=1e-4)


def test_the_gate_is_that_of_the_algorithm() -> None:
    """A line of groupwise's own soft gate: share = 4p(1-p)."""
    ratio, tau = 1.4, 1.05
    p = 1 / (1 + math.exp(-tau * (ratio - 1)))
    assert readings.gate(np.log(ratio), tau) == pytest.approx(4 * p * (1 - p))


def test_completions_that_were_kept_and_stopped(told: dict[str, Any]) -> None:
    assert (told["completions_kept"], told["score_kept"]) == (1, 1.0)
    assert (told["completions_stopped"], told["score_stopped"]) == (1, 0.0)
    assert (told["completions_positive_up"], told["passed_positive_up"]) == (1, 0.5)
    assert (told["completions_negative_down"], told["passed_negative_down"]) == (1, 0.0)
    assert (told["completions_positive_down"], told["passed_positive_down"]) == (0, None)


def test_the_distance_from_the_reference_is_k3_over_the_last_quarter() -> None:
    near = row(2, [-1.0, -1.0], [-1.0, -1.1], 1.0, 1.0, 1.0, logp_ref=[-1.0, -1.0])
    far = row(2, [-1.0, -1.0], [-1.0, -1.1], 1.0, 1.0, 1.0, logp_ref=[-2.0, -1.0])
    told = readings.of_tokens(readings.seen_rows([near, near, near, far]))
    assert told["reference_k3"] == pytest.approx(math.exp(-1) / 2, rel=1e-4)


def test_a_run_without_columns_per_token_has_none_of_their_numbers() -> None:
    assert readings.of_tokens(readings.seen_rows([{"advantage": 1.0, "score": 1.0}])) == {}


def test_every_number_can_be_written_and_read_again(told: dict[str, Any]) -> None:
    assert json.loads(json.dumps(told, allow_nan=False)) == told
