"""A small version of benchmarks/gains.py: the words are seldom wrong, and a gain is told where it can be."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

RUNS = 150
#: Of as many runs a rate of 0.025 is seen as at most this, but for one case in a thousand.
MOST = 0.08


@pytest.fixture
def gains(module: Any) -> ModuleType:
    return module("gains")


@pytest.mark.parametrize(("problems", "samples"), [(12, 1), (12, 4), (50, 4)])
def test_what_did_not_change_is_seldom_said_to_have(gains: ModuleType, problems: int, samples: int) -> None:
    for truth in gains.unchanged():
        assert abs(truth.gain) < 5e-3
        seen = gains.rates(truth, problems, samples, RUNS)
        assert max(seen.rose, seen.fell) <= MOST, truth.words
        assert seen.held >= 0.95 - 2.5 * np.sqrt(0.95 * 0.05 / RUNS), truth.words


def test_a_gain_is_told_where_there_are_enough_problems(gains: ModuleType) -> None:
    truths = gains.risen(0.1)
    assert [round(truth.gain, 3) for truth in truths] == [0.1] * len(truths)
    few, many = ([gains.rates(truth, n, 4, RUNS) for truth in truths] for n in (12, 200))
    assert np.mean([seen.rose for seen in few]) < 0.2
    assert np.mean([seen.rose for seen in many]) > 0.95
    assert max(seen.fell for seen in many) == 0


def test_truths_are_what_they_say(gains: ModuleType) -> None:
    rise, fall = (gains.traded(up) for up in (True, False))
    assert np.mean(rise.after > rise.before) == pytest.approx(0.9)
    assert np.mean(fall.after < fall.before) == pytest.approx(0.9)
    assert all(abs(truth.gain) < 5e-3 for truth in gains.unchanged())
