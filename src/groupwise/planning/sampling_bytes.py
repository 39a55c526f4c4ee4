"""Bytes of a local engine while it samples: keys and values of its rows or slots, and what a token is drawn with."""

from collections.abc import Sequence
from dataclasses import dataclass

from groupwise.engines.local.cache import GAP, GAP_SHARE, ROOM
from groupwise.engines.local.engine import KEEP_BYTES
from groupwise.engines.local.slots.memory import LEAST_COLUMNS, LEAST_PROMPT, bucket_of

#: Bytes that a logit takes while a token is drawn: two steps' logits and a softmax; with top-p, top-k or min-p, ranks
#: too; where a bias, a penalty or barred ends change logits, what they become and what a row has had.
DRAWN, RANKED, ADJUSTED = 12, 40, 16


@dataclass(frozen=True)
class CacheBytes:
    """Bytes of keys and values: peak  the most, while their buffers grow; kept  between two calls."""

    peak: int
    kept: int


def cache_bytes(widths: Sequence[int], rows: int, prompt: int, new: int, itemsize: int = 4) -> CacheBytes:
    """Size the cache of `rows` rows that all begin with `prompt` tokens and sample `new`.

    widths  numbers that a token has in each tensor of keys or values: [heads * head size] for each layer, twice
    """
    buffers, spare, peak, window = [0] * len(widths), 0, 0, prompt
    while not peak or window < prompt + new - 1:  # the last token is not run
        ahead = prompt + new - window
        columns = window + max(1, min(ahead, max(GAP, int(GAP_SHARE * window))))
        room = rows * (window + max(1, min(ahead, max(ROOM, window)))) * max(widths)
        for i, width in enumerate(widths):
            fits = spare >= rows * columns * width
            peak = max(peak, sum(buffers) + spare + (0 if fits else room))
            spare, buffers[i] = buffers[i], spare if fits else room
        window = columns
    size = (sum(buffers) + spare) * itemsize
    return CacheBytes(max(peak * itemsize, size), size if size <= KEEP_BYTES else 0)


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
