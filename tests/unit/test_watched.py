"""A run that is looked at while it is written: what comes piece by piece is what a page of the whole run holds."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from groupwise.errors import UsageError
from groupwise.report import single
from groupwise.report.data import Curves, Fresh, Page, RolloutGroup, RunPage
from groupwise.report.plots import static_columns
from groupwise.report.read import LOCK, LOG, MACHINE, METRICS, RECIPE, ROLLOUTS, SUMMARY
from groupwise.report.watched import SHARE, Watched

RECIPE_TEXT = 'steps = {steps}\nmodel = "tiny"\n[task]\nname = "sums"\n[algorithm]\nname = "grpo"\n'
GROUPS, SAMPLES = 3, 4
MEASURED = sorted(name for name in static_columns() if "*" not in name and "." not in name)
CHECKS = ("live = old on the first update", "learner = engine", "weights reach their declared total")

#: What is appended to which file, in the order in which a run does it.
Piece = tuple[str, bytes]


def line(row: dict[str, Any]) -> bytes:
    return json.dumps(row).encode() + b"\n"


def rollouts_of(step: int, chance: random.Random) -> Iterator[Piece]:
    for group in range(GROUPS):
        for _ in range(SAMPLES):
            told = {"fate": "trained", "key": f"{step}-{group}", "prompt": f"{step}+{group}=", "answer": "7"}
            said = {"completion": "7" * chance.randint(1, 9), "score": chance.choice([0.0, 1.0]), "tokens": 2}
            yield ROLLOUTS, line({"step": step, "group": group, **told, **said})


def row_of(step: int, chance: random.Random) -> dict[str, Any]:
    """A row with gaps, and with columns that come late: one at 0 for long, one only from step 5 on."""
    told: dict[str, Any] = {name: chance.choice([None, 0.0, chance.random()]) for name in MEASURED[:12]}
    late = {"clip_late": 1.0, "sources.sums.pass_rate": 0.5} if step >= 5 else {}
    trouble = {"rows_unscored_share": 0.25 if step == 7 else 0.0, "groups_fallback": 0}
    verdict = "fail" if step == 6 else "pass"
    checks = {CHECKS[0]: {"verdict": verdict, "value": chance.random(), "limit": 1e-5}}
    return {
        "step": step,
        "pass_rate": chance.random(),
        **told,
        **late,
        **trouble,
        "checks": checks,
        "seconds": {"a": 1.0},
    }


def journal(steps: int, chance: random.Random) -> Iterator[Piece]:
    for step in range(1, steps + 1):
        yield from rollouts_of(step, chance)
        yield METRICS, line(row_of(step, chance))
        yield MACHINE, line({"step": step, "memory_peak_mib": 10 + step})
        if step % 3 == 0:
            sources = {"by_source": {"sums": {"avg_at_k": 0.5}}} if step > 3 else {}
            held = {"avg_at_k": chance.random(), "problems": 9, "samples": 2, **sources}
            yield METRICS, line({"step": step, "evaluation": held, "seconds": {"evaluate": 0.5}})


def cut(pieces: Sequence[Piece], count: int, chance: random.Random) -> list[list[Piece]]:
    """The same bytes in `count` parts, cut anywhere: between files, between lines, in the middle of a number."""
    bounds = sorted(chance.sample(range(1, sum(len(data) for _, data in pieces)), count - 1))
    parts: list[list[Piece]] = [[]]
    at = 0
    for name, data in pieces:
        inside = [bound - at for bound in bounds if at < bound <= at + len(data)]
        for i, (start, end) in enumerate(zip([0, *inside], [*inside, len(data)], strict=True)):
            parts += [[]] if i else []
            parts[-1].append((name, data[start:end]))
        at += len(data)
    return parts


class Written:
    """A run folder that is being written: `put` appends, `finish` ends it."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder, self.steps = folder, steps
        folder.mkdir()
        (folder / RECIPE).write_text(RECIPE_TEXT.format(steps=steps))
        self._lock = (folder / LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def put(self, pieces: Sequence[Piece]) -> None:
        for name, data in pieces:
            with (self.folder / name).open("ab") as file:
                file.write(data)

    def finish(self) -> None:
        (self.folder / SUMMARY).write_text(json.dumps({"steps": self.steps, "seconds_total": 3.0}))
        self.let_go()

    def let_go(self) -> None:
        self._lock.close()


@contextmanager
def being_written(folder: Path, steps: int) -> Iterator[Written]:
    run = Written(folder, steps)
    try:
        yield run
    finally:
        run.let_go()


class Browser:
    """What a browser does with what it is told, in Python."""

    def __init__(self, page: Page) -> None:
        self.plots, self.run = page.plots, page.runs[0]
        assert self.run.rollouts is not None
        self.groups: list[RolloutGroup] = list(self.run.rollouts.groups)

    @property
    def cursor(self) -> tuple[int, int, int]:
        rows = (self.run.steps.step, self.run.evaluations.step, [group.step for group in self.groups])
        step, evaluation, rollout = (max(steps, default=-1) for steps in rows)
        return step, evaluation, rollout

    def take(self, fresh: Fresh) -> None:
        assert not fresh.restart
        words = {name: getattr(fresh, name) for name in ("status", "notes", "answers", "checks", "findings")}
        steps = extended(self.run.steps, fresh.steps)
        evaluations = extended(self.run.evaluations, fresh.evaluations)
        self.run = dataclasses.replace(self.run, **words, steps=steps, evaluations=evaluations)
        self.plots = fresh.plots or self.plots
        self.groups += fresh.rollouts.groups if fresh.rollouts else []


def extended(have: Curves, more: Curves) -> Curves:
    names = {**have.columns, **more.columns}
    gaps, new = [None] * len(have.step), [None] * len(more.step)
    columns = {name: [*have.columns.get(name, gaps), *more.columns.get(name, new)] for name in names}
    return Curves([*have.step, *more.step], columns)


def same(one: Browser, page: Page) -> None:
    """That it holds what this page holds; columns without a number do not count."""
    run = page.runs[0]
    assert run.rollouts is not None
    assert one.plots == page.plots
    assert numbers(one.run.steps) == numbers(run.steps)
    assert numbers(one.run.evaluations) == numbers(run.evaluations)
    assert one.groups == run.rollouts.groups
    assert said(one.run) == said(run)


def numbers(curves: Curves) -> tuple[list[int], dict[str, Any]]:
    return curves.step, {name: values for name, values in curves.columns.items() if set(values) != {None}}


def said(run: RunPage) -> tuple[Any, ...]:
    return run.status, sorted(run.notes), run.answers, run.checks, run.findings


@pytest.mark.parametrize("seed", range(8))
def test_a_page_open_all_along_holds_what_one_opened_at_the_end_holds(tmp_path, seed):
    chance = random.Random(seed)
    parts = cut(list(journal(12, chance)), 30, chance)
    opened = chance.randrange(12) if seed else 0
    with being_written(tmp_path / "run", 12) as run:
        for part in parts[:opened]:
            run.put(part)
        source = Watched(run.folder)
        browser = Browser(source.page())
        for part in parts[opened:]:
            run.put(part)
            browser.take(source.fresh(*browser.cursor))
            assert {len(group.completions) for group in browser.groups} <= {SAMPLES}
            assert {group.step for group in browser.groups} <= {0, *range(1, max(0, source._last) + 1)}
        run.finish()
        browser.take(source.fresh(*browser.cursor))
    same(browser, Watched(run.folder).page())
    same(browser, single.page(run.folder))
    assert len(browser.groups) == 12 * GROUPS
    assert browser.run.status.state == "finished"
    assert browser.run.checks[0].verdict == "fail"


def test_what_is_odd_in_a_row_that_comes_later_is_told_once_and_counted(tmp_path):
    odd = b'{"step": "x"}\n'
    with being_written(tmp_path / "run", 4) as run:
        run.put([(METRICS, odd), *journal(2, random.Random(0))])
        source = Watched(run.folder)
        assert source.fresh(2, -1, 2).notes == source.page().runs[0].notes
        run.put([(METRICS, odd + b'{"step": 2, "lo\n'), (MACHINE, odd)])
        later = source.fresh(2, -1, 2).notes
        run.put([(METRICS, b'{"st')])
        assert source.fresh(2, -1, 2).notes == later, "it is being written at this moment"
        run.let_go()
        ended = source.fresh(2, -1, 2).notes
        assert sorted(ended) == sorted(single.page(run.folder).runs[0].notes)
    assert "metrics.jsonl: 2 rows have no whole number as their step and were left out" in later
    assert "machine.jsonl: 1 row has no whole number as its step and was left out" in later
    assert "metrics.jsonl: 1 line is cut off or damaged; only what is whole in it was kept" in later
    assert set(ended) - set(later) == {"metrics.jsonl: the last line is cut off and was left out"}


def test_a_plot_comes_with_its_first_number_and_trouble_with_the_first_of_it(tmp_path):
    told = [{"loss": 1.0, "rows_unscored": 0, "groups_unscored": 0, "completions_unscored": 0}]
    with being_written(tmp_path / "run", 9) as run:
        run.put([(METRICS, line({"step": 1, "pass_rate": 0.5, "entropy_mean": None, **told[0]}))])
        source = Watched(run.folder)
        first = {plot.id for plot in source.page().plots}
        assert source.fresh(1, -1, -1).plots == ()
        run.put([(METRICS, line({"step": 2, "pass_rate": 0.5, "entropy_mean": 0.25, **told[0]}))])
        second = {plot.id for plot in source.fresh(1, -1, -1).plots}
        assert source.fresh(2, -1, -1).plots == ()
        run.put([(METRICS, line({"step": 2, "evaluation": {"avg_at_k": 0.5, "length_mean": 3.0}}))])
        third = {plot.id for plot in source.fresh(2, -1, -1).plots}
        assert source.fresh(2, 2, -1).plots == ()
    assert "entropy" in second - first
    assert third - second or third == {plot.id for plot in single.page(run.folder).plots} != set()


@pytest.mark.parametrize("how", ["cut back", "written anew"])
def test_a_run_that_is_resumed_asks_for_the_page_again(tmp_path, how):
    pieces = list(journal(4, random.Random(1)))
    with being_written(tmp_path / "run", 9) as run:
        run.put(pieces)
        source = Watched(run.folder)
        browser = Browser(source.page())
        metrics = run.folder / METRICS
        if how == "cut back":
            os.truncate(metrics, len(metrics.read_bytes()) // 2)
        else:
            metrics.write_bytes(metrics.read_bytes().replace(b"0.", b"0.0"))
        assert source.fresh(*browser.cursor).restart
        assert source.page().runs[0].steps.step == [1, 2, 3, 4][: 4 if how == "written anew" else 2]
        assert not source.fresh(*Browser(source.page()).cursor).restart


def test_a_page_opened_before_another_still_gets_its_groups(tmp_path):
    pieces = list(journal(6, random.Random(2)))
    half = next(i for i, (name, data) in enumerate(pieces) if name == METRICS and b'"step": 3,' in data) + 2
    with being_written(tmp_path / "run", 6) as run:
        run.put(pieces[:half])
        source = Watched(run.folder)
        browser = Browser(source.page())
        run.put(pieces[half:])
        source.page()
        fresh = source.fresh(*browser.cursor)
    assert fresh.rollouts is not None
    assert sorted({group.step for group in fresh.rollouts.groups}) == [4, 5, 6]


def test_a_folder_that_is_gone_is_told_and_comes_back(tmp_path):
    with being_written(tmp_path / "run", 4) as run:
        run.put(list(journal(2, random.Random(3))))
        source = Watched(run.folder)
        run.folder.rename(tmp_path / "away")
        with pytest.raises(UsageError, match=r"run: the run folder is gone$"):
            source.fresh(2, -1, 2)
        (tmp_path / "away").rename(run.folder)
        assert not source.fresh(2, -1, 2).restart


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
    monkeypatch.setattr("groupwise.report.watched.time.monotonic", lambda: clock[0])

    class Slow(Watched):
        def _look(self, now):
            clock[0] += 0.1
            looks.append(clock[0])
            return super()._look(now)

    with being_written(tmp_path / "run", 500) as run:
        source = Slow(run.folder)
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
