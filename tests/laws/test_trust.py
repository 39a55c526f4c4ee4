"""Laws of the trust regions: what passes, what is stopped, and that nothing overflows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from groupwise.algorithms.laws.draws import Draw, draw
from groupwise.algorithms.parts.ratio import TokenRatio
from groupwise.algorithms.parts.trust import Cispo, Clip, Geometric, NoTrust, SoftGate, Surrogate

PER_TOKEN = [
    NoTrust(),
    Clip(),
    Clip(0.2, 0.28, dual_clip=3.0),
    SoftGate(),
    SoftGate(0.5, 4.0),
    Cispo(),
    Cispo(cap=0.0, epsilon_high=0.2),
]
ALL = [*PER_TOKEN, Geometric(), Geometric(0.1, 0.3)]


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
def test_constants_that_make_no_sense_are_refused(kind, fields, told):
    with pytest.raises(ValueError, match=told):
        kind(**fields)
