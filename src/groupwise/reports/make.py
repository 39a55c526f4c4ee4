"""Run folders in, a page out: what the commands call."""

import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path, PosixPath
from typing import NamedTuple

from groupwise.core.errors import RunError, UsageError
from groupwise.core.files.atomic import open_regular
from groupwise.core.files.paths import location
from groupwise.reports.compare import compare
from groupwise.reports.live import Watched, serve, watch
from groupwise.reports.page.page import page_of_run, write
from groupwise.reports.runs_page import RunsDesk
from groupwise.reports.table import as_csv as as_csv
from groupwise.reports.text import BLOCKS, Line, lines

REPORT, COMPARISON = "report.html", "comparison.html"
#: The folder whose runs are listed.
RUNS = Path("runs")
#: Columns beyond which a line of text is no longer read well.
WIDEST = 110
#: What a page of groupwise's has in its first lines; no other file is written over.
MARK = b'<meta name="generator" content="groupwise">'


class Written(NamedTuple):
    """A page that was written: where, its size in bytes, and the seconds it took."""

    path: Path
    size: int
    seconds: float


class Page(PosixPath):
    """The path of a page, which a notebook shows as the page itself, apart from its own scripts and styles."""

    def _repr_html_(self) -> str | None:
        if not _is_page(self):
            return None
        page = escape(self.read_text(encoding="utf-8"))
        return f'<iframe sandbox="allow-scripts" style="border: 0" width="100%" height="800" srcdoc="{page}"></iframe>'


def make(runs: Sequence[Path], out: Path | None = None) -> Written:
    """Write the page of one run, or of several side by side, in one move or not at all.

    Raises UsageError if a folder is none of a run, or if something else than such a page is at `out`; RunError if the
    disk refuses, and the page that was there stays.
    """
    began = time.perf_counter()
    path = out or place(runs)
    require_ours(path)
    if out and not os.path.isdir(path.parent):
        raise UsageError(f"{path}: there is no folder {path.parent}; make it first, or choose another with --out")
    page = page_of_run(runs[0]) if len(runs) == 1 else compare.page(runs)
    try:
        write(page, path)
    except OSError as error:
        raise RunError(f"{path}: the page cannot be written: {error.strerror}; choose another with --out") from None
    return Written(path, path.stat().st_size, time.perf_counter() - began)


def report(*runs: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Page:
    """Write one page, readable offline: of a run, or of several side by side -> its path; a notebook shows the page.

    runs  each a Run or its folder; it may go on, or have crashed
    out   the file to write; None is RUN/report.html, or comparison.html beside the runs
    Raises UsageError and RunError as `make` does.
    """
    if not runs:
        raise UsageError("report: name a run, or several to see them side by side")
    if any(isinstance(run, (list, tuple, set, dict)) for run in runs):
        raise UsageError("report takes each run by itself: groupwise.report(*runs)")
    place = None if out is None else location(out, "out")
    return Page(make([location(run, "run") for run in runs], place).path)


def require_alone(runs: Sequence[Path], out: Path | None, text: bool, csv: bool) -> None:
    """Raise UsageError if the options of `report` that print do not go together."""
    if text and csv:
        raise UsageError("report: --text and --csv both print; give one of them")
    if out is not None:
        raise UsageError(f"report: --text and --csv print and write no file; leave out --out, or add > {out}")
    if text and len(runs) > 1:
        raise UsageError("report --text takes one run; leave out --text to compare several")


def in_text(run: Path, width: int, encoding: str) -> Iterator[Line]:
    """Write the report of a run in lines for a terminal of that width and encoding.

    Raises UsageError if the folder is none of a run.
    """
    try:
        BLOCKS.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return lines(run, min(width, WIDEST), blocks=False)
    return lines(run, min(width, WIDEST))


def watched(run: Path | None, port: int, ready: Callable[[str], None]) -> None:
    """Serve a run's page until Ctrl-C, to whoever has its address; without a run, a list of those in ./runs.

    Raises UsageError if the folder is none of a run, or the port is taken.
    """
    key = secrets.token_urlsafe(16)
    if run is None:
        serve(RunsDesk(RUNS, f"/{key}/"), port, ready)
    else:
        watch(Watched(run), port, ready, key=key)


def place(runs: Sequence[Path]) -> Path:
    """Choose the path of a page: in the run's own folder, or beside the runs if they have one parent."""
    if len(runs) == 1:
        return runs[0] / REPORT
    parents = {os.path.dirname(os.path.realpath(run)) for run in runs}
    return Path(os.path.relpath(parents.pop())) / COMPARISON if len(parents) == 1 else Path(COMPARISON)


def require_ours(path: Path) -> None:
    """Raise UsageError if something else than a page would be written over: a file, a link, a FIFO, a device."""
    if os.path.isdir(path):
        raise UsageError(f"{path}: that is a folder; name a file, such as --out {path / REPORT}")
    if os.path.lexists(path) and not _is_page(path):
        raise UsageError(f"{path}: this exists and is no page of groupwise's; choose another with --out")


def _is_page(path: Path) -> bool:
    """Tell if a path is a file of its own, no link, that begins as a page does."""
    try:
        with open_regular(path) as file:
            return stat.S_ISREG(path.lstat().st_mode) and MARK in file.read(1000)
    except OSError:
        return False
