"""The limits of checks that compare two passes over the same weights."""

from __future__ import annotations

import pytest
import torch

from groupwise.diagnostics.checks import Verdict, live_equals_old, reference_is_start


@pytest.mark.parametrize(
    ("spoiled", "by", "verdict"),
    [
        (0, 0.0, Verdict.PASS),
        (1, 5e-5, Verdict.PASS),  # one token of a thousand: rounding can do that
        (1, 2e-4, Verdict.FAIL),  # no rounding does that
        (9, 5e-5, Verdict.PASS),
        (20, 2e-5, Verdict.FAIL),  # more than one in a hundred
        (1000, 1e-4, Verdict.FAIL),
        (1000, float("nan"), Verdict.FAIL),
        (1, float("nan"), Verdict.FAIL),
    ],
)
@pytest.mark.parametrize("check", [live_equals_old, reference_is_start])
def test_rounding_of_single_tokens_passes_and_a_fault_does_not(check, spoiled, by, verdict):
    old = torch.full((10, 100), -2.0)
    live = old.clone()
    live.view(-1)[:spoiled] += by
    mask = torch.ones(10, 100, dtype=torch.bool)
    assert check(live, old, mask, None).verdict is verdict
    assert check(live, old, ~mask, None).verdict is Verdict.NOT_MEASURED


def test_what_is_masked_is_not_compared():
    old = torch.zeros(2, 50)
    mask = torch.zeros(2, 50, dtype=torch.bool)
    mask[0] = True
    assert live_equals_old(old + torch.tensor([[0.0], [9.0]]), old, mask, None).verdict is Verdict.PASS


def test_a_reference_that_is_another_model_on_purpose_is_not_measured_and_says_why():
    """However far it is from the start, and also where nothing is compared."""
    live, mask = torch.zeros(2, 5), torch.ones(2, 5, dtype=torch.bool)
    assert reference_is_start(live - 9, live, mask, None).verdict is Verdict.FAIL
    for start in (live, None):
        check = reference_is_start(live - 9, start, mask, None, other="reference.model = 'x' is another policy")
        assert check.verdict is Verdict.NOT_MEASURED
        assert str(check).endswith("not measured (reference.model = 'x' is another policy)")
