"""The task's score to a reward per token."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from groupwise.algorithms.parts import Part, require_within
from groupwise.algorithms.parts.kl import KL
from groupwise.core.masked import keep, real
from groupwise.core.numbers.inputs import Column, numbers
from groupwise.core.records import Batch

#: What a score of 1 may be worth at most.
LARGEST_REWARD = 1e6


class Shaping(Part, Protocol):
    """(batch) -> reward [N,T].

    reads_steps  whether step scores are read
    needs_steps  whether there is no reward without them
    """

    reads_steps: bool = False
    needs_steps: bool = False

    def __call__(self, batch: Batch) -> Tensor: ...


@dataclass(frozen=True)
class OutcomeReward(Shaping):
    """reward = scale score + offset + overlong penalty, at the last trained token, and step scores at their ends.

    scale, offset   the paper's reward from a score in [0, 1]: DAPO's +1 / -1 is 2 and -1
    overlong_cache  the last part of the limit, as a share of it, over which the penalty falls from 0 to -1; 0 is none
    limit           the longest completion, tokens; sampling.max_new_tokens unless it is set
    step_scale      what a step score is worth, if the batch has them; 0 leaves them out
    Source: DAPO (2503.14476) eq 7 and eq 13 (20,480 tokens with a cache of 4,096: a share of 0.2).
    """

    equation = "R_i = scale score_i + offset + overlong(|o_i|), at the last token; plus step_scale score of each step"

    scale: float = 1.0
    offset: float = 0.0
    overlong_cache: float = 0.0
    limit: int = 0
    step_scale: float = 0.0

    @property
    def reads_steps(self) -> bool:
        return self.step_scale != 0

    def __post_init__(self) -> None:
        if not 0 <= self.overlong_cache <= 1:
            raise ValueError(f"overlong_cache = {self.overlong_cache}: must be a share of the limit, from 0 to 1")
        require_within(self, 0, LARGEST_REWARD, "scale", "step_scale")
        require_within(self, -LARGEST_REWARD, LARGEST_REWARD, "offset")
        if self.scale == self.step_scale == 0:
            raise ValueError("scale = 0.0: with step_scale = 0 as well no score trains anything")

    def __call__(self, batch: Batch) -> Tensor:
        lengths = batch.mask.sum(-1)
        total = self.scale * real(batch.score) + self.offset
        if self.overlong_cache and self.limit:
            total = total + overlong_penalty(lengths, self.limit, self.overlong_cache * self.limit)
        reward = at_last_token(total, batch.mask)
        if self.reads_steps and batch.step_end is not None:
            reward = reward + self.step_scale * at_step_ends(batch)
        return reward


@dataclass(frozen=True)
class Steps(Shaping):
    """reward = scale step score at the step ends and 0 elsewhere: process supervision, the outcome is not read.

    scale  what a step score is worth; at least 0
    Raises ValueError if the batch has no step ends. Source: DeepSeekMath (2402.03300), section 4.1.3.
    """

    equation = "r_t = scale score of the step that ends at t, 0 elsewhere"

    scale: float = 1.0
    reads_steps = True
    needs_steps = True

    def __post_init__(self) -> None:
        require_within(self, 1 / LARGEST_REWARD, LARGEST_REWARD, "scale")

    def __call__(self, batch: Batch) -> Tensor:
        return self.scale * at_step_ends(batch)


@dataclass(frozen=True)
class NoReward(Shaping):
    """reward = 0: scores measure the policy and train nothing. What trains is kl in the reward, as of a teacher."""

    equation = "r_t = 0"

    def __call__(self, batch: Batch) -> Tensor:
        return torch.zeros_like(batch.mask, dtype=real(batch.score).dtype)


def overlong_penalty(lengths: Column, limit: float, cache: float) -> Tensor:
    """DAPO's soft penalty: 0 up to limit - cache, then linear down to -1 at the limit. [N] tokens -> [N] in [-1, 0].

    Lengths may be of any type of numbers; the penalty is float32, or float64 if they are.
    Raises ValueError for lengths that are negative or no numbers. Source: DAPO (2503.14476) eq 13.

    >>> overlong_penalty(torch.tensor([16384, 18432, 20480]), 20480, 4096)
    tensor([ 0.0000, -0.5000, -1.0000])
    """
    if not 0 < cache <= limit:
        raise ValueError(f"cache = {cache}: must be above 0 and at most the limit {limit}")
    tokens = numbers("lengths", lengths)
    wrong = tokens[~((tokens >= 0) & tokens.isfinite())]
    if len(wrong):
        raise ValueError(f"lengths has {float(wrong[0]):g}; numbers of tokens, at least 0, are due")
    return ((limit - cache - tokens) / cache).clamp(-1.0, 0.0)


def at_last_token(per_row: Tensor, mask: Tensor) -> Tensor:
    """[N], [N,T] -> [N,T]: the row's value at its last trained token, 0 elsewhere."""
    tokens = mask.cumsum(-1)
    return keep(per_row[:, None].expand(mask.shape), mask & (tokens == mask.sum(-1, keepdim=True)))


def at_step_ends(batch: Batch) -> Tensor:
    """[N,T]: the step score at each trained step end, 0 elsewhere. Raises ValueError if the batch has no steps."""
    if batch.step_end is None or batch.step_score is None:
        raise ValueError("step rewards need step scores and this batch has none; use a task that scores steps")
    return keep(real(batch.step_score), batch.mask & batch.step_end)


def sampled_kl(batch: Batch, kl: KL) -> Tensor:
    """KL_t with the old policy's log-probabilities, which are what sampled. [N,T] nats, 0 where masked.

    In the reward it is r_t - beta KL_t: DeepSeekMath (2402.03300) eq 2. Raises ValueError without its columns.
    """
    if batch.logp_old is None or batch.logp_ref is None:
        raise ValueError("a KL term in the reward needs logp_old and logp_ref")
    old, ref = keep(real(batch.logp_old), batch.mask), keep(real(batch.logp_ref), batch.mask)
    return keep(kl(old, ref, torch.zeros_like(old)), batch.mask)
