"""What a task is: it gives samples of a split and scores completions. One typed sample object everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from groupwise.samples import Sample


class Task(Protocol):
    """A source of problems with a verifiable score.

    samples(split)         the problems of "train" or "heldout"; the same order in every process
    score(sample, text)    reward units, higher is better; 1.0 counts as solved
    alphabet               every character that prompts and completions of this task use ("" where unbounded)
    """

    @property
    def alphabet(self) -> str: ...

    def samples(self, split: str) -> Sequence[Sample]: ...

    def score(self, sample: Sample, completion: str) -> float: ...


@runtime_checkable
class ScoresSteps(Protocol):
    """A task that also scores the steps of a completion, for process supervision.

    steps(sample, text)    in their order, (position in the text just after the step's last character, reward units)
    """

    def steps(self, sample: Sample, completion: str) -> Sequence[tuple[int, float]]: ...


@dataclass(frozen=True)
class Demonstration:
    """A prompt with a completion to imitate, for the warm start."""

    prompt: str
    completion: str


@runtime_checkable
class Demonstrates(Protocol):
    """A task that can also show how answers look, so that a tiny policy has something to start from."""

    def demonstrations(self, count: int, seed: int) -> Iterable[Demonstration]: ...


@runtime_checkable
class Streams(Protocol):
    """A task that deals its training problems one by one, from several sources whose difficulty may move.

    sources                      their names; a run starts with each at level 0
    draw(index, seed, levels)    training problem number `index`; a function of its arguments alone
    moved(levels, rates)         the levels after a step with these (pass rate, completions) of each source
    """

    @property
    def sources(self) -> Sequence[str]: ...

    def draw(self, index: int, seed: int, levels: Mapping[str, int]) -> Sample: ...

    def moved(self, levels: Mapping[str, int], rates: Mapping[str, tuple[float, int]]) -> Mapping[str, int]: ...
