"""The task `reasoning_gym`: any of its generators, alone or mixed by weight, scored by its own scorer.

Whether a problem is held out is decided by the hash of its prompt, so no seed, level or draw can move it across.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.core.task import Demonstration
from groupwise.tasks.gym.answers import final_answer, harmless
from groupwise.tasks.gym.curriculum import Curriculum, curriculum, parameters_at
from groupwise.tasks.gym.forms import FORMS, mistaken, show
from groupwise.tasks.gym.problems import (
    Entry,
    Source,
    dataset,
    entry_of,
    level_of,
    number,
    pool,
    seed_of,
    source,
)

SPLITS = ("train", "heldout")


@dataclass(frozen=True)
class Gym:
    """One generator with its `parameters`, or a mixture: `generators`, name -> its parameters and a `weight`.

    problems       how many are drawn of each generator (and level), both splits together; equal ones count once
    heldout_share  the share of problems kept for evaluation
    question       "full": the generator's own words; "short": a few characters, for tiny policies
    answer_after   the answer is what follows the last of these; "" takes the whole completion
    tags           the answer stands between <answer> and </answer>
    worked_share   the share of demonstrations that are right
    curriculum     levels, up, down, completions: see Curriculum; empty keeps every problem at the recipe's parameters
    seed           draws the problems

    >>> task = Gym(generator="gcd", parameters={"max_value": 50}, problems=100)
    >>> sample = task.samples("train")[0]
    >>> task.score(sample, sample.answer)
    1.0
    """

    generator: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    generators: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    problems: int = 2000
    heldout_share: float = 0.12
    question: str = "full"
    answer_after: str = ""
    tags: bool = False
    worked_share: float = 0.45
    curriculum: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    quick: ClassVar[bool] = False  # its scorers are many people's code

    def __post_init__(self) -> None:
        if self.problems < 2:
            raise UsageError(f"task.problems must be at least 2, not {self.problems}")
        if not 0 < self.heldout_share < 1:
            raise UsageError(f"task.heldout_share must lie between 0 and 1, not {self.heldout_share}")
        if not 0 <= self.worked_share <= 1:
            raise UsageError(f"task.worked_share must be from 0 to 1, not {self.worked_share}")
        if self.tags and self.answer_after:
            raise UsageError("task.tags and task.answer_after both say where the answer stands; set one of them")
        self._demand_question()
        for name, level in itertools.product(self._sources, range(self._curriculum.levels)):
            self._dataset(name, level)  # refuses impossible parameters before anything starts

    def __getstate__(self) -> dict[str, Any]:
        """The recipe's keys alone: another process makes its own problems rather than be sent these."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @property
    def sources(self) -> tuple[str, ...]:
        """The generators' names."""
        return tuple(self._sources)

    @cached_property
    def alphabet(self) -> str:
        """Every character of all prompts, answers and demonstrations, at every level."""
        found = set("<answer></answer>" if self.tags else self.answer_after)
        for sample in itertools.chain(*self._train.values(), *self._heldout.values()):
            found.update(sample.prompt, sample.answer)
            if sample.source in FORMS:
                found.update(
                    show(sample, self.answer_after, self.tags), mistaken(sample, (), self.tags, random.Random())
                )
        return "".join(sorted(found))

    def samples(self, split: str) -> Sequence[Sample]:
        """The problems of "train" (at level 0, each generator in proportion to its weight, as many as the scarcest
        allows) or "heldout" (of every level, the generators in turn), the same in every process.
        """
        if split not in SPLITS:
            raise UsageError(f"reasoning_gym has the splits {' and '.join(SPLITS)}, not {split!r}")
        return self._mixed if split == "train" else self._in_turn

    def score(self, sample: Sample, completion: str) -> float:
        """The generator's own scorer on the answer found in the completion; some give part of a point when wrong.

        0.0 where the scorer fails: a text it cannot read is no answer.
        """
        answer = final_answer(completion, self.answer_after, self.tags)
        if answer is None or not harmless(sample.source, answer):
            return 0.0
        scorer, entry = self._dataset(sample.source, level_of(sample)), entry_of(sample)
        try:
            return float(scorer.score_answer(answer, entry))
        except Exception:  # some scorers take for granted that an answer looks like one
            return 0.0

    def gold(self, sample: Sample) -> str:
        """A right completion, in the form that answers are looked for; "" where the generator names no answer."""
        return show(sample, self.answer_after, self.tags) if sample.extra["answered"] else ""

    def demonstrations(self, count: int, seed: int) -> list[Demonstration]:
        """`count` demonstrations on training problems of all levels, the generators by weight: a `worked_share` of them
        right, the others mistaken. Raises UsageError where no generator names its answers.
        """
        shown = {key: tuple(s for s in found if s.extra["answered"]) for key, found in self._train.items()}
        shown = {key: found for key, found in shown.items() if found}
        if not shown:
            raise UsageError(f"{', '.join(self.sources)}: reasoning_gym names no answer, so nothing can be shown")
        rng, weights = random.Random(seed), [self._sources[name].weight for name, _ in shown]
        return [self._demonstrate(rng.choices(list(shown.values()), weights)[0], rng) for _ in range(count)]

    def _demonstrate(self, samples: Sequence[Sample], rng: random.Random) -> Demonstration:
        sample, right = rng.choice(samples), rng.random() < self.worked_share
        completion = show(sample, self.answer_after, self.tags) if right else mistaken(sample, samples, self.tags, rng)
        return Demonstration(sample.prompt, completion)

    def draw(self, index: int, seed: int, levels: Mapping[str, int]) -> Sample:
        """Training problem number `index` of a stream: its generator by weight, at that generator's level."""
        rng = random.Random(seed_of("draw", seed, index))
        weights = [source.weight for source in self._sources.values()]
        name = rng.choices(self.sources, weights)[0]
        return rng.choice(self._train[name, min(levels.get(name, 0), self._curriculum.levels - 1)])

    def moved(self, levels: Mapping[str, int], rates: Mapping[str, tuple[float, int]]) -> Mapping[str, int]:
        """Each generator's level after a step with these (pass rate, completions) of it."""
        return self._curriculum.moved(levels, rates)

    @cached_property
    def _sources(self) -> dict[str, Source]:
        if bool(self.generator) == bool(self.generators):
            raise UsageError(
                'task: set generator = "chain_sum", or a table [task.generators.chain_sum] for each of several'
            )
        if self.generators and self.parameters:
            raise UsageError("task.parameters belong to task.generator; write them under [task.generators.NAME]")
        if self.generator:
            return {self.generator: source(self.generator, self.parameters, "task.parameters")}
        return {name: source(name, table, f"task.generators.{name}") for name, table in self.generators.items()}

    @cached_property
    def _curriculum(self) -> Curriculum:
        return curriculum(self.curriculum)

    @cached_property
    def _datasets(self) -> dict[tuple[str, int], Any]:
        return {}

    def _dataset(self, name: str, level: int) -> Any:
        """reasoning_gym's own object, which makes problems and scores answers: the recipe's parameters come first, then
        the level's."""
        if (name, level) not in self._datasets:
            chosen = self._sources[name]
            easy = parameters_at(name, level) if self._curriculum.levels > 1 else {}
            seed = seed_of(self.seed, name, level)
            self._datasets[name, level] = dataset(chosen, {**easy, **chosen.own}, seed, self.problems)
        return self._datasets[name, level]

    @cached_property
    def _pools(self) -> dict[tuple[str, int], tuple[Sample, ...]]:
        """(generator, level) -> its different problems, both splits, in a shuffled order."""
        keys = itertools.product(self._sources, range(self._curriculum.levels))
        made = {(n, level): pool(self._sources[n], self._dataset(n, level), level, self._prompt) for n, level in keys}
        return {key: self._shuffled("order", found) for key, found in made.items()}

    def _shuffled(self, name: str, samples: Iterable[Sample]) -> tuple[Sample, ...]:
        return tuple(sorted(samples, key=lambda sample: number(name, self.seed, sample.key)))

    @cached_property
    def _train(self) -> dict[tuple[str, int], tuple[Sample, ...]]:
        return self._split(heldout=False)

    @cached_property
    def _heldout(self) -> dict[tuple[str, int], tuple[Sample, ...]]:
        return self._split(heldout=True)

    def _split(self, heldout: bool) -> dict[tuple[str, int], tuple[Sample, ...]]:
        found = {key: tuple(s for s in all_ if self._is_heldout(s) == heldout) for key, all_ in self._pools.items()}
        for (name, _), samples in found.items():
            if not samples:
                raise UsageError(
                    f"{self._sources[name].where}: {name} gives too few different problems to hold some out and train "
                    "on others; raise task.problems, or its parameters"
                )
        return found

    def _is_heldout(self, sample: Sample) -> bool:
        return number("split", sample.prompt) < self.heldout_share

    @cached_property
    def _mixed(self) -> tuple[Sample, ...]:
        scale = min(len(self._train[s.name, 0]) / s.weight for s in self._sources.values())
        counts = {s.name: max(1, round(scale * s.weight)) for s in self._sources.values()}
        chosen = itertools.chain(*(self._train[name, 0][:count] for name, count in counts.items()))
        return self._shuffled("mixture", chosen)

    @cached_property
    def _in_turn(self) -> tuple[Sample, ...]:
        """Any first part holds equally many of each generator and level; what two levels share counts for the first."""
        rounds = itertools.zip_longest(*self._heldout.values())
        found = {sample.key: sample for sample in reversed([s for turn in rounds for s in turn if s is not None])}
        return tuple(reversed(found.values()))

    def _demand_question(self) -> None:
        if self.question not in ("full", "short"):
            raise UsageError(f'task.question = {self.question!r}: must be "full" or "short"')
        without = [name for name in self._sources if name not in FORMS]
        if self.question == "short" and without:
            raise UsageError(
                f"task.question = 'short': {', '.join(without)} can only be asked in full; short are {', '.join(FORMS)}"
            )

    def _prompt(self, entry: Entry) -> str:
        if self.question == "full":
            return entry["question"]
        return FORMS[entry["metadata"]["source_dataset"]].ask(entry["metadata"])
