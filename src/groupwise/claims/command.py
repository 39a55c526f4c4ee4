"""The command `groupwise claims`: list the claims, or measure what has no row yet and write the pages."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from groupwise.claims.articles import CLAIMS, SUBJECTS, chosen
from groupwise.claims.claim import Claim
from groupwise.claims.experiments import Effort
from groupwise.claims.measurements import Measurements
from groupwise.claims.page import HEADING, counted, markdown, report
from groupwise.claims.run import current, measure, missing, read_rows, require_place
from groupwise.core.errors import RunError, UsageError, shortened
from groupwise.core.files.atomic import open_regular, whole_file
from groupwise.reports.make import require_ours
from groupwise.reports.page.page import write

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
    """List every claim with its source, the effort it needs, and the verdict of the rows so far."""
    claims = chosen(names)
    known = current(claims, read_rows(rows))
    width = max(len(claim.name) for claim in claims)
    for claim in claims:
        yield f"{claim.name:<{width}}  --{claim.effort.words:<9} {claim.verdict(known).outcome.value}"
        yield f"{'':<{width}}  {claim.title} ({claim.source})"


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
        out.mkdir(parents=True, exist_ok=True)
        with whole_file(page) as file:
            file.write(markdown(SUBJECTS, known, link).encode())
        write(report(CLAIMS, known, link), html)
    except OSError as error:
        raise RunError(f"{out}: a page cannot be written: {error.strerror}; the rows are kept") from None
    return [page, html]


def _require_pages(out: Path) -> None:
    """Raise UsageError if something else than the pages would be written over."""
    if os.path.lexists(out) and not out.is_dir():
        raise UsageError(f"--out {out}: this is no folder; name another")
    require_ours(out / REPORT)
    page = out / PAGE
    if os.path.lexists(page) and not _is_page(page):
        raise UsageError(f"{page}: this exists and is no page of claims; name another folder with --out")


def _is_page(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            return not path.is_symlink() and file.readline().decode(errors="replace").strip() == HEADING
    except OSError:
        return False
