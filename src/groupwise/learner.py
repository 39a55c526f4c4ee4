"""The learner: frozen log-probabilities for a batch, and one optimizer update on a minibatch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from groupwise.algo import Algorithm, LossOut
from groupwise.collate import collate
from groupwise.diagnostics import UpdateRecord, update_metrics
from groupwise.metrics import Last, Max, Mean, Sum, Value
from groupwise.models.heads import halves
from groupwise.models.logprobs import sequence_logprobs
from groupwise.optimizer import (
    OptimizerSettings,
    adamw,
    clip_gradient,
    learning_rate,
    pieces,
    score_dtype,
    set_rate,
    step_if_finite,
)
from groupwise.optimizer import Schedule as Schedule  # settings of a learner are made where a learner is
from groupwise.records import Batch, Completion, Group, Prompt


@dataclass(frozen=True)
class LearnerSettings(OptimizerSettings):
    """How the policy is trained: the optimizer's settings, as they are."""


@dataclass(frozen=True)
class Update:
    """One optimizer update: its metrics, what it saw, and whether the weights moved."""

    metrics: dict[str, Value]
    seen: UpdateRecord
    applied: bool


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
        self.optimizer = adamw(model, settings)

    def annotate(self, batch: Batch, old: bool, ref: bool) -> Batch:
        """Adds `logp_old` and `logp_ref` [N,T] without gradient, each only where it is read."""
        with torch.no_grad():
            logp_old = self.logprobs(self.model, batch) if old else None
            logp_ref = self.logprobs(self.reference, batch) if ref and self.reference is not None else None
        return batch.add(logp_old=logp_old, logp_ref=logp_ref)

    def logprobs(self, model: nn.Module, batch: Batch) -> Tensor:
        """[N,T] nats on the CPU, 0 where masked."""
        out = torch.zeros(batch.tokens.shape, dtype=score_dtype(model))
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
        seen["logp_live"] = seen["logp_live"].to(score_dtype(self.model))
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
        set_rate(self.optimizer, rate)
        self.optimizer.zero_grad(set_to_none=True)
        loss, seen = self.gradients(minibatch, algorithm)
        norm = clip_gradient(self.model, self.settings.clip_norm)
        applied = step_if_finite(self.optimizer, loss, norm)
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
        return pieces(batch, self.settings.tokens_per_microbatch, self.device)
