"""Optimizer updates: AdamW with a schedule, a gradient limit and a count; and a minibatch in microbatches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial

import torch
from torch import Tensor, nn

from groupwise.core.collate import microbatches
from groupwise.core.records import Batch

#: Called after each update of a training loop with its number from 1, the number of all updates, and its loss.
OnStep = Callable[[int, int, float], None]


def silent(step: int, steps: int, loss: float) -> None:
    """Shows no progress."""


class Schedule(Enum):
    """How the learning rate goes on after its warmup."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW and what surrounds it.

    warmup_updates          optimizer updates over which the learning rate rises from 0
    clip_norm               gradients are scaled down to this norm; 0 leaves them alone
    tokens_per_microbatch   padded tokens held at once; the gradient does not depend on it
    bf16                    compute in bfloat16 over float32 master weights
    """

    learning_rate: float = 1e-6
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    warmup_updates: int = 0
    schedule: Schedule = Schedule.CONSTANT
    clip_norm: float = 1.0
    tokens_per_microbatch: int = 16384
    bf16: bool = False


@dataclass(frozen=True)
class UpdateOutcome:
    """What became of an optimizer update: the gradient's norm before clipping, and whether the weights moved."""

    gradient_norm: float
    applied: bool


class Optimizer:
    """A model's AdamW with its learning rate of each update, its gradient limit, and the number of updates so far.

    rate       the number of the update, from 0 -> its learning rate
    clip_norm  gradients are scaled down to this norm; 0 leaves them alone

        rate = optimizer.begin()
        loss = ...                         # backward passes add up the gradient
        outcome = optimizer.finish(loss)   # clipped, applied where finite, counted
    """

    def __init__(
        self, model: nn.Module, adamw: torch.optim.Optimizer, rate: Callable[[int], float], clip_norm: float
    ) -> None:
        self.adamw, self.updates = adamw, 0
        self._model, self._rate, self._clip_norm = model, rate, clip_norm

    @classmethod
    def from_settings(cls, model: nn.Module, settings: OptimizerSettings, total_updates: int) -> Optimizer:
        """The optimizer of a learner or critic that makes `total_updates` updates."""
        rate = partial(learning_rate, settings, total=total_updates)
        return cls(model, adamw(model, settings), rate, settings.clip_norm)

    def begin(self) -> float:
        """Clears the gradient and sets the learning rate of the next update -> that rate."""
        rate = self._rate(self.updates)
        set_rate(self.adamw, rate)
        self.adamw.zero_grad(set_to_none=True)
        return rate

    def finish(self, loss: float) -> UpdateOutcome:
        """One update with the gradient as it is; skipped, and counted, where loss or gradient is not finite."""
        norm = clip_gradient(self._model, self._clip_norm)
        applied = step_if_finite(self.adamw, loss, norm)
        self.updates += 1
        return UpdateOutcome(norm, applied)


def adamw(model: nn.Module, settings: OptimizerSettings) -> torch.optim.AdamW:
    """The optimizer of the model's trained parameters."""
    return torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad],
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        fused=True,
    )


def learning_rate(settings: OptimizerSettings, update: int, total: int) -> float:
    """The learning rate of optimizer update `update` (from 0) of `total`."""
    if update < settings.warmup_updates:
        return settings.learning_rate * (update + 1) / settings.warmup_updates
    done = (update - settings.warmup_updates) / max(1, total - settings.warmup_updates)
    factor = {
        Schedule.CONSTANT: 1.0,
        Schedule.LINEAR: 1.0 - done,
        Schedule.COSINE: 0.5 * (1 + math.cos(math.pi * done)),
    }[settings.schedule]
    return settings.learning_rate * max(0.0, factor)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The learning rate of the next step."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def clip_gradient(model: nn.Module, limit: float) -> float:
    """Scale the gradient down to norm `limit` (0: leave it) -> its norm before."""
    return float(nn.utils.clip_grad_norm_(model.parameters(), limit or math.inf))


def step_if_finite(optimizer: torch.optim.Optimizer, loss: float, norm: float) -> bool:
    """One optimizer step, unless loss or gradient norm is not finite -> whether the weights moved."""
    applied = math.isfinite(loss) and math.isfinite(norm)
    if applied:
        optimizer.step()
    return applied


def pieces(batch: Batch, tokens: int, device: torch.device) -> Iterator[tuple[Tensor, Batch]]:
    """The batch's microbatches of at most `tokens` padded tokens, on `device`, each with its row indices."""
    for index in microbatches(batch.length, tokens):
        yield index, to_device(batch.rows(index), device)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on `device`."""
    if device.type == "cpu":
        return batch
    moved = {k: v.to(device, non_blocking=True) for k, v in vars(batch).items() if isinstance(v, Tensor)}
    return Batch(**{**vars(batch), **moved})


def score_dtype(model: nn.Module) -> torch.dtype:
    """The type of a model's numbers: its own precision, float32 at least."""
    return torch.promote_types(next(model.parameters()).dtype, torch.float32)
