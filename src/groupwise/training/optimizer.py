"""Optimizer updates: AdamW with a schedule, a gradient limit and a count; and a model that goes through them.

The rate is a function of the update's number and of the number of all updates as it is now, so a run that goes on with
more steps has nothing to remember of the schedule before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn

from groupwise.core.collate import NO_ROWS, idle_rows
from groupwise.core.machine.free_memory import give_back
from groupwise.core.records import Batch
from groupwise.core.settings import Changeable, Fixed, Settings
from groupwise.models.forward.fused_layers import FusedLayers
from groupwise.training.mesh import ALONE, Mesh
from groupwise.training.moments import Moments, make_adamw
from groupwise.training.ranks.sharded import Sharded, clip_gradients

T = TypeVar("T")

#: Called after each update of a training loop with its number from 1, the number of all updates, and its loss.
OnStep = Callable[[int, int, float], None]


def silent(step: int, steps: int, loss: float) -> None:
    """Show no progress."""


#: The setting that is picked from the free memory, and the tokens of a microbatch where nobody picks.
AUTO: Literal["auto"] = "auto"
MOST_TOKENS = 16384
#: Columns that a microbatch gives, by name.
Columns = Mapping[str, Tensor | None]
#: From so many bytes on, what an update has freed goes back to the machine: that takes a tenth of a second, and so does
#: taking memory again, which is little for a model of this size. Over ranks it goes back whatever the size: else what a
#: rank holds differs from run to run (docs/howto/scale.md).
GIVEN_BACK = 1 << 28


class Schedule(StrEnum):
    """Course of the learning rate after its warmup."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


#: A number that a run with "auto" picks by itself (planning/memory.py).
Count = Literal["auto"] | Annotated[int, Field(ge=1)]


class OptimizerSettings(Settings):
    """AdamW and what surrounds it: the keys that [learner] and [critic] share.

    learning_rate          AdamW's learning rate after the warmup
    schedule               learning rate after the warmup: constant, or falling to 0
    warmup_updates         optimizer updates over which the learning rate rises from 0
    clip_norm              largest gradient norm; 0: no clipping
    beta1                  AdamW's decay of the mean gradient
    beta2                  AdamW's decay of the mean squared gradient
    epsilon                AdamW's epsilon, added to the denominator
    weight_decay           AdamW's weight decay, times the learning rate
    tokens_per_microbatch  tokens per microbatch; "auto": as many as fit in memory. The gradient is the same
    moments                place of AdamW's moments: the GPU, "host" memory (bit-identical), or 8 bits on the GPU
                           (bitsandbytes); the last two need one GPU
    """

    beta1: Changeable[float] = Field(default=0.9, ge=0, lt=1)
    beta2: Changeable[float] = Field(default=0.999, ge=0, lt=1)
    epsilon: Changeable[float] = Field(default=1e-8, gt=0)
    weight_decay: Changeable[float] = Field(default=0.0, ge=0)
    warmup_updates: Changeable[int] = Field(default=0, ge=0)
    schedule: Changeable[Schedule] = Field(default=Schedule.CONSTANT, strict=False)
    clip_norm: Changeable[float] = Field(default=1.0, ge=0)
    tokens_per_microbatch: Changeable[Count] = AUTO
    learning_rate: Changeable[float] = Field(default=1e-6, ge=0)
    moments: Annotated[Moments, Fixed("checkpoints hold the moments as they were kept")] = "device"


@dataclass(frozen=True)
class UpdateOutcome:
    """Outcome of an optimizer update: the gradient's norm before clipping, and whether the weights moved."""

    gradient_norm: float
    applied: bool


class Optimizer:
    """A model's AdamW with its `rate` (number of the update, from 0 -> learning rate), gradient limit and count.

    factor  times the rate: below 1 after a return from a collapse (training/state.py)
    mesh    the ranks that hold the model's shards: one norm, and one decision, for all of them

    rate = optimizer.begin()
    loss = ...                         # backward passes add up the gradient
    outcome = optimizer.finish(loss)   # clipped, applied where finite, counted
    """

    def __init__(
        self,
        model: nn.Module,
        adamw: torch.optim.Optimizer,
        rate: Callable[[int], float],
        clip_norm: float,
        mesh: Mesh = ALONE,
    ) -> None:
        self.adamw, self.updates, self.factor = adamw, 0, 1.0
        self._model, self._rate, self._clip_norm, self._mesh = model, rate, clip_norm, mesh
        trained = [weight for weight in model.parameters() if weight.requires_grad and weight.device.type == "cpu"]
        self._gives_back = bool(trained) and (not mesh.alone or sum(w.nbytes for w in trained) >= GIVEN_BACK)

    @classmethod
    def from_settings(
        cls, model: nn.Module, settings: OptimizerSettings, total_updates: int, mesh: Mesh = ALONE
    ) -> Optimizer:
        """Make the optimizer of a learner or critic that makes `total_updates` updates."""
        adamw = make_adamw(
            model,
            settings.moments,
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
        )
        return cls(model, adamw, partial(learning_rate, settings, total=total_updates), settings.clip_norm, mesh)

    def begin(self) -> float:
        """Clear the gradient and set the learning rate of the next update -> that rate."""
        rate = self.factor * self._rate(self.updates)
        for group in self.adamw.param_groups:
            group["lr"] = rate
        self.adamw.zero_grad(set_to_none=True)
        return rate

    def set_gradient_to_zero(self) -> bool:
        """Give each parameter that a gradient has moved before one of 0 -> whether there is any such parameter."""
        moved = [parameter for parameter, moments in self.adamw.state.items() if moments]
        gradients = _zeros(moved) if self._mesh.alone else map(torch.zeros_like, moved)
        for parameter, gradient in zip(moved, gradients, strict=True):
            parameter.grad = gradient
        return bool(moved)

    def finish(self, loss: float) -> UpdateOutcome:
        """Make one update with the gradient, which is freed; skipped, and counted, if it or the loss is not finite."""
        parameters = self._model.parameters()
        if self._mesh.alone:
            norm = float(nn.utils.clip_grad_norm_(parameters, self._clip_norm or math.inf))
        else:
            norm = clip_gradients(parameters, self._clip_norm, self._mesh)
        applied = self._mesh.all_agree(math.isfinite(loss) and math.isfinite(norm))
        if applied:
            self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        if self._gives_back:
            give_back()
        self.updates += 1
        return UpdateOutcome(norm, applied)


def _zeros(parameters: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield a gradient of 0 for each parameter.

    They are views of one tensor, as nothing writes another number into them: taking memory for each from the machine
    costs more time than the update.
    """
    largest = dict[tuple[torch.device, torch.dtype], int]()
    for p in parameters:
        largest[p.device, p.dtype] = max(largest.get((p.device, p.dtype), 0), p.numel())
    zeros = {kind: torch.zeros(size, device=kind[0], dtype=kind[1]) for kind, size in largest.items()}
    for p in parameters:
        yield zeros[p.device, p.dtype][: p.numel()].view_as(p) if p.is_contiguous() else torch.zeros_like(p)


class TrainedModel:
    """A model with its optimizer, which sees a batch in microbatches on its device: what learner and critic share.

    mesh       the ranks that hold the model in shards, each of which is dealt some of the microbatches
    bf16       computes in bfloat16 over float32 master weights
    fused      its layers that have a backward of their own
    precision  what the model's numbers are kept in: its own type, float32 at least
    """

    def __init__(
        self, model: Any, settings: OptimizerSettings, total_updates: int, bf16: bool, mesh: Mesh = ALONE
    ) -> None:
        self.model, self.bf16, self.mesh = model.eval(), bf16, mesh
        self.fused = FusedLayers(model)
        self._sharded: dict[nn.Module, Sharded] = {}
        self.shard(model)
        weight = next(model.parameters())
        self.device, self.precision = weight.device, torch.promote_types(weight.dtype, torch.float32)
        self.optimizer = Optimizer.from_settings(model, settings, total_updates, mesh)
        chosen = settings.tokens_per_microbatch
        self.tokens_per_microbatch = MOST_TOKENS if chosen == AUTO else chosen

    def shard(self, model: nn.Module) -> None:
        """Put a model that this one runs in shards over the mesh; in one process it stays whole."""
        if not self.mesh.alone:
            self._sharded[model] = Sharded(model, self.mesh, self.bf16)

    def run(self, model: nn.Module, compute: Callable[[], T]) -> T:
        """Return what `compute` returns, in the precision of this model; it may use all of the model's parameters."""
        sharded = self._sharded.get(model)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            return compute() if sharded is None else sharded.run(compute)

    def dealt(self, batch: Batch, parts: Sequence[Tensor]) -> Iterator[tuple[Tensor, Batch]]:
        """Yield this rank's parts of the batch, on the CPU, each with its row indices.

        Where another rank has one more, the last is idle and has no rows.
        """
        for part in self.mesh.dealt(parts):
            yield (part, batch.rows(part)) if part is not None else (NO_ROWS, idle_rows(batch))


class Collected:
    """Columns [N,T] of a batch on the CPU, of which each microbatch writes its rows, 0 elsewhere.

    What is on another device stays there until the columns are read, so that the device is waited for once.
    """

    def __init__(self, shape: torch.Size, dtypes: Mapping[str, torch.dtype | None]) -> None:
        """`dtypes` by the columns' names; None is torch's default."""
        self._tables = {name: torch.zeros(shape, dtype=dtype) for name, dtype in dtypes.items()}
        self._waiting: list[tuple[Tensor, dict[str, Tensor]]] = []

    def add(self, index: Tensor, columns: Columns) -> None:
        """Add a microbatch's [n,t] of the rows `index`; a column that is None stays as it is."""
        given = {name: x.detach() for name, x in columns.items() if x is not None}
        self._waiting.append((index, given))
        if all(x.device.type == "cpu" for x in given.values()):
            self._write()

    def tables(self) -> dict[str, Tensor]:
        """Return the columns."""
        self._write()
        return self._tables

    def _write(self) -> None:
        for index, columns in self._waiting:
            for name, column in columns.items():
                place(self._tables[name], index, column)
        self._waiting.clear()


def place(table: Tensor, index: Tensor, part: Tensor) -> None:
    """Write [n,t] of the rows `index` into a table [N,T]; what an idle microbatch gave is written nowhere."""
    table[index, : part.shape[1]] = part[: len(index)].detach().to("cpu", table.dtype)


def learning_rate(settings: OptimizerSettings, update: int, total: int) -> float:
    """Return the learning rate of optimizer update `update` (from 0) of `total`."""
    if update < settings.warmup_updates:
        return settings.learning_rate * (update + 1) / settings.warmup_updates
    done = (update - settings.warmup_updates) / max(1, total - settings.warmup_updates)
    factor = {
        Schedule.CONSTANT: 1.0,
        Schedule.LINEAR: 1.0 - done,
        Schedule.COSINE: 0.5 * (1 + math.cos(math.pi * done)),
    }[settings.schedule]
    return settings.learning_rate * max(0.0, factor)
