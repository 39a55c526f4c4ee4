"""The command `groupwise claims`: list the claims, or measure what has no row yet, a row an experiment, and write the
pages.
"""

import dataclasses
import math
import os
import platform
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from pydantic import TypeAdapter, ValidationError

from groupwise.claims.articles import CLAIMS, SUBJECTS, chosen
from groupwise.claims.claim import Claim
from groupwise.claims.experiments import Effort, Experiment
from groupwise.claims.markdown import HEADING, PAGES, claim_page, heading, overview
from groupwise.claims.measurements import Measurements, Row
from groupwise.claims.page import ARTICLES, counted, report
from groupwise.core import VERSION
from groupwise.core.code.unexpected import unexpected
from groupwise.core.errors import GroupwiseError, RunError, UsageError, brief, shortened
from groupwise.core.files.atomic import open_regular, open_to_append, whole_file
from groupwise.core.files.jsonl import encoded
from groupwise.core.files.paths import existing_parent
from groupwise.core.machine.facts import cores
from groupwise.core.processes.side_by_side import side_by_side
from groupwise.reports.make import require_ours
from groupwise.reports.page.page import write


class Measuring(NamedTuple):
    """One experiment with one seed that has no row yet, and its place among all that are to be measured."""

    experiment: Experiment
    seed: int
    number: int
    of: int

    @property
    def words(self) -> str:
        return f"{self.number} of {self.of}: {self.experiment.name}, seed {self.seed}"


def measure(
    claims: Sequence[Claim],
    effort: Effort,
    rows: Path,
    work: Path,
    say: Callable[[str], None],
    seed: int | None = None,
    at_once: int = 1,
) -> Measurements:
    """Measure what has no row, append each as it is done -> all that is known.

    rows     the file of rows, which may exist
    work     where experiments write, such as run folders
    seed     measure this seed alone, whether or not it has a row; None is every seed of the effort that has none
    at_once  how many of those that have a process of their own run side by side
    An experiment that fails has a row that says why; it is measured again the next time.
    """
    known = current(claims, read_rows(rows))
    for each, row in _in_turn(missing(claims, effort, known, seed), work, at_once):
        if row is None:
            say(each.words)
            continue
        append_row(rows, row)
        again = _again(known.of(row.experiment).get(row.seed), row, each.experiment) if seed is not None else ""
        whose = f"{each.experiment.name}, seed {each.seed}: " if at_once > 1 else ""
        say(f"  {whose}{row.error or 'measured'} ({row.seconds:.1f} s){again}")
    return current(claims, read_rows(rows))


def current(claims: Sequence[Claim], rows: Sequence[Row]) -> Measurements:
    """Pick the rows of these claims' experiments as they are defined now; others no longer count."""
    fingerprints = {e.name: e.fingerprint for claim in claims for e in claim.experiments}
    return Measurements(row for row in rows if fingerprints.get(row.experiment) == row.fingerprint)


def missing(claims: Sequence[Claim], effort: Effort, known: Measurements, seed: int | None = None) -> list[Measuring]:
    """List what is to be measured: each experiment once, however many claims read it."""
    experiments = {e.name: e for claim in claims for e in claim.experiments}
    pairs = [(e, each) for e in experiments.values() for each in _seeds(e, effort, known, seed)]
    return [Measuring(experiment, each, number, len(pairs)) for number, (experiment, each) in enumerate(pairs, 1)]


def _seeds(experiment: Experiment, effort: Effort, known: Measurements, seed: int | None) -> list[int]:
    seeds = experiment.seeds_of(effort)
    if seed is not None:
        return [seed] * bool(seeds)
    done = {each for each, row in known.of(experiment.name).items() if row.code == experiment.code}
    return [each for each in seeds if each not in done]


def _in_turn(wanted: Sequence[Measuring], work: Path, at_once: int) -> Iterator[tuple[Measuring, Row | None]]:
    """Measure each, and yield it twice: without a row where it begins, and with it where it is done.

    What has no process of its own comes first, one by one.
    """
    apart = [each for each in wanted if each.experiment.own_process] if at_once > 1 else []
    here = [each for each in wanted if not apart or not each.experiment.own_process]

    def row(each: Measuring) -> Row:
        return _measured(each.experiment, each.seed, work)

    yield from side_by_side(here, row, at_once=1)
    yield from side_by_side(apart, row, at_once)


def _measured(experiment: Experiment, seed: int, work: Path) -> Row:
    began = time.perf_counter()
    measured, error = {}, ""
    try:
        measured = dict(experiment.measure(seed, work))
        wrong = {k: v for k, v in measured.items() if isinstance(v, float) and not math.isfinite(v)}
        error = ", ".join(f"{name} is {value}" for name, value in wrong.items())
    except GroupwiseError as refused:
        error = str(refused)
    except Exception as unknown:
        error = unexpected(unknown, f"claims {experiment.name}")
    return Row(
        experiment=experiment.name,
        seed=seed,
        fingerprint=experiment.fingerprint,
        measured={} if error else measured,
        error=error,
        seconds=round(time.perf_counter() - began, 1),
        machine=f"{platform.machine()}, {cores()} cores, cpu",
        made_by=VERSION,
        code=experiment.code,
    )


def _again(before: Row | None, now: Row, experiment: Experiment) -> str:
    """Say whether a seed that was measured before gave the same numbers: a row's own command reproduces it."""
    if before is None or now.error:
        return ""
    names = [name for name in before.measured if name not in experiment.costs]
    unlike = [name for name in names if before.measured[name] != now.measured.get(name)]
    if not unlike:
        return f", the same numbers as before{' but for seconds and memory' if experiment.costs else ''}"
    name = unlike[0]
    return f", {len(unlike)} of {len(names)} numbers are others than before, such as {name}: " + (
        f"{brief(before.measured[name])}, now {brief(now.measured.get(name))}"
    )


#: The first line of such a file; another number where rows are written in another form.
HEADER: dict[str, Any] = {"groupwise_claims": 1}
ROW = TypeAdapter(Row)


def read_rows(path: Path) -> list[Row]:
    """Read the rows so far; none if there is no file. A last line without its end, which a kill leaves, is no row.

    Raises UsageError for another kind of file, one of another version, or a line that is no row.
    """
    if not os.path.lexists(path):
        return []
    try:
        with open_regular(path) as file:
            *lines, unfinished = file.read().split(b"\n")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}; name another file with --rows") from None
    if lines or not encoded(HEADER).startswith(unfinished):
        _require_header(path, lines[0] if lines else unfinished)
    return [_row(path, number, line) for number, line in enumerate(lines[1:], 2)]


def require_place(path: Path) -> None:
    """Raise UsageError, before anything is measured, if no row could be added to the file, or no file be made there."""
    if os.path.lexists(path):
        writable = stat.S_ISREG(path.lstat().st_mode) and os.access(path, os.W_OK)
        reason = "this is no file of its own that can be written to"
    else:
        place = existing_parent(path)
        writable = place.is_dir() and os.access(place, os.W_OK | os.X_OK)
        reason = f"{place} is no folder that can be written to"
    if not writable:
        raise UsageError(f"{path}: {reason}; name another file with --rows")


def append_row(path: Path, row: Row) -> None:
    """Add a row, on the disk when this returns. Raises RunError where the disk refuses."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _end_with_whole_line(path)
        with open_to_append(path) as file:
            if not file.tell():
                file.write(encoded(HEADER) + b"\n")
            written = {name: value for name, value in dataclasses.asdict(row).items() if name != "line"}
            file.write(encoded(written) + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise RunError(f"{path}: a row cannot be added: {error.strerror}; the rows before it are kept") from None


def _require_header(path: Path, line: bytes) -> None:
    try:
        version = orjson.loads(line).get("groupwise_claims")
    except (ValueError, AttributeError):
        version = None
    if version is None:
        raise UsageError(f"{path}: this is no file of claims' rows (line 1 is no header); name another with --rows")
    if version != HEADER["groupwise_claims"]:
        raise UsageError(
            f"{path}: its rows are of version {brief(version)}, this is {HEADER['groupwise_claims']} (line 1); name "
            "another with --rows, or move it away, and all is measured again"
        )


def _row(path: Path, number: int, line: bytes) -> Row:
    try:
        return dataclasses.replace(ROW.validate_json(line), line=number)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise UsageError(
            f"{path}: line {number} is no row ({reason}); delete that line, and what it held is measured again"
        ) from None


def _end_with_whole_line(path: Path) -> None:
    """Cut off what a killed process began to write."""
    if path.exists():
        with open_regular(path) as file:
            text = file.read()
        if not text.endswith(b"\n"):
            os.truncate(path, text.rfind(b"\n") + 1)


#: In the folder where the command is given: rows, pages, and the runs of claims that train.
FOLDER = Path("claims")
ROWS, RUNS = FOLDER / "rows.jsonl", FOLDER / "runs"
PAGE, REPORT = "claims.md", "claims.html"


class Done(NamedTuple):
    """Lines to say at the end, and how many experiments could not be measured."""

    lines: list[str]
    failed: int


def effort_of(quick: bool, standard: bool, full: bool) -> Effort:
    """Find the one effort that was asked for. Raises UsageError for none or several."""
    efforts = [effort for effort, wanted in zip(Effort, (quick, standard, full), strict=True) if wanted]
    if len(efforts) > 1:
        raise UsageError(f"claims takes one effort, not {' and '.join(f'--{effort.words}' for effort in efforts)}")
    if not efforts:
        raise UsageError(
            "claims: choose --quick (mathematics and toys, minutes), --standard (training runs as well, an hour) or "
            "--full (as many as an answer needs); --list shows the claims"
        )
    return efforts[0]


def listing(names: Sequence[str], rows: Path = ROWS) -> Iterator[str]:
    """List every claim with its source, the effort it needs, and its verdict; then the articles that sources name."""
    claims = chosen(names)
    known = current(claims, read_rows(rows))
    width = max(len(claim.name) for claim in claims)
    for claim in claims:
        yield f"{claim.name:<{width}}  --{claim.effort.words:<9} {claim.verdict(known).outcome.value}"
        yield f"{'':<{width}}  {claim.title} ({claim.source})"
    named = [name for name in ARTICLES if any(re.search(rf"\b{name}\b", claim.source) for claim in claims)]
    yield from (f"{name}  {ARTICLES[name]}" for name in named)


def run(
    names: Sequence[str],
    effort: Effort,
    say: Callable[[str], None],
    seed: int | None = None,
    rows: Path = ROWS,
    out: Path = FOLDER,
    at_once: int = 1,
) -> Done:
    """Measure the claims of these names, all where there is none; the pages are of all claims.

    Raises UsageError where a name, the rows or the place of a page is wrong, before anything is measured; RunError
    where the disk refuses.
    """
    claims = chosen(names)
    require_place(rows)
    _require_pages(out)
    before = current(claims, read_rows(rows))
    say(f"{len(missing(claims, effort, before, seed))} experiments to measure, rows in {rows}")
    work = RUNS if rows == ROWS else rows.parent / RUNS.name
    known = measure(claims, effort, rows, work, say, seed, at_once)
    failed = sum(
        bool(known.failed(name)) for name in {e.name for c in claims for e in c.experiments if e.seeds_of(effort)}
    )
    lines = [*(_numbers(claims, known, seed) if seed is not None else _verdicts(claims, known))]
    lines += [f"{page} shows all claims" for page in _write_pages(rows, out)]
    return Done(lines, failed)


def _verdicts(claims: Sequence[Claim], known: Measurements) -> Iterator[str]:
    width = max(len(claim.name) for claim in claims)
    for claim in claims:
        verdict = claim.verdict(known)
        yield f"{claim.name:<{width}}  {verdict.outcome.value}"
        yield f"{'':<{width}}  {shortened(verdict.because)}"
    yield counted([claim.verdict(known) for claim in claims])


def _numbers(claims: Sequence[Claim], known: Measurements, seed: int) -> Iterator[str]:
    """List what one seed measured; a verdict is over all seeds that have a row."""
    for claim in claims:
        yield f"{claim.name}, seed {seed}"
        for quantity in claim.quantities:
            value = known.numbers(quantity.experiment.name, quantity.name).get(seed)
            yield f"  {quantity.words}: {'not measured' if value is None else f'{value:.6g}'}"
        count = min(len(known.of(experiment.name)) for experiment in claim.experiments)
        yield f"  over {count} seed{'' if count == 1 else 's'}: {shortened(str(claim.verdict(known)))}"


def _write_pages(rows: Path, out: Path) -> list[Path]:
    known = current(CLAIMS, read_rows(rows))
    page, html = out / PAGE, out / REPORT
    link = Path(os.path.relpath(rows, out)).as_posix()
    try:
        (out / PAGES).mkdir(parents=True, exist_ok=True)
        _write(page, overview(SUBJECTS, known, link))
        for claim in CLAIMS:
            _write(_page_of(claim, out), claim_page(claim, known, f"../{link}"))
        write(report(CLAIMS, known, link), html)
    except OSError as error:
        raise RunError(f"{out}: a page cannot be written: {error.strerror}; the rows are kept") from None
    return [page, html]


def _page_of(claim: Claim, out: Path) -> Path:
    return out / PAGES / f"{claim.name}.md"


def _write(page: Path, text: str) -> None:
    with whole_file(page) as file:
        file.write(text.encode())


def _require_pages(out: Path) -> None:
    """Raise UsageError if something else than the pages would be written over."""
    for folder in (out, out / PAGES):
        if os.path.lexists(folder) and not folder.is_dir():
            raise UsageError(f"--out {folder}: this is no folder; name another")
    require_ours(out / REPORT)
    ours = {out / PAGE: HEADING} | {_page_of(claim, out): heading(claim) for claim in CLAIMS}
    for page, first in ours.items():
        if os.path.lexists(page) and not _begins(page, first):
            raise UsageError(f"{page}: this exists and is no page of claims; name another folder with --out")


def _begins(page: Path, first: str) -> bool:
    try:
        with open_regular(page) as file:
            return not page.is_symlink() and file.readline().decode(errors="replace").strip() == first
    except OSError:
        return False
