"""Measuring: every experiment of the chosen claims that has no row yet, a row each as soon as it is done."""

import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from groupwise.claims.claim import Claim
from groupwise.claims.experiments import Effort, Experiment
from groupwise.claims.measurements import Measurements, Row
from groupwise.claims.store import append_row, read_rows
from groupwise.core import VERSION
from groupwise.core.code.trace import unexpected
from groupwise.core.errors import GroupwiseError, brief
from groupwise.core.machine.load import cores


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

    What has no process of its own comes first, one by one. Of the others each thread waits for a process; threads end
    with this process, and with them what they wait for (core/processes/children.py).
    """
    apart = [each for each in wanted if each.experiment.own_process] if at_once > 1 else []
    for each in wanted:
        if not apart or not each.experiment.own_process:
            yield each, None
            yield each, _measured(each.experiment, each.seed, work)
    waiting = iter(apart)
    heard: SimpleQueue[tuple[Measuring, Row | None]] = SimpleQueue()

    def work_off() -> None:
        for each in waiting:  # a list's iterator gives each to one thread
            heard.put((each, None))
            heard.put((each, _measured(each.experiment, each.seed, work)))

    for _ in range(min(at_once, len(apart))):
        Thread(target=work_off, daemon=True).start()
    for _ in range(2 * len(apart)):
        yield heard.get()


def _measured(experiment: Experiment, seed: int, work: Path) -> Row:
    began = time.perf_counter()
    measured, error = {}, ""
    try:
        measured = dict(experiment.measure(seed, work))
        error = _not_finite(measured)
    except GroupwiseError as refused:
        error = str(refused)
    except Exception as wrong:
        error = unexpected(wrong, f"claims {experiment.name}")
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


def _not_finite(measured: Mapping[str, Any]) -> str:
    """Say what an experiment measured that is no number where it should be; "" if all are numbers."""
    wrong = {k: v for k, v in measured.items() if isinstance(v, float) and not math.isfinite(v)}
    return ", ".join(f"{name} is {value}" for name, value in wrong.items())


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
