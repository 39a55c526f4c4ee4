"""Columns per token of rollouts.jsonl: what each trained token was given, and what every optimizer update saw of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from groupwise.core.masked import group_sum
from groupwise.core.records import Batch
from groupwise.core.updates import UpdateRecord

GIVEN = ("logp_engine", "logp_old", "logp_ref", "value", "returns", "advantage", "correction", "step_score")
SEEN = ("logp_live", "log_ratio", "share", "entropy", "kl")


class PerToken:
    """Gathers the columns of a batch's rows while it trains, for as many groups as `budget` tokens allow."""

    def __init__(self, batch: Batch, budget: int) -> None:
        self._batch = batch
        self._wanted = fitting(batch.mask, batch.group, budget)
        self._span = torch.stack([batch.mask.int().argmax(-1), batch.length], dim=1)
        self._updates: dict[int, list[dict[str, Any]]] = {row: [] for row in self._wanted.nonzero()[:, 0].tolist()}
        self._count = 0

    def update(self, minibatch: Batch, seen: UpdateRecord) -> None:
        """Add what the next optimizer update saw."""
        self._count += 1
        row = minibatch.need("row")
        at = self._wanted[row].nonzero()[:, 0]
        columns = {"weight": minibatch.need("weight"), **{name: getattr(seen, name) for name in SEEN}}
        follows = _follows(minibatch, seen)
        for i, numbers in zip(at.tolist(), _cut(columns, at, self._span[row[at]]), strict=True):
            if follows[i]:
                del numbers["log_ratio"]
            self._updates[int(row[i])].append({"update": self._count, **numbers})

    def rows(self) -> dict[int, dict[str, Any]]:
        """Gather `per_token` and `updates` by place in the batch."""
        at = self._wanted.nonzero()[:, 0]
        columns = {name: getattr(self._batch, name) for name in GIVEN}
        return {
            place: {"per_token": numbers, "updates": self._updates[place]}
            for place, numbers in zip(at.tolist(), _cut(columns, at, self._span[at]), strict=True)
        }


def fitting(mask: Tensor, group: Tensor, budget: int) -> Tensor:
    """Choose rows that train, of the first groups that hold `budget` tokens at most: mask [N,T], ids [N] -> [N] bool.

    >>> mask, group = torch.tensor([[True, True], [True, False], [True, False]]), torch.tensor([0, 0, 1])
    >>> fitting(mask, group, 3)
    tensor([ True,  True, False])
    """
    tokens = mask.sum(-1)
    held = group_sum(tokens, group, int(group.max()) + 1).cumsum(0)
    return (held <= budget)[group] & (tokens > 0)


def _follows(minibatch: Batch, seen: UpdateRecord) -> list[bool]:
    """Tell for each row whether log_ratio is logp_live - logp_old to the last bit, so that it need not be written."""
    if minibatch.logp_old is None:
        return [False] * len(minibatch.mask)
    difference = seen.logp_live.float() - minibatch.logp_old.to(seen.logp_live.device, torch.float32)
    return ((difference == seen.log_ratio.float()) | ~minibatch.mask).all(-1).tolist()


def _cut(columns: Mapping[str, Tensor | None], at: Tensor, span: Tensor) -> list[dict[str, Any]]:
    """Cut rows `at` of columns [N,T], each between its two ends in `span` [n,2]; a weight keeps all of its digits."""
    if not len(at):
        return []
    start, stop = span.T.tolist()
    packed_columns = {
        name: packed(column[at].to("cpu", torch.float64 if name == "weight" else torch.float32).numpy(), start, stop)
        for name, column in columns.items()
        if column is not None
    }
    return [dict(zip(packed_columns, row, strict=True)) for row in zip(*packed_columns.values(), strict=True)]


def packed(column: np.ndarray, start: Sequence[int], stop: Sequence[int]) -> list[Any]:
    """Pack [N,T] -> for each row its numbers from `start` to `stop` [N], or the one number that all of them are.

    What lies outside may be anything. The rows stay numpy's, whose float32 numbers are written shortest.

    >>> packed(np.array([[9.0, 1.0, 1.0], [1.0, 2.0, 9.0]]), [1, 0], [3, 2])
    [np.float64(1.0), array([1., 2.])]
    """
    first, last = np.asarray(start)[:, None], np.asarray(stop)[:, None]
    at = np.arange(column.shape[1])
    value = np.take_along_axis(column, first, axis=1)
    same = ((column == value) | (at < first) | (at >= last)).all(axis=1)
    column = np.ascontiguousarray(column)
    return [value[i, 0] if same[i] else column[i, start[i] : stop[i]] for i in range(len(column))]


def expand(value: Any, length: int) -> list[Any]:
    """Unpack a column, one number a token. Raises ValueError if it has another length.

    >>> expand(0.5, 3), expand([1.0, 2.0], 2), expand(None, 1)
    ([0.5, 0.5, 0.5], [1.0, 2.0], [None])
    """
    if not isinstance(value, list):
        return [value] * length
    if len(value) != length:
        raise ValueError(f"a column of {len(value)} numbers for {length} tokens")
    return list(value)
