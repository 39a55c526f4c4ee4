"""A claim of an article: what is said and where, what is expected, what is measured, and when it holds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from groupwise.claims.experiments import Effort, Experiment
from groupwise.claims.measurements import Measurements, Numbers, Outcome, Verdict, above, every

#: The values of one place of a line, by seed.
Place = Mapping[object, float]


@dataclass(frozen=True)
class Quantity:
    """A number of a claim's table: its meaning, where its rows have it, and its run or column in words."""

    what: str
    experiment: Experiment
    name: str
    run: str = ""

    @property
    def words(self) -> str:
        return f"{self.what}, {self.run}" if self.run else self.what


#: The numbers of a table: what each is in words -> its name in the rows, or the names of its columns by their words.
Names = Mapping[str, str | Mapping[str, str]]


def quantities(of: Experiment | Mapping[str, Experiment], numbers: Names) -> tuple[Quantity, ...]:
    """List the numbers of an experiment, or of several by their words, a number's runs one below the other."""
    runs = {"": of} if isinstance(of, Experiment) else of
    return tuple(
        Quantity(what, run, name, words or column)
        for what, names in numbers.items()
        for words, run in runs.items()
        for column, name in ({"": names} if isinstance(names, str) else names).items()
    )


def grid(words: str, name: str, *axes: Sequence[object] | Mapping[str, str]) -> dict[str, str]:
    """Write out the numbers of all places: what is measured in words -> its name in the rows.

    An axis is a list of places, or keys with what they are in words; the first axis varies slowest.

    >>> grid("{}, {} tokens", "{}_{}", {"off": "error"}, (1, 2))
    {'error, 1 tokens': 'off_1', 'error, 2 tokens': 'off_2'}
    """
    return {words.format(*texts): name.format(*keys) for keys, texts in _places(axes)}


def matrix(
    words: str, name: str, column: str, *axes: Sequence[object] | Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """Write out the numbers of all places as `grid`, those of the last axis side by side, in words by `column`.

    >>> matrix("error, {}", "{}_{}", "{} tokens", {"off": "off policy"}, (1, 2))
    {'error, off policy': {'1 tokens': 'off_1', '2 tokens': 'off_2'}}
    """
    table: dict[str, dict[str, str]] = {}
    for keys, (*texts, last) in _places(axes):
        table.setdefault(words.format(*texts), {})[column.format(last)] = name.format(*keys)
    return table


def _places(axes: Sequence[Sequence[object] | Mapping[str, str]]) -> list[tuple[tuple[object, ...], ...]]:
    """List every place of the axes: its keys, and what they are in words."""
    pairs = [list(axis.items()) if isinstance(axis, Mapping) else [(at, at) for at in axis] for axis in axes]
    return [tuple(zip(*place, strict=True)) for place in product(*pairs)]


def gains(name: str, pairs: Mapping[str, tuple[Experiment, Experiment]]) -> Callable[[Measurements], Verdict]:
    """Make a judge: of each pair of runs the second has more of a number than the first. The words are of the pairs."""
    return lambda measured: every(
        above(measured.difference(one.name, other.name, name), 0.0, words) for words, (one, other) in pairs.items()
    )


@dataclass(frozen=True)
class Line:
    """A line of a figure: its name, and at each place of the axis the experiment and the number that stand there."""

    words: str
    points: Mapping[float, tuple[str, str]]

    @property
    def experiments(self) -> tuple[str, ...]:
        return tuple(experiment for experiment, _ in self.points.values())

    def places(self, measurements: Measurements) -> Sequence[Place]:
        return [measurements.numbers(experiment, name) for experiment, name in self.points.values()]


def lines_of(experiment: Experiment, places: Sequence[float], keys: Mapping[str, str]) -> list[Line]:
    """Make lines of one experiment: a line's name -> the key whose number at a place the rows call key_place."""
    return [
        Line(words, {place: (experiment.name, f"{key}_{place}") for place in places}) for words, key in keys.items()
    ]


@dataclass(frozen=True)
class LineOverSteps:
    """A line of a figure: its name, and a curve of an experiment's runs, step by step."""

    words: str
    experiment: str
    curve: str

    @property
    def experiments(self) -> tuple[str, ...]:
        return (self.experiment,)

    def places(self, measurements: Measurements) -> Sequence[Place]:
        curves = measurements.curves(self.experiment, self.curve)
        steps: list[dict[object, float]] = [{} for _ in range(max(map(len, curves.values()), default=0))]
        for seed, curve in curves.items():
            for place, value in zip(steps, curve, strict=False):
                place |= {} if value is None else {seed: value}
        return steps


@dataclass(frozen=True)
class Figure:
    """A plot of what was measured: means over seeds, with the 95 % interval as a band.

    axes   what the horizontal axis is, and the vertical one
    hint   what to see in it, in one sentence
    marks  horizontal lines to measure against: their place and words
    log    whether each axis is logarithmic
    """

    title: str
    axes: tuple[str, str]
    lines: Sequence[Line | LineOverSteps]
    hint: str
    marks: tuple[tuple[float, str], ...] = ()
    log: tuple[bool, bool] = (False, False)

    @property
    def at(self) -> tuple[float, ...]:
        """The places on the horizontal axis; none are the steps of runs."""
        first = self.lines[0]
        return tuple(first.points) if isinstance(first, Line) else ()


@dataclass(frozen=True)
class Claim:
    """A claim. Its experiments are those of its table: a verdict is read from no run that the table does not show.

    title     the statement, as the articles make it
    source    which articles and papers, and where in them
    argument  why it should be so or not, in a few sentences of Markdown
    expected  what was expected before it was run
    of        the experiment, or what each run is in words -> its experiment
    numbers   the numbers of its table
    rule      when it holds, in words
    judge     the verdict, by that rule, on the numbers of the one experiment or the measurements of several; asked only
              if every experiment has a row
    figure    what a plot says better than the table
    beside    more of the table, of other experiments
    """

    name: str
    title: str
    source: str
    argument: str
    expected: str
    of: Experiment | Mapping[str, Experiment]
    numbers: Names
    rule: str
    judge: Callable[[Any], Verdict]
    figure: Figure | None = None
    beside: tuple[Quantity, ...] = ()

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """The numbers of its table, with their intervals over seeds."""
        return (*quantities(self.of, self.numbers), *self.beside)

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        """The experiments that it reads, in the order of the table."""
        return tuple({each.experiment.name: each.experiment for each in self.quantities}.values())

    @property
    def effort(self) -> Effort:
        """The first effort that can give a verdict."""
        return max(experiment.effort for experiment in self.experiments)

    @property
    def command(self) -> str:
        """The command that measures one seed of it again."""
        return f"groupwise claims --only {self.name} --{self.effort.words} --seed 0"

    def verdict(self, measurements: Measurements) -> Verdict:
        """Judge by the rows; "not measured" if an experiment has none, or one of its seeds failed."""
        needed = [experiment.name for experiment in self.experiments]
        if failed := [row for name in needed for row in measurements.failed(name)]:
            return Verdict(Outcome.NOT_MEASURED, f"{failed[0].experiment}, seed {failed[0].seed}: {failed[0].error}")
        if missing := [name for name in needed if not measurements.of(name)]:
            return Verdict(
                Outcome.NOT_MEASURED, f"no row of {', '.join(missing)} yet: --{self.effort.words} measures it"
            )
        try:
            of = self.of
            return self.judge(Numbers(measurements, of.name) if isinstance(of, Experiment) else measurements)
        except ZeroDivisionError:
            return Verdict(Outcome.NOT_MEASURED, "a number that the rule divides by is 0")
