"""Every advantage against the own definition of the witness, on batches with ties, gaps and missing rewards."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from groupwise.algorithms.laws.draws import draw, like
from groupwise.algorithms.parts.advantage import GroupMean, RelativeMean, RewardZScore
from groupwise.algorithms.parts.gae import GAE, DecoupledGAE
from groupwise.algorithms.settings import KINDS
from groupwise.diagnostics.witness.advantages import DEFINITIONS, CreditGiven

PARTS = [
    *(kind() for kind in KINDS["advantage"].values()),
    GroupMean(whiten=True),
    RewardZScore(whiten=False),
    GAE(0.9, 0.5, level="turn"),
    DecoupledGAE(0.9, 0.5, 0.8),
    DecoupledGAE(alpha=0.3, whiten=False),
]


def test_every_kind_has_a_definition():
    assert {*KINDS["advantage"].values()} == {*DEFINITIONS}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("part", PARTS, ids=repr)
def test_an_advantage_is_its_definition(part: Any, seed: int) -> None:
    batch = draw(seed, 0.5)
    reward, value = like(batch, seed=6).double(), like(batch, seed=7).double()
    if isinstance(part, RelativeMean):
        last = batch.mask & (batch.mask.flip(1).cumsum(1).flip(1) == 1)
        reward = (last & (torch.arange(len(last)) % 3 == 0)[:, None]).double()
    reward[1] = torch.where(batch.mask[1], reward[1], 0.0) if seed % 2 else math.nan
    ends = torch.rand(batch.mask.shape, generator=torch.Generator().manual_seed(8)) < 0.4
    state = (ends * torch.arange(batch.mask.shape[1])) % 3
    states = (state,) if part.reads_states else ()
    theirs = part(reward, value if part.reads_value else None, batch.mask, batch.group, ends, *states)
    given = CreditGiven(torch.where(batch.mask, reward, 0.0), batch.mask, batch.group.tolist(), value, ends, state)
    for name, one, other in zip(("advantage", "returns"), theirs, DEFINITIONS[type(part)](part, given), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-9, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}")
