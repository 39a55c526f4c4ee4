"""A run that is looked at while it is written: what comes piece by piece is what a page of the whole run holds."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from groupwise.core.errors import UsageError
from groupwise.reports.folder.read import MACHINE, METRICS, ROLLOUTS, RunFolder
from groupwise.reports.live import MOST_GROUPS, Watched
from groupwise.reports.page.page import page_of_run
from groupwise.reports.records import Curves, Page, RolloutGroup, RunPage
from tests.reports.written_runs import (
    GROUPS,
    SAMPLES,
    being_written,
    cut,
    journal,
    line,
    rollouts_of,
)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Each question is answered by a new look, however soon it comes."""
    monkeypatch.setattr("groupwise.reports.live.SHARE", float("inf"))


class Browser:
    """What a browser does with what it is told, in Python."""

    def __init__(self, page: Page) -> None:
        self.plots, self.run, self.edition = page.plots, page.runs[0], page.edition
        assert self.run.rollouts is not None
        self.groups: list[RolloutGroup] = list(self.run.rollouts.groups)

    @property
    def newest(self) -> int:
        return max((group.step for group in self.groups), default=-1)

    def take(self, fresh: Page) -> None:
        assert fresh.edition == self.edition
        self.plots, self.run = fresh.plots, fresh.runs[0]
        self.groups += self.run.rollouts.groups if self.run.rollouts else []


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
            browser.take(source.fresh(browser.newest))
            assert {len(group.completions) for group in browser.groups} <= {SAMPLES}
            assert {group.step for group in browser.groups} <= {0, *browser.run.steps.step}
        run.finish()
        browser.take(source.fresh(browser.newest))
    same(browser, Watched(run.folder).page())
    same(browser, page_of_run(run.folder))
    assert len(browser.groups) == 12 * GROUPS
    assert browser.run.status.state == "finished"
    assert browser.run.checks[0].verdict == "fail"


def test_what_is_odd_in_a_row_that_comes_later_is_told_once_and_counted(tmp_path):
    odd = b'{"step": "x"}\n'
    with being_written(tmp_path / "run", 4) as run:
        run.put([(METRICS, odd), *journal(2, random.Random(0))])
        source = Watched(run.folder)
        assert notes(source) == source.page().runs[0].notes
        run.put([(METRICS, odd + b'{"step": 2, "lo\n'), (MACHINE, odd)])
        later = notes(source)
        run.put([(METRICS, b'{"st')])
        assert notes(source) == later, "it is being written at this moment"
        run.let_go()
        ended = notes(source)
        assert ended == page_of_run(run.folder).runs[0].notes
    assert "metrics.jsonl: 2 rows have no whole number as their step and were left out" in later
    assert "machine.jsonl: 1 row has no whole number as its step and was left out" in later
    assert "metrics.jsonl: 1 line is cut off or damaged; only what is whole in it was kept" in later
    assert set(ended) - set(later) == {"metrics.jsonl: the last line is cut off and was left out"}


def notes(source: Watched) -> tuple[str, ...]:
    return source.fresh(2).runs[0].notes


@pytest.mark.parametrize("how", [METRICS, ROLLOUTS, "cut"])
def test_every_page_of_a_run_that_is_resumed_is_asked_to_begin_again(tmp_path, how):
    """A resume puts a file in the place of another, be it of more lines than before, or cuts it."""
    with being_written(tmp_path / "run", 9) as run:
        run.put(list(journal(4, random.Random(1))))
        source = Watched(run.folder)
        opened = [source.page().edition, source.page().edition]
        if how == "cut":
            os.truncate(run.folder / METRICS, (run.folder / METRICS).stat().st_size // 2)
        else:
            (tmp_path / "other").write_bytes((run.folder / how).read_bytes() * 2)
            (tmp_path / "other").rename(run.folder / how)
        assert all(source.fresh(4).edition != before for before in opened)
        assert how != "cut" or source.page().runs[0].steps.step == [1, 2]
        assert source.page().edition == source.fresh(4).edition


def test_a_page_of_a_run_that_was_killed_holds_what_one_opened_later_holds(tmp_path):
    pieces = [*journal(2, random.Random(1)), *rollouts_of(3, random.Random(2))]
    with being_written(tmp_path / "run", 9) as run:
        source = Watched(run.folder)
        browser = Browser(source.page())
        run.put(pieces)
        browser.take(source.fresh(browser.newest))
        assert {group.step for group in browser.groups} == {1, 2}, "the third is being written"
        run.let_go()
        browser.take(source.fresh(browser.newest))
    same(browser, page_of_run(run.folder))
    assert {group.step for group in browser.groups} == {1, 2, 3}


def test_a_run_that_is_told_as_over_is_told_with_its_last_row(tmp_path):
    pieces = list(journal(4, random.Random(1)))

    class EndsMeanwhile(Watched):
        """Its run goes on to its end as soon as the rows were read."""

        def _made(self, run: RunFolder) -> Page:
            if run.step_rows and run.step_rows[-1]["step"] == 3:
                written.put(pieces[half:])
                written.finish()
            return super()._made(run)

    half = next(i for i, (name, data) in enumerate(pieces) if name == METRICS and b'"step": 4,' in data)
    with being_written(tmp_path / "run", 4) as written:
        source = EndsMeanwhile(written.folder)
        browser = Browser(source.page())
        written.put(pieces[:half])
        for _ in range(5):
            browser.take(source.fresh(browser.newest))
            if browser.run.status.state != "going":
                break
        same(browser, page_of_run(written.folder))


def test_a_page_opened_before_another_still_gets_its_groups(tmp_path):
    pieces = list(journal(6, random.Random(2)))
    half = next(i for i, (name, data) in enumerate(pieces) if name == METRICS and b'"step": 3,' in data) + 2
    with being_written(tmp_path / "run", 6) as run:
        run.put(pieces[:half])
        source = Watched(run.folder)
        browser = Browser(source.page())
        run.put(pieces[half:])
        source.page()
        fresh = source.fresh(browser.newest)
    assert (shown := fresh.runs[0].rollouts) is not None
    assert sorted({group.step for group in shown.groups}) == [4, 5, 6]


def test_a_folder_that_is_gone_is_told_and_comes_back(tmp_path):
    with being_written(tmp_path / "run", 4) as run:
        run.put(list(journal(2, random.Random(3))))
        source = Watched(run.folder)
        before = source.page().edition
        run.folder.rename(tmp_path / "away")
        with pytest.raises(UsageError, match=r"run: the run folder is gone$"):
            source.fresh(2)
        (tmp_path / "away").rename(run.folder)
        assert source.fresh(2).edition == before


@pytest.mark.parametrize("seconds", [0.001, 0.1, 3.0])
def test_a_run_that_goes_on_is_read_in_its_share_of_the_time_and_no_more(tmp_path, monkeypatch, seconds):
    clock, looks = [100.0], []
    monkeypatch.setattr("groupwise.reports.live.SHARE", 1 / 10)
    for name in ("monotonic", "thread_time"):
        monkeypatch.setattr(f"groupwise.reports.live.time.{name}", lambda: clock[0])

    class Slow(Watched):
        def _made(self, run: RunFolder) -> Page:
            clock[0] += seconds
            looks.append(clock[0])
            return super()._made(run)

    with being_written(tmp_path / "run", 500) as run:
        source = Slow(run.folder)
        for step in range(1, 201):
            run.put([(METRICS, line({"step": step, "pass_rate": 0.5}))])
            source.fresh(-1)
            clock[0] += 2.0
        assert seconds * len(looks) <= 0.1 * (clock[0] - 100) + 2 * seconds
        assert len(looks) == 201 or seconds > 0.1, "what takes little is done each time"
        clock[0] += 100.0
        assert source.fresh(-1).runs[0].steps.step == list(range(1, 201)), (
            "what had to wait is said when its turn comes"
        )


def test_what_is_kept_for_pages_that_ask_late_is_bounded(tmp_path):
    steps = MOST_GROUPS // GROUPS + 5
    with being_written(tmp_path / "run", steps) as run:
        source = Watched(run.folder)
        for step in range(1, steps + 1):
            run.put([*rollouts_of(step, random.Random(step)), (METRICS, line({"step": step, "pass_rate": 0.5}))])
            source.fresh(step - 1)
        late = source.fresh(-1).runs[0].rollouts
    assert late is not None
    assert len(late.groups) == MOST_GROUPS
    assert late.groups[-1].step == steps, "the newest"
