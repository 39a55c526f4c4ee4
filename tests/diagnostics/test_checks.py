"""The limits of checks that compare two passes over the same weights."""

from __future__ import annotations

import pytest
import torch

from groupwise.diagnostics.checks import (
    FLOAT32_LIMIT,
    CheckVerdict,
    learner_equals_engine,
    live_equals_old,
    reference_is_start,
)
from groupwise.diagnostics.tolerance import FLOAT32


def of_the_engine(logp, logp_engine, fresh, _):
    (check,) = learner_equals_engine(logp, logp_engine, fresh, FLOAT32)
    return check


@pytest.mark.parametrize(
    ("spoiled", "limits", "verdict"),
    [
        (0, 0.0, CheckVerdict.PASS),
        (1, 5.0, CheckVerdict.PASS),  # one token of a thousand: rounding can do that
        (1, 20.0, CheckVerdict.FAIL),  # no rounding does that
        (9, 5.0, CheckVerdict.PASS),
        (20, 2.0, CheckVerdict.FAIL),  # more than one in a hundred
        (1000, 1.1, CheckVerdict.FAIL),
        (1000, float("nan"), CheckVerdict.FAIL),
        (1, float("nan"), CheckVerdict.FAIL),
    ],
)
@pytest.mark.parametrize("check", [live_equals_old, reference_is_start, of_the_engine])
def test_rounding_of_single_tokens_passes_and_a_fault_does_not(check, spoiled, limits, verdict):
    """Of 1,000 tokens some are moved by so many limits."""
    old = torch.full((10, 100), -2.0, dtype=torch.float64)
    new = old.clone()
    new.view(-1)[:spoiled] += limits * FLOAT32_LIMIT
    mask = torch.ones(10, 100, dtype=torch.bool)
    assert check(new, old, mask, None).verdict is verdict
    assert check(new, old, ~mask, None).verdict is CheckVerdict.NOT_MEASURED


def test_of_fewer_than_a_hundred_tokens_each_is_within_the_limit():
    """A short probe, or a short batch, has no token to spare."""
    old = torch.zeros(1, 99, dtype=torch.float64)
    new = old.clone()
    new[0, 0] = 2 * FLOAT32_LIMIT
    assert of_the_engine(new, old, torch.ones(1, 99, dtype=torch.bool), None).verdict is CheckVerdict.FAIL


def test_what_is_masked_is_not_compared():
    old = torch.zeros(2, 50)
    mask = torch.zeros(2, 50, dtype=torch.bool)
    mask[0] = True
    assert live_equals_old(old + torch.tensor([[0.0], [9.0]]), old, mask, None).verdict is CheckVerdict.PASS


def test_a_reference_that_is_another_model_on_purpose_is_not_measured_and_says_why():
    """However far it is from the start, and also where nothing is compared."""
    live, mask = torch.zeros(2, 5), torch.ones(2, 5, dtype=torch.bool)
    assert reference_is_start(live - 9, live, mask, None).verdict is CheckVerdict.FAIL
    for start in (live, None):
        check = reference_is_start(live - 9, start, mask, None, other="reference.model = 'x' is another policy")
        assert check.verdict is CheckVerdict.NOT_MEASURED
        assert str(check).endswith("not measured (reference.model = 'x' is another policy)")
