"""A reward model's training on ranked preference pairs: its settings, the Bradley-Terry loss, and the updates."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor
from torch.optim import AdamW

from groupwise.core.collate import microbatches
from groupwise.core.errors import RunError
from groupwise.core.numbers.reproducible import reproducible
from groupwise.core.numbers.seeds import stream
from groupwise.core.settings import Changeable, Location, Settings
from groupwise.models.context import positions
from groupwise.models.scalar_heads import RewardModel, check_rows
from groupwise.training.optimizer import OnStep, Optimizer, silent

#: Where pairs come from without a file.
SAMPLED_PAIRS = "pairs of the policy's own completions, ranked by the task"
#: Keys of [preference] that only sampled pairs have: a file's are what they are.
SAMPLING_KEYS = {"pairs", "noise", "samples"}


@dataclass(frozen=True)
class Comparison:
    """A labelled pair as ids, the end-of-sequence id included where the completion has one.

    right  whether the label agrees with the true ranking; None where that is unknown
    """

    prompt: tuple[int, ...]
    chosen: tuple[int, ...]
    rejected: tuple[int, ...]
    right: bool | None = None

    def swapped(self) -> Self:
        """Return the same pair with the opposite label."""
        right = None if self.right is None else not self.right
        return type(self)(self.prompt, chosen=self.rejected, rejected=self.chosen, right=right)


class PreferenceSettings(Settings):
    """Reward model: a folder, or trained on preference pairs from a file or sampled.

    model                  folder of a trained reward model; all other keys but `offload` are ignored
    path                   file of preference pairs; `pairs`, `noise` and `samples` are ignored
    pairs                  training pairs to sample
    heldout_pairs          pairs of other prompts to test the model; at most a fifth of a file
    noise                  probability of a swapped label in a sampled pair
    samples                completions per prompt from which pairs are made
    epochs                 passes over the training pairs
    batch_size             pairs per optimizer update
    learning_rate          AdamW's peak learning rate: warmup over the first tenth, then linear decay to 0
    weight_decay           AdamW's weight decay, times the learning rate
    clip_norm              largest gradient norm; 0: no clipping
    center                 weight of mean((r_chosen + r_rejected)^2), which centers the rewards on 0
    tokens_per_microbatch  padded tokens per microbatch; the gradient is the same
    offload                keep the reward model in host memory while it does not score; one GPU only
    """

    model: Location | None = None
    path: Location | None = None
    pairs: int = Field(default=2000, ge=1, le=10**7)
    heldout_pairs: int = Field(default=500, ge=1, le=10**7)
    noise: float = Field(default=0.1, ge=0, lt=0.5)
    samples: int = Field(default=4, ge=2, le=2**16)
    epochs: int = Field(default=3, ge=1, le=10**6)
    batch_size: int = Field(default=64, ge=1, le=2**20)
    learning_rate: float = Field(default=1e-3, ge=0)
    weight_decay: float = Field(default=0.01, ge=0)
    clip_norm: float = Field(default=1.0, ge=0)
    center: float = Field(default=0.01, ge=0)
    tokens_per_microbatch: int = Field(default=8192, ge=1)
    offload: Changeable[bool] = False

    @property
    def source(self) -> str:
        """Source of the model or its pairs: a folder, a file, or the policy's own completions."""
        return self.model or self.path or SAMPLED_PAIRS

    @property
    def unread(self) -> set[str]:
        """The keys that nothing reads, given where the model or its pairs come from."""
        if self.model is not None:
            return set(type(self).model_fields) - {"model", "offload"}
        return SAMPLING_KEYS if self.path is not None else set()


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
    check_rows([row for pair in comparisons for row in _rows(pair)], positions(model.model.config))
    batches = list(_batches(len(comparisons), settings, seed))
    fused = True if model.model.device.type == "cuda" else None  # a CPU's runs keep the bits that they had
    most, decay = settings.learning_rate, settings.weight_decay
    adamw = AdamW(model.model.parameters(), lr=most, weight_decay=decay, fused=fused)

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
        with reproducible(model.model.device):
            chosen, rejected = model.forward(rows).view(-1, 2).unbind(1)
            share = bradley_terry(chosen, rejected) + settings.center * (chosen + rejected).square().mean()
            share = share * (len(part) / len(batch))
            share.backward()
        loss += share.item()
    return loss


def rate(step: int, steps: int) -> float:
    """Return the learning rate's factor at `step` of 1 to `steps`: up over the first tenth, then down to near 0."""
    rising = max(1, steps // 10)
    return step / rising if step <= rising else (steps - step + 1) / (steps - rising + 1)


def _batches(count: int, settings: PreferenceSettings, seed: int) -> Iterator[list[int]]:
    """Yield every pair once an epoch, in an order of the epoch's own; the last batch of an epoch may be smaller."""
    for epoch in range(settings.epochs):
        order = torch.randperm(count, generator=stream(seed, "preference", epoch))
        yield from (part.tolist() for part in order.split(settings.batch_size))


def _rows(pair: Comparison) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (*pair.prompt, *pair.chosen), (*pair.prompt, *pair.rejected)
