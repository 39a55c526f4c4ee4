"""The optimizer that learner and critic hold: rates by schedule, clipped gradients, updates counted or skipped."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from groupwise.training.optimizer import Optimizer, OptimizerSettings, Schedule, learning_rate


def quadratic() -> nn.Linear:
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, 4.0]]))
    return model


def backward(model: nn.Linear, factor: float = 1.0) -> float:
    """Loss = factor / 2 |w|^2, whose gradient is factor w."""
    loss = factor / 2 * model.weight.square().sum()
    loss.backward()
    return loss.item()


def test_an_update_clears_the_gradient_sets_the_rate_clips_steps_and_counts():
    model, settings = quadratic(), OptimizerSettings(learning_rate=0.1, schedule=Schedule.LINEAR, clip_norm=1.0)
    optimizer = Optimizer.from_settings(model, settings, total_updates=2)
    backward(model)  # of before the update: begin clears it
    assert optimizer.begin() == 0.1
    clipped = []
    optimizer.adamw.register_step_pre_hook(lambda *_: clipped.append(float(model.weight.grad.norm())))  # type: ignore[union-attr]
    outcome = optimizer.finish(backward(model))
    assert outcome.gradient_norm == pytest.approx(5.0)
    assert clipped == [pytest.approx(1.0)]
    assert outcome.applied
    assert model.weight.grad is None  # nothing is held of it while completions are sampled
    assert model.weight.tolist() == [pytest.approx([2.9, 3.9])]  # AdamW's first step is the rate, whatever the gradient
    assert optimizer.begin() == pytest.approx(0.05)
    assert optimizer.updates == 1


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_an_update_that_is_not_finite_moves_nothing_and_is_counted(factor):
    model = quadratic()
    optimizer = Optimizer.from_settings(model, OptimizerSettings(learning_rate=0.1), total_updates=2)
    optimizer.begin()
    assert not optimizer.finish(backward(model, factor)).applied
    assert model.weight.grad is None
    assert model.weight.tolist() == [[3.0, 4.0]]
    assert optimizer.updates == 1


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule.CONSTANT, [0.5, 1.0, 1.0, 1.0, 1.0]),
        (Schedule.LINEAR, [0.5, 1.0, 1.0, 0.75, 0.5]),
        (Schedule.COSINE, [0.5, 1.0, 1.0, 0.5 * (1 + math.cos(math.pi / 4)), 0.5]),
    ],
)
def test_each_update_is_made_at_the_rate_of_its_schedule(schedule, expected):
    settings = OptimizerSettings(learning_rate=1.0, warmup_updates=2, schedule=schedule)
    assert [learning_rate(settings, u, 6) for u in range(5)] == pytest.approx(expected)
    optimizer, seen = Optimizer.from_settings(quadratic(), settings, 6), []
    for _ in range(5):
        assert optimizer.begin() == optimizer.adamw.param_groups[0]["lr"]
        seen.append(optimizer.adamw.param_groups[0]["lr"])
        optimizer.finish(0.0)
    assert seen == pytest.approx(expected)


def test_the_optimizer_is_adamw_with_every_setting():
    """x <- x - lr w x - lr m^ / (sqrt(v^) + epsilon), m^ and v^ the bias-corrected means of g and g^2."""
    model = torch.nn.Linear(1, 1, bias=False).double()
    settings = OptimizerSettings(learning_rate=0.1, beta1=0.5, beta2=0.75, epsilon=0.3, weight_decay=0.2)
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
