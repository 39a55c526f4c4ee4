"""Grid world: walk to a goal past hidden walls; an environment that knows more than its prompts say.

    groupwise train grid-world

    a1 c2          the prompt: the policy stands in a1, the goal is c2
    e              the policy's first turn: one place to the east
    wall           the environment's answer: there is a wall, it still stands in a1
    n
    a2             it stands in a2 now
    ...

What this example shows beside guess_number.py: problems that are generated and checked, each with a layout of its own;
an answer in the sample that no prompt has; a `state` that holds what was learned on the way.
Letters go east and digits north. The goal within the turn limit is worth 1, and a move costs nothing but its turn: the
limit makes detours lose already, and a goal that is reached late is solved as well, which a score below 1 is not. The
demonstrations move at random.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from string import ascii_lowercase
from typing import ClassVar

from groupwise import Demonstration, Sample, UsageError

WALL, NO_MOVE = "wall\n", "no move\n"
#: A move -> how far east and how far north it goes.
MOVES: Mapping[str, tuple[int, int]] = {"n": (0, 1), "e": (1, 0), "s": (0, -1), "w": (-1, 0)}
#: Layouts that are drawn for each problem that is wanted, at most.
DRAWS = 50
#: Places of a side at most: a place is a letter and one digit.
LARGEST = 9


@dataclass(frozen=True)
class Grid:
    """Square places `a1`, `b1`, ... with walls between neighbours, each the text `a1-b1`, the smaller place first."""

    size: int
    walls: frozenset[str] = frozenset()

    def places(self) -> list[str]:
        """List all places."""
        return [f"{letter}{number + 1}" for letter in ascii_lowercase[: self.size] for number in range(self.size)]

    def beside(self, place: str, move: str) -> str | None:
        """Find the place in that direction, whether or not there is a wall; None over the edge."""
        east, north = MOVES[move]
        column, row = ascii_lowercase.index(place[0]) + east, int(place[1]) + north
        return f"{ascii_lowercase[column]}{row}" if 0 <= column < self.size and 1 <= row <= self.size else None

    def after(self, place: str, move: str) -> str | None:
        """Find the place that a move leads to; None if a wall or the edge is in the way."""
        there = self.beside(place, move)
        return None if there is None or between(place, there) in self.walls else there

    def shortest(self, start: str) -> dict[str, str]:
        """Find the moves of a shortest path to each place that can be reached."""
        paths = {start: ""}
        for place in (queue := [start]):
            for move in MOVES:
                there = self.after(place, move)
                if there is not None and there not in paths:
                    paths[there] = paths[place] + move
                    queue.append(there)
        return paths


@dataclass
class GridWorld:
    """An episode; its fields are the keys of [task.settings].

    size      places of each side
    walls     between places of a layout, beside the edge
    distance  (fewest, most) moves of a shortest path from the start to the goal
    turns     as many as task.max_turns: of a demonstration at most, and no shortest path may have more
    problems  of the train split, each with a layout of its own
    heldout   problems held out for evaluation, with layouts that no training problem has
    """

    size: int = 4
    walls: int = 6
    distance: Sequence[int] = (2, 4)
    turns: int = 10
    problems: int = 512
    heldout: int = 64
    quick: ClassVar[bool] = True
    alphabet: ClassVar[str] = "".join(sorted({*"\n 123456789", *ascii_lowercase[:LARGEST], *MOVES, *WALL, *NO_MOVE}))

    def __post_init__(self) -> None:
        for name in ("size", "walls", "turns", "problems", "heldout"):
            if type(value := getattr(self, name)) is not int:
                raise UsageError(f"task.settings.{name} = {value!r}: must be a whole number")
        if not isinstance(self.distance, (list, tuple)) or [type(moves) for moves in self.distance] != [int, int]:
            raise UsageError(f"task.settings.distance = {self.distance!r}: must be a list of 2 whole numbers")
        if not 2 <= self.size <= LARGEST:
            raise UsageError(f"task.settings.size must be from 2 to {LARGEST}, not {self.size}")
        fewest, most = self.distance
        if not 1 <= fewest <= most <= self.turns:
            raise UsageError(
                f"task.settings.distance = {[fewest, most]}, turns = {self.turns}: must be [a, b] with "
                "1 <= a <= b <= turns, or a goal is too far for the turns there are"
            )
        if min(self.problems, self.heldout) < 1:
            raise UsageError(
                f"task.settings.problems = {self.problems}, heldout = {self.heldout}: must be 1 or more each"
            )
        self._require_layouts()
        self._grid, self._place, self._goal = Grid(self.size), "", ""
        self._known: set[str] = set()

    def _require_layouts(self) -> None:
        inner, wanted = 2 * self.size * (self.size - 1), self.problems + self.heldout
        if not 0 <= self.walls <= inner or comb(inner, self.walls) < 2 * wanted:
            raise UsageError(
                f"task.settings.walls = {self.walls}, size = {self.size}: too few layouts for {wanted} problems that "
                f"differ; there are {inner} places for walls"
            )

    def samples(self, split: str) -> list[Sample]:
        """List the problems of a split, each of another layout. The walls are the answer, which no prompt has.

        Raises UsageError if too few layouts have a goal at such a distance.
        """
        if split not in ("train", "heldout"):
            raise UsageError(f"grid-world has the splits train and heldout, not {split!r}")
        drawn = list(self._problems())
        return drawn[: self.problems] if split == "train" else drawn[self.problems :]

    def _problems(self) -> Iterator[Sample]:
        rng, seen, wanted = random.Random(0), set[frozenset[str]](), self.problems + self.heldout
        inner, places = sorted(_inner_walls(self.size)), Grid(self.size).places()
        for _ in range(DRAWS * wanted):
            if len(seen) == wanted:
                return
            grid, start = Grid(self.size, frozenset(rng.sample(inner, self.walls))), rng.choice(places)
            fewest, most = self.distance
            goals = [goal for goal, path in grid.shortest(start).items() if fewest <= len(path) <= most]
            if goals and grid.walls not in seen:
                seen.add(grid.walls)
                yield _problem(grid, start, rng.choice(goals))
        if len(seen) < wanted:
            raise UsageError(
                f"task.settings.distance = {list(self.distance)}: of {DRAWS * wanted} layouts only {len(seen)} have a "
                f"goal that far; {wanted} are needed"
            )

    def reset(self, sample: Sample) -> None:
        """Begin an episode: the walls are the sample's answer, start and goal stand in its prompt."""
        self._grid = Grid(self.size, frozenset(sample.answer.split()))
        self._place, self._goal = sample.prompt.split()
        self._known = set()

    def step(self, text: str) -> tuple[str, float, bool]:
        """Answer a move -> (the place it leads to or that there is a wall, reward of this turn, whether it is over)."""
        move = text.strip()
        if move not in MOVES:
            return NO_MOVE, 0.0, False
        there = self._grid.after(self._place, move)
        if there is None:
            behind = self._grid.beside(self._place, move)
            if behind is not None:  # the edge is not noted: it is the same in every problem
                self._known.add(between(self._place, behind))
            return WALL, 0.0, False
        self._place = there
        return ("", 1.0, True) if there == self._goal else (f"{there}\n", 0.0, False)

    def state(self) -> str:
        """Say the place and the walls bumped into: with other knowledge another move is right, so that turns of the
        same place alone do not compare.
        """
        return " ".join([self._place, *sorted(self._known)])

    def demonstrations(self, count: int, seed: int) -> list[Demonstration]:
        """Take `count` walks in which every move is any of the four, whatever is known already."""
        rng, train = random.Random(seed), self.samples("train")
        return [turn for _ in range(count) for turn in self._walk(rng.choice(train), rng)]

    def _walk(self, sample: Sample, rng: random.Random) -> list[Demonstration]:
        turns, history, done = [], sample.prompt, False
        self.reset(sample)
        while not done and len(turns) < self.turns:
            move = f"{rng.choice(list(MOVES))}\n"
            turns.append(Demonstration(history, move))
            answer, _, done = self.step(move)
            history += move + answer
        return turns


def between(place: str, there: str) -> str:
    """Name the wall between two neighbours.

    >>> between("b1", "a1")
    'a1-b1'
    """
    return "-".join(sorted((place, there)))


def _inner_walls(size: int) -> set[str]:
    """List the places for walls: between any two neighbours."""
    grid = Grid(size)
    steps = ((place, grid.beside(place, move)) for place in grid.places() for move in MOVES)
    return {between(place, there) for place, there in steps if there is not None}


def _problem(grid: Grid, start: str, goal: str) -> Sample:
    walls = " ".join(sorted(grid.walls))
    return Sample(key=f"{start} {goal} {walls}", prompt=f"{start} {goal}\n", answer=walls)
