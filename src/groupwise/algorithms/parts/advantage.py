"""Reward to advantage. A completion votes when it has a trained token and its reward is a number."""

import dataclasses
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from groupwise.algorithms.parts import Part, require_within
from groupwise.core.masked import (
    WHITENED,
    group_ids,
    group_range,
    group_sum,
    keep,
    real,
    row_sum,
    whiten,
)
from groupwise.core.numbers.measure import TIE


class Advantage(Part, Protocol):
    """(reward [N,T], value [N,T] or None, mask [N,T], group [N], step_end [N,T] or None)
    -> advantage [N,T], returns [N,T]. One that reads states is given step_state [N,T] or None as well.

    smallest_group         completions of one prompt that the baseline needs
    compares_within_group  whether a completion's advantage compares its reward with the others' of its prompt: equal
                           rewards give 0
    reads_value            whether a critic's values are read
    reads_steps            whether the ends of steps are read
    reads_states           whether the states are read in which turns were spoken
    by_turn                whether tokens of different turns have different advantages by design, which a ratio that is
                           one number per completion would mix
    binary                 whether the rewards must be 0 or 1
    by_reward              whether each of several rewards is credited by itself, before they are added up
    """

    smallest_group: int = 1
    compares_within_group: bool = False
    reads_value: bool = False
    reads_steps: bool = False
    reads_states: bool = False
    by_turn: bool = False
    binary: bool = False
    by_reward: bool = False

    def __call__(
        self, reward: Tensor, value: Tensor | None, mask: Tensor, group: Tensor, step_end: Tensor | None
    ) -> tuple[Tensor, Tensor]: ...


class WithinGroup(Advantage):
    """A completion's summed reward against those of its group: one advantage, the same for every token.

    whiten  the advantages are whitened over the trained tokens of the batch; what has no baseline or no signal, a lone
            vote or a tied group, stays exactly 0
    """

    smallest_group = 2
    compares_within_group = True
    whiten = False

    def scaled(self, centred: Tensor, votes: Tensor, group: Tensor) -> Tensor:
        """Rewards minus their group's mean [N], votes [P], group ids 0..P-1 [N] -> advantages [N]."""
        return centred

    def compared(self, total: Tensor, centred: Tensor, votes: Tensor, group: Tensor, length: Tensor) -> Tensor:
        """Like `scaled`, given the rewards [N] and the trained tokens [N] too, 0 for who does not vote."""
        return self.scaled(centred, votes, group)

    def __call__(
        self, reward: Tensor, value: Tensor | None, mask: Tensor, group: Tensor, step_end: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        total, vote = outcome(reward, mask)
        dense, groups = group_ids(group)
        centred, votes, has_baseline = centre(total, vote, dense, groups)
        length = keep(mask.sum(-1).to(total.dtype), vote)
        each = keep(self.compared(total, centred, votes, dense, length), has_baseline)
        advantage = keep(each[:, None].expand_as(reward), mask)
        if self.whiten:
            advantage = keep(whiten(advantage, mask & vote[:, None]), has_baseline[:, None])
        return advantage, keep(total[:, None].expand_as(reward), mask)


@dataclass(frozen=True)
class GroupZScore(WithinGroup):
    """A_i = (r_i - mean of the group) / (sample deviation of the group + epsilon), the same for every token.

    r_i is the completion's reward summed over its tokens. Fewer than two votes, or a tied group: exactly 0.
    epsilon  keeps the quotient finite; from 0 to 1
    Source: DeepSeekMath (2402.03300), section 4.1.2; the paper gives neither epsilon nor the deviation's convention.

    >>> reward = torch.tensor([[1.0], [1.0], [0.0], [0.0]])
    >>> GroupZScore(epsilon=0.0)(reward, None, torch.ones(4, 1, dtype=torch.bool), torch.zeros(4, dtype=int), None)[0].T
    tensor([[ 0.8660,  0.8660, -0.8660, -0.8660]])
    """

    equation = "A_i = (R_i - mean_group R) / (std_group R + epsilon)"

    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        require_within(self, 0, 1, "epsilon")

    def scaled(self, centred: Tensor, votes: Tensor, group: Tensor) -> Tensor:
        return z_score(centred, votes, group, self.epsilon)


@dataclass(frozen=True)
class GroupMean(WithinGroup):
    """A_i = r_i - mean of the group: no deviation, so hard and easy prompts weigh by their own spread.

    Equal to (G-1)/G times the leave-one-out advantage.
    Source: Dr. GRPO (2503.20783); whitened, the baseline form of REINFORCE++ (2501.03262).
    """

    equation = "A_i = R_i - mean_group R" + WHITENED

    whiten: bool = False


@dataclass(frozen=True)
class LeaveOneOut(WithinGroup):
    """A_i = r_i - mean of the others of its group = G/(G-1) (r_i - mean of the group). Source: RLOO (2402.14740)."""

    equation = "A_i = R_i - mean of the other R_j of the group"

    def scaled(self, centred: Tensor, votes: Tensor, group: Tensor) -> Tensor:
        return centred * (votes / (votes - 1).clamp(min=1))[group]


@dataclass(frozen=True)
class RewardZScore(GroupZScore):
    """A_i = sum_k weight_k z(r_ik), z the z-score in the group of each reward k by itself; then whitened.

    Rewards of a small spread count as much as those of a large one. With one reward it is the z-score, whitened.
    whiten  over the trained tokens of the batch; groups without a signal stay exactly 0
    Source: GDPO, as in verl.
    """

    equation = "A_i = sum_k weight_k (R_ik - mean_group R_k) / (std_group R_k + epsilon)" + WHITENED

    whiten: bool = True
    by_reward = True


@dataclass(frozen=True)
class RelativeMean(WithinGroup):
    """A_i = (r_i - mean of the group) / mean of the group, for rewards of 0 and 1; 0 if none is right.

    A right completion of a prompt that is solved with probability p gets (1 - p) / p: in expectation the gradient is
    that of log p, as of maximum likelihood, where the plain mean gives that of p.
    Source: MaxRL (2602.02710).

    >>> reward = torch.tensor([[1.0], [0.0], [0.0], [0.0]])
    >>> RelativeMean()(reward, None, torch.ones(4, 1, dtype=torch.bool), torch.zeros(4, dtype=int), None)[0].T
    tensor([[ 3., -1., -1., -1.]])
    """

    equation = "A_i = (R_i - mean_group R) / mean_group R"
    binary = True

    def compared(self, total: Tensor, centred: Tensor, votes: Tensor, group: Tensor, length: Tensor) -> Tensor:
        mean = total - centred
        return torch.where(mean > 0, centred / torch.where(mean > 0, mean, 1.0), 0.0)


@dataclass(frozen=True)
class LengthWeightedMean(WithinGroup):
    """A_i = r_i - sum_j |o_j| r_j / sum_j |o_j| over the group: the baseline of least variance where a completion's
    squared gradient grows with its length.

    Source: OPO (2505.23585).

    >>> reward, mask = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]), torch.tensor([[1, 0, 0], [1, 1, 1]]).bool()
    >>> LengthWeightedMean()(reward, None, mask, torch.zeros(2, dtype=int), None)[0][:, 0]
    tensor([ 0.7500, -0.2500])
    """

    equation = "A_i = R_i - sum_j |o_j| R_j / sum_j |o_j|,  over the group"

    def compared(self, total: Tensor, centred: Tensor, votes: Tensor, group: Tensor, length: Tensor) -> Tensor:
        tokens = group_sum(length, group, len(votes)).clamp(min=1)
        return total - (group_sum(length * total, group, len(votes)) / tokens)[group]


@dataclass(frozen=True)
class ProcessZScore(Advantage):
    """A_it = sum over the steps j of completion i that end at or after token t of r~_ij: process supervision.

    r~ = (r - mean) / (sample deviation + epsilon) over all step rewards of the group, however many each completion
    has; a step reward is the reward at a trained step end, and nothing else is read. Tokens after the last step end
    get 0. Fewer than two step rewards in a group, or all of them tied: exactly 0. A completion with a step reward that
    is not a number neither votes nor trains. The returns are the step rewards to go.

    epsilon  keeps the quotient finite; from 0 to 1
    Raises ValueError without step ends. Source: DeepSeekMath (2402.03300), section 4.1.3.

    >>> reward, end = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]), torch.tensor([[1, 0, 1], [0, 1, 0]]).bool()
    >>> ProcessZScore(epsilon=0.0)(reward, None, torch.ones(2, 3).bool(), torch.zeros(2, dtype=int), end)[0]
    tensor([[ 1.1547,  0.5774,  0.5774],
            [-1.1547, -1.1547,  0.0000]])
    """

    equation = (
        "A_t = sum of (r_j - mean r) / (std r + epsilon) over steps j that end at t or later; r: all steps of the group"
    )

    epsilon: float = 1e-6
    smallest_group = 2
    compares_within_group = True
    reads_steps = True

    def __post_init__(self) -> None:
        require_within(self, 0, 1, "epsilon")

    def __call__(
        self, reward: Tensor, value: Tensor | None, mask: Tensor, group: Tensor, step_end: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if step_end is None:
            raise ValueError("process-zscore reads step ends and there are none; use a task that scores steps")
        ends = mask & step_end
        numbers = ~row_sum(reward, ends).isnan()[:, None]
        ends = ends & numbers
        dense, groups = group_ids(group)
        owner = dense[:, None].expand_as(ends)[ends]
        steps = keep(real(reward), ends)
        scaled = torch.zeros_like(steps)
        centred, votes, _ = centre(steps[ends], torch.ones_like(owner, dtype=torch.bool), owner, groups)
        scaled[ends] = z_score(centred, votes, owner, self.epsilon)
        return keep(_to_go(scaled), mask & numbers), keep(_to_go(steps), mask & numbers)


def outcome(reward: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """[N,T], [N,T] -> the completion's reward [N] (0 if it does not vote) and who votes [N] bool."""
    total = row_sum(real(reward), mask)
    vote = mask.any(-1) & ~total.isnan()
    return keep(total, vote), vote


def centre(x: Tensor, vote: Tensor, dense: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """x, who votes and dense group ids, [S] each -> x minus its group's mean [S], votes [P], who has a baseline [S].

    If there is no baseline (tied, alone or not voting) the centred x is exactly 0.
    """
    votes = group_sum(vote.to(x.dtype), dense, groups)
    mean = group_sum(keep(x, vote), dense, groups) / votes.clamp(min=1)
    has_baseline = vote & ((votes >= 2) & (group_range(x, vote, dense, groups) > TIE))[dense]
    return keep(x - mean[dense], has_baseline), votes, has_baseline


def z_score(centred: Tensor, votes: Tensor, dense: Tensor, epsilon: float) -> Tensor:
    """centred / (sample deviation + epsilon) of each group, 0 without a baseline. [S] -> [S]."""
    variance = group_sum(centred**2, dense, len(votes)) / (votes - 1).clamp(min=1)
    return keep(centred / (variance.sqrt() + epsilon)[dense], centred != 0)


def _to_go(x: Tensor) -> Tensor:
    """[N,T] -> [N,T]: the sum from each column to the end of its row."""
    return x.flip(-1).cumsum(-1).flip(-1)


def unwhitened(part: Advantage) -> Advantage:
    """Return the part without its whitening if it credits rewards one by one: it is their sum that is whitened."""
    return dataclasses.replace(part, whiten=False) if part.by_reward else part  # type: ignore[type-var, call-arg]


def require_binary(reward: Tensor, mask: Tensor, describe: str) -> None:
    """Raise ValueError if a completion's reward is not 0 or 1. NaN, which has no vote, is let through."""
    total = row_sum(real(reward), mask)
    other = (total != 0) & (total != 1) & ~total.isnan()
    if other.any():
        raise ValueError(
            f"advantage.kind ({describe}) is for rewards of 0 and 1, and there is one of {float(total[other][0]):g}; "
            'take advantage.kind = "group-mean", or a reward that is 0 or 1'
        )
