"""Guess a number: a whole environment, each guess of which is answered higher or lower.

    groupwise train guess-number

    7              the prompt: the number lies between 1 and 7
    4              the policy's first turn
    higher         the environment's answer
    6              ...

An environment needs three methods: `samples` gives the problems, `reset` begins an episode, `step` answers a turn. The
others are optional: `state` tells `advantage.kind = "gigpo"` which turns compare, `demonstrations` is for a warm start.
A number found within the turn limit is worth 1. Of nine numbers, 4 turns that go through them one by one find 4, and
halving what is left finds all. The demonstrations guess at random, also what is not there or was ruled out already.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from groupwise import Demonstration, Sample, UsageError

HIGHER, LOWER, NO_NUMBER = "higher\n", "lower\n", "what?\n"


@dataclass
class GuessNumber:
    """An episode; its fields are the keys of [task.settings].

    largest        numbers that games go up to
    problems       of the train split
    heldout        problems held out for evaluation
    guesses        of a demonstration at most
    wildest        the largest number that a demonstration guesses; no less than there is
    """

    largest: Sequence[int] = (5, 7, 9)
    problems: int = 420
    heldout: int = 126
    guesses: int = 4
    wildest: int = 15
    quick: ClassVar[bool] = True  # an answer takes microseconds and cannot hang: no process is needed to play it
    #: Every character that is said, for the tiny policy, whose tokens are characters; a real tokenizer needs none.
    alphabet: ClassVar[str] = "0123456789\n" + "".join(sorted(set("higherlowerwhat?")))

    def __post_init__(self) -> None:
        if not self.largest or not all(type(end) is int and 2 <= end <= 99 for end in self.largest):
            raise UsageError(f"task.settings.largest = {list(self.largest)}: must be whole numbers from 2 to 99")
        if min(self.problems, self.heldout) < 1:
            raise UsageError(
                f"task.settings.problems = {self.problems}, heldout = {self.heldout}: there must be 1 of each at least"
            )
        if not max(self.largest) <= self.wildest <= 999:
            raise UsageError(f"task.settings.wildest = {self.wildest}: must be from {max(self.largest)} to 999")
        self._number = 0
        self._low, self._high = 1, 0

    def samples(self, split: str) -> list[Sample]:
        """List every number of every game as often as every other, shuffled. Both splits have the same games, because
        no prompt says which number it is.
        """
        if split not in ("train", "heldout"):
            raise UsageError(f"guess-number has the splits train and heldout, not {split!r}")
        games = [(number, end) for end in self.largest for number in range(1, end + 1)]
        first, count = (0, self.problems) if split == "train" else (self.problems, self.heldout)
        drawn = [(i, *games[i % len(games)]) for i in range(first, first + count)]
        samples = [Sample(f"{i}: {number} of {end}", f"{end}\n", str(number)) for i, number, end in drawn]
        return sorted(samples, key=lambda sample: hashlib.sha256(sample.key.encode()).digest())

    def reset(self, sample: Sample) -> None:
        """Begin an episode: the number is the sample's answer; how far the game goes stands in the prompt."""
        self._number = int(sample.answer)
        self._low, self._high = 1, int(sample.prompt)

    def step(self, text: str) -> tuple[str, float, bool]:
        """Answer a guess -> (where the number lies, reward of this turn, whether the episode is over)."""
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
        """Say what is left: the range in which the number must lie."""
        return f"{self._low}-{self._high}"

    def gold(self, sample: Sample) -> str:
        """Say the number at once."""
        return sample.answer

    def demonstrations(self, count: int, seed: int) -> list[Demonstration]:
        """Play `count` games in which every guess is any number there is, whatever is known already."""
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
