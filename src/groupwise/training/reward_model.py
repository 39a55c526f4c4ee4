"""A reward model's training on ranked preference pairs: its settings, the Bradley-Terry loss, and the updates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import AdamW

from groupwise.core.collate import microbatches
from groupwise.core.errors import RunError, UsageError
from groupwise.core.seeds import stream
from groupwise.models.reward import RewardModel, check_rows
from groupwise.training.optimizer import OnStep, Optimizer, silent
from groupwise.training.pairs import Comparison


@dataclass(frozen=True)
class PreferenceSettings:
    """Where a reward model's pairs come from, and how it is trained on them.

    pairs          training pairs to sample; a file of pairs is used whole
    heldout_pairs  pairs of other prompts that measure the model; of a file, at most a fifth
    noise          chance that a sampled pair's label is swapped; a file's labels stay as they are
    samples        completions of each prompt that pairs are taken from
    batch_size     pairs in an optimizer update
    learning_rate  AdamW's, after a linear warmup over the first tenth and before a linear decay to zero
    clip_norm      gradients are scaled down to this norm; 0 leaves them alone
    center         weight of mean((r_chosen + r_rejected)^2), which settles the constant that the loss leaves free
    tokens_per_microbatch  padded tokens held at once; the gradient does not depend on it
    """

    pairs: int = 2000
    heldout_pairs: int = 500
    noise: float = 0.1
    samples: int = 4
    epochs: int = 3
    batch_size: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    center: float = 0.01
    tokens_per_microbatch: int = 8192

    def __post_init__(self) -> None:
        least = {"pairs": 1, "heldout_pairs": 1, "samples": 2, "epochs": 1, "batch_size": 1, "tokens_per_microbatch": 1}
        for name, lowest in least.items():
            if getattr(self, name) < lowest:
                raise UsageError(f"preference.{name} must be at least {lowest}, not {getattr(self, name)}")
        if not 0 <= self.noise < 0.5:
            raise UsageError(f"preference.noise must be from 0 to below 0.5 (labels drawn by a coin), not {self.noise}")
        for name in ("learning_rate", "weight_decay", "clip_norm", "center"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"preference.{name} must be a number from 0, not {getattr(self, name)}")


def bradley_terry(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Scalar loss = -mean log sigmoid(r_chosen - r_rejected), nats a pair; scores [M], [M] in reward units.

    P(a preferred to b) = sigmoid(r_a - r_b), so a constant added to all scores changes nothing. Raises ValueError for
    no pairs or unequal shapes. Source: Bradley and Terry (1952); for language models 2203.02155, equation 1.

    >>> bradley_terry(torch.tensor([0.0]), torch.tensor([0.0]))
    tensor(0.6931)
    """
    if chosen.shape != rejected.shape or chosen.dim() != 1 or not len(chosen):
        raise ValueError(f"pairs need two equal rows of scores [M], not {list(chosen.shape)}, {list(rejected.shape)}")
    return -F.logsigmoid(chosen - rejected).mean()


def train_reward_model(
    model: RewardModel,
    comparisons: Sequence[Comparison],
    settings: PreferenceSettings,
    seed: int,
    on_step: OnStep = silent,
) -> int:
    """Train in place by AdamW on the Bradley-Terry loss -> the number of updates; the same seed gives the same bits.

    Raises ValueError for no pairs or too long ones, RunError where the loss is not finite.
    """
    if not comparisons:
        raise ValueError("a reward model needs at least one pair to train on")
    check_rows([row for pair in comparisons for row in _rows(pair)], model.positions)
    batches = list(_batches(len(comparisons), settings, seed))
    adamw = AdamW(model.model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)

    def learning_rate(update: int) -> float:
        return settings.learning_rate * rate(update + 1, len(batches))

    optimizer = Optimizer(model.model, adamw, learning_rate, settings.clip_norm)
    for step, batch in enumerate(batches, start=1):
        optimizer.begin()
        loss = gradients(model, [comparisons[i] for i in batch], settings)
        outcome = optimizer.finish(loss)
        if not outcome.applied:
            norm = outcome.gradient_norm
            raise RunError(f"reward model: loss {loss}, gradient {norm} at update {step}; lower the learning rate")
        on_step(step, len(batches), loss)
    adamw.zero_grad(set_to_none=True)
    return len(batches)


def gradients(model: RewardModel, batch: Sequence[Comparison], settings: PreferenceSettings) -> float:
    """Add the gradient of bradley_terry + center * mean((r_c + r_r)^2) over the batch; return that loss.

    However many microbatches it takes, the gradient is the same.
    """
    length = torch.tensor([max(map(len, _rows(pair))) for pair in batch])
    loss = 0.0
    for part in microbatches(length, settings.tokens_per_microbatch // 2):
        rows = [row for i in part.tolist() for row in _rows(batch[i])]
        chosen, rejected = model.forward(rows).view(-1, 2).unbind(1)
        share = bradley_terry(chosen, rejected) + settings.center * (chosen + rejected).square().mean()
        share = share * (len(part) / len(batch))
        share.backward()
        loss += share.item()
    return loss


def rate(step: int, steps: int) -> float:
    """The factor on the learning rate at `step`, from 1 to `steps`: up over the first tenth, then down to near 0."""
    rising = max(1, steps // 10)
    return step / rising if step <= rising else (steps - step + 1) / (steps - rising + 1)


def _batches(count: int, settings: PreferenceSettings, seed: int) -> Iterator[list[int]]:
    """Every pair once an epoch, in an order of the epoch's own; the last batch of an epoch may be smaller."""
    for epoch in range(settings.epochs):
        order = torch.randperm(count, generator=stream(seed, "preference", epoch))
        yield from (part.tolist() for part in order.split(settings.batch_size))


def _rows(pair: Comparison) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (*pair.prompt, *pair.chosen), (*pair.prompt, *pair.rejected)
