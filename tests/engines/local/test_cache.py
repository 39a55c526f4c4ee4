"""The engine's memory of keys and values: what is read is what was written, and lies nearly in one piece."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from groupwise.engines.local.cache import PrefilledPrompts, RowCache
from groupwise.engines.local.columns import GAP, GAP_SHARE, ROOM, LayerWindows
from groupwise.models.context import EVERY

LAYERS, HEADS, SIZES = 3, 2, (5, 7)  # keys and values of different sizes
#: Layers that all see everything, all see some columns, and some of both.
WINDOWS = {"all": None, "windowed": (11, 11, 11), "mixed": (11, EVERY, 11), "its own token": (EVERY, 1, 1)}


def prompts_of(lengths: list[int], seed: int) -> PrefilledPrompts:
    noise = torch.Generator().manual_seed(seed)
    keys, values = (
        [torch.randn(len(lengths), HEADS, max(lengths), size, generator=noise) for _ in range(LAYERS)] for size in SIZES
    )
    texts = tuple((1,) * n for n in lengths)
    return PrefilledPrompts(texts, keys, values, torch.tensor(lengths), torch.zeros(len(lengths), 4))


def buffers(cache: RowCache) -> set[int]:
    return {b.data_ptr() for columns in cache._kinds for b in (*columns._buffers, columns._spare)}


class Plain:
    """The same memory as a list of tensors for each row, which grow by concatenation."""

    def __init__(self) -> None:
        self.rows: list[list[Tensor]] = []

    def insert(self, prompts: PrefilledPrompts, source: list[int]) -> None:
        memory = [m for pair in zip(prompts.keys, prompts.values, strict=True) for m in pair]
        for i in source:
            length = int(prompts.length[i])
            self.rows.append([m[i, :, m.shape[2] - length :] for m in memory])

    def write(self, columns: list[Tensor]) -> None:
        for r, row in enumerate(self.rows):
            self.rows[r] = [torch.cat([m, column[r]], 1) for m, column in zip(row, columns, strict=True)]

    def drop(self, to: list[int], origin: list[int], rows: int) -> None:
        for t, o in zip(to, origin, strict=True):
            self.rows[t] = self.rows[o]
        self.rows = self.rows[:rows]


def step(cache: RowCache, plain: Plain, ahead: int, seed: int) -> list[Tensor]:
    """Write one column to both, and compare all that each row may look at -> the windows."""
    noise = torch.Generator().manual_seed(seed)
    positions, masks = cache.prepare(ahead, 2**31)
    views = cache.views()
    columns = [torch.randn(v.shape, generator=noise) for v in views[::2]]
    for view, column in zip(views[::2], columns, strict=True):
        view.copy_(column)
    plain.write(columns)
    for r, row in enumerate(plain.rows):
        length = row[0].shape[1]
        assert int(positions.expand(cache.rows, 1)[r, 0]) == length - 1
        for number, (window, expected) in enumerate(zip(views[1::2], row, strict=True)):
            most = cache.windows.layers[number // 2] if cache.windows.layers else EVERY
            seen = min(length, most)
            assert window.shape[2] == min(max(len(other[0][0]) for other in plain.rows), most)
            assert torch.equal(window[r, :, window.shape[2] - seen :], expected[:, length - seen :])
            assert window[r].isfinite().all(), "a hidden column has weight 0, and 0 * NaN is NaN"
        for mask, most in zip(masks, cache.windows.kinds, strict=bool(masks)):
            seen = min(length, most)
            hidden = mask.shape[-1] - seen
            assert (mask[r, 0, 0] == -torch.inf).tolist() == [True] * hidden + [False] * seen
        if not masks:
            assert length == max(len(other[0][0]) for other in plain.rows)
    cache.advance()
    return views[1::2]


def empty(cache: RowCache, plain: Plain) -> None:
    """Every row ends."""
    cache.move(torch.tensor([], dtype=torch.long), torch.tensor([], dtype=torch.long), 0)
    plain.drop([], [], 0)


def fresh(
    cache: RowCache, plain: Plain, lengths: list[int], source: list[int], ahead: int, seed: int, rows: int = 0
) -> None:
    prompts = prompts_of(lengths, seed)
    cache.insert(prompts, torch.tensor(source), ahead, rows)
    plain.insert(prompts, source)


@pytest.mark.parametrize("windows", WINDOWS.values(), ids=WINDOWS)
def test_every_row_reads_what_was_written_to_it(windows: tuple[int, ...]) -> None:
    """Rows come with longer and shorter prompts, go, and change places, across many layouts of the memory."""
    cache, plain = RowCache(LayerWindows(windows)), Plain()
    for call in range(2):  # the second call finds the first one's memory
        fresh(cache, plain, [4, 9, 2], [0, 0, 1, 2, 2], 120, 10 * call)
        for i in range(30):
            step(cache, plain, 120 - i, i)
        cache.move(torch.tensor([1]), torch.tensor([4]), 4)
        plain.drop([1], [4], 4)
        for i in range(3):
            step(cache, plain, 90 - i, i)
        fresh(cache, plain, [50, 1], [1, 0, 0], 87, 10 * call + 1)
        for i in range(87):
            step(cache, plain, 87 - i, i)
        empty(cache, plain)


@pytest.mark.parametrize(("width", "steps"), [(3, 40), (16, 48), (150, 60)])
def test_what_a_step_reads_lies_nearly_in_one_piece(width: int, steps: int) -> None:
    cache, plain = RowCache(), Plain()
    for prompt in (width, max(1, width // 2)):  # the second call finds the first one's memory
        fresh(cache, plain, [prompt] * 2, [0, 1, 1], steps, 0)
        laid = set()
        for i in range(steps):
            window = prompt + i + 1
            for view, size in zip(step(cache, plain, steps - i, i), SIZES * LAYERS, strict=True):
                columns = view.stride(1) // size
                assert columns - window <= max(GAP, GAP_SHARE * window), "a gap that a processor does not fetch across"
                laid.add(columns)
        assert len(laid) <= 2 + steps / max(GAP, GAP_SHARE * prompt), "and it is not moved more often than that needs"
        empty(cache, plain)


def test_layouts_share_one_spare_buffer_and_later_ones_need_no_memory() -> None:
    cache, plain = RowCache(), Plain()
    fresh(cache, plain, [16] * 4, [0, 1, 2, 3], ROOM, 0)
    for i in range(GAP + 1):
        step(cache, plain, ROOM - i, i)
    had = buffers(cache)
    assert len(had) == 2 * LAYERS + 1
    for i in range(GAP + 1, ROOM):
        step(cache, plain, ROOM - i, i)
    assert cache.size == (2 * LAYERS + 1) * 4 * HEADS * (16 + ROOM) * max(SIZES) * 4
    empty(cache, plain)
    fresh(cache, plain, [12] * 4, [0, 1, 2, 3], 20, 1)
    for i in range(20):
        step(cache, plain, 20 - i, i)
    assert buffers(cache) == had


def test_rows_that_come_one_after_another_have_room_from_the_first_on() -> None:
    """Prompts pass through the model some at a time; a layout for each would leave memory of many sizes behind."""
    cache, plain = RowCache(), Plain()
    fresh(cache, plain, [16, 9], [0, 0, 1], 20, 0, rows=7)
    had = buffers(cache)
    fresh(cache, plain, [12], [0, 0], 20, 1, rows=7)
    fresh(cache, plain, [16], [0, 0], 20, 2, rows=7)
    assert buffers(cache) == had
    for i in range(20):
        step(cache, plain, 20 - i, i)


def test_a_layer_with_a_window_holds_no_more_than_that() -> None:
    """Whatever the length of prompts and completions; a layer beside it that sees all holds all."""
    window, steps = 16, 120
    sizes = {}
    for windows in ((window,) * LAYERS, (EVERY,) * LAYERS, (window, EVERY, window)):
        cache, plain = RowCache(LayerWindows(windows)), Plain()
        fresh(cache, plain, [200, 20], [0, 1], steps, 0)
        for i in range(steps):
            step(cache, plain, steps - i, i)
        sizes[windows.count(window)] = cache.size / (2 * HEADS * max(SIZES) * 4)
    assert sizes[LAYERS] <= (2 * LAYERS + 1) * (window + ROOM)
    assert sizes[0] >= (2 * LAYERS + 1) * (200 + steps)
    assert sizes[2] <= sizes[LAYERS] * 5 / 7 + sizes[0] * 3 / 7
