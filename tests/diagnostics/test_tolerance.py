"""Limits that follow from a measured rounding, and the systematic part of a gap: what they let pass."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from groupwise.diagnostics.checks import CheckVerdict, learner_equals_engine, live_equals_old
from groupwise.diagnostics.tolerance import (
    FACTOR,
    FLOAT32,
    SIGMAS,
    Limits,
    NumericalNoise,
    Tolerance,
    ratio_excess,
    tilt,
)
from groupwise.health.checks import GAP_IS_LEVEL, LEARNER_IS_ENGINE, RATIOS_AVERAGE_ONE

ROUNDING = NumericalNoise(mean=0.045, spread=0.05)
TOLERANCE = Tolerance(passes=ROUNDING, engine=ROUNDING, tilt=0.01)
LARGE = Tolerance(engine=ROUNDING.scaled(3.0), probe=ROUNDING.scaled(3.0), tilt=0.5)


def test_a_limit_is_the_rounding_and_the_chance_of_a_batch():
    assert ROUNDING.limit(400) == pytest.approx(FACTOR * 0.045 + SIGMAS * 0.05 / 20, rel=1e-12)
    assert ROUNDING.scaled(3.0) == NumericalNoise(mean=3.0 * 0.045, spread=3.0 * 0.05)
    assert ROUNDING.divergence == pytest.approx((0.045**2 + 0.05**2) / 2, rel=1e-12)
    assert FLOAT32.lines() == []


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


def counted(share: list[int]) -> tuple[Tensor, Tensor]:
    """log q [V] of q = share / sum, and one token for each count: samples that have q's frequencies exactly."""
    count = torch.tensor(share)
    return (count.double() / count.sum()).log(), torch.repeat_interleave(torch.arange(len(share)), count)


Q, TOKENS = counted([1, 2, 3, 10, 16])
P = torch.tensor([0.3, 0.05, 0.25, 0.3, 0.1], dtype=torch.float64).log()


def test_ratios_of_any_two_distributions_average_one():
    assert float((P - Q)[TOKENS].abs().mean()) > 0.5
    found = ratio_excess((P - Q)[TOKENS])
    assert found.value == pytest.approx(0, abs=1e-12)
    ratios = (P - Q)[TOKENS].exp()
    assert found.error == pytest.approx(float(ratios.var(correction=0) / len(TOKENS)) ** 0.5, rel=1e-12)
    assert found.points == len(TOKENS)


def test_under_a_set_that_is_not_told_they_average_its_probability():
    """The learner's p is over all tokens, the engine's q is p renormalised over some: p/q = their share of p."""
    everything = torch.cat([Q + math.log(0.9), torch.tensor([0.1], dtype=torch.float64).log()])
    assert ratio_excess((everything[:5] - Q)[TOKENS]).value == pytest.approx(-0.1, rel=1e-12)


@pytest.mark.parametrize("temperature", [0.5, 0.9, 1.1])
def test_a_temperature_tilts_the_gap_by_its_own_error(temperature: float):
    """q = softmax(l / T) sampled where the learner has softmax(l): log p = T log q + a constant."""
    p = (temperature * Q).log_softmax(-1)
    found = tilt((p - Q)[TOKENS], Q[TOKENS])
    assert found.value == pytest.approx(temperature - 1, rel=1e-12)
    assert found.error == pytest.approx(0, abs=1e-12)


def test_the_error_of_a_tilt_is_that_of_leaving_out_each_token():
    gap, logp = (torch.randn(2, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).unbind()
    found = tilt(gap, logp)
    slopes = []
    for i in range(9):
        left = [j for j in range(9) if j != i]
        u = logp[left] - logp[left].mean()
        slopes.append(float((u * gap[left]).sum() / (u**2).sum()))
    assert found.error == pytest.approx(math.dist(slopes, [found.value] * 9), rel=1e-12)


def test_a_lone_rare_token_is_one_point_and_no_certainty():
    logp = torch.tensor([-1e-3] * 500 + [-6.0], dtype=torch.float64)
    gap = torch.zeros(501, dtype=torch.float64)
    gap[-1] = 0.3
    found = tilt(gap, logp)
    assert found.value == pytest.approx(-0.05, rel=1e-3)
    assert found.points < 1.01
    assert tilt(gap, logp.new_full((501,), -2.0)).points == 0
