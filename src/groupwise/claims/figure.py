"""A plot of a claim as data: which measured numbers stand at which places."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from groupwise.claims.measurements import Measurements

#: The values of one place of a line, by seed.
Place = Mapping[object, float]


@dataclass(frozen=True)
class Line:
    """A line of a figure: its name, and which number of one experiment stands at each place of the axis."""

    words: str
    experiment: str
    names: tuple[str, ...]

    @property
    def experiments(self) -> tuple[str, ...]:
        return (self.experiment,)

    def places(self, measurements: Measurements) -> list[Place]:
        return [measurements.numbers(self.experiment, name) for name in self.names]


@dataclass(frozen=True)
class LineOverRuns:
    """A line of a figure: its name, and at each place of the axis the same number of another experiment."""

    words: str
    experiments: tuple[str, ...]
    name: str

    def places(self, measurements: Measurements) -> list[Place]:
        return [measurements.numbers(experiment, self.name) for experiment in self.experiments]


@dataclass(frozen=True)
class LineOverSteps:
    """A line of a figure: its name, and a curve of an experiment's runs, step by step."""

    words: str
    experiment: str
    curve: str

    @property
    def experiments(self) -> tuple[str, ...]:
        return (self.experiment,)

    def places(self, measurements: Measurements) -> list[Place]:
        curves = measurements.curves(self.experiment, self.curve)
        steps = max((len(curve) for curve in curves.values()), default=0)
        return [_of_step(curves, step) for step in range(steps)]


def _of_step(curves: Mapping[object, Sequence[float | None]], step: int) -> Place:
    at = {seed: curve[step] for seed, curve in curves.items() if step < len(curve)}
    return {seed: value for seed, value in at.items() if value is not None}


@dataclass(frozen=True)
class Figure:
    """A plot of what was measured: means over seeds, with the 95 % interval as a band.

    at      the places on the horizontal axis, which is in `across`; none are the steps of runs. The vertical one is in
            `up`
    hint    what to see in it, in one sentence
    marks   horizontal lines to measure against: their place and words
    """

    title: str
    across: str
    up: str
    at: tuple[float, ...]
    lines: tuple[Line | LineOverRuns | LineOverSteps, ...]
    hint: str
    marks: tuple[tuple[float, str], ...] = ()
    log_across: bool = False
    log_up: bool = False
