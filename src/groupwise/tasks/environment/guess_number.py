"""The environment `guess-number`: find one of the numbers that there are; each guess is answered higher or lower.

    7              the prompt: the number lies between 1 and 7
    4              the policy's first turn
    higher         the environment's answer
    6              ...

A number found within the turn limit is worth 1. Of nine numbers, 4 turns that go through them one by one find 4, and
halving what is left finds all. The demonstrations guess at random, also what is not there or was ruled out already.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.core.task import Demonstration
from groupwise.tasks.splits import SPLITS, require_split

HIGHER, LOWER, NO_NUMBER = "higher\n", "lower\n", "what?\n"


@dataclass
class GuessNumber:
    """One episode; its settings are the same for all.

    largest        (smallest, largest) of the numbers that games go up to
    problems       of the train split
    heldout        problems held out for evaluation
    guesses        of a demonstration at most
    wildest        the largest number that a demonstration guesses; no less than there is
    """

    largest: Sequence[int] = (7, 9)
    problems: int = 480
    heldout: int = 120
    guesses: int = 4
    wildest: int = 15
    quick: ClassVar[bool] = True
    alphabet: ClassVar[str] = "0123456789\n" + "".join(sorted(set("higherlowerwhat?")))

    def __post_init__(self) -> None:
        smallest, largest = self.largest
        if not 2 <= smallest <= largest <= 9:
            raise UsageError(
                f"task.settings.largest = {list(self.largest)}: must be [a, b] with 2 <= a <= b <= 9, as a number is a "
                "digit"
            )
        if min(self.problems, self.heldout) < 1:
            raise UsageError(
                f"task.settings.problems = {self.problems}, heldout = {self.heldout}: there must be 1 of each at least"
            )
        if not largest <= self.wildest <= 999:
            raise UsageError(f"task.settings.wildest = {self.wildest}: must be from {largest} to 999")
        self._number = 0
        self._low, self._high = 1, 0

    def samples(self, split: str) -> list[Sample]:
        """Games of every size in turn, each with a number that is drawn. Both splits have the same games, with numbers
        of their own: no prompt says which.
        """
        require_split(split, "guess-number")
        rng, (smallest, largest) = random.Random(0), self.largest
        drawn: list[Sample] = []
        for i in range(self.problems + self.heldout):
            end = smallest + i % (largest - smallest + 1)
            number = rng.randint(1, end)
            drawn.append(Sample(f"{i}: {number} of {end}", f"{end}\n", str(number)))
        return drawn[: self.problems] if split == SPLITS[0] else drawn[self.problems :]

    def reset(self, sample: Sample) -> None:
        """The number is the sample's answer; how far the game goes stands in the prompt."""
        self._number = int(sample.answer)
        self._low, self._high = 1, int(sample.prompt)

    def step(self, text: str) -> tuple[str, float, bool]:
        """Where the number lies, seen from the guess; 1 and the end where it is the guess."""
        guess = text.removesuffix("\n")  # blanks are no part of a number: what costs nothing an entropy bonus buys
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
            guess = f"{rng.randint(1, self.wildest)}\n"
            turns.append(Demonstration(history, guess))
            answer, _, done = self.step(guess)
            history += guess + answer
            if done:
                break
        return turns
