"""Advantages that know the turns of an episode. A turn ends at a step end; what follows the last one is a turn too."""

from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise.algorithms.parts import require_within
from groupwise.algorithms.parts.advantage import Advantage, centre, outcome, z_score
from groupwise.core.masked import group_ids, group_sum, keep, real, row_sum


@dataclass(frozen=True)
class Turns:
    """The trained tokens of a batch, turn by turn; K is the most turns of a row.

    index    [N,T] the turn of each trained token, from 0
    alive    [N,K] bool, whether the row has that turn
    to_go    [N,K] reward units: R_k = r_k + gamma R_(k+1), r_k being the rewards of the turn's tokens together
    """

    index: Tensor
    alive: Tensor
    to_go: Tensor

    def at_ends(self, column: Tensor, ends: Tensor) -> Tensor:
        """[N,T], [N,T] -> [N,K]: what a column has where the turn ends, 0 where no step end closes it."""
        return torch.zeros_like(self.alive, dtype=column.dtype).scatter_add(1, self.index, keep(column, ends))

    def at_tokens(self, by_turn: Tensor, mask: Tensor) -> Tensor:
        """[N,K] -> [N,T]: each trained token has its turn's number, 0 elsewhere."""
        return keep(by_turn.gather(1, self.index), mask)


def turns(reward: Tensor, mask: Tensor, step_end: Tensor, gamma: float) -> Turns:
    """Rewards [N,T] in reward units, the trained tokens [N,T] and where steps end [N,T] -> their turns.

    >>> mask = torch.tensor([[True, False, True, True]])
    >>> end = torch.tensor([[True, False, False, True]])
    >>> turns(torch.tensor([[1.0, 9.0, 0.0, 4.0]]), mask, end, gamma=0.5)
    Turns(index=tensor([[0, 0, 1, 1]]), alive=tensor([[True, True]]), to_go=tensor([[3., 4.]]))
    """
    ends = (mask & step_end).long()
    index = keep(ends.cumsum(-1) - ends, mask)
    width = int(index.amax()) + 1 if index.numel() else 1
    alive = torch.zeros(len(mask), width, dtype=torch.long, device=mask.device)
    alive = alive.scatter_add(1, index, mask.long()) > 0
    by_turn = torch.zeros(len(mask), width, dtype=reward.dtype, device=mask.device)
    by_turn = by_turn.scatter_add(1, index, keep(reward, mask))
    ahead, columns = torch.zeros_like(by_turn[:, 0]), []
    for k in reversed(range(width)):
        ahead = by_turn[:, k] + gamma * ahead
        columns.append(ahead)
    return Turns(index, alive, torch.stack(columns[::-1], 1))


@dataclass(frozen=True)
class TurnToGo(Advantage):
    """A_t = R_t - mean of R_t over the other episodes of the group that also have a turn t, for each token of turn t.

    R_it = sum over t' >= t of gamma^(t' - t) r_it'. The baseline is unbiased because it says nothing of what episode i
    does from turn t on: the others are independent of i, and that i has a turn t was settled before. Hence 0 where no
    other is alive, which is such a number too; a mean that has i itself in it would depend on when i stops. Ties at a
    turn, up to rounding, are exactly 0. An episode whose reward is not a number is neither trained nor in a baseline,
    and one that is alone with its vote in its group gets 0. With one turn each it is RLOO's leave-one-out advantage.
    The returns are R.

    gamma  what a reward is worth one turn earlier; from 0 to 1
    Raises ValueError without step ends.

    >>> reward, end = torch.tensor([[1.0, 2.0], [0.0, 0.0], [2.0, 0.0]]), torch.tensor([[1, 1], [1, 1], [1, 0]]).bool()
    >>> TurnToGo()(reward, None, torch.tensor([[1, 1], [1, 1], [1, 0]]).bool(), torch.zeros(3, dtype=int), end)[0]
    tensor([[ 2.0000,  2.0000],
            [-2.5000, -2.0000],
            [ 0.5000,  0.0000]])
    """

    equation = "A_t = R_t - mean of R_t over the others of the group alive at turn t,  R_t = r_t + gamma R_(t+1)"

    gamma: float = 1.0
    smallest_group = 2
    compares_within_group = True
    reads_steps = True
    by_turn = True

    def __post_init__(self) -> None:
        require_within(self, 0, 1, "gamma")

    def __call__(
        self, reward: Tensor, value: Tensor | None, mask: Tensor, group: Tensor, step_end: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if step_end is None:
            raise ValueError("turn-to-go reads where turns end and there are none; use a task that plays turns")
        reward = real(reward)
        votes = mask & ~row_sum(reward, mask).isnan()[:, None]
        each = turns(reward, votes, step_end, self.gamma)
        dense, _ = group_ids(group)
        width = each.alive.shape[1]
        owner = dense[:, None] * width + torch.arange(width, device=mask.device)
        advantage = leave_one_out(each.to_go.flatten(), each.alive.flatten(), owner.flatten()).view_as(each.to_go)
        return each.at_tokens(keep(advantage, has_others(each.alive, dense)), votes), each.at_tokens(each.to_go, votes)


def has_others(alive: Tensor, group: Tensor) -> Tensor:
    """[N,K], dense ids [N] -> [N,1]: whether another row of the group has a turn."""
    votes = alive.any(-1).long()
    return (group_sum(votes, group, len(group))[group] - votes > 0)[:, None]


def leave_one_out(x: Tensor, vote: Tensor, owner: Tensor) -> Tensor:
    """[S] each -> x minus the mean of the other votes of its owner, x itself if there is none; 0 without a vote."""
    dense, owners = group_ids(owner)
    centred, votes, _ = centre(x, vote, dense, owners)
    alone = vote & (votes == 1)[dense]
    return keep(x, alone) + centred * (votes / (votes - 1).clamp(min=1))[dense]


@dataclass(frozen=True)
class StateGroups(Advantage):
    """A_t = A_episode + omega A_state, the latter among the turns of the group's episodes spoken in the same state.

    Either is (x - mean) / (sample deviation + epsilon): of the episodes' rewards, and of what turns bring to the end,
    R_t = r_t + gamma R_(t+1). A turn whose state has no name (0), or that no other turn shares, has A_state 0; so have
    ties. The returns are R.

    omega      what the second is worth beside the first; at least 0
    gamma      what a reward is worth one turn earlier; from 0 to 1
    epsilon    keeps the quotients finite; from 0 to 1
    deviation  False: no division by deviations
    Raises ValueError without step ends or states. Source: GiGPO (2505.10978).

    >>> one, zero = torch.ones(2, 2, dtype=torch.bool), torch.zeros(2, dtype=int)
    >>> reward, state = torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.tensor([[1, 2], [3, 2]])
    >>> StateGroups(deviation=False)(reward, None, one, zero, one, state)[0]
    tensor([[ 0.5000,  1.0000],
            [-0.5000, -1.0000]])
    """

    equation = (
        "A_t = z(R_i) over the group + omega z(R_t) over its turns in the same state,  R_t = r_t + gamma R_(t+1);  "
        "z(x) = (x - mean) / (std + epsilon), or without the quotient"
    )

    omega: float = 1.0
    gamma: float = 0.95
    epsilon: float = 1e-6
    deviation: bool = True
    smallest_group = 2
    compares_within_group = True
    reads_steps = True
    reads_states = True
    by_turn = True

    def __post_init__(self) -> None:
        require_within(self, 0, 1, "gamma", "epsilon")
        require_within(self, 0, 1e6, "omega")

    def __call__(
        self,
        reward: Tensor,
        value: Tensor | None,
        mask: Tensor,
        group: Tensor,
        step_end: Tensor | None,
        step_state: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        if step_end is None or step_state is None:
            raise ValueError("gigpo reads where turns end and in which state; use a task that plays turns")
        reward = real(reward)
        total, vote = outcome(reward, mask)
        votes = mask & vote[:, None]
        each = turns(reward, votes, step_end, self.gamma)
        dense, _ = group_ids(group)
        state = each.at_ends(step_state, votes & step_end)
        owner = dense[:, None] * (state.amax() + 1) + state
        by_state = self._scaled(each.to_go.flatten(), (state > 0).flatten(), owner.flatten()).view_as(each.to_go)
        by_turn = self._scaled(total, vote, dense)[:, None] + self.omega * by_state
        return each.at_tokens(by_turn, votes), each.at_tokens(each.to_go, votes)

    def _scaled(self, x: Tensor, vote: Tensor, owner: Tensor) -> Tensor:
        dense, owners = group_ids(owner)
        centred, count, _ = centre(x, vote, dense, owners)
        return z_score(centred, count, dense, self.epsilon) if self.deviation else centred
