"""A claim of an article: what is said and where, what is expected, what is measured, and when it holds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from groupwise.claims.figure import Figure
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Outcome, Verdict


class Effort(IntEnum):
    """How much is measured; each takes in those before it."""

    QUICK = 0  # mathematics and toys, minutes in all
    STANDARD = 1  # training runs of three seeds, an hour in all
    FULL = 2  # as many as an answer needs

    @property
    def words(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Experiment:
    """One thing to measure, with one seed or several.

    name         unique over all claims; claims that read the same runs name the same experiment
    measure      (seed, folder for what it writes) -> what was measured, by name; JSON values
    fingerprint  another one where the definition changes, so that older rows no longer count
    seeds        how many seeds each effort has, from seed 0; an effort that is left out has those of the one before
    code         of what it computes with, where that is quick to measure again: `measure` does so where a row has
                 another one, and until then the row counts
    own_process  whether `measure` runs in a process of its own, so that several may run side by side
    costs        names of what the machine decides, such as seconds: another time they are others
    """

    name: str
    measure: Callable[[int, Path], Mapping[str, Any]]
    fingerprint: str
    seeds: Mapping[Effort, int]
    code: str = ""
    own_process: bool = False
    costs: frozenset[str] = frozenset()

    @property
    def effort(self) -> Effort:
        """The first that measures it."""
        return min(effort for effort, count in self.seeds.items() if count)

    def seeds_of(self, effort: Effort) -> range:
        """The seeds that an effort measures."""
        return range(max((count for least, count in self.seeds.items() if least <= effort), default=0))


@dataclass(frozen=True)
class Quantity:
    """A number of the claim's table: what it is in words, and where its rows have it."""

    words: str
    experiment: str
    name: str


def quantities_of(runs: Mapping[str, Experiment], numbers: Mapping[str, str]) -> tuple[Quantity, ...]:
    """Each number of each run, a number's runs one below the other.

    runs     what a run is in words -> its experiment
    numbers  what is measured in words -> its name in the rows
    """
    return tuple(
        Quantity(f"{what}, {words}", run.name, name) for what, name in numbers.items() for words, run in runs.items()
    )


@dataclass(frozen=True)
class Claim:
    """A claim and its experiment.

    title        the statement, as the articles make it
    source       which articles and papers, and where in them
    argument     why it should be so or not, in a few sentences of Markdown
    expected     what was expected before it was run
    quantities   the numbers of its table, with their intervals over seeds
    judge        the verdict, by the rule that its docstring says; asked only where every needed experiment has a row
    figure       what a plot says better than the table
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
    figure: Figure | None = None
    optional: frozenset[str] = frozenset()

    @property
    def effort(self) -> Effort:
        """The first that can give a verdict."""
        return max(e.effort for e in self.experiments if e.name not in self.optional)

    @property
    def rule(self) -> str:
        """When it holds, in the words that stand over the rule."""
        return " ".join((self.judge.__doc__ or "").split())

    @property
    def command(self) -> str:
        """What measures one seed of it again."""
        return f"groupwise claims --only {self.name} --{self.effort.words} --seed 0"

    def verdict(self, measurements: Measurements) -> Verdict:
        """What the rows say; "not measured" where an experiment has none, or one of its seeds failed."""
        needed = [e.name for e in self.experiments if e.name not in self.optional]
        if failed := [row for name in needed for row in measurements.failed(name)]:
            return Verdict(Outcome.NOT_MEASURED, f"{failed[0].experiment}, seed {failed[0].seed}: {failed[0].error}")
        if missing := [name for name in needed if not measurements.of(name)]:
            return Verdict(
                Outcome.NOT_MEASURED, f"no row of {', '.join(missing)} yet: --{self.effort.words} measures it"
            )
        try:
            return self.judge(measurements)
        except ZeroDivisionError:
            return Verdict(Outcome.NOT_MEASURED, "a number that the rule divides by is 0")
