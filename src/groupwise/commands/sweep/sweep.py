"""Sweep: each run of a grid in a process of its own, those that are finished kept, the others resumed or begun."""

import dataclasses
import fcntl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from groupwise.commands.sweep.grid import Cell, Over, Values
from groupwise.commands.sweep.request import (
    CSV,
    JSON,
    PAGE,
    SECONDS,
    Request,
    default_folder,
    read_asked,
    request,
    require_same,
)
from groupwise.commands.sweep.results import RunRow, as_csv, as_json, finished_row, seconds_csv
from groupwise.commands.sweep.table import table
from groupwise.commands.train.apart import train_apart
from groupwise.core.code.unexpected import unexpected
from groupwise.core.errors import GroupwiseError, RunError, UsageError, disk_remedy
from groupwise.core.files.atomic import open_to_append, whole_file
from groupwise.core.files.jsonl import encoded
from groupwise.core.machine.facts import cores
from groupwise.core.processes.children import Child
from groupwise.core.processes.side_by_side import side_by_side
from groupwise.core.processes.stop import Stop
from groupwise.journal.journal import LOCK
from groupwise.journal.kept import RECIPE
from groupwise.reports.folder.state import in_words as seconds_in_words
from groupwise.reports.make import make


class Done(NamedTuple):
    """Lines to say at the end, how many runs failed, and the signal that stopped the sweep; 0 if none did."""

    lines: list[str]
    failed: int
    stopped_by: int


class Running:
    """Processes of the runs that go on, to each of which a request to stop is handed on."""

    def __init__(self) -> None:
        self._children, self._number = set[Child](), 0

    @contextmanager
    def hold(self, child: Child) -> Iterator[None]:
        """Count a process in as long as it runs; one that comes after the request is stopped as well."""
        self._children.add(child)
        try:
            if self._number:
                child.process.send_signal(self._number)
            yield
        finally:
            self._children.discard(child)

    def stop(self, number: int) -> None:
        """Send every process a signal, after which a run saves itself and ends."""
        self._number = number
        for child in list(self._children):
            child.process.send_signal(number)


def sweep(
    recipe: str,
    over: Over,
    settings: Values,
    say: Callable[[str], None],
    out: Path | None = None,
    at_once: int = 1,
) -> Done:
    """Train a recipe with each combination of values, and write what came of it.

    over      the values of each key that runs differ in (grid.read_over)
    settings  dotted keys, laid over the recipe in every run
    out       the folder of the sweep; None is NAME-sweep beside the recipe's runs
    at_once   how many runs go on side by side
    Raises UsageError, before anything is started, if a value or the folder is refused; RunError if the disk refuses.
    """
    asked = request(recipe, settings, over, at_once)
    folder = default_folder(recipe, settings) if out is None else out
    with _held(folder):
        before = read_asked(folder)
        if before is not None:
            require_same(asked, before, folder)
            asked = dataclasses.replace(asked, threads=before.get("threads"))
        return _swept(asked, folder, say, at_once)


def _swept(asked: Request, folder: Path, say: Callable[[str], None], at_once: int) -> Done:
    cells = list(asked.cells())
    rows = {cell.name: row for cell in cells if (row := finished_row(cell, folder)) is not None}
    _write(asked, cells, rows, folder)
    missing = [cell for cell in cells if cell.name not in rows]
    for line in _head(asked, len(cells), len(missing), folder, at_once):
        say(line)
    stop, running = Stop(), Running()

    def heard(line: str) -> None:
        say(line)
        running.stop(stop.number)

    def trained(cell: Cell) -> RunRow:
        return RunRow(cell, error="stopped") if stop.asked else _trained(asked, cell, folder, running)

    number = 0
    with stop.listening(heard):
        for cell, row in side_by_side(missing, trained, at_once):
            if stop.asked and not (row and row.finished):
                continue  # it was stopped, or never begun
            if row is None:
                number += 1
                say(f"{number} of {len(missing)}: {cell.name}")
            else:
                rows[cell.name] = row
                _write(asked, cells, rows, folder)
                say(f"  {cell.name}: {_in_words(row)}")
    ended = [rows[cell.name] for cell in cells if cell.name in rows]
    failed = sum(not row.finished for row in ended)
    return Done(list(_lines(asked, ended, len(cells), folder)), failed, stop.number)


def _trained(asked: Request, cell: Cell, folder: Path, running: Running) -> RunRow:
    """Train one run, or resume it -> its row, which says in one line why it failed if it did."""
    try:
        train_apart(asked.recipe, asked.keys_of(cell, folder), folder / cell.name, asked.threads, running.hold)
        row = finished_row(cell, folder)
        if row is None:
            raise RunError(f"{folder / cell.name}: what it wrote cannot be read; delete the folder and sweep again")
    except GroupwiseError as refused:
        return RunRow(cell, error=str(refused))
    except Exception as wrong:
        return RunRow(cell, error=unexpected(wrong, f"the run {cell.name}"))
    return row


def _head(asked: Request, count: int, missing: int, folder: Path, at_once: int) -> Iterator[str]:
    kept = f", {count - missing} finished before" if missing < count else ""
    threads = "" if asked.threads is None else f", {asked.threads} thread{'s' * (asked.threads != 1)} each"
    yield f"{count} runs in {folder}{kept}; {min(at_once, max(missing, 1))} at once{threads}"
    if at_once > cores():
        yield f"--at-once {at_once}: this machine has {cores()} cores, so the runs wait for each other"


def _in_words(row: RunRow) -> str:
    if row.error:
        return f"failed: {row.error}"
    before = "" if row.heldout_before is None else f"{row.heldout_before:.3f} -> "
    heldout = "" if row.heldout_after is None else f"held-out {row.measure} {before}{row.heldout_after:.3f}, "
    seconds = "" if row.seconds is None else f" in {seconds_in_words(row.seconds)} of training"
    return f"{heldout}{row.steps} steps{seconds}"


def _lines(asked: Request, rows: Sequence[RunRow], count: int, folder: Path) -> Iterator[str]:
    """Say the table, what there is of it, and where it is written down."""
    if rows:
        yield from table(asked.recipe, rows)
    finished = sum(row.finished for row in rows)
    left = count - len(rows)
    waiting = f", {left} still to run: give the same command again" if left else ""
    yield f"{finished} of {count} runs finished{waiting}"
    files = [CSV, JSON]
    begun = [folder / row.cell.name for row in rows if (folder / row.cell.name / RECIPE).exists()]
    if len(begun) > 1:
        try:
            make(begun, folder / PAGE)
            files.append(PAGE)
        except Exception as error:  # the runs are whole, and groupwise report shows the same again
            words = str(error) if isinstance(error, GroupwiseError) else f"{type(error).__name__}: {error}"
            yield f"no comparison was made ({words}); try: groupwise report {folder}/*/"
    yield f"{', '.join(files[:-1])} and {files[-1]} are in {folder}"


def _write(asked: Request, cells: Sequence[Cell], rows: Mapping[str, RunRow], folder: Path) -> None:
    """Write what there is so far, each file whole or not at all. Raises RunError where the disk refuses."""
    ended = [rows[cell.name] for cell in cells if cell.name in rows]
    contents = {
        CSV: as_csv(list(asked.over), ended),
        SECONDS: seconds_csv(ended),
        JSON: encoded(as_json(asked.table(), ended), indent=True) + b"\n",
    }
    for name, content in contents.items():
        try:
            with whole_file(folder / name) as file:
                file.write(content)
        except OSError as error:
            remedy = disk_remedy(error, "choose another folder with --out")
            raise RunError(f"{folder / name}: cannot be written: {error.strerror}; {remedy}") from None


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Keep other sweeps out of the folder, which is made if there is none.

    Raises UsageError if another sweep goes on there, or the folder is something else's or cannot be made.
    """
    read_asked(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open_to_append(folder / LOCK)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written to: {error.strerror}; choose another with --out") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"{folder}: another sweep goes on here; wait for it, or choose another --out") from None
        yield
