"""Environments that are played in processes, and do there what the policy says."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from typing import Any

from groupwise.core.samples import Sample


class Counts:
    """Answers how many turns there were; the words say what else it does."""

    def __init__(self) -> None:
        self.turns = 0

    def reset(self, sample: Sample) -> str:
        return f"{sample.key} "

    def step(self, text: str) -> Any:
        self.turns += 1
        if text == "hang":
            time.sleep(60)
        if text == "crash":
            os.abort()
        if text == "exit":
            sys.exit(3)
        if text == "raise":
            raise KeyError("a key of mine")
        if text == "flood":
            print("x" * 2**22)
        if text == "leave":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        if text == "huge":
            return "x" * (2**20 + 1), 0.0, False
        return f"{self.turns}", self.turns / 4, text == "end"

    def state(self) -> str:
        return f"s{self.turns}"


class Moody:
    """No function of its sample and of what was said."""

    def reset(self, sample: Sample) -> None:
        return None

    def step(self, text: str) -> tuple[str, float, bool]:
        return f"{random.SystemRandom().random()}", 0.0, False


class Dice:
    """Written for TRL, with numbers of the module `random`."""

    def reset(self, **kwargs: object) -> str:
        self._wanted = random.randint(1, 10**9)
        self._won = False
        return f"{self._wanted}"

    def roll(self) -> int:
        """Rolls the dice."""
        return random.randint(1, 10**9)

    def guess(self, number: int) -> str:
        """
        Guesses the number.

        Args:
            number: the guess
        """
        self._won = number == self._wanted
        if not self._won:
            raise ValueError("wrong")
        return "right"

    def get_reward(self) -> float:
        return 0.75 if self._won else -0.5


def half(number: int) -> float:
    """
    Halves a number.

    Args:
        number: what is halved
    """
    return number / 2
