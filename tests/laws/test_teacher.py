"""Laws of on-policy distillation: its expected gradient is that of the reverse KL to the teacher."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

import groupwise
from groupwise.algorithms.laws.draws import draw
from groupwise.core.records import Batch

VOCABULARY = 5


def reverse_kl(logits: Tensor, teacher: Tensor) -> Tensor:
    """KL(policy || teacher) in nats, of two rows of logits [V]."""
    mine, theirs = logits.log_softmax(-1), teacher.log_softmax(-1)
    return (mine.exp() * (mine - theirs)).sum()


def batch_of(old: Tensor, ref: Tensor, mask: Tensor, score: Tensor) -> Batch:
    rows, width = mask.shape
    return Batch(
        tokens=torch.zeros(rows, width, dtype=torch.long),
        mask=mask,
        length=torch.full((rows,), width),
        group=torch.zeros(rows, dtype=torch.long),
        score=score,
        version=torch.zeros(rows, dtype=torch.long),
        logp_engine=old,
        logp_old=old,
        logp_ref=ref,
    )


@pytest.mark.parametrize("seed", range(5))
def test_in_expectation_the_gradient_is_that_of_the_reverse_kl(seed: int) -> None:
    """Over all tokens that the policy may sample, each with its probability; the KL's by finite differences."""
    g = torch.Generator().manual_seed(seed)
    logits, teacher = (torch.randn(VOCABULARY, generator=g, dtype=torch.float64) for _ in range(2))
    algo, live = groupwise.algorithm("opd"), logits.clone().requires_grad_(True)
    old = logits.log_softmax(-1)
    column, ref = live.log_softmax(-1)[:, None], teacher.log_softmax(-1)[:, None]
    one = torch.ones(VOCABULARY, 1, dtype=torch.bool)
    credited = algo.credit(batch_of(old[:, None], ref, one, torch.rand(VOCABULARY, dtype=torch.float64)))
    torch.testing.assert_close(credited.need("advantage"), ref - old[:, None])
    loss = torch.zeros((), dtype=torch.float64)
    for v in range(VOCABULARY):
        row = slice(v, v + 1)
        alone = algo.loss(column[row], old[row, None], credited.need("advantage")[row], one[row])
        loss = loss + old[v].exp() * alone.value
    (gradient,) = torch.autograd.grad(loss, live)
    step, expected = 1e-6, torch.zeros(VOCABULARY, dtype=torch.float64)
    for v in range(VOCABULARY):
        nudge = torch.zeros(VOCABULARY, dtype=torch.float64)
        nudge[v] = step
        expected[v] = (reverse_kl(logits + nudge, teacher) - reverse_kl(logits - nudge, teacher)) / (2 * step)
    torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=1e-9)


def test_scores_train_nothing_and_a_teacher_that_is_the_policy_teaches_nothing() -> None:
    b, algo = draw(1), groupwise.algorithm("opd")
    plain = algo.credit(batch_of(b.old, b.ref, b.mask, b.advantage)).need("advantage")
    other = algo.credit(batch_of(b.old, b.ref, b.mask, 3 * b.advantage + 1)).need("advantage")
    assert torch.equal(plain, other)
    assert not algo.credit(batch_of(b.old, b.old, b.mask, b.advantage)).need("advantage").any()


def test_without_reward_a_kl_in_the_loss_or_none_is_refused() -> None:
    for settings in ({"kl.beta": 0.0}, {"kl.place": "loss"}):
        with pytest.raises(groupwise.UsageError, match=r"kl\.place .* leaves nothing that trains"):
            groupwise.algorithm("opd", settings)
    assert dataclasses.replace(groupwise.algorithm("opd"), name="x").needs_reference
