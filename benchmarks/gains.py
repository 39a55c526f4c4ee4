"""How often the words "rose", "fell" and "cannot be told" are right, and what so many held-out problems can tell.

    python benchmarks/gains.py > table.md

Truths are made: each problem has a chance of being solved before and one after, drawn from a population whose mean
change is known. Problems and their samples are drawn from it, and core/numbers/change.py says what it sees.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from groupwise.core.numbers.change import FELL, ROSE, SHARE, Change, change

PROBLEMS, SAMPLES, GAINS = (12, 50, 500), (1, 4), (0.02, 0.05, 0.1, 0.2)
#: Beta distributions of the chance of solving a problem: some problems easy and some hard, all middling, most easy.
ABILITIES = {"either": (0.4, 0.4), "middling": (5.0, 5.0), "easy": (3.0, 0.6)}
#: Problems in a population.
POPULATION = 100_000

Draw = np.random.Generator


@dataclass(frozen=True)
class Truth:
    """A population of problems: the chance of solving each before and after, [POPULATION] each."""

    words: str
    before: np.ndarray
    after: np.ndarray

    @property
    def gain(self) -> float:
        return float((self.after - self.before).mean())


def shifted(name: str, gain: float, draw: Draw) -> Truth:
    """Every problem is solved more often, by as much in the logit as makes the mean rise by `gain`."""
    before = np.clip(draw.beta(*ABILITIES[name], POPULATION), 1e-6, 1 - 1e-6)
    low, high = 0.0, 30.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _moved(before, middle).mean() - before.mean() < gain else (low, middle)
    return Truth(f"{name}, all by as much", before, _moved(before, low))


def traded(up: bool) -> Truth:
    """Nine in ten problems rise from 0.9 to 1, the tenth falls from 0.9 to 0; or where `up` is False the reverse."""
    before, after = np.full(POPULATION, 0.9), np.ones(POPULATION)
    after[: POPULATION // 10] = 0.0
    return Truth("most rise a little, few fall far", before, after) if up else Truth("the reverse", after, before)


def churned(draw: Draw) -> Truth:
    """Half of the problems are solved as often as another one was: as much rises as falls."""
    before = draw.beta(*ABILITIES["either"], POPULATION)
    other = draw.permutation(POPULATION // 2)
    return Truth("half change places", before, np.concatenate([before[other], before[POPULATION // 2 :]]))


def _moved(chance: np.ndarray, logit: float) -> np.ndarray:
    return chance / (chance + (1 - chance) * np.exp(-logit))


def seen(truth: Truth, problems: int, samples: int, runs: int, draw: Draw) -> Iterator[Change]:
    """What is said of as many pairs of evaluations of a truth."""
    for _ in range(runs):
        chosen = draw.integers(0, POPULATION, problems)
        before, after = (draw.binomial(samples, of[chosen]) / samples for of in (truth.before, truth.after))
        yield change(_by_key(before), _by_key(after), SHARE)


def _by_key(values: np.ndarray) -> dict[str, float]:
    return {str(key): float(value) for key, value in enumerate(values)}


@dataclass(frozen=True)
class Rates:
    """Shares of all runs: said to have risen, said to have fallen, the true change in the interval."""

    rose: float
    fell: float
    held: float


def rates(truth: Truth, problems: int, samples: int, runs: int) -> Rates:
    """The rates of one truth at one size; the same numbers each time."""
    draw = np.random.default_rng([problems, samples, runs])
    every = list(seen(truth, problems, samples, runs, draw))
    gain = truth.gain
    return Rates(
        rose=float(np.mean([one.verdict == ROSE for one in every])),
        fell=float(np.mean([one.verdict == FELL for one in every])),
        held=float(np.mean([one.interval is not None and gain in one.interval for one in every])),
    )


def unchanged() -> list[Truth]:
    """Truths whose mean does not change."""
    draw = np.random.default_rng(0)
    return [*(shifted(name, 0.0, draw) for name in ABILITIES), churned(draw), traded(up=True), traded(up=False)]


def risen(gain: float) -> list[Truth]:
    """Truths whose mean rises by as much, where it can."""
    draw = np.random.default_rng(1)
    return [truth for name in ABILITIES if abs((truth := shifted(name, gain, draw)).gain - gain) < 1e-3]


def tables(runs: int) -> Iterator[str]:
    """Both tables, line by line."""
    sizes = [(problems, samples) for problems in PROBLEMS for samples in SAMPLES]
    yield f"Nothing changed on the whole; the worst of {len(unchanged())} truths:\n"
    yield "| problems | samples of each | said to have risen | to have fallen | least share that hold the truth |"
    yield "|---|---|---|---|---|"
    for size in sizes:
        worst = _each(unchanged, size, runs)
        most = [max(getattr(one, name) for one in worst) for name in ("rose", "fell")]
        yield f"| {size[0]} | {size[1]} | {most[0]:.1%} | {most[1]:.1%} | {min(one.held for one in worst):.1%} |"
    yield "\nThe true mean rose; said to have risen, mean over the populations that can rise by so much:\n"
    yield f"| problems | samples of each | {' | '.join(f'by {gain:g}' for gain in GAINS)} | least share that hold it |"
    yield "|---|---|" + "---|" * (len(GAINS) + 1)
    for size in sizes:
        found = [_each(partial(risen, gain), size, runs) for gain in GAINS]
        power = " | ".join(f"{np.mean([one.rose for one in each]):.0%}" for each in found)
        yield f"| {size[0]} | {size[1]} | {power} | {min(one.held for each in found for one in each):.1%} |"


def _each(truths: Callable[[], list[Truth]], size: tuple[int, int], runs: int) -> list[Rates]:
    return [rates(truth, *size, runs) for truth in truths()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="pairs of evaluations of each truth at each size")
    for line in tables(parser.parse_args().runs):
        print(line, flush=True)


if __name__ == "__main__":
    main()
