"""The critic: V(s_t) for a batch, and one optimizer update on a minibatch. It has an optimizer of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from groupwise.algorithms.parts.critic import value_loss
from groupwise.core.metrics import Mean, Sum, Value
from groupwise.core.records import Batch
from groupwise.models.value import POLICY_START, token_values
from groupwise.training import checkpoint
from groupwise.training.optimizer import (
    Optimizer,
    OptimizerSettings,
    pieces,
    score_dtype,
)


class CriticSettings(OptimizerSettings):
    """The section [critic]: the optimizer's settings, and what only a critic has.

    learning_rate  a run without this key takes ten times the policy's (config/resolve.py)
    clip           how far a value may move from V_old before its loss stops falling, reward units; 0 is off
    warmup_steps   the first training steps, in which the critic learns and the policy waits
    start          "policy", "reward-model" (the run's own), or the folder of one (or of a causal language model)
    """

    learning_rate: float = Field(default=1e-5, ge=0)
    clip: float = Field(default=0.2, ge=0)
    warmup_steps: int = Field(default=0, ge=0)
    start: str = Field(default=POLICY_START, min_length=1)


class Critic:
    """Holds the value model and its optimizer. loss = mean over the trained tokens of the optimizer batch."""

    def __init__(self, model: Any, settings: CriticSettings, total_updates: int, bf16: bool = False) -> None:
        """`bf16` computes in bfloat16 over float32 master weights, as the learner beside it does."""
        self.model, self.settings, self.bf16 = model.eval(), settings, bf16
        self.device = next(model.parameters()).device
        self.optimizer = Optimizer.from_settings(model, settings, total_updates)

    def values(self, batch: Batch) -> Tensor:
        """V(s_t) [N,T] in reward units, on the CPU without gradient, 0 where masked."""
        out = torch.zeros(batch.tokens.shape, dtype=score_dtype(self.model))
        with torch.no_grad():
            for index, micro in self._pieces(batch):
                value = self._forward(micro)
                out[index, : value.shape[1]] = value.cpu()
        return out

    def gradients(self, minibatch: Batch, tokens: int) -> tuple[float, int]:
        """Adds the minibatch's gradient to the parameters -> its loss, and its tokens that the clip holds back.

        `tokens` are the trained tokens of the whole optimizer batch, of which this may be a part: parts add up.
        """
        loss, held = 0.0, 0
        for _, micro in self._pieces(minibatch):
            value, clip = self._forward(micro), self.settings.clip
            old, returns = (micro.need(name).to(value.dtype) for name in ("value", "returns"))
            part = value_loss(value, old, returns, micro.mask, clip).sum() / max(tokens, 1)
            part.backward()
            loss += part.item()
            held += int(clipped(value.detach(), old, returns, micro.mask, clip).sum())
        return loss, held

    def update(self, minibatch: Batch) -> dict[str, Value]:
        """One optimizer update; skipped, and counted, where loss or gradient is not finite. Reads value and returns."""
        self.optimizer.begin()
        tokens = int(minibatch.mask.sum())
        loss, held = self.gradients(minibatch, tokens)
        outcome = self.optimizer.finish(loss)
        return {
            "value_loss": Mean(loss, 1),
            "value_clipped_share": Mean(held, tokens),
            "critic_gradient_norm": Mean(outcome.gradient_norm, 1),
            "critic_updates_skipped": Sum(0 if outcome.applied else 1),
        }

    def save(self, folder: Path) -> None:
        """Parameters and optimizer, into a checkpoint's folder."""
        checkpoint.write_parameters(folder, self.model, checkpoint.CRITIC)
        checkpoint.write_optimizer(folder, self.model, self.optimizer.adamw, checkpoint.CRITIC_OPTIMIZER)

    def restore(self, folder: Path, updates: int) -> None:
        """Parameters and optimizer as a checkpoint has them, bit for bit, after `updates` updates."""
        checkpoint.read_parameters(folder, self.model, checkpoint.CRITIC)
        checkpoint.read_optimizer(folder, self.model, self.optimizer.adamw, checkpoint.CRITIC_OPTIMIZER)
        self.optimizer.updates = updates

    def _forward(self, micro: Batch) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            return token_values(self.model, micro.tokens, micro.mask)

    def _pieces(self, batch: Batch) -> Iterator[tuple[Tensor, Batch]]:
        return pieces(batch, self.settings.tokens_per_microbatch, self.device)


def clipped(value: Tensor, value_old: Tensor, returns: Tensor, mask: Tensor, clip: float) -> Tensor:
    """[N,T] each -> [N,T] bool: where the clipped branch of the value loss is the larger one, and its gradient 0.

    >>> old, moved = torch.zeros(1, 3), torch.tensor([[0.5, 0.1, -0.5]])
    >>> clipped(moved, old, torch.ones(1, 3), torch.ones(1, 3, dtype=torch.bool), 0.2)
    tensor([[ True, False, False]])
    """
    if not clip:
        return torch.zeros_like(mask)
    near = value.clamp(value_old - clip, value_old + clip)
    return mask & ((near - returns).abs() > (value - returns).abs())
