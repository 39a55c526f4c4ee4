"""A run that is watched while it is written, as a reader's browser shows it: a real folder that grows line by line."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from groupwise.reports.folder.read import LOCK, MACHINE, METRICS, RECIPE, ROLLOUTS, SUMMARY
from groupwise.reports.live import Watched, watch
from tests.pages.conftest import until

#: Longer than the suite's time allows; `make test-slow` has them.
pytestmark = pytest.mark.slow

#: Seconds between two questions of the page.
OFTEN = 0.1

#: Columns of the rows of steps that the page holds, and points that the plot of the pass rate has drawn.
STEPS = "groupwise.page.runs[0].steps.step"
POINTS = """() => {
  const plot = document.querySelector('[data-plot="pass-rate"] .js-plotly-plot');
  return plot ? Math.max(0, ...plot.data.map((trace) => (trace.x || []).length)) : 0;
}"""


class Copied:
    """A finished run that is written once more, in the order in which its journal did it."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.source, self.folder = source, folder
        folder.mkdir()
        for name in (RECIPE, "about.json"):
            shutil.copy(source / name, folder / name)
        self.rows = {name: lines_of(source / name) for name in (METRICS, ROLLOUTS, MACHINE)}
        self.lock()

    def lock(self) -> None:
        self._lock = (self.folder / LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def let_go(self) -> None:
        self._lock.close()

    def put(self, name: str, data: bytes) -> None:
        with (self.folder / name).open("ab") as file:
            file.write(data)

    def of(self, name: str, step: int, evaluation: bool = False) -> bytes:
        """The lines of one step."""
        told = [line for line in self.rows[name] if json.loads(line)["step"] == step]
        return b"".join(line for line in told if (b'"evaluation":{' in line) == evaluation)

    def step(self, step: int, more: int = 0) -> None:
        """All of a step, under a number that is larger by `more`: half of a line first, the rest a moment later."""
        for name in (ROLLOUTS, METRICS, MACHINE):
            data = renamed(self.of(name, step), step, step + more)
            self.put(name, data[: len(data) // 2])
            time.sleep(0.5 * OFTEN)
            self.put(name, data[len(data) // 2 :])
        self.put(METRICS, renamed(self.of(METRICS, step, evaluation=True), step, step + more))

    def finish(self) -> None:
        shutil.copy(self.source / SUMMARY, self.folder / SUMMARY)
        self.let_go()


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def renamed(lines: bytes, step: int, other: int) -> bytes:
    return lines.replace(b'{"step":%d,' % step, b'{"step":%d,' % other)


@contextmanager
def served(source: Watched) -> Iterator[str]:
    """The address while the run is watched. Leaving it demands that the server has ended."""
    told: list[str] = []
    ready, stop = threading.Event(), threading.Event()

    def tell(url: str) -> None:
        told.append(url)
        ready.set()

    thread = threading.Thread(target=watch, args=(source, 0, tell, stop), kwargs={"seconds": OFTEN})
    thread.start()
    assert ready.wait(5)
    try:
        yield told[0]
    finally:
        stop.set()
        thread.join(3)
        assert not thread.is_alive()


@pytest.fixture
def growing(run_folder: Path, tmp_path: Path) -> Iterator[Copied]:
    run = Copied(run_folder, tmp_path / "run")
    yield run
    run.let_go()


def paths(requests: list[str], address: str) -> set[str]:
    """What was asked of this server; nothing else may have been."""
    assert all(url.startswith(address) for url in requests)
    return {urlsplit(url).path for url in requests}


def test_a_page_opened_before_the_first_step_fills_itself(growing: Copied, look: Callable):
    growing.put(METRICS, growing.of(METRICS, 0, evaluation=True))
    with served(Watched(growing.folder)) as address:
        seen = look(address)
        page = seen.page
        page.evaluate("window.mine = true")
        assert page.locator("#live").get_attribute("data-state") == "going"
        assert page.evaluate(f"{STEPS}.length") == 0
        drawn = []
        for step in (1, 2, 3, 4):
            growing.step(step)
            until(page, f"{STEPS}.length === {step}")
            page.locator('[data-plot="pass-rate"]').scroll_into_view_if_needed()
            until(page, f"({POINTS})() >= {step}")
            drawn.append(page.evaluate(POINTS))
            until(page, f"document.querySelector('#status').textContent.includes('step {step} of 4')")
        assert drawn == sorted(drawn)
        assert page.evaluate("groupwise.page.runs[0].evaluations.step") == [0, 2, 4]
        until(page, "document.querySelectorAll('details.group, #rollouts [data-group]').length > 0")
        groups = {(row["step"], row["group"]) for row in map(json.loads, growing.rows[ROLLOUTS])}
        assert f"{len(groups)} groups more" in page.locator("#rollouts").inner_text()
        growing.finish()
        until(page, "document.querySelector('#live').dataset.state === 'over'")
        assert page.locator("#status").inner_text().startswith("finished")
        answer = page.locator(".answers > li").first.inner_text()
        assert "so far" not in answer
        before = len(seen.requests)
        page.wait_for_timeout(1000 * 5 * OFTEN)
        assert len(seen.requests) == before, "it goes on asking"
        assert page.evaluate("window.mine") is True, "it was loaded again"
        at_the_end = look(address).page
        for words in (".answers", ".place-findings", "#healthy .checks-panel", "#status"):
            assert page.locator(words).inner_text() == at_the_end.locator(words).inner_text()
        assert plots_of(page) == plots_of(at_the_end)
        assert seen.complaints == []
        assert paths(seen.requests, address) == {"/", "/fresh"}


def plots_of(page: Any) -> list[str]:
    return page.evaluate("[...document.querySelectorAll('[data-plot]')].map((one) => one.dataset.plot)")


def test_a_run_that_is_resumed_is_shown_anew_and_a_folder_that_is_gone_is_waited_for(growing: Copied, look: Callable):
    growing.put(METRICS, growing.of(METRICS, 0, evaluation=True))
    growing.step(1)
    kept = {name: (growing.folder / name).stat().st_size for name in (METRICS, ROLLOUTS, MACHINE)}
    growing.step(2)
    with served(Watched(growing.folder)) as address:
        seen = look(address)
        page = seen.page
        assert page.evaluate(STEPS) == [1, 2]
        page.evaluate("window.mine = true")
        for name, size in kept.items():
            os.truncate(growing.folder / name, size)
        until(page, f"!window.mine && window.groupwise && {STEPS}.length === 1")
        growing.step(2)
        until(page, f"{STEPS}.length === 2")
        page.evaluate("window.mine = true")
        assert seen.complaints == []

        away = growing.folder.with_name("away")
        growing.folder.rename(away)
        until(page, "document.querySelector('#live').dataset.state === 'lost'")
        assert "the run folder is gone, trying again" in page.locator("#live").inner_text()
        away.rename(growing.folder)
        until(page, "document.querySelector('#live').dataset.state === 'going'")
        growing.step(3)
        until(page, f"{STEPS}.length === 3")
        assert page.evaluate("window.mine") is True
        # A browser itself says each answer that is no success.
        assert {"503" in words for words in seen.complaints} == {True}
        assert paths(seen.requests, address) == {"/", "/fresh"}
    until(page, "document.querySelector('#live').textContent.includes('connection lost')")


#: The last step that the plot of the pass rate has drawn: of 2,000 rows it draws as many as there are pixels.
DRAWN = POINTS.replace("(trace.x || []).length", "(trace.x || [0]).at(-1)")

#: Milliseconds from a refresh until its pictures are on screen.
SPENT = """(fresh) => new Promise((done) => {
  const at = performance.now();
  groupwise.apply(fresh);
  requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - at)));
})"""


def test_two_thousand_steps_are_refreshed_at_once(growing: Copied, look: Callable):
    """One more step, words and pictures: under 200 ms of the page's time on a quiet machine, asserted at four times."""
    for name in (METRICS, MACHINE):
        growing.put(name, b"".join(renamed(growing.of(name, 1 + i % 4), 1 + i % 4, 1 + i) for i in range(2000)))
    with served(Watched(growing.folder)) as address:
        seen = look(address)
        seen.page.locator('[data-plot="pass-rate"]').scroll_into_view_if_needed()
        until(seen.page, f"({DRAWN})() >= 2000")
        for name in (METRICS, MACHINE):
            growing.put(name, renamed(growing.of(name, 1), 1, 2001))
        until(seen.page, f"({DRAWN})() >= 2001")
        with urlopen(f"{address}fresh?rollout=9999", timeout=5) as answer:
            fresh = json.load(answer)
        steps = fresh["runs"][0]["steps"]
        assert steps["step"][-1] == 2001
        taken = []
        for step in range(3001, 3006):
            steps["step"][-1] = step
            fresh["runs"][0]["answers"][0]["answer"] += "!"
            taken.append(seen.page.evaluate(SPENT, fresh))
        until(seen.page, f"({DRAWN})() >= 3005")
        assert min(taken) < 800, taken
        assert seen.complaints == []
