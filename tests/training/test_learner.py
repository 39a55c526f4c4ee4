"""Schedules, annotation only where read, and metrics that reduce."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

import groupwise
from groupwise.core.numbers.metrics import Last, Max, Mean, Sum, merge, read
from groupwise.core.records import UpdateRecord
from groupwise.diagnostics.updates import loss_metrics, update_metrics
from groupwise.models.load import load_policy
from groupwise.training import learner as training_learner
from groupwise.training.learner import Learner, LearnerSettings
from groupwise.training.optimizer import Optimizer, Schedule, learning_rate
from tests.laws.test_split import make_batch
from tests.training.stepped import norm_of, stepped_with


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule.CONSTANT, [0.5, 1.0, 1.0, 1.0, 1.0]),
        (Schedule.LINEAR, [0.5, 1.0, 1.0, 0.75, 0.5]),
        (Schedule.COSINE, [0.5, 1.0, 1.0, 0.5 * (1 + math.cos(math.pi / 4)), 0.5]),
    ],
)
def test_schedules(schedule, expected):
    settings = LearnerSettings(learning_rate=1.0, warmup_updates=2, schedule=schedule)
    assert [learning_rate(settings, u, 6) for u in range(5)] == pytest.approx(expected)


def test_the_optimizer_is_adamw_with_every_setting():
    """x <- x - lr w x - lr m^ / (sqrt(v^) + epsilon), m^ and v^ the bias-corrected means of g and g^2."""
    model = torch.nn.Linear(1, 1, bias=False).double()
    settings = LearnerSettings(learning_rate=0.1, beta1=0.5, beta2=0.75, epsilon=0.3, weight_decay=0.2)
    optimizer, x, m, v = Optimizer.from_settings(model, settings, 3).adamw, 2.0, 0.0, 0.0
    with torch.no_grad():
        model.weight.fill_(x)
    for update, g in enumerate((3.0, -1.0, 0.5), start=1):
        model.weight.grad = torch.full_like(model.weight, g)
        optimizer.step()
        m, v = 0.5 * m + 0.5 * g, 0.75 * v + 0.25 * g * g
        step = (m / (1 - 0.5**update)) / (math.sqrt(v / (1 - 0.75**update)) + 0.3)
        x = x - 0.1 * 0.2 * x - 0.1 * step
        assert model.weight.item() == pytest.approx(x, rel=1e-12)


def test_annotation_computes_only_what_is_read(policy):
    batch = make_batch()
    bare = type(batch)(**{**vars(batch), "logp_old": None, "logp_ref": None})
    learner = Learner(policy.model, None, LearnerSettings(), 1.0, 1)
    assert learner.annotate(bare, old=False, ref=False).logp_old is None
    done = learner.annotate(bare, old=True, ref=False)
    assert done.logp_old is not None
    assert done.logp_ref is None
    assert not done.logp_old.requires_grad


def test_an_update_moves_along_the_advantage(policy):
    """Tokens with positive advantage become likelier, the others less likely; gradients are clipped to the norm."""
    algo = groupwise.algorithm("dapo")
    batch = make_batch()
    learner = Learner(policy.model, None, LearnerSettings(learning_rate=1e-3, clip_norm=1e-3), 1.0, 1)
    fresh = type(batch)(**{**vars(batch), "logp_old": None})
    minibatch = algo.weigh(algo.credit(learner.annotate(fresh, old=True, ref=False)))
    steps = stepped_with(learner.optimizer.adamw, policy.model)
    done = learner.update(minibatch, algo)
    assert done.applied
    assert [norm_of(gradients) for gradients in steps] == [pytest.approx(1e-3, rel=1e-3)]
    assert all(p.grad is None for p in policy.model.parameters())  # nothing is held of them while it samples
    with torch.no_grad():
        moved = learner.logprobs(policy.model, minibatch) - minibatch.logp_old
    assert float((moved * minibatch.advantage * minibatch.weight).sum()) > 0


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that each forward of a learner will add its number of rows to."""
    rows, real = list[int](), training_learner.sequence_logprobs

    def logprobs(backbone, head, tokens, *others, **named):
        rows.append(len(tokens))
        return real(backbone, head, tokens, *others, **named)

    monkeypatch.setattr(training_learner, "sequence_logprobs", logprobs)
    return rows


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_an_update_without_a_trained_row_moves_on_momentum_to_the_bits_of_one_that_ran_a_row(
    policy_folder, weight_decay, monkeypatch
):
    algo, rows = groupwise.algorithm("dapo"), counted(monkeypatch)
    right = algo.weigh(algo.credit(make_batch()))
    silent = dataclasses.replace(right, advantage=torch.zeros_like(right.need("advantage")))
    ends, ran = [], []
    for runs_a_row in (False, True):
        with monkeypatch.context() as patch:
            if runs_a_row:
                patch.setattr(Optimizer, "set_gradient_to_zero", lambda self: False)
            model = load_policy(policy_folder).model
            unused = torch.nn.Parameter(torch.ones(3))
            model.register_parameter("unused", unused)
            learner = Learner(model, None, LearnerSettings(learning_rate=1e-3, weight_decay=weight_decay), 1.0, 4)
            for minibatch in (silent, right, silent, silent):
                rows.clear()
                done = learner.update(minibatch, algo)
                ran.append(sum(rows))
            assert (done.loss, done.gradient_norm, done.applied, done.seen) == (0, 0, True, None)
            assert unused.tolist() == [1, 1, 1]
            ends.append({name: p.detach().clone() for name, p in model.named_parameters()})
    assert ran == [1, ran[1], 0, 0, 1, ran[1], 1, 1]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_rows_without_a_token_that_counts_are_not_run(policy, monkeypatch):
    algo, rows, batch = groupwise.algorithm("dapo"), counted(monkeypatch), make_batch()
    empty = ~batch.mask.any(1)
    assert 0 < empty.sum() < len(batch)
    learner = Learner(policy.model, None, LearnerSettings(), 1.0, 1)
    logp = learner.logprobs(policy.model, batch)
    assert sum(rows) == (~empty).sum()
    assert (logp[~batch.mask] == 0).all()
    assert (logp[batch.mask] < 0).all()
    rows.clear()
    learner.update(algo.weigh(algo.credit(batch)), algo)
    assert sum(rows) == (~empty).sum()
    rows.clear()
    assert (learner.logprobs(policy.model, dataclasses.replace(batch, mask=torch.zeros_like(batch.mask))) == 0).all()
    assert rows == []


def test_each_update_is_made_at_the_rate_of_its_schedule(policy):
    algo = groupwise.algorithm("dapo")
    settings = LearnerSettings(learning_rate=1e-3, warmup_updates=1, schedule=Schedule.LINEAR)
    learner = Learner(policy.model, None, settings, 1.0, 4)
    minibatch = algo.weigh(algo.credit(make_batch()))
    for update in range(4):
        done = learner.update(minibatch, algo)
        assert learner.optimizer.adamw.param_groups[0]["lr"] == learning_rate(settings, update, 4)
        assert read(update_metrics(minibatch, done))["learning_rate"] == learning_rate(settings, update, 4)


def test_bf16_computes_near_fp32_over_fp32_weights(policy):
    batch = make_batch()
    with torch.no_grad():
        exact = Learner(policy.model, None, LearnerSettings(), 1.0, 1).logprobs(policy.model, batch)
        rough = Learner(policy.model, None, LearnerSettings(precision="bf16"), 1.0, 1).logprobs(policy.model, batch)
    assert next(policy.model.parameters()).dtype == torch.float32
    assert 0 < (exact - rough).abs().mean() < 0.1


def test_metrics_reduce_as_they_say():
    parts = [
        {"mean": Mean(1.0, 1.0), "sum": Sum(1), "max": Max(3.0), "last": Last(1.0)},
        {"mean": Mean(6.0, 3.0), "sum": Sum(2), "max": Max(2.0), "last": Last(2.0)},
        {"only": Mean(0.0, 0.0)},
    ]
    found = read(merge(parts))
    assert {k: v for k, v in found.items() if k != "only"} == {"mean": 1.75, "sum": 3, "max": 3.0, "last": 2.0}
    assert math.isnan(found["only"])


def test_share_is_weighted_by_the_loss_and_split_by_sign():
    algo = groupwise.algorithm("grpo")
    minibatch = algo.weigh(make_batch().add(advantage=torch.where(make_batch().mask, 1.0, 0.0)))
    share = torch.zeros(minibatch.mask.shape)
    share[:16] = 1.0
    zeros = torch.zeros(minibatch.mask.shape)
    found = read(loss_metrics(minibatch, UpdateRecord(zeros, zeros, share, zeros, None)))
    rows = minibatch.mask.any(-1)
    assert found["share_passed"] == pytest.approx(float(rows[:16].sum() / rows.sum()))
    assert found["share_passed_positive"] == pytest.approx(found["share_passed"])
    assert math.isnan(found["share_passed_negative"])
    assert found["effective_sample_share"] == pytest.approx(1.0)
    assert found["ratio_max"] == 1.0
