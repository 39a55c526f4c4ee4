"""Advantages made token by token: with a critic (GAE and its two ends) and without one (the return-to-go)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise.algorithms.parts.advantage import Advantage
from groupwise.core.masked import WHITENED, begins, by_run, keep, real, row_sum, whiten
from groupwise.core.numbers.inputs import LARGEST, Column, mask_of, numbers, require_finite


def gae(rewards: Column, values: Column, mask: Column, gamma: float = 1.0, lam: float = 0.95) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation over the trained tokens of each row. [N,T] each -> advantages, returns [N,T].

    delta_t = r_t + gamma V_next - V_t ;  A_t = delta_t + gamma lam A_next ;  return_t = A_t + V_t

    "next" is the next trained token, and what comes after the last one is worth 0. Masked positions are skipped, may
    hold anything, and get 0. Nothing is whitened. Columns are of any type of numbers, the mask bool or 0 and 1; results
    are float32, or float64 if one is. Raises ValueError if shapes differ, a trained position is not
    finite, or gamma or lam lies outside of 0 to 1. Source: 1506.02438, eq 16.

    With gamma = 1 and lam = 0.5, a hole at t = 1 and padding at t = 3:

    | t | mask | r | V    | V_next | delta | A                          | return |
    |---|------|---|------|--------|-------|----------------------------|--------|
    | 3 | no   | 9 | 9    |        |       | 0                          | 0      |
    | 2 | yes  | 1 | 0.25 | 0      | 0.75  | 0.75                       | 1      |
    | 1 | no   | 9 | 9    |        |       | 0                          | 0      |
    | 0 | yes  | 0 | 0.5  | 0.25   | -0.25 | -0.25 + 0.5 * 0.75 = 0.125 | 0.625  |

    >>> rewards, values = torch.tensor([[0.0, 9.0, 1.0, 9.0]]), torch.tensor([[0.5, 9.0, 0.25, 9.0]])
    >>> for column in gae(rewards, values, torch.tensor([[True, False, True, False]]), gamma=1.0, lam=0.5):
    ...     print(column)
    tensor([[0.1250, 0.0000, 0.7500, 0.0000]])
    tensor([[0.6250, 0.0000, 1.0000, 0.0000]])
    """
    rewards = numbers("rewards", rewards)
    values, mask = numbers("values", values, rewards), mask_of("mask", mask, rewards)
    if not rewards.shape == values.shape == mask.shape or mask.dim() != 2:
        shapes = ", ".join(str(tuple(x.shape)) for x in (rewards, values, mask))
        raise ValueError(f"rewards, values and mask must be of one shape [N,T], not {shapes}")
    for name, column in (("rewards", rewards), ("values", values)):
        require_finite(name, column, mask, "finite numbers are due at every trained position", LARGEST)
    for name, share in (("gamma", gamma), ("lam", lam)):
        _require_share(name, share)
    return token_gae(rewards, values, mask, gamma, lam)


def token_gae(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float | Tensor
) -> tuple[Tensor, Tensor]:
    """`gae` of the columns of a batch, which are looked at elsewhere; lam is a number, or one of each row [N]."""
    rewards, values = real(rewards), real(values)
    advantages = torch.zeros_like(rewards + values)
    ahead, value_ahead = torch.zeros_like(advantages.sum(-1)), torch.zeros_like(values.sum(-1))
    for t in reversed(range(mask.shape[1])):
        delta = rewards[:, t] + gamma * value_ahead - values[:, t]
        ahead = torch.where(mask[:, t], delta + gamma * lam * ahead, ahead)
        value_ahead = torch.where(mask[:, t], values[:, t], value_ahead)
        advantages[:, t] = keep(ahead, mask[:, t])
    return advantages, keep(advantages + values, mask)


def turn_gae(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float = 1.0, lam: float = 0.95
) -> tuple[Tensor, Tensor]:
    """`gae` over turns, each a run of trained tokens and one action. [N,T] each -> advantages, returns [N,T].

    delta_k = r_k + gamma V_(k+1) - V_k ;  A_k = delta_k + gamma lam A_(k+1) ;  return_k = A_k + V_k

    r_k is what the turn's tokens are rewarded together, V_k the value where it begins, at its first token; each of its
    tokens gets A_k and return_k. gamma and lam are per turn: how long a turn is discounts nothing.

    >>> mask = torch.tensor([[True, True, False, True]])
    >>> rewards, values = torch.tensor([[0.0, 1.0, 9.0, 2.0]]), torch.tensor([[0.5, 7.0, 9.0, 1.0]])
    >>> turn_gae(rewards, values, mask, gamma=1.0, lam=0.5)[0]  # the second: 2 - 1; the first: 1 + 1 - 0.5 + 0.5
    tensor([[2., 2., 0., 1.]])
    """
    rewards, values = real(rewards), real(values)
    turn = begins(mask).cumsum(-1)
    alive = by_run(torch.ones_like(rewards), mask, mask) > 0
    each = token_gae(by_run(rewards, mask, mask), by_run(values, mask, begins(mask)), alive, gamma, lam)
    advantages, returns = (keep(column.gather(1, turn), mask) for column in each)
    return advantages, returns


def _require_share(name: str, share: float) -> None:
    if not 0 <= share <= 1:
        raise ValueError(f"{name} = {share}: must be from 0 to 1")


class Discounted(Advantage):
    """`gae` with the fields of its subclasses, against a critic's values or, if they are not read, against 0.

    A completion whose rewards are not numbers gets 0 and does not count in the whitening.

    gamma   what a reward is worth one token earlier; from 0 to 1
    lam     0: little variance and all of the critic's error; 1: the reverse; from 0 to 1
    whiten  advantages of the batch are shifted and scaled to mean 0 and deviation 1
    level   "token", or "turn": a turn is one action, see `turn_gae`
    """

    gamma: float
    lam: float
    whiten: bool
    level = "token"
    reads_value = True

    def __post_init__(self) -> None:
        for name in ("gamma", "lam"):
            _require_share(name, getattr(self, name))
        if self.level not in ("token", "turn"):
            raise ValueError(f'level = {self.level!r}: must be "token" or "turn"')

    def __call__(
        self, reward: Tensor, value: Tensor | None, mask: Tensor, group: Tensor, step_end: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        value = value if self.reads_value else torch.zeros_like(reward)
        if value is None:
            raise ValueError("this advantage reads a critic's values and there are none; use groupwise.gae with values")
        votes = mask & ~row_sum(reward, mask).isnan()[:, None]
        estimate = turn_gae if self.level == "turn" else token_gae
        advantage, returns = estimate(reward, value, votes, self.gamma, self.lam)
        return whiten(advantage, votes) if self.whiten else advantage, returns


@dataclass(frozen=True)
class GAE(Discounted):
    """A_t = sum_k (gamma lam)^k delta_{t+k} over the trained tokens, then whitened over the batch; see `gae`.

    The returns, which the critic learns, are made before the whitening. Source: PPO (1707.06347); 1506.02438.
    level  "turn": the deltas are over turns, each one action, and a turn's tokens share its advantage; see `turn_gae`
    """

    equation = "A_t = d_t + gamma lam A_(t+1),  d_t = r_t + gamma V_(t+1) - V_t" + WHITENED

    gamma: float = 1.0
    lam: float = 0.95
    whiten: bool = True
    level: str = "token"


@dataclass(frozen=True)
class DecoupledGAE(Discounted):
    """GAE with one lam for the advantages and another for the returns that the critic learns.

    With lam_value = 1 the critic learns plain returns, without the error of its own start, while the policy keeps the
    smaller variance of lam. With alpha > 0 a completion of n trained tokens has lam = 1 - 1 / (alpha n) instead, at
    least 0: the last reward reaches the first token of a long one.

    lam_value  lam of the returns; from 0 to 1
    alpha      0, or what makes lam of the length
    Source: VC-PPO (2503.01491); the length from VAPO (2504.05118), alpha 0.05.

    >>> reward, value = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.25]])
    >>> part = DecoupledGAE(gamma=1.0, lam=0.0, lam_value=1.0, whiten=False)
    >>> part(reward, value, torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, dtype=int), None)
    (tensor([[-0.2500,  0.7500]]), tensor([[1., 1.]]))
    """

    equation = "A_t by lam, or by 1 - 1 / (alpha |o|) where alpha > 0;  returns by lam_value" + WHITENED

    gamma: float = 1.0
    lam: float = 0.95
    lam_value: float = 1.0
    alpha: float = 0.0
    whiten: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_share("lam_value", self.lam_value)
        if self.alpha < 0:
            raise ValueError(f"alpha = {self.alpha}: must be above 0, or 0 for a lam of its own")

    def __call__(
        self, reward: Tensor, value: Tensor | None, mask: Tensor, group: Tensor, step_end: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        _, returns = GAE(self.gamma, self.lam_value, whiten=False)(reward, value, mask, group, step_end)
        votes = mask & ~row_sum(reward, mask).isnan()[:, None]
        lam: float | Tensor = self.lam
        if self.alpha:
            lam = (1 - 1 / (self.alpha * votes.sum(-1).clamp(min=1).to(returns.dtype))).clamp(min=0.0)
        assert value is not None  # GAE has looked
        advantage, _ = token_gae(reward, value, votes, self.gamma, lam)
        if self.whiten:
            advantage = whiten(advantage, votes)
        return advantage, returns


@dataclass(frozen=True)
class OneStepTD(Discounted):
    """A_t = r_t + gamma V_next - V_t: GAE with lam = 0, little variance and all of the critic's error."""

    equation = "A_t = r_t + gamma V_(t+1) - V_t" + WHITENED

    gamma: float = 1.0
    lam = 0.0
    whiten: bool = True


@dataclass(frozen=True)
class MonteCarlo(Discounted):
    """A_t = sum_{k >= 0} gamma^k r_{t+k} - V_t: GAE with lam = 1, no error of the critic and all of the variance."""

    equation = "A_t = sum_(k>=t) gamma^(k-t) r_k - V_t" + WHITENED

    gamma: float = 1.0
    lam = 1.0
    whiten: bool = True


@dataclass(frozen=True)
class Return(Discounted):
    """A_t = sum_{k >= 0} gamma^k r_{t+k} over the trained tokens: no baseline, no critic.

    Whitened over the batch it is the advantage of REINFORCE++. Source: REINFORCE; REINFORCE++ (2501.03262).

    >>> reward, mask = torch.tensor([[1.0, 0.0, 4.0]]), torch.ones(1, 3, dtype=torch.bool)
    >>> Return(gamma=0.5)(reward, None, mask, torch.zeros(1, dtype=int), None)[0]
    tensor([[2., 2., 4.]])
    """

    equation = "A_t = sum_(k>=t) gamma^(k-t) r_k" + WHITENED

    gamma: float = 1.0
    lam = 1.0
    whiten: bool = False
    reads_value = False
