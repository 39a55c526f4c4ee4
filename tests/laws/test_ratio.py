"""Laws of the log-ratios and trust regions: values and gradients written out, masks, limits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import groupwise
from groupwise.algorithms.laws.draws import Draw, draw
from groupwise.algorithms.parts.ratio import SequenceRatio, SequenceSum, SequenceTokenRatio, TokenRatio, TurnRatio
from groupwise.algorithms.parts.trust import Cispo, Geometric, SoftGate, Surrogate
from groupwise.core.errors import UsageError

ALL = [TokenRatio(), SequenceRatio(), SequenceTokenRatio(), SequenceSum(), TurnRatio()]


def value_and_gradient(part, b: Draw, upstream: Tensor) -> tuple[Tensor, Tensor]:
    live = b.live.clone().requires_grad_(True)
    value = part(live, b.old, b.mask)
    return value.detach(), torch.autograd.grad(value, live, upstream)[0]


def runs(at: list[int]) -> list[list[int]]:
    """Places in order, cut where one is left out."""
    turns: list[list[int]] = []
    for t in at:
        if turns and turns[-1][-1] == t - 1:
            turns[-1].append(t)
        else:
            turns.append([t])
    return turns


def written_out(part, b: Draw, upstream: Tensor) -> tuple[Tensor, Tensor]:
    """Value and gradient, completion by completion: d log r_t / d live_u summed against the upstream gradient."""
    value, gradient = torch.zeros_like(b.live), torch.zeros_like(b.live)
    for i in range(len(b.mask)):
        at = b.mask[i].nonzero()[:, 0].tolist()
        if isinstance(part, TurnRatio):
            for turn in runs(at):
                mean = sum(float(b.live[i, t] - b.old[i, t]) for t in turn) / len(turn)
                value[i, turn], gradient[i, turn] = mean, float(upstream[i, turn].sum()) / len(turn)
            continue
        own = [float(b.live[i, t] - b.old[i, t]) for t in at]
        for t, log_ratio in zip(at, own, strict=True):
            share = {TokenRatio: log_ratio, SequenceSum: sum(own)}.get(type(part), sum(own) / len(own))
            value[i, t] = share
            total = sum(float(upstream[i, u]) for u in at)
            gradient[i, t] = {SequenceRatio: total / len(at), SequenceSum: total}.get(type(part), float(upstream[i, t]))
    return value, gradient


@pytest.mark.parametrize("part", ALL, ids=repr)
def test_value_and_gradient_are_the_equations(part, batch):
    upstream = torch.randn(batch.mask.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    for found, expected in zip(
        value_and_gradient(part, batch, upstream), written_out(part, batch, upstream), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("part", ALL, ids=repr)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_used_as_it_is_within_the_limit_and_clamped_without_gradient_beyond(part, sign):
    mask = torch.tensor([[True, False, True], [True, True, True]])
    for size, expected, moves in ((50.0, 50.0, True), (61.0, 60.0, False), (1e4, 60.0, False)):
        tokens = mask.double().sum(-1, keepdim=True) if isinstance(part, SequenceSum) else 1
        live = (sign * size / tokens * torch.ones(2, 3, dtype=torch.float64)).requires_grad_(True)
        value = part(live, torch.zeros(2, 3, dtype=torch.float64), mask)
        value.sum().backward()
        torch.testing.assert_close(value.detach(), sign * expected * mask.double(), rtol=1e-14, atol=0)
        assert ((live.grad != 0) == (mask if moves else torch.zeros_like(mask))).all()


def test_with_one_turn_the_turns_ratio_is_the_sequences_in_value_and_gradient(batch):
    lengths = batch.mask.sum(-1, keepdim=True)
    batch.mask = (torch.arange(batch.mask.shape[1]) >= 1) & (torch.arange(batch.mask.shape[1]) < 1 + lengths)
    upstream = torch.randn(batch.mask.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    turn, sequence = (value_and_gradient(part, batch, upstream) for part in (TurnRatio(), SequenceRatio()))
    for one, other in zip(turn, sequence, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("correction", [{"mismatch.kind": "tis"}, {"rejection.kind": "token"}], ids=str)
def test_a_correction_that_varies_within_a_turn_is_refused_and_one_of_the_completion_is_not(correction):
    with pytest.raises(UsageError, match=r"ratio\.level \(TurnRatio\(\)\) is one number per turn"):
        groupwise.algorithm("grpo", {"ratio.level": "turn", **correction})
    groupwise.algorithm("grpo", {"ratio.level": "turn", "mismatch.kind": "sequence-mis"})


def apply(part, b: Draw, advantage: Tensor, weight: Tensor | float = 1.0) -> tuple[Surrogate, Tensor]:
    """The part behind token ratios: its surrogate, and the gradient of the weighted sum in logp_live."""
    live = b.live.clone().requires_grad_(True)
    out = part(TokenRatio()(live, b.old, b.mask), advantage, live, b.mask)
    (gradient,) = torch.autograd.grad((weight * out.value).sum(), live)
    return Surrogate(out.value.detach(), out.share), gradient


def per_token(b: Draw) -> Tensor:
    return torch.randn(b.mask.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


def test_cispo_by_its_two_names_is_one():
    b = draw(3, spread=2.0)
    absolute, _ = apply(Cispo(cap=1.2), b, per_token(b))
    counted, _ = apply(Cispo(cap=0.0, epsilon_high=0.2), b, per_token(b))
    assert torch.equal(absolute.value, counted.value)
    assert torch.equal(absolute.share, counted.share)


@pytest.mark.parametrize(
    ("kind", "fields", "told"),
    [
        (SoftGate, {"tau_positive": 0.0}, "tau_positive = 0.0: must be above 0"),
        (SoftGate, {"tau_negative": -1.0}, "tau_negative = -1.0: must be above 0"),
        (Cispo, {"cap": 5.0, "epsilon_high": 0.2}, "cap = 5.0 and epsilon_high = 0.2: set one of them"),
        (Cispo, {"cap": 0.0, "epsilon_high": 0.0}, "cap = 0.0 and epsilon_high = 0.0: set one of them"),
        (Cispo, {"cap": 0.9}, "cap = 0.9: must be at least 1"),
        (Cispo, {"cap": 0.0, "epsilon_high": -0.2}, "epsilon_high = -0.2: must not be negative"),
        (Geometric, {"epsilon_low": -0.1}, "epsilon_low = -0.1: must not be negative"),
        (Geometric, {"epsilon_high": -0.1}, "epsilon_high = -0.1: must not be negative"),
    ],
)
def test_constants_of_a_trust_region_that_make_no_sense_are_refused(kind, fields, told):
    with pytest.raises(ValueError, match=told):
        kind(**fields)
