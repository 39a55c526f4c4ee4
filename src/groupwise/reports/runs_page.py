"""The runs of a folder on loopback: a page of links, each to the live page of its run."""

import hmac
import html
import os
import re
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from urllib.parse import quote, unquote_to_bytes

from groupwise.core.errors import GroupwiseError, UsageError
from groupwise.reports.folder.overview import Overview, overview
from groupwise.reports.folder.read import ABOUT, LOCK, LOG, METRICS, RECIPE, SUMMARY
from groupwise.reports.folder.state import in_words, is_held
from groupwise.reports.live import SECONDS, Desk, HttpReply, Watched, line
from groupwise.reports.page.page import asset

#: Pages of runs that are held ready; of one more the oldest is made anew when it is asked for.
MOST_OPEN = 4
#: The list is loaded anew so often, in seconds.
RELOADED = 10
HEAD = ("run", "state", "step", "held out", "age")


@dataclass(frozen=True)
class ListedRun:
    """A run in the list; `started` is unix seconds."""

    name: str
    state: str
    step: str
    held_out: str
    started: float | None


@dataclass
class RunsDesk:
    """The answers to requests for a folder of runs: the list at the root, below it the desk of each run."""

    folder: Path
    root: str = "/"
    seconds: float = SECONDS
    _desks: OrderedDict[str, Desk] = field(default_factory=OrderedDict)
    _rows: dict[str, tuple[object, ListedRun]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        if not self.folder.is_dir():
            raise UsageError(f"{self.folder}: there is no such folder here; name a run, as in: groupwise watch RUN")

    def reply(self, target: str) -> HttpReply:
        """Answer a request's target: the list, or what the desk of a run says."""
        path, _, _ = target.partition("?")
        root, rest = path[: len(self.root)], path[len(self.root) :]
        if not hmac.compare_digest(root.encode(), self.root.encode()):
            return Desk.nothing(path, self.root)
        if not rest:
            return self._list()
        name = os.fsdecode(unquote_to_bytes(rest.partition("/")[0]))
        try:
            if "/" not in rest or name not in self._names():
                return Desk.nothing(path, self.root)
            return self._desk(name).reply(target)
        except (GroupwiseError, OSError) as error:
            return line(503, str(error))

    def rows(self) -> list[ListedRun]:
        """Read what is new of the runs, and list all of them, the newest first."""
        found = [self._row(name) for name in self._names()]
        return sorted(found, key=lambda row: (-(row.started or 0.0), row.name))

    def _names(self) -> list[str]:
        """Name the folders that are runs; a hidden one is being made or removed."""
        inside = [path for path in self.folder.iterdir() if not path.name.startswith(".")]
        return [path.name for path in inside if any((path / name).is_file() for name in (RECIPE, METRICS))]

    def _desk(self, name: str) -> Desk:
        with self._lock:
            if name not in self._desks:
                source = Watched(self.folder / name)
                self._desks[name] = Desk(source, self.seconds, f"{self.root}{quote(os.fsencode(name))}/")
            self._desks.move_to_end(name)
            while len(self._desks) > MOST_OPEN:
                self._desks.popitem(last=False)
            return self._desks[name]

    def _row(self, name: str) -> ListedRun:
        """Read a run anew if its files changed."""
        folder = self.folder / name
        seen = [is_held(folder / LOCK), *(_stamp(folder / file) for file in (METRICS, SUMMARY, RECIPE, ABOUT, LOG))]
        before, row = self._rows.get(name, (None, None))
        if row is None or before != seen:
            row = _row_of(overview(folder, name))
            self._rows[name] = seen, row
        return row

    def _list(self) -> HttpReply:
        try:
            with self._lock:
                text = page(self.rows(), str(self.folder), time.time())
        except OSError as error:
            return line(503, f"{self.folder}: cannot be read: {error.strerror}")
        return HttpReply(200, "text/html; charset=utf-8", text.encode("utf-8", "replace"))


def page(rows: Sequence[ListedRun], folder: str, now: float) -> str:
    """Write the list as a page without scripts, which loads itself anew."""
    head = "".join(f"<th scope=col>{name}</th>" for name in HEAD)
    body = "".join(_html_row(row, now) for row in rows)
    some = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    none = "<p>No run here yet. Begin with: <code>groupwise train quickstart</code></p>"
    parts: Mapping[str, str] = {
        "title": html.escape(f"Runs in {folder}"),
        "seconds": str(RELOADED),
        "style": asset("runs.css"),
        "content": some if rows else none,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], asset("runs.html"))


def _html_row(row: ListedRun, now: float) -> str:
    age = "" if row.started is None else in_words(max(0.0, now - row.started))
    link = f'<a href="{quote(os.fsencode(row.name))}/">{html.escape(row.name)}</a>'
    state = html.escape(row.state)
    cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in (row.step, row.held_out, age))
    return f'<tr><th scope=row>{link}</th><td><span class="{state}">{state}</span></td>{cells}</tr>'


def _row_of(run: Overview) -> ListedRun:
    step = f"{run.step or 0:,}" + (f" of {run.steps:,}" if run.steps else "")
    held = run.held_out
    ends = [] if held is None else [value for value in (held.before, held.last) if value is not None]
    return ListedRun(run.name, run.state, step, " to ".join(f"{value:.3f}" for value in ends), run.started)


def _stamp(path: Path) -> tuple[int, float] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime
