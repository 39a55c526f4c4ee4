"""Advantages and returns by their definitions, each written from its equation; no part of the algorithms is called.

Everything is float64. [N,T] are rows and columns of the batch; what is masked is 0.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from groupwise.algorithms.parts.advantage import (
    GroupMean,
    GroupZScore,
    LeaveOneOut,
    LengthWeightedMean,
    ProcessZScore,
    RelativeMean,
    RewardZScore,
)
from groupwise.algorithms.parts.gae import GAE, DecoupledGAE, MonteCarlo, OneStepTD, Return
from groupwise.algorithms.parts.turns import StateGroups, TurnToGo
from groupwise.diagnostics.witness.rows import TIE


@dataclass(frozen=True)
class CreditGiven:
    """Inputs of an advantage.

    reward  [N,T] reward units
    mask    [N,T] bool, the trained tokens
    group   number of each row's group
    value   [N,T] of a critic, or None
    ends    [N,T] bool, where a step ends, or None
    state   [N,T], number of the state in which the turn that ends here was spoken, or None
    """

    reward: Tensor
    mask: Tensor
    group: Sequence[int]
    value: Tensor | None = None
    ends: Tensor | None = None
    state: Tensor | None = None

    @cached_property
    def total(self) -> list[float]:
        """Sum of each row's reward; NaN for a row that does not vote."""
        sums = torch.where(self.mask, self.reward, 0.0).sum(1)
        return torch.where(self.mask.any(1), sums, math.nan).tolist()

    def spread(self, by_row: Sequence[float]) -> Tensor:
        """Give each trained token its row's number."""
        column = torch.tensor(by_row, dtype=torch.float64)[:, None]
        return torch.where(self.mask, column.nan_to_num(0.0), 0.0)


Columns = tuple[Tensor, Tensor]


def deviation(values: Sequence[float]) -> float:
    """Compute the sample deviation of at least two numbers."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1))


def z_score(epsilon: float) -> Callable[[float, Sequence[float]], float]:
    """Make (r - mean) / (sample deviation + epsilon) of one reward among those of its group."""

    def scaled(own: float, every: Sequence[float]) -> float:
        return (own - math.fsum(every) / len(every)) / (deviation(every) + epsilon)

    return scaled


def from_mean(own: float, every: Sequence[float]) -> float:
    """Compute r - mean."""
    return own - math.fsum(every) / len(every)


def from_others(own: float, every: Sequence[float]) -> float:
    """Compute r - mean of the others."""
    return own - (math.fsum(every) - own) / (len(every) - 1)


def among(
    values: Sequence[float], owner: Iterable[Any], scaled: Callable[[float, Sequence[float]], float]
) -> list[float]:
    """Scale each value among those of its owner; 0 for what has no value, is alone or is tied, NaN for no value."""
    owners, every = list(owner), defaultdict(list)
    for value, own in zip(values, owners, strict=True):
        if not math.isnan(value):
            every[own].append(value)
    level = {own for own, of in every.items() if len(of) < 2 or max(of) - min(of) <= TIE}
    known: dict[tuple[Any, float], float] = {}
    out = []
    for value, own in zip(values, owners, strict=True):
        if math.isnan(value) or own in level:
            out.append(math.nan if math.isnan(value) else 0.0)
            continue
        if (own, value) not in known:
            known[own, value] = scaled(value, every[own])
        out.append(known[own, value])
    return out


def whitened(x: Tensor, mask: Tensor) -> Tensor:
    """Shift and scale to mean 0 and deviation 1 over the masked places, with 1e-8 beside the variance."""
    inside = x[mask]
    if len(inside) < 2:
        return torch.where(mask, x, 0.0)
    return torch.where(mask, (x - inside.mean()) / torch.sqrt(inside.var() + 1e-8), 0.0)


def group_zscore(part: GroupZScore, given: CreditGiven) -> Columns:
    """A_i = (R_i - mean R) / (std R + epsilon) of the group."""
    total = given.total
    return given.spread(among(total, given.group, z_score(part.epsilon))), given.spread(total)


def group_mean(part: GroupMean, given: CreditGiven) -> Columns:
    """A_i = R_i - mean R of the group; whitened over the batch where the part says so, and 0 where nothing compares."""
    return _perhaps_whitened(part, given, among(given.total, given.group, from_mean))


def reward_zscore(part: RewardZScore, given: CreditGiven) -> Columns:
    """A_i = (R_i - mean R) / (std R + epsilon) of the group, then whitened where the part says so."""
    return _perhaps_whitened(part, given, among(given.total, given.group, z_score(part.epsilon)))


def _perhaps_whitened(part: GroupMean | RewardZScore, given: CreditGiven, each: Sequence[float]) -> Columns:
    total = given.total
    advantage, votes = given.spread(each), torch.tensor([not math.isnan(x) for x in total])
    if part.whiten:
        compares = given.spread([float(c) for c in _compares(total, given.group)]) > 0
        advantage = torch.where(compares, whitened(advantage, given.mask & votes[:, None]), 0.0)
    return advantage, given.spread(total)


def relative_mean(part: RelativeMean, given: CreditGiven) -> Columns:
    """A_i = R_i / mean R - 1 of the group, 0 where none is right."""

    def relative(own: float, every: Sequence[float]) -> float:
        mean = math.fsum(every) / len(every)
        return own / mean - 1 if mean > 0 else 0.0

    total = given.total
    return given.spread(among(total, given.group, relative)), given.spread(total)


def length_weighted(part: LengthWeightedMean, given: CreditGiven) -> Columns:
    """A_i = R_i - sum |o_j| R_j / sum |o_j| of the group."""
    total, lengths = given.total, given.mask.sum(1).tolist()
    compares, each = _compares(total, given.group), []
    for own, value in zip(given.group, total, strict=True):
        of = [(n, r) for g, n, r in zip(given.group, lengths, total, strict=True) if g == own and not math.isnan(r)]
        each.append(value - math.fsum(n * r for n, r in of) / max(sum(n for n, _ in of), 1))
    return given.spread([x if c else 0.0 for x, c in zip(each, compares, strict=True)]), given.spread(total)


def _compares(total: Sequence[float], group: Sequence[int]) -> list[bool]:
    """Tell of each row whether its group has rewards that differ."""
    every = defaultdict(list)
    for value, own in zip(total, group, strict=True):
        if not math.isnan(value):
            every[own].append(value)
    return [
        not math.isnan(value) and len(every[own]) > 1 and max(every[own]) - min(every[own]) > TIE
        for value, own in zip(total, group, strict=True)
    ]


def leave_one_out(part: LeaveOneOut, given: CreditGiven) -> Columns:
    """A_i = R_i - mean of the others' R."""
    total = given.total
    return given.spread(among(total, given.group, from_others)), given.spread(total)


def process_zscore(part: ProcessZScore, given: CreditGiven) -> Columns:
    """A_t = sum of the z-scores of the steps that end at t or later, z over all steps of the group."""
    assert given.ends is not None
    ends = given.mask & given.ends
    sound = ~torch.where(ends, given.reward, 0.0).sum(1).isnan()[:, None]
    at = (ends & sound).nonzero()
    steps = given.reward[at[:, 0], at[:, 1]].tolist()
    scaled = among(steps, [given.group[i] for i in at[:, 0].tolist()], z_score(part.epsilon))
    columns = []
    for values in (scaled, steps):
        column = torch.zeros_like(given.reward)
        column[at[:, 0], at[:, 1]] = torch.tensor(values, dtype=torch.float64)
        to_go = column.sum(1, keepdim=True) - column.cumsum(1) + column
        columns.append(torch.where(given.mask & sound, to_go, 0.0))
    return columns[0], columns[1]


def discounted(part: GAE | OneStepTD | MonteCarlo | Return, given: CreditGiven) -> Columns:
    """A_t = sum_k (gamma lam)^k delta_(t+k) over a row's trained tokens, or over its turns; returns are A + V."""
    votes = given.mask & ~torch.where(given.mask, given.reward, 0.0).sum(1).isnan()[:, None]
    value = torch.zeros_like(given.reward) if isinstance(part, Return) else given.value
    assert value is not None
    if part.level == "turn":
        starts = given.mask & ~torch.cat([torch.zeros_like(given.mask[:, :1]), given.mask[:, :-1]], 1)
        unit = torch.where(votes, starts.cumsum(1) - 1, -1)
    else:
        starts, unit = votes, torch.where(votes, votes.cumsum(1) - 1, -1)
    count = int(unit.max()) + 1 if unit.numel() else 0
    rows, columns = votes.nonzero(as_tuple=True)
    index = (rows, unit[rows, columns])
    reward, worth = (torch.zeros(len(votes), count, dtype=torch.float64) for _ in range(2))
    reward.index_put_(index, given.reward[rows, columns], accumulate=True)
    worth.index_put_(index, torch.where(starts, value, 0.0)[rows, columns], accumulate=True)
    alive = torch.zeros(len(votes), count, dtype=torch.bool).index_put_(index, torch.tensor(True))
    after = torch.cat([torch.where(alive, worth, 0.0)[:, 1:], torch.zeros(len(votes), 1, dtype=torch.float64)], 1)
    delta = (reward + part.gamma * after[:, :count] - worth).numpy()
    so_far = 0.0 * delta.sum(1)
    for k in range(count - 1, -1, -1):
        so_far = delta[:, k] + part.gamma * part.lam * so_far
        delta[:, k] = so_far
    advantage, returns = torch.zeros_like(given.reward), torch.zeros_like(given.reward)
    advantage[rows, columns] = torch.from_numpy(delta)[index]
    returns[rows, columns] = (torch.from_numpy(delta) + worth)[index]
    return (whitened(advantage, votes) if part.whiten else advantage), returns


def decoupled(part: DecoupledGAE, given: CreditGiven) -> Columns:
    """A_t by lam, or by 1 - 1 / (alpha n) of each row's n trained tokens; returns by lam_value."""
    _, returns = discounted(GAE(part.gamma, part.lam_value, whiten=False), given)
    votes = given.mask & ~torch.where(given.mask, given.reward, 0.0).sum(1).isnan()[:, None]
    advantage = torch.zeros_like(given.reward)
    for row in range(len(votes)):
        length = int(votes[row].sum())
        lam = max(0.0, 1 - 1 / (part.alpha * length)) if part.alpha and length else part.lam
        one = dataclasses.replace(given, reward=given.reward[row : row + 1], mask=given.mask[row : row + 1])
        value = None if given.value is None else given.value[row : row + 1]
        one = dataclasses.replace(one, value=value, group=[given.group[row]], ends=None, state=None)
        advantage[row] = discounted(GAE(part.gamma, lam, whiten=False), one)[0][0]
    return (whitened(advantage, votes) if part.whiten else advantage), returns


@dataclass(frozen=True)
class ByTurn:
    """Turns of a batch: (row, turn) -> its trained columns, and what it brings to the end of its row."""

    columns: Mapping[tuple[int, int], list[int]]
    to_go: Mapping[tuple[int, int], float]


def by_turn(given: CreditGiven, gamma: float) -> ByTurn:
    """Cut each row that votes into turns, which end at step ends; R_k = r_k + gamma R_(k+1)."""
    assert given.ends is not None
    columns: dict[tuple[int, int], list[int]] = defaultdict(list)
    to_go: dict[tuple[int, int], float] = {}
    reward, ends = given.reward.tolist(), given.ends.tolist()
    for row, total in enumerate(given.total):
        if math.isnan(total):
            continue
        turn = 0
        for column in given.mask[row].nonzero()[:, 0].tolist():
            columns[row, turn].append(column)
            turn += ends[row][column]
        ahead = 0.0
        for k in range(turn, -1, -1):
            if (row, k) in columns:
                ahead = math.fsum(reward[row][c] for c in columns[row, k]) + gamma * ahead
                to_go[row, k] = ahead
    return ByTurn(columns, to_go)


def _at_turns(given: CreditGiven, turns: ByTurn, values: Mapping[tuple[int, int], float]) -> Tensor:
    out = torch.zeros_like(given.reward)
    for (row, k), columns in turns.columns.items():
        out[row, columns] = values[row, k]
    return out


def turn_to_go(part: TurnToGo, given: CreditGiven) -> Columns:
    """A_t = R_t - mean of R_t over the other episodes of the group that have a turn t, 0 if none of them has."""
    turns = by_turn(given, part.gamma)
    every, rows = defaultdict(list), defaultdict(set)
    for (row, k), value in turns.to_go.items():
        every[given.group[row], k].append(value)
        rows[given.group[row]].add(row)
    values = {}
    for (row, k), value in turns.to_go.items():
        of = every[given.group[row], k]
        if len(rows[given.group[row]]) < 2:
            values[row, k] = 0.0
        elif len(of) < 2:
            values[row, k] = value
        else:
            values[row, k] = 0.0 if max(of) - min(of) <= TIE else value - (math.fsum(of) - value) / (len(of) - 1)
    return _at_turns(given, turns, values), _at_turns(given, turns, turns.to_go)


def state_groups(part: StateGroups, given: CreditGiven) -> Columns:
    """A_t = z(R_i) over the group + omega z(R_t) over its turns that were spoken in the same state."""
    assert given.state is not None
    assert given.ends is not None
    scaled = z_score(part.epsilon) if part.deviation else from_mean
    turns, episode = by_turn(given, part.gamma), among(given.total, given.group, scaled)
    keys, named = list(turns.to_go), {}
    for row, k in keys:
        last = turns.columns[row, k][-1]
        named[row, k] = int(given.state[row, last]) if bool(given.ends[row, last]) else 0
    known = [key for key in keys if named[key]]
    owners = [(given.group[row], named[row, k]) for row, k in known]
    of_state = dict(zip(known, among([turns.to_go[key] for key in known], owners, scaled), strict=True))
    values = {key: episode[key[0]] + part.omega * of_state.get(key, 0.0) for key in keys}
    return _at_turns(given, turns, values), _at_turns(given, turns, turns.to_go)


DEFINITIONS: Mapping[type, Callable[[Any, CreditGiven], Columns]] = {
    GroupZScore: group_zscore,
    GroupMean: group_mean,
    LeaveOneOut: leave_one_out,
    RewardZScore: reward_zscore,
    RelativeMean: relative_mean,
    LengthWeightedMean: length_weighted,
    ProcessZScore: process_zscore,
    GAE: discounted,
    DecoupledGAE: decoupled,
    OneStepTD: discounted,
    MonteCarlo: discounted,
    Return: discounted,
    TurnToGo: turn_to_go,
    StateGroups: state_groups,
}
