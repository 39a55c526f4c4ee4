"""The learner: frozen log-probabilities for a batch, and one optimizer update on a minibatch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor, nn

from groupwise.algo import Algorithm, LossOut
from groupwise.collate import collate, microbatches
from groupwise.diagnostics import UpdateRecord, update_metrics
from groupwise.metrics import Last, Max, Mean, Sum, Value
from groupwise.models.heads import halves
from groupwise.models.logprobs import sequence_logprobs
from groupwise.records import Batch, Completion, Group, Prompt


class Schedule(Enum):
    """How the learning rate goes on after its warmup."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


@dataclass(frozen=True)
class LearnerSettings:
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
class Update:
    """One optimizer update: its metrics, what it saw, and whether the weights moved."""

    metrics: dict[str, Value]
    seen: UpdateRecord
    applied: bool


def learning_rate(settings: LearnerSettings, update: int, total: int) -> float:
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


class Learner:
    """Holds the policy being trained, its optimizer, and the frozen reference where an algorithm reads one."""

    def __init__(
        self,
        model: nn.Module,
        reference: nn.Module | None,
        settings: LearnerSettings,
        temperature: float,
        total_updates: int,
    ) -> None:
        self.model = model.eval()
        self.reference = None if reference is None else reference.eval().requires_grad_(False)
        self.settings, self.temperature, self.total_updates = settings, temperature, total_updates
        self.updates = 0
        self.device = next(model.parameters()).device
        self.optimizer = torch.optim.AdamW(
            [p for p in model.parameters() if p.requires_grad],
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    def annotate(self, batch: Batch, old: bool, ref: bool) -> Batch:
        """Adds `logp_old` and `logp_ref` [N,T] without gradient, each only where it is read."""
        with torch.no_grad():
            logp_old = self.logprobs(self.model, batch) if old else None
            logp_ref = self.logprobs(self.reference, batch) if ref and self.reference is not None else None
        return batch.add(logp_old=logp_old, logp_ref=logp_ref)

    def logprobs(self, model: nn.Module, batch: Batch) -> Tensor:
        """[N,T] nats on the CPU, 0 where masked."""
        out = torch.zeros(batch.tokens.shape, dtype=_score_dtype(model))
        for index, micro in self._microbatches(batch):
            logp, _ = self._forward(model, micro, entropy_gradient=False)
            out[index, : logp.shape[1]] = logp.cpu()
        return out

    def completion_logprobs(self, prompt: Prompt, pad: int, completions: Sequence[Completion]) -> list[Tensor]:
        """[tokens] nats of each completion of one prompt, under the weights as they are."""
        scored = tuple(dataclasses.replace(c, score=0.0) for c in completions)
        batch = collate([Group(prompt, scored)], pad)
        with torch.no_grad():
            logp = self.logprobs(self.model, batch)
        return [row[inside] for row, inside in zip(logp, batch.mask, strict=True)]

    def gradients(self, minibatch: Batch, algorithm: Algorithm) -> tuple[float, UpdateRecord]:
        """Adds the minibatch's gradient to the parameters; any split adds up to the same. -> the loss, what it saw."""
        seen = {
            name: torch.zeros(minibatch.tokens.shape) for name in ("logp_live", "log_ratio", "share", "entropy", "kl")
        }
        seen["logp_live"] = seen["logp_live"].to(_score_dtype(self.model))
        loss = 0.0
        for index, micro in self._microbatches(minibatch):
            live, entropy = self._forward(self.model, micro, entropy_gradient=algorithm.entropy_coefficient != 0)
            out = self._objective(algorithm, micro, live, entropy)
            out.value.backward()
            loss += out.value.item()
            found = {
                "logp_live": live,
                "log_ratio": out.log_ratio,
                "share": out.share,
                "entropy": entropy,
                "kl": out.kl,
            }
            for name, column in found.items():
                if column is not None:
                    seen[name][index, : column.shape[1]] = column.detach().to("cpu", seen[name].dtype)
        kl = seen.pop("kl")
        return loss, UpdateRecord(**seen, kl=kl if algorithm.kl.in_loss else None)

    def update(self, minibatch: Batch, algorithm: Algorithm) -> Update:
        """One optimizer update on a weighted minibatch; skipped, and counted, where loss or gradient is not finite."""
        rate = learning_rate(self.settings, self.updates, self.total_updates)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        loss, seen = self.gradients(minibatch, algorithm)
        norm = self._clip()
        applied = math.isfinite(loss) and math.isfinite(norm)
        if applied:
            self.optimizer.step()
        self.updates += 1
        metrics: dict[str, Value] = {
            "loss": Mean(loss, 1),
            "gradient_norm": Mean(norm, 1),
            "gradient_norm_max": Max(norm),
            "learning_rate": Last(rate),
            "updates": Sum(1),
            "updates_skipped": Sum(0 if applied else 1),
        }
        return Update({**metrics, **update_metrics(minibatch, seen)}, seen, applied)

    def _clip(self) -> float:
        limit = self.settings.clip_norm or math.inf
        return float(nn.utils.clip_grad_norm_(self.model.parameters(), limit))

    def _objective(self, algorithm: Algorithm, micro: Batch, live: Tensor, entropy: Tensor) -> LossOut:
        old = live.detach() if micro.logp_old is None else micro.logp_old
        return algorithm.objective(
            micro.need("weight"),
            live,
            old,
            micro.need("advantage"),
            micro.mask,
            logp_ref=micro.logp_ref,
            correction=micro.correction,
            entropy=entropy,
        )

    def _forward(self, model: nn.Module, micro: Batch, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.bf16):
            return sequence_logprobs(
                *halves(model), micro.tokens, micro.mask, self.temperature, micro.kept, entropy_gradient
            )

    def _microbatches(self, batch: Batch) -> Iterator[tuple[Tensor, Batch]]:
        for index in microbatches(batch.length, self.settings.tokens_per_microbatch):
            yield index, to_device(batch.rows(index), self.device)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on `device`."""
    if device.type == "cpu":
        return batch
    moved = {k: v.to(device, non_blocking=True) for k, v in vars(batch).items() if isinstance(v, Tensor)}
    return Batch(**{**vars(batch), **moved})


def _score_dtype(model: nn.Module) -> torch.dtype:
    return torch.promote_types(next(model.parameters()).dtype, torch.float32)
