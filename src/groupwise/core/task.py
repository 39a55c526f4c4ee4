"""Protocol of tasks: a task gives samples of a split and scores completions. One typed sample object everywhere."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from groupwise.core.samples import Sample


class Task(Protocol):
    """A source of problems with a verifiable score.

    samples(split)         the problems of "train" or "heldout"; the same order in every process
    score(sample, text)    reward units, higher is better; 1.0 counts as solved
    alphabet               every character that prompts and completions of this task use ("" where unbounded)
    quick                  whether scoring takes microseconds and cannot hang: then it is done where the run is
    """

    @property
    def alphabet(self) -> str:
        return ""

    @property
    def quick(self) -> bool:
        return False

    def samples(self, split: str) -> Sequence[Sample]: ...

    def score(self, sample: Sample, completion: str) -> float: ...


@runtime_checkable
class ScoresSteps(Protocol):
    """A task that also scores the steps of a completion, for process supervision.

    steps(sample, text)    in their order, (position in the text just after the step's last character, reward units)
    """

    def steps(self, sample: Sample, completion: str) -> Sequence[tuple[int, float]]: ...


@runtime_checkable
class PlaysTurns(Protocol):
    """A task whose completions are episodes: their turns are their steps, and each has its reward.

    max_turns  the policy's in an episode at most
    """

    max_turns: int


@runtime_checkable
class ReadInParts(Protocol):
    """Task whose episodes the policy may read as several texts, each by itself: `in_parts` is the setting under which
    it does; "" if it does not.
    """

    @property
    def in_parts(self) -> str: ...


@runtime_checkable
class PlaysInProcesses(Protocol):
    """Task whose environments may live in processes of their own: `in_processes` says if they do."""

    in_processes: bool


@runtime_checkable
class Streams(Protocol):
    """A task that generates its training problems one by one, harder ones as the policy gets better.

    sources                     what it mixes, by name; `Sample.source` is one of them
    draw(index, seed, levels)   training problem number `index`; the same arguments give the same problem anywhere
    moved(levels, rates)        the levels after a step in which sources had these (pass rate, completions)
    """

    sources: Sequence[str]

    def draw(self, index: int, seed: int, levels: Mapping[str, int]) -> Sample: ...

    def moved(self, levels: Mapping[str, int], rates: Mapping[str, tuple[float, int]]) -> Mapping[str, int]: ...


@runtime_checkable
class Bounded(Protocol):
    """A task that ends a score by itself, as wrong, after `longest` seconds; its key `seconds` is a part of them."""

    seconds: float

    @property
    def longest(self) -> float: ...


@runtime_checkable
class BoundedTurns(Protocol):
    """A task whose environment ends an answer by itself after `longest_turn` seconds; 0.0: it may take any time."""

    @property
    def longest_turn(self) -> float: ...


#: What is entered while something starts that takes longer than a score may.
Starting = Callable[[], AbstractContextManager[None]]


@runtime_checkable
class Starts(Protocol):
    """A task that starts what it scores with (a process, tables) where that is first needed, and where it is lost: from
    `start_inside` on always inside of `starting()`.
    """

    def start_inside(self, starting: Starting) -> None: ...


@runtime_checkable
class ScoresLate(Protocol):
    """A task whose scorer may hang on what a policy writes: `late` is the score of what has none in time."""

    late: float


@runtime_checkable
class Answers(Protocol):
    """A task that may know no right answers: where `has_answers` is False it has no score of its own, and rewards or a
    reward model score completions.
    """

    has_answers: bool


@runtime_checkable
class Identified(Protocol):
    """A task whose problems are not determined by its settings alone: `contents`, a hash, changes when they do."""

    contents: str


@runtime_checkable
class Notes(Protocol):
    """A task with notes on its problems for the user, one line each: what was left out, and why."""

    def notes(self) -> Sequence[str]: ...


@runtime_checkable
class LeavesOut(Protocol):
    """A task whose data holds problems more than once; neither split contains these rows.

    repeated   problems that come again in their own split
    leaked     held-out problems that are training problems too
    disputed   one line for each problem that has several gold answers: where, and which
    """

    repeated: Sequence[Sample]
    leaked: Sequence[Sample]
    disputed: Sequence[str]


@runtime_checkable
class HoldsOutSets(Protocol):
    """A task that may hold out several sets, each of which is evaluated and reported by itself.

    sets  name -> its problems, whose `Sample.heldout_set` is the name; empty where there is one set without a name
    """

    sets: Mapping[str, Sequence[Sample]]


@runtime_checkable
class KnowsGold(Protocol):
    """A task that knows a completion of each problem that should score 1.0; "" where it knows none."""

    def gold(self, sample: Sample) -> str: ...


@dataclass(frozen=True)
class Demonstration:
    """A prompt with a completion to imitate, for the warm start.

    messages  the conversation that the prompt is the end of, as in Sample; empty where the prompt is one text
    tools     JSON schemas of functions, as in Sample
    """

    prompt: str
    completion: str
    messages: Sequence[Mapping[str, Any]] = ()
    tools: Sequence[Mapping[str, Any]] = ()


@runtime_checkable
class Demonstrates(Protocol):
    """A task that also has completions to imitate, so that a tiny policy has something to start from."""

    def demonstrations(self, count: int, seed: int) -> Iterable[Demonstration]: ...
