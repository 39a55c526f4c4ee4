"""The environment `guess-number`: find a number between two; each guess is answered higher or lower.

    2-8            the prompt: the number lies between 2 and 8
    5              the policy's first turn
    higher         the environment's answer
    7              ...

A number found within the turn limit is worth 1. Of nine numbers, 4 turns that go through them one by one find 4, and
halving what is left finds all. The demonstrations guess at random, also what is out of range or was ruled out already.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.core.task import Demonstration
from groupwise.tasks.splits import hash_fraction, require_split

HIGHER, LOWER, NO_NUMBER = "higher\n", "lower\n", "no number\n"


@dataclass
class GuessNumber:
    """One episode; its settings are the same for all.

    numbers        (smallest, largest) that a range may reach to
    fewest         numbers of a range, 2 at least
    heldout_share  the share of ranges held out for evaluation, with all numbers in them
    guesses        of a demonstration at most
    wildest        the largest number that a demonstration guesses; at least the largest of `numbers`
    """

    numbers: Sequence[int] = (1, 9)
    fewest: int = 5
    heldout_share: float = 0.3
    guesses: int = 4
    wildest: int = 15
    quick: ClassVar[bool] = True
    alphabet: ClassVar[str] = "-0123456789\n" + "".join(sorted(set("higherlowernumber ")))

    def __post_init__(self) -> None:
        smallest, largest = self.numbers
        if not 0 <= smallest < largest <= 999:
            raise UsageError(f"task.settings.numbers = {list(self.numbers)}: must be [a, b] with 0 <= a < b <= 999")
        if not 2 <= self.fewest < largest - smallest + 1:
            raise UsageError(
                f"task.settings.fewest = {self.fewest}: must be 2 or more, and fewer than the {largest - smallest + 1} "
                "numbers that there are, so that ranges differ"
            )
        if not largest <= self.wildest <= 999:
            raise UsageError(f"task.settings.wildest = {self.wildest}: must be from {largest} to 999")
        self._number = 0
        self._low, self._high = 1, 0

    def samples(self, split: str) -> list[Sample]:
        """Every range of the split with every number in it, shuffled. A range is in one split: a policy learns which
        numbers are ever the right one.
        """
        require_split(split, "guess-number")
        games = [
            Sample(key=f"{number} of {low}-{high}", prompt=f"{low}-{high}\n", answer=str(number))
            for low, high in self._ranges()[split]
            for number in range(low, high + 1)
        ]
        return sorted(games, key=lambda game: hash_fraction(game.key))

    def _ranges(self) -> dict[str, list[tuple[int, int]]]:
        """The ranges of each split. Whatever a held-out range begins or ends with, a training range does too."""
        smallest, largest = self.numbers
        train = [(a, b) for a in range(smallest, largest + 1) for b in range(a + self.fewest - 1, largest + 1)]
        count, heldout = max(1, round(self.heldout_share * len(train))), []
        for low, high in sorted(train, key=lambda ends: hash_fraction(f"{ends[0]}-{ends[1]}")):
            others = [ends for ends in train if ends != (low, high)]
            if len(heldout) < count and any(a == low for a, _ in others) and any(b == high for _, b in others):
                heldout.append((low, high))
                train = others
        return {"train": train, "heldout": heldout}

    def reset(self, sample: Sample) -> None:
        """The number is the sample's answer, its range stands in the prompt."""
        self._number = int(sample.answer)
        self._low, self._high = map(int, sample.prompt.split("-"))

    def step(self, text: str) -> tuple[str, float, bool]:
        """Where the number lies, seen from the guess; 1 and the end where it is the guess."""
        guess = text.strip()
        if not (guess.isascii() and guess.isdecimal()):
            return NO_NUMBER, 0.0, False
        if int(guess) == self._number:
            return "", 1.0, True
        if int(guess) < self._number:
            self._low = max(self._low, int(guess) + 1)
            return HIGHER, 0.0, False
        self._high = min(self._high, int(guess) - 1)
        return LOWER, 0.0, False

    def state(self) -> str:
        """What is left: the range in which the number must lie."""
        return f"{self._low}-{self._high}"

    def demonstrations(self, count: int, seed: int) -> list[Demonstration]:
        """Turns of `count` games in which every guess is any number there is, whatever is known already."""
        rng, train = random.Random(seed), self.samples("train")
        return [turn for _ in range(count) for turn in self._game(rng.choice(train), rng)]

    def _game(self, sample: Sample, rng: random.Random) -> list[Demonstration]:
        turns, history = [], sample.prompt
        self.reset(sample)
        for _ in range(self.guesses):
            guess = f"{rng.randint(self.numbers[0], self.wildest)}\n"
            turns.append(Demonstration(history, guess))
            answer, _, done = self.step(guess)
            history += guess + answer
            if done:
                break
        return turns
