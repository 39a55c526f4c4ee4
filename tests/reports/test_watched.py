"""A run that is looked at while it is written: what comes piece by piece is what a page of the whole run holds."""

from __future__ import annotations

import dataclasses
import os
import random
from typing import Any

import pytest

from groupwise.core.errors import UsageError
from groupwise.reports.folder.read import MACHINE, METRICS, ROLLOUTS
from groupwise.reports.live.watched import Watched
from groupwise.reports.page import single
from groupwise.reports.records import Curves, Fresh, Page, RolloutGroup, RunPage
from tests.reports.written_runs import (
    GROUPS,
    SAMPLES,
    being_written,
    cut,
    journal,
    line,
    rollouts_of,
)


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


@pytest.mark.parametrize("how", ["cut back", "written anew", "rollouts written anew"])
def test_a_run_that_is_resumed_asks_for_the_page_again(tmp_path, how):
    pieces = list(journal(4, random.Random(1)))
    with being_written(tmp_path / "run", 9) as run:
        run.put(pieces)
        source = Watched(run.folder)
        browser = Browser(source.page())
        metrics = run.folder / (ROLLOUTS if how.startswith("rollouts") else METRICS)
        if how == "cut back":
            os.truncate(metrics, len(metrics.read_bytes()) // 2)
        else:
            metrics.write_bytes(metrics.read_bytes().replace(b"0.", b"0.0").replace(b'"7"', b'"8"'))
        assert source.fresh(*browser.cursor).restart
        assert source.page().runs[0].steps.step == [1, 2, 3, 4][: 2 if how == "cut back" else 4]
        assert not source.fresh(*Browser(source.page()).cursor).restart


def test_every_page_that_shows_a_step_which_is_gone_is_asked_to_begin_again(tmp_path):
    pieces = list(journal(4, random.Random(1)))
    with being_written(tmp_path / "run", 9) as run:
        run.put(pieces)
        source = Watched(run.folder)
        one, two = Browser(source.page()), Browser(source.page())
        metrics = run.folder / METRICS
        metrics.write_bytes(
            b"".join(line for line in metrics.read_bytes().splitlines(True) if b'"step": 4' not in line)
        )
        assert source.fresh(*one.cursor).restart
        assert source.fresh(*two.cursor).restart, "also the second to ask, and for a single step"


def test_a_page_of_a_run_that_was_killed_holds_what_one_opened_later_holds(tmp_path):
    pieces = [*journal(2, random.Random(1)), *rollouts_of(3, random.Random(2))]
    with being_written(tmp_path / "run", 9) as run:
        source = Watched(run.folder)
        browser = Browser(source.page())
        run.put(pieces)
        browser.take(source.fresh(*browser.cursor))
        assert {group.step for group in browser.groups} == {1, 2}, "the third is being written"
        run.let_go()
        browser.take(source.fresh(*browser.cursor))
    same(browser, single.page(run.folder))
    assert {group.step for group in browser.groups} == {1, 2, 3}


def test_a_run_that_is_told_as_over_is_told_with_its_last_row(tmp_path):
    pieces = list(journal(4, random.Random(1)))

    class EndsMeanwhile(Watched):
        """Its run goes on to its end as soon as the rows were read."""

        def _take(self) -> bool:
            restart = super()._take()
            if self._last == 3:
                run.put(pieces[half:])
                run.finish()
            return restart

    half = next(i for i, (name, data) in enumerate(pieces) if name == METRICS and b'"step": 4,' in data)
    with being_written(tmp_path / "run", 4) as run:
        source = EndsMeanwhile(run.folder)
        browser = Browser(source.page())
        run.put(pieces[:half])
        for _ in range(5):
            browser.take(source.fresh(*browser.cursor))
            if browser.run.status.state != "going":
                break
        same(browser, single.page(run.folder))


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
