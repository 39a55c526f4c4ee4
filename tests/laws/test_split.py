"""One optimizer batch through the real model, however it is cut: one gradient (float64)."""

from __future__ import annotations

import pytest
import torch

import groupwise
from groupwise.core.collate import microbatches
from groupwise.core.records import Batch
from groupwise.training.learner import Learner, LearnerSettings

ROWS, WIDTH = 32, 20


def make_batch(seed: int = 0) -> Batch:
    g = torch.Generator().manual_seed(seed)
    length = torch.randint(6, WIDTH + 1, (ROWS,), generator=g)
    columns = torch.arange(WIDTH)
    mask = (columns >= 4) & (columns < length[:, None]) & (torch.rand(ROWS, WIDTH, generator=g) < 0.9)
    mask[5] = False
    mask[17] = False
    old = -2 * torch.rand(ROWS, WIDTH, generator=g, dtype=torch.float64)
    return Batch(
        tokens=torch.where(columns < length[:, None], torch.randint(2, 15, (ROWS, WIDTH), generator=g), 0),
        mask=mask,
        length=length,
        group=torch.arange(ROWS) // 4,
        score=torch.rand(ROWS, generator=g, dtype=torch.float64).round(),
        version=torch.zeros(ROWS, dtype=torch.long),
        logp_engine=old.float(),
        logp_old=old,
        logp_ref=old + 0.1,
    )


def budget_for(length: torch.Tensor, parts: int) -> int:
    return next(b for b in range(1, ROWS * WIDTH + 1) if len(microbatches(length, b)) == parts)


def gradient(policy, algo, batch: Batch, budget: int, cut: int = 1, padded: bool = True) -> tuple[float, torch.Tensor]:
    """The loss and the whole gradient; `cut` hands the rows over in that many pieces, in their own order."""
    learner = Learner(policy.model, None, LearnerSettings(tokens_per_microbatch=budget), 1.0, 1)
    policy.model.zero_grad(set_to_none=True)
    loss = 0.0
    for rows in torch.arange(len(batch)).tensor_split(cut):
        piece = batch.rows(rows, width=WIDTH if padded else None)
        loss += learner.gradients(piece, algo)[0]
    return loss, torch.cat([p.grad.flatten() for p in policy.model.parameters()])


@pytest.mark.parametrize("name", ["grpo", "dapo"])
def test_the_gradient_does_not_depend_on_the_split(name, policy):
    policy.model.double()
    algo = groupwise.algorithm(name)
    batch = algo.weigh(algo.credit(make_batch()))
    loss, whole = gradient(policy, algo, batch, budget=10**6)
    assert whole.norm() > 1e-3
    for parts in (2, 7, 32):
        budget = 1 if parts == 32 else budget_for(batch.length, parts)
        assert len(microbatches(batch.length, budget)) == parts
        for cut, padded in ((1, True), (parts, True), (parts, False)):
            again, split = gradient(policy, algo, batch, budget if cut == 1 else 10**6, cut, padded)
            assert again == pytest.approx(loss, rel=1e-9)
            assert (split - whole).norm() / whole.norm() < 1e-9


def test_sorted_microbatches_hold_every_row_once_within_the_budget():
    length = make_batch().length
    for budget in (1, 30, 100, 10**6):
        parts = microbatches(length, budget)
        assert sorted(torch.cat(parts).tolist()) == list(range(ROWS))
        assert all(len(p) == 1 or len(p) * int(length[p].max()) <= budget for p in parts)
