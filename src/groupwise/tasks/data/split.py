"""The split of a data set's rows into training and held-out problems, without duplicates and leakage. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from groupwise.core.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

#: Digests are whole numbers below this.
DIGESTS = 1 << 64


@dataclass(frozen=True)
class Split:
    """Indices of rows, [rows] int each.

    train, heldout  in shuffled order
    repeated        rows that repeat a problem of their own split
    leaked          held-out rows whose problem is trained on
    notes           what a person should know of it
    """

    train: np.ndarray
    heldout: np.ndarray
    repeated: np.ndarray
    leaked: np.ndarray
    notes: Sequence[str]


def split_rows(digests: array[int], trained: int, heldout_share: float, seed: int) -> Split:
    """From the digest of every row's problem; the first `trained` rows are not from a held-out set.

    Where there is no held-out set, a problem's digest alone decides whether it is held out, whatever else the file
    holds. Raises UsageError where nothing is left to train on.
    """
    import numpy as np  # not at the top: processes that only score never come here

    hashes = np.array(digests, dtype=np.uint64)
    first, second = _first_of_each(hashes[:trained]), trained + _first_of_each(hashes[trained:])
    repeated = np.setdiff1d(np.arange(len(hashes)), np.concatenate([first, second]))
    leaks = np.isin(hashes[second], hashes[first])
    train, heldout, how = first, second[~leaks], ""
    if trained == len(hashes):
        out = hashes[first] < min(int(heldout_share * DIGESTS), DIGESTS - 1)
        train, heldout, how = first[~out], first[out], ", split off by a hash of each problem's text"
    if not len(train):
        raise UsageError(f"no problem is left to train on: {len(heldout)} of {len(heldout)} are held out")
    notes = [f"{len(train):,} problems to train on, {len(heldout):,} held out{how}"]
    notes += [f"{len(repeated):,} rows repeat a problem: the first is kept"] * bool(len(repeated))
    notes += [f"{leaks.sum():,} held-out problems are training problems too: not held out"] * bool(leaks.any())
    return Split(_shuffled(train, hashes, seed), _shuffled(heldout, hashes, seed), repeated, second[leaks], notes)


def _first_of_each(hashes: np.ndarray) -> np.ndarray:
    """Indices of the first of equal hashes, in order."""
    import numpy as np

    return np.sort(np.unique(hashes, return_index=True)[1])


def _shuffled(rows: np.ndarray, hashes: np.ndarray, seed: int) -> np.ndarray:
    """The rows in an order that depends on seed and texts alone: new rows come between the old ones."""
    odd = int.from_bytes(blake2b(f"order {seed}".encode(), digest_size=8).digest(), "big") | 1
    return rows[(hashes[rows] * hashes.dtype.type(odd)).argsort(kind="stable")]
