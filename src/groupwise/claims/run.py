"""Measuring: every experiment of the chosen claims that has no row yet, one after the other, a row each."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from groupwise.claims.claim import Claim, Effort, Experiment
from groupwise.claims.measurements import Measurements, Row
from groupwise.claims.store import append_row, read_rows
from groupwise.core.boundary import unexpected
from groupwise.core.errors import GroupwiseError
from groupwise.core.machine import words
from groupwise.core.version import VERSION


def measure(
    claims: Sequence[Claim],
    effort: Effort,
    rows: Path,
    work: Path,
    say: Callable[[str], None],
    seed: int | None = None,
) -> Measurements:
    """Measure what has no row, append each as it is done -> all that is known.

    rows  the file of rows, which may exist
    work  where experiments write, such as run folders
    seed  measure this seed alone, whether or not it has a row; None is every seed of the effort that has none
    An experiment that fails has a row that says why; it is measured again the next time.
    """
    known = current(claims, read_rows(rows))
    for experiment, number in list(_to_measure(claims, effort, known, seed)):
        say(f"{experiment.name}, seed {number}")
        row = _measured(experiment, number, work)
        append_row(rows, row)
        say(f"  {row.error or 'done'} ({row.seconds:.0f} s)")
    return current(claims, read_rows(rows))


def current(claims: Sequence[Claim], rows: Sequence[Row]) -> Measurements:
    """The rows of these claims' experiments as they are defined now; others no longer count."""
    fingerprints = {e.name: e.fingerprint for claim in claims for e in claim.experiments}
    return Measurements(row for row in rows if fingerprints.get(row.experiment) == row.fingerprint)


def _to_measure(
    claims: Sequence[Claim], effort: Effort, known: Measurements, seed: int | None
) -> Iterator[tuple[Experiment, int]]:
    """Each experiment once, however many claims read it."""
    experiments = {e.name: e for claim in claims for e in claim.experiments}
    for experiment in experiments.values():
        seeds = experiment.seeds_of(effort)
        done = known.of(experiment.name)
        chosen = [each for each in seeds if each not in done] if seed is None else [seed] * bool(seeds)
        yield from ((experiment, each) for each in chosen)


def _measured(experiment: Experiment, seed: int, work: Path) -> Row:
    began = time.perf_counter()
    measured, error = {}, ""
    try:
        measured = dict(experiment.measure(seed, work))
    except GroupwiseError as refused:
        error = str(refused)
    except Exception as wrong:
        error = unexpected(wrong, f"claims {experiment.name}")
    return Row(
        experiment=experiment.name,
        seed=seed,
        fingerprint=experiment.fingerprint,
        measured=measured,
        error=error,
        seconds=round(time.perf_counter() - began, 1),
        machine=words("cpu"),
        made_by=VERSION,
    )
