"""The critic: V(s_t) for a batch, and one optimizer update on a minibatch. It has an optimizer of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from groupwise.algorithms.parts.critic import value_loss
from groupwise.core.collate import microbatches
from groupwise.core.numbers.metrics import Mean, Sum, Value
from groupwise.core.numbers.reproducible import reproducible
from groupwise.core.numbers.transfer import columns_to_device
from groupwise.core.records import Batch
from groupwise.core.settings import Changeable, Location
from groupwise.models.forward.layout import Parts
from groupwise.models.on_host import on_device
from groupwise.models.scalar_heads import POLICY_START, token_values
from groupwise.training import checkpoint
from groupwise.training.mesh import ALONE, Mesh, Verb
from groupwise.training.optimizer import Collected, OptimizerSettings, TrainedModel


class CriticSettings(OptimizerSettings):
    """Critic, for algorithms that use values.

    learning_rate  AdamW's learning rate; unless set, ten times the policy's
    clip           largest move of a value before its loss is clipped, in reward units; 0: off
    warmup_steps   first training steps, in which only the critic learns
    start          "policy", "reward-model" (the run's), or the folder of a reward model or causal language model
    offload        keep the critic in host memory while it is not used; one GPU only
    """

    learning_rate: Changeable[float] = Field(default=1e-5, ge=0)
    clip: Changeable[float] = Field(default=0.2, ge=0)
    warmup_steps: int = Field(default=0, ge=0)
    start: Location = POLICY_START
    offload: Changeable[bool] = False


class Critic(TrainedModel):
    """Holds the value model and its optimizer. loss = mean over the trained tokens of the optimizer batch."""

    def __init__(
        self,
        model: nn.Module,
        settings: CriticSettings,
        total_updates: int,
        bf16: bool = False,
        mesh: Mesh = ALONE,
        deterministic: bool = True,
    ) -> None:
        """`bf16`, `mesh` and `deterministic` are those of the learner beside it."""
        super().__init__(model, settings, total_updates, bf16, mesh)
        self.clip, self.deterministic = settings.clip, deterministic

    def values(self, batch: Batch) -> Tensor:
        """Compute V(s_t) [N,T] in reward units, on the CPU without gradient, 0 where masked."""
        used = self._used(Verb.VALUES, batch)
        with used, reproducible(self.device, self.deterministic), torch.no_grad():
            found = Collected(batch.tokens.shape, {"value": self.precision})
            for index, micro in self._microbatches(batch):
                found.add(index, {"value": self._forward(micro)})
            return self.mesh.joined(found.tables()["value"])

    @contextmanager
    def _used(self, verb: Verb, batch: Batch | None = None, **others: Any) -> Iterator[None]:
        """Make a verb of all ranks inside, with the model on its device."""
        with self.mesh.together(verb, batch, **others), on_device(self.model, self.device):
            yield

    def _microbatches(self, batch: Batch) -> Iterator[tuple[Tensor, Batch]]:
        for index, rows in self.dealt(batch, microbatches(batch.length, self.tokens_per_microbatch)):
            yield index, columns_to_device(rows, self.device)

    def gradients(self, minibatch: Batch, tokens: int) -> tuple[float, int]:
        """Add the minibatch's gradient to the parameters -> its loss, and its tokens that the clip holds back.

        `tokens` are the trained tokens of the whole optimizer batch, of which this may be a part: parts add up.
        """
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        held = torch.zeros((), dtype=torch.long, device=self.device)
        for _, micro in self._microbatches(minibatch):
            with reproducible(self.device, self.deterministic):
                value = self._forward(micro)
                old, returns = (micro.need(name).to(value.dtype) for name in ("value", "returns"))
                part = value_loss(value, old, returns, micro.mask, self.clip).sum() / max(tokens, 1)
                part.backward()
            loss += part.detach()
            held += clipped(value.detach(), old, returns, micro.mask, self.clip).sum()
        total, tokens_held = self.mesh.sums([float(loss), float(held)])  # the device is waited for here, once
        return total, int(tokens_held)

    def update(self, minibatch: Batch) -> dict[str, Value]:
        """Make one optimizer update; skip and count it if loss or gradient is not finite. Reads value and returns."""
        tokens = int(minibatch.mask.sum())
        with self._used(Verb.UPDATE_CRITIC, minibatch):
            self.optimizer.begin()
            loss, held = self.gradients(minibatch, tokens)
            outcome = self.optimizer.finish(loss)
        return {
            "value_loss": Mean(loss, 1),
            "value_clipped_share": Mean(held, tokens),
            "critic_gradient_norm": Mean(outcome.gradient_norm, 1),
            "critic_updates_skipped": Sum(0 if outcome.applied else 1),
        }

    def save(self, folder: Path) -> dict[str, str]:
        """Save parameters and optimizer into a checkpoint's folder -> the hashes of the files that ranks wrote."""
        adamw, names = self.optimizer.adamw, (checkpoint.CRITIC, checkpoint.CRITIC_OPTIMIZER)
        with self.mesh.together(Verb.SAVE_CRITIC, folder=folder):
            hashes = checkpoint.write_parameters(folder, self.model, names[0], self.mesh)
            return hashes | checkpoint.write_optimizer(folder, self.model, adamw, names[1], self.mesh)

    def restore(self, folder: Path, updates: int) -> None:
        """Put parameters and optimizer back as a checkpoint has them, bit for bit, after `updates` updates."""
        with self._used(Verb.RESTORE_CRITIC, folder=folder, updates=updates):
            checkpoint.read_parameters(folder, self.model, checkpoint.CRITIC)
            checkpoint.read_optimizer(folder, self.model, self.optimizer.adamw, checkpoint.CRITIC_OPTIMIZER)
            self.optimizer.updates = updates

    def _forward(self, micro: Batch) -> Tensor:
        parts = None if micro.read_from is None else Parts.of(micro.length, micro.read_from)
        tokens, mask = (micro.tokens, micro.mask) if parts is None else map(parts.taken, (micro.tokens, micro.mask))
        with self.fused.running():
            value = self.run(self.model, lambda: token_values(self.model, tokens, mask))
        return value if parts is None else parts.given_back(value, micro.mask.shape)


def clipped(value: Tensor, value_old: Tensor, returns: Tensor, mask: Tensor, clip: float) -> Tensor:
    """Find where the clipped branch of the value loss is the larger one, and its gradient 0. [N,T] each -> [N,T] bool.

    >>> old, moved = torch.zeros(1, 3), torch.tensor([[0.5, 0.1, -0.5]])
    >>> clipped(moved, old, torch.ones(1, 3), torch.ones(1, 3, dtype=torch.bool), 0.2)
    tensor([[ True, False, False]])
    """
    if not clip:
        return torch.zeros_like(mask)
    near = value.clamp(value_old - clip, value_old + clip)
    return mask & ((near - returns).abs() > (value - returns).abs())
