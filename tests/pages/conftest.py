"""What the tests of the pages share: a headless browser that tells what went wrong, and a small run to look at."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import groupwise
from tests.conftest import SMALL

#: Nothing of a browser's own may look like a request of the page's.
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
#: Seconds that what must come may take, beside whatever else the machine does.
WAIT = 20.0
DESKTOP, PHONE = (1280, 900), (390, 844)
#: Every plot that the window shows a part of is drawn.
DRAWN_IN_SIGHT = """[...document.querySelectorAll('[data-plot]')].every((plot) => {
    const { top, bottom } = plot.getBoundingClientRect();
    return bottom <= 0 || top >= window.innerHeight || plot.dataset.drawn === 'true';
})"""


def until(page: Any, expression: str) -> None:
    """Asked again and again from outside: the page's own policy allows no script that it did not bring."""
    end = time.monotonic() + WAIT
    while not _holds(page, expression):
        assert time.monotonic() < end, f"not within {WAIT} s: {expression}; {page.locator('body').inner_text()[:300]}"
        page.wait_for_timeout(25)


def _holds(page: Any, expression: str) -> bool:
    try:
        return bool(page.evaluate(expression))
    except Exception as error:
        if "navigation" not in str(error):
            raise
        return False  # it is being loaded


@dataclass
class Seen:
    """A page that is open, and what it complained about or asked the network for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def draw(self) -> None:
        """Every plot, in sight or not."""
        self.page.evaluate("groupwise.plots.drawAll()")
        self.page.wait_for_selector('[data-plot][data-drawn="true"] .main-svg')

    def darken(self) -> None:
        """The system's theme turns dark, which the page is told of at its next frame; then every plot again."""
        self.page.emulate_media(color_scheme="dark")
        until(self.page, "document.documentElement.dataset.theme === 'dark'")
        self.draw()

    def scroll(self) -> None:
        """From the top to the bottom, as a reader does: what is drawn when it comes in sight is drawn then."""
        for y in range(0, self.page.evaluate("document.documentElement.scrollHeight"), 600):
            self.page.evaluate(f"window.scrollTo(0, {y})")
            until(self.page, DRAWN_IN_SIGHT)


@pytest.fixture(scope="package")
def chromium() -> Iterator[Any]:
    """Debian's chromium, driven by playwright; without it these tests cannot run, and say so.

    It ends with this package: while it lives an event loop runs, beside which no other test could start one.
    """
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    sync = pytest.importorskip("playwright.sync_api")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(QUIET))
        yield browser
        browser.close()


@pytest.fixture
def look(chromium: Any) -> Iterator[Callable[..., Seen]]:
    """Open an address (a file's path, or http://...) and listen to everything it does."""
    contexts = []

    def open_(address: Path | str, size: tuple[int, int] = DESKTOP, scheme: str = "light") -> Seen:
        width, height = size
        context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        seen = Seen(context.new_page())
        seen.page.on("console", lambda m: seen.complaints.append(m.text) if m.type in ("error", "warning") else None)
        seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        seen.page.on("request", lambda r: None if r.url.startswith(("file:", "data:")) else seen.requests.append(r.url))
        seen.page.goto(address if isinstance(address, str) else address.resolve().as_uri())
        return seen

    yield open_
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory, warm_cache: Path) -> Path:
    """A small finished run, its page beside it."""
    runs = tmp_path_factory.mktemp("pages")
    shutil.copytree(warm_cache, runs / ".cache", symlinks=True)
    told = {**SMALL, "runs": str(runs), "evaluation.every": 2, "journal.report": True}
    return groupwise.train("quickstart", told).folder
