"""A column of numbers per token as rollouts.jsonl has it: a list, or one number that stands for all of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np


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
