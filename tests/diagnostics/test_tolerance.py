"""Limits that follow from a measured rounding: closed forms, and what they let pass and do not."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from groupwise.diagnostics.checks import CheckVerdict, learner_equals_engine, live_equals_old
from groupwise.diagnostics.tolerance import FACTOR, FLOAT32, SIGMAS, Limits, NumericalNoise, Tolerance
from groupwise.health.checks import GAP_IS_LEVEL, LEARNER_IS_ENGINE, RATIOS_AVERAGE_ONE

ROUNDING = NumericalNoise(mean=0.045, spread=0.05)
TOLERANCE = Tolerance(passes=ROUNDING, engine=ROUNDING, tilt=0.01)
LARGE = Tolerance(engine=ROUNDING.scaled(3.0), probe=ROUNDING.scaled(3.0), tilt=0.5)


def test_a_limit_is_the_rounding_and_the_chance_of_a_batch():
    assert ROUNDING.limit(400) == pytest.approx(FACTOR * 0.045 + SIGMAS * 0.05 / 20, rel=1e-12)
    assert ROUNDING.scaled(3.0) == NumericalNoise(mean=3.0 * 0.045, spread=3.0 * 0.05)
    assert ROUNDING.divergence == pytest.approx((0.045**2 + 0.05**2) / 2, rel=1e-12)


def test_in_float32_nothing_but_the_limits_of_each_token():
    assert {FLOAT32.passes, FLOAT32.engine, FLOAT32.probe, FLOAT32.reference} == {None}
    assert FLOAT32.lines() == []
    logp, mask = torch.zeros(2, 20), torch.ones(2, 20, dtype=torch.bool)
    (only,) = learner_equals_engine(logp, logp + 2e-4, mask, FLOAT32)
    assert (only.invariant, only.verdict, only.limit) == (LEARNER_IS_ENGINE, CheckVerdict.FAIL, 1e-4)


def test_limits_only_ever_widen_and_are_kept_then():
    kept: list[Tolerance] = []
    measured = iter([TOLERANCE, Tolerance(passes=ROUNDING, engine=ROUNDING.scaled(2.0), tilt=0.005), TOLERANCE])
    limits = Limits(Tolerance(passes=ROUNDING, engine=ROUNDING, tilt=0.01), lambda _: next(measured), kept.append)
    assert [limits.measure_again([]) for _ in range(3)] == [False, True, False]
    assert limits.tolerance == Tolerance(passes=ROUNDING, engine=ROUNDING.scaled(2.0), tilt=0.01)
    assert kept == [limits.tolerance]
    exact = Limits(FLOAT32, lambda _: TOLERANCE, kept.append)
    assert not exact.measure_again([])
    assert exact.tolerance == FLOAT32


def test_no_limit_of_a_widened_rounding_is_below_either():
    """A few tokens are limited by the spread, many by the mean: the one with the larger mean need not allow more."""
    even, uneven = NumericalNoise(mean=0.003, spread=0.001), NumericalNoise(mean=0.002, spread=0.006)
    for wide in (even.widened(uneven), uneven.widened(even)):
        assert all(wide.limit(n) >= max(even.limit(n), uneven.limit(n)) for n in (1, 4, 32, 1000, 10**6))
    assert even.widened(None) == even


def test_what_a_probe_is_asked_widens_the_limit_of_the_probe_alone():
    kept: list[Tolerance] = []
    limits = Limits(Tolerance(engine=ROUNDING, probe=ROUNDING, tilt=0.01), lambda _: LARGE, kept.append)
    assert limits.measure_again([], probe_alone=True)
    assert kept == [limits.tolerance] == [Tolerance(engine=ROUNDING, probe=ROUNDING.scaled(3.0), tilt=0.01)]


def test_it_is_read_back_as_it_was_written():
    assert Tolerance.model_validate_json(TOLERANCE.model_dump_json()) == TOLERANCE
    for wrong in ('{"tilt": -1.0}', '{"engine": {"mean": 1e9, "spread": 0.0}}', '{"engine": {"mean": NaN}}', "{"):
        with pytest.raises(ValidationError):
            Tolerance.model_validate_json(wrong)


def drawn(seed: int, temperature: float = 1.0, top: int = 0, noise: float = 0.06) -> tuple[Tensor, Tensor]:
    """log p and log q [4,500] of tokens drawn from q: logits over 50 tokens, rounded twice by `noise`."""
    chance = torch.Generator().manual_seed(seed)
    exact = 2 * torch.randn(2000, 50, generator=chance, dtype=torch.float64)
    learner, engine = (exact + noise * torch.randn(exact.shape, generator=chance, dtype=torch.float64) for _ in "le")
    engine = engine / temperature
    if top:
        engine = engine.masked_fill(engine < engine.topk(top).values[:, -1:], -torch.inf)
    q = engine.log_softmax(-1)
    tokens = torch.multinomial(q.exp(), 1, generator=chance)
    return (
        learner.log_softmax(-1).gather(1, tokens).view(4, 500).float(),
        q.gather(1, tokens).view(4, 500).float(),
    )


def verdicts(logp: Tensor, logp_engine: Tensor) -> dict[str, CheckVerdict]:
    checks = learner_equals_engine(logp, logp_engine, torch.ones(4, 500, dtype=torch.bool), TOLERANCE)
    return {check.name: check.verdict for check in checks}


def test_rounding_alone_is_no_fault_in_any_step():
    for seed in range(60):
        assert set(verdicts(*drawn(seed)).values()) == {CheckVerdict.PASS}


@pytest.mark.parametrize(
    ("fault", "finder"),
    [({"temperature": 0.95}, GAP_IS_LEVEL), ({"temperature": 1.05}, GAP_IS_LEVEL), ({"top": 25}, RATIOS_AVERAGE_ONE)],
)
def test_a_fault_smaller_than_the_rounding_is_found_by_what_is_systematic_in_it(fault, finder):
    for seed in range(5):
        found = verdicts(*drawn(seed, **fault))
        assert found[LEARNER_IS_ENGINE.name] is CheckVerdict.PASS
        assert found[finder.name] is CheckVerdict.FAIL


def test_a_bias_on_a_few_tokens_is_not_measured():
    logp, logp_engine = drawn(0)
    few = torch.zeros(4, 500, dtype=torch.bool)
    few[0, :20] = True
    size, *biases = learner_equals_engine(logp, logp_engine, few, TOLERANCE)
    assert size.verdict is CheckVerdict.PASS
    assert {bias.verdict for bias in biases} == {CheckVerdict.NOT_MEASURED}


def test_two_passes_have_the_limit_of_their_own_rounding():
    old, mask = torch.full((4, 100), -2.0), torch.ones(4, 100, dtype=torch.bool)
    limit = ROUNDING.limit(400)
    assert live_equals_old(old + 0.99 * limit, old, mask, ROUNDING).verdict is CheckVerdict.PASS
    assert live_equals_old(old + 1.01 * limit, old, mask, ROUNDING).verdict is CheckVerdict.FAIL
    assert live_equals_old(old + 1e-3, old, mask, None).verdict is CheckVerdict.FAIL
