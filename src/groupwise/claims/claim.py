"""A claim of an article: what is said and where, what is expected, what is measured, and when it holds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Outcome, Verdict


class Effort(IntEnum):
    """How much is measured; each takes in those before it."""

    QUICK = 0  # mathematics and toys, minutes in all
    STANDARD = 1  # training runs of three seeds, an hour in all
    FULL = 2  # as many as an answer needs


@dataclass(frozen=True)
class Experiment:
    """One thing to measure, with one seed or several.

    name         unique over all claims; claims that read the same runs name the same experiment
    measure      (seed, folder for what it writes) -> what was measured, by name; JSON values
    fingerprint  another one where the definition changes, so that older rows no longer count
    seeds        how many seeds each effort has, from seed 0; an effort that is left out has those of the one before
    """

    name: str
    measure: Callable[[int, Path], Mapping[str, Any]]
    fingerprint: str
    seeds: Mapping[Effort, int]

    def seeds_of(self, effort: Effort) -> range:
        """The seeds that an effort measures."""
        return range(max((count for least, count in self.seeds.items() if least <= effort), default=0))


@dataclass(frozen=True)
class Quantity:
    """A number of the claim's table: what it is in words, and where its rows have it."""

    words: str
    experiment: str
    name: str


@dataclass(frozen=True)
class Claim:
    """A claim and its experiment.

    title        the statement, as the articles make it
    source       which articles and papers, and where in them
    argument     why it should be so, in a few sentences of Markdown
    expected     what was expected before it was run
    quantities   the numbers of its table, with their intervals over seeds
    judge        the verdict, by a rule that is fixed here; it is asked only where every needed experiment has a row
    optional     experiments without which the verdict is given all the same
    """

    name: str
    title: str
    source: str
    argument: str
    expected: str
    experiments: tuple[Experiment, ...]
    quantities: tuple[Quantity, ...]
    judge: Callable[[Measurements], Verdict]
    optional: frozenset[str] = frozenset()

    def verdict(self, measurements: Measurements) -> Verdict:
        """What the rows say; "not measured" where an experiment has none, or failed."""
        missing = [e.name for e in self.experiments if e.name not in self.optional and not measurements.of(e.name)]
        if missing:
            failed = [row.error for row in measurements.rows.values() if row.experiment in missing and row.error]
            return Verdict(Outcome.NOT_MEASURED, failed[0] if failed else f"no row of {', '.join(missing)} yet")
        return self.judge(measurements)
