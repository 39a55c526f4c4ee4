"""Work side by side: each once, so many at once, and heard of where it begins and where it is done."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from groupwise.core.processes.side_by_side import side_by_side


@pytest.mark.parametrize("at_once", [1, 2, 3, 9])
def test_each_is_done_once_and_so_many_at_once(at_once: int) -> None:
    lock, going, most = threading.Lock(), 0, 0

    def do(number: int) -> str:
        nonlocal going, most
        with lock:
            going += 1
            most = max(most, going)
        time.sleep(0.02)
        with lock:
            going -= 1
        return f"done {number}"

    heard = list(side_by_side(range(6), do, at_once))
    assert Counter(number for number, _ in heard) == dict.fromkeys(range(6), 2)
    for number in range(6):
        assert [result for one, result in heard if one == number] == [None, f"done {number}"]
    assert [number for number, result in heard if result is None] == list(range(6))
    assert most == min(at_once, 6)


def test_what_begins_is_heard_before_it_is_done() -> None:
    """And with one at once in this thread, which a signal finds."""
    done: list[int] = []
    steps = side_by_side([1, 2], lambda number: done.append(number) or threading.get_ident(), 1)
    assert next(steps) == (1, None)
    assert done == []
    assert next(steps) == (1, threading.get_ident())


def test_nothing_to_do_is_nothing_heard() -> None:
    assert list(side_by_side([], str, 3)) == []


@pytest.mark.parametrize("at_once", [1, 2])
def test_what_is_raised_is_raised_here(at_once: int) -> None:
    def do(number: int) -> int:
        return 1 // number

    with pytest.raises(ZeroDivisionError):
        list(side_by_side([2, 0, 1], do, at_once))
