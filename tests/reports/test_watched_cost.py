"""What it costs to look at a run again and again: what is new, however long the run is."""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

from groupwise.reports.folder.read import LOG, MACHINE, METRICS
from groupwise.reports.live.watched import MOST_GROUPS, SHARE, Watched
from groupwise.reports.page.single import words_of
from tests.reports.written_runs import (
    CHECKS,
    GROUPS,
    MEASURED,
    Piece,
    being_written,
    line,
    rollouts_of,
)


def long_run(steps: int) -> list[list[Piece]]:
    """Steps as they are in a real run: some sixty numbers, checks, seconds; a few rollouts."""
    chance = random.Random(4)
    made = []
    for step in range(1, steps + 1):
        told = {name: chance.random() for name in MEASURED}
        checks = {name: {"verdict": "pass", "value": chance.random(), "limit": 1.0} for name in CHECKS}
        row = {"step": step, **told, "checks": checks, "seconds": {"generate": 1.0, "update": 0.5}}
        made.append(
            [*rollouts_of(step, chance), (METRICS, line(row)), (MACHINE, line({"step": step, "memory_peak_mib": 9}))]
        )
    return made


def calls_of(folder: Path, steps: int, answers: int = 40) -> list[int]:
    """How many functions each of the answers calls that follow the last `answers` steps one by one."""
    parts, calls = long_run(steps), []
    with being_written(folder, steps + 1) as run:
        run.put([piece for part in parts[:-answers] for piece in part])
        source = Watched(run.folder)
        for step, part in enumerate(parts[-answers:], steps - answers):
            run.put(part)
            seen: Counter[str] = Counter()
            sys.setprofile(lambda frame, event, argument, seen=seen: seen.update([event]))
            try:
                fresh = source.fresh(step, -1, step)
            finally:
                sys.setprofile(None)
            calls.append(seen["call"] + seen["c_call"])
            assert fresh.steps.step == [step + 1]
    return calls


def test_an_answer_costs_what_is_new_however_long_the_run_is(tmp_path):
    """Counted, not timed: ten times as many steps, and hardly a call more (a place in order takes log n)."""
    short, long = min(calls_of(tmp_path / "short", 200)), min(calls_of(tmp_path / "long", 2000))
    assert short <= long < 1.05 * short


def test_an_answer_reads_what_is_new_however_long_the_run_is(tmp_path, monkeypatch):
    """Counted in bytes: what an answer reads of files that have grown to megabytes."""
    taken: list[int] = []
    path_open = Path.open

    class Counted:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *how):
            self.file.close()

        def __getattr__(self, name):
            return getattr(self.file, name)

        def read(self, *most):
            got = self.file.read(*most)
            taken.append(len(got))
            return got

    parts = long_run(300)
    with being_written(tmp_path / "run", 301) as run:
        run.put([piece for part in parts[:-1] for piece in part])
        (run.folder / LOG).write_text("words of a step\n" * 200_000)
        source = Watched(run.folder)
        run.put(parts[-1])
        monkeypatch.setattr(Path, "open", lambda path, *a, **kw: Counted(path_open(path, *a, **kw)))
        assert source.fresh(299, -1, 299).steps.step == [300]
    new = sum(len(text) for _, text in parts[-1])
    assert new <= sum(taken) < new + 100_000


def test_the_words_of_a_run_that_goes_on_take_their_share_of_the_time_and_no_more(tmp_path, monkeypatch):
    clock = [100.0]
    looks = []
    monkeypatch.setattr("groupwise.reports.live.watched.time.monotonic", lambda: clock[0])

    def slow(*known):
        clock[0] += 0.1
        looks.append(clock[0])
        return words_of(*known)

    monkeypatch.setattr("groupwise.reports.live.watched.words_of", slow)
    with being_written(tmp_path / "run", 500) as run:
        source = Watched(run.folder)
        for step in range(1, 100):
            run.put([(METRICS, line({"step": step, "pass_rate": 0.5}))])
            source.fresh(step - 1, -1, -1)
            clock[0] += 1.0
        spent = 0.1 * len(looks)
        assert 0.5 * SHARE < spent / (clock[0] - 100) <= 2 * SHARE
        run.put([(METRICS, line({"step": 100, "pass_rate": 0.5}))])
        source.fresh(99, -1, -1)
        before = len(looks)
        clock[0] += 10
        assert source.fresh(100, -1, -1).findings == source.fresh(100, -1, -1).findings
        assert len(looks) == before + 1, "what had to wait is said when its turn comes, and once"


def test_what_is_kept_for_pages_that_ask_late_is_bounded(tmp_path):
    steps = MOST_GROUPS // GROUPS + 5
    with being_written(tmp_path / "run", steps) as run:
        source = Watched(run.folder)
        for step in range(1, steps + 1):
            run.put([*rollouts_of(step, random.Random(step)), (METRICS, line({"step": step, "pass_rate": 0.5}))])
            source.fresh(step - 1, -1, step - 1)
        late = source.fresh(-1, -1, -1).rollouts
    assert late is not None
    assert len(late.groups) == MOST_GROUPS
    assert late.groups[-1].step == steps, "the newest"
