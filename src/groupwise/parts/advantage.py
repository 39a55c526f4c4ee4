"""Reward to advantage. A completion votes when it has a trained token and its reward is a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from groupwise.masked import group_ids, group_range, group_sum, keep, row_sum

#: A group whose rewards differ by no more than this is tied, and its advantage is exactly 0 (range, not deviation).
TIE = 1e-6


class Advantage(Protocol):
    """(reward [N,T], value [N,T] or None, mask [N,T], group [N], step_end [N,T] or None)
    -> advantage [N,T], returns [N,T]."""

    @property
    def smallest_group(self) -> int:
        """Completions of one prompt that the baseline needs."""
        ...

    @property
    def reads_value(self) -> bool:
        """Whether a critic's values are read."""
        ...

    def __call__(
        self, reward: Tensor, value: Tensor | None, mask: Tensor, group: Tensor, step_end: Tensor | None
    ) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class GroupZScore:
    """A_i = (r_i - mean of the group) / (sample deviation of the group + epsilon), the same for every token.

    r_i is the completion's reward summed over its tokens. Fewer than two votes, or a tied group: exactly 0.
    Source: DeepSeekMath (2402.03300), section 4.1.2; the paper gives neither epsilon nor the deviation's convention.

    >>> import torch
    >>> reward = torch.tensor([[1.0], [1.0], [0.0], [0.0]])
    >>> GroupZScore(epsilon=0.0)(reward, None, torch.ones(4, 1, dtype=torch.bool), torch.zeros(4, dtype=int), None)[0].T
    tensor([[ 0.8660,  0.8660, -0.8660, -0.8660]])
    """

    epsilon: float = 1e-6
    smallest_group = 2
    reads_value = False

    def __call__(
        self, reward: Tensor, value: Tensor | None, mask: Tensor, group: Tensor, step_end: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        centred, votes, _, dense = _centre(reward, mask, group)
        variance = group_sum(centred**2, dense, len(votes)) / (votes - 1).clamp(min=1)
        return _broadcast(centred / (variance.sqrt() + self.epsilon)[dense], reward, mask)


@dataclass(frozen=True)
class GroupMean:
    """A_i = r_i - mean of the group: no deviation, so hard and easy prompts weigh by their own spread.

    Equal to (G-1)/G times the leave-one-out advantage. Source: Dr. GRPO (2503.20783).
    """

    smallest_group = 2
    reads_value = False

    def __call__(
        self, reward: Tensor, value: Tensor | None, mask: Tensor, group: Tensor, step_end: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return _broadcast(_centre(reward, mask, group)[0], reward, mask)


@dataclass(frozen=True)
class LeaveOneOut:
    """A_i = r_i - mean of the others of its group = G/(G-1) (r_i - mean of the group). Source: RLOO (2402.14740)."""

    smallest_group = 2
    reads_value = False

    def __call__(
        self, reward: Tensor, value: Tensor | None, mask: Tensor, group: Tensor, step_end: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        centred, votes, _, dense = _centre(reward, mask, group)
        return _broadcast(centred * (votes / (votes - 1).clamp(min=1))[dense], reward, mask)


def outcome(reward: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """[N,T], [N,T] -> the completion's reward [N] (0 where it does not vote) and who votes [N] bool."""
    total = row_sum(reward, mask)
    vote = mask.any(-1) & ~total.isnan()
    return keep(total, vote), vote


def _centre(reward: Tensor, mask: Tensor, group: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """-> reward minus its group's mean [N] (0 where tied, alone or not voting), votes [P], vote [N], dense ids [N]."""
    total, vote = outcome(reward, mask)
    dense, groups = group_ids(group)
    votes = group_sum(vote.to(total.dtype), dense, groups)
    mean = group_sum(total, dense, groups) / votes.clamp(min=1)
    speaks = (votes >= 2) & (group_range(total, vote, dense, groups) > TIE)
    return keep(total - mean[dense], vote & speaks[dense]), votes, vote, dense


def _broadcast(per_row: Tensor, reward: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """[N] -> [N,T] over the trained tokens; the returns are the completion's reward at each of them."""
    total, _ = outcome(reward, mask)
    return keep(per_row[:, None].expand_as(reward), mask), keep(total[:, None].expand_as(reward), mask)
