"""Bytes of a local engine while it samples: what its rows or slots keep of tokens, and what a token is drawn with."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from groupwise.engines.local.columns import GAP, GAP_SHARE, ROOM
from groupwise.engines.local.engine import KEEP_BYTES
from groupwise.engines.local.slots.memory import LEAST_COLUMNS, LEAST_PROMPT, bucket_of
from groupwise.models.context import EVERY

#: Bytes that a logit takes while a token is drawn: two steps' logits and a softmax; with top-p, top-k or min-p, ranks
#: too; where a bias, a penalty or barred ends change logits, what they become and what a row has had.
DRAWN, RANKED, ADJUSTED = 12, 40, 16


@dataclass(frozen=True)
class CacheBytes:
    """Bytes of keys, values and states: peak  the most, while buffers grow; kept  between two calls."""

    peak: int
    kept: int


def cache_bytes(
    widths: Sequence[int],
    rows: int,
    prompt: int,
    new: int,
    itemsize: int = 4,
    windows: Sequence[int] = (),
    states: int = 0,
) -> CacheBytes:
    """Size the cache of `rows` rows that all begin with `prompt` tokens and sample `new`.

    widths   numbers that a token has in each tensor of keys or values: [heads * head size] for each layer, twice
    windows  tokens that each layer sees (models/context.py: windows); empty: all of them. Of several windows every
             layer is taken for the widest
    states   numbers that a row has beside them
    """
    windows_of = Counter(windows)
    if len(windows_of) > 1:
        kinds = [_Kind([max(widths)] * 2 * layers, window, prompt) for window, layers in windows_of.items()]
    else:
        kinds = [_Kind(widths, next(iter(windows_of), EVERY), prompt)] if widths else []
    peak, last = 0, prompt + new - 1  # the last token is not run
    while kinds and ((next_one := min(kinds, key=lambda kind: kind.column)).column < last or not next_one.size):
        others = sum(kind.size for kind in kinds if kind is not next_one)
        peak = max(peak, others + next_one.grow(rows, ahead=prompt + new - next_one.column))
    size = (sum(kind.size for kind in kinds) + rows * states) * itemsize
    peak = (peak + rows * states) * itemsize
    return CacheBytes(max(peak, size), size if size <= KEEP_BYTES else 0)


class _Kind:
    """Numbers that the memory of one kind of layers has (engines/local/columns.py), until the next one of `column`."""

    def __init__(self, widths: Sequence[int], window: int, column: int) -> None:
        self.widths, self.window, self.column = widths, window, column
        self._buffers, self._spare = [0] * len(widths), 0

    @property
    def size(self) -> int:
        return sum(self._buffers) + self._spare

    def grow(self, rows: int, ahead: int) -> int:
        """Lay the memory out anew for the columns that come next -> the most numbers there are meanwhile."""
        before = min(self.column, self.window - 1)
        more = max(1, min(ahead, max(GAP, int(GAP_SHARE * before))))
        room = rows * (before + max(1, min(ahead, max(ROOM, before)))) * max(self.widths)
        peak = 0
        for i, width in enumerate(self.widths):
            fits = self._spare >= rows * (before + more) * width
            peak = max(peak, self.size + (0 if fits else room))
            self._spare, self._buffers[i] = self._buffers[i], self._spare if fits else room
        self.column += more
        return peak


def slot_bytes(
    widths: Sequence[int], rows: int, max_rows: int, samples: int, prompt: int, new: int, itemsize: int = 4
) -> CacheBytes:
    """Size the memory of `rows` slots, in groups of `samples`, that all begin with `prompt` tokens and sample `new`.

    A prompt is held once a group; the memory stays between calls.
    """
    places = bucket_of(-(-rows // samples)) * bucket_of(max(prompt, LEAST_PROMPT))
    columns = bucket_of(max(new, LEAST_COLUMNS))
    rows = min(bucket_of(rows), max_rows)
    kept = (places + rows * columns) * sum(widths) * itemsize
    # While columns double, one layer's keys are held twice.
    growing = rows * columns // 2 * max(widths) * itemsize if columns > LEAST_COLUMNS else 0
    return CacheBytes(kept + growing, kept)


def drawing_bytes(rows: int, vocabulary: int, truncates: bool, adjusts: bool = False) -> int:
    """Size the logits [rows,V] and what a token is drawn from them with."""
    return rows * vocabulary * ((RANKED if truncates else DRAWN) + (ADJUSTED if adjusts else 0))
