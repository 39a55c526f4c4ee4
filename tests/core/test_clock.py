"""A clock says when a phase ran, beside how long."""

from __future__ import annotations

import time

from groupwise.core.machine.clock import Clock


def test_an_extent_is_from_a_phases_first_begin_to_its_last_end() -> None:
    began = time.perf_counter()
    clock = Clock("a")
    for phase in ("b", "a", "c", "b"):
        time.sleep(0.01)
        clock.switch(phase)
    time.sleep(0.01)
    extents, seconds = clock.take_extents(), clock.lap()
    assert list(extents) == ["a", "b", "c"]
    assert extents["a"].begin <= extents["b"].begin <= extents["c"].begin
    assert extents["a"].end < extents["c"].end <= extents["b"].end
    assert extents["b"].end - extents["b"].begin > seconds["b"] + seconds["c"], "a and c ran between"
    assert began <= extents["a"].begin <= extents["b"].end <= time.perf_counter()
    clock.switch("b")
    later = clock.take_extents()
    assert later.keys() == {"b", "other"}, "what was asked for once is not said again"
    assert later["b"].begin >= extents["b"].end
