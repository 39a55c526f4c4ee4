"""Code in turns: a program is written, and if it fails its tests, written again; an environment made of a task.

    groupwise train code-turns

    +3*2:                  the prompt, a function of the task `code`
    return x+3*2           the policy's first turn
    wrong answer           the environment's answer
    x+=3;x*=2;return x     the policy's second turn

Problems, tests and the sandbox are those of the task `code`, which `groupwise.task` makes; its `explained` says how a
program failed and nothing of its tests. A program that passes them all is worth 1 and ends the episode.
Making the task takes long, so this class has `fresh`: a process makes it once, and its episodes share the sandbox.
"""

import copy
import dataclasses
import math
import random
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import groupwise
from groupwise import Demonstration, Sample, UsageError

#: The answer to a program that fails a test, and the seconds that finding the words may take.
WRONG_ANSWER, MARGIN = "wrong answer", 2.0
#: A slip: the right text and the wrong one, in the last statement, which every generated function has.
SLIPS = (("return x", "retun x"), ("return x", "return n"))
#: Every character that Python's messages are written with.
_PRINTABLE = string.digits + string.ascii_letters + string.punctuation + " \n"


class CodeTurns:
    """One episode, or what all episodes of a process share; settings are those of the task `code`, and two of its own.

    slip_share    the share of the demonstrations' first turns that have a slip: a misspelt keyword or name
    mended_share  the share of the demonstrations' second turns that are right, where the first was not
    """

    own_path: ClassVar[str] = "task.settings.path"

    def __init__(self, slip_share: float = 0.2, mended_share: float = 0.4, **settings: Any) -> None:
        """Raise UsageError for a setting that does not exist, has another type or cannot be."""
        for key, share in (("slip_share", slip_share), ("mended_share", mended_share)):
            if type(share) not in (int, float) or not 0 <= share <= 1:
                raise UsageError(f"task.settings.{key} must be from 0 to 1, not {share}")
        self._slips, self._mended = slip_share, mended_share
        try:
            self._code: Any = groupwise.task("code", settings)
        except UsageError as error:
            raise _in_settings(error, settings) from None
        self._sample: Sample | None = None
        self._rewards: list[float] = []

    @property
    def alphabet(self) -> str:
        """The characters of the generated functions and of the answers to them; "" for problems of a file."""
        return "".join(sorted({*self._code.alphabet, *_PRINTABLE})) if self._code.alphabet else ""

    @property
    def longest(self) -> float:
        """The seconds that an answer may take, whatever the program does."""
        return self._code.longest + MARGIN

    @property
    def contents(self) -> str:
        """A hash of what the files say, by which a run that goes on sees that they changed."""
        return self._code.contents

    def notes(self) -> list[str]:
        """Say what stands between programs and this machine. Raises UsageError if that is too little."""
        return self._code.notes()

    def start_inside(self, starting: Callable[[], Any]) -> None:
        """Let the sandbox start inside of `starting()`, so that this takes nothing of an answer's time."""
        self._code.start_inside(starting)

    def fresh(self) -> Self:
        """Make what plays an episode, with the same problems and the same sandbox."""
        return copy.copy(self)

    def samples(self, split: str) -> Sequence[Sample]:
        """List the problems of "train" or "heldout", those of the task `code`."""
        return self._code.samples(split)

    def reset(self, sample: Sample) -> None:
        """Begin an episode: the problem stands in the prompt."""
        self._sample, self._rewards = sample, []

    def step(self, text: str) -> tuple[str, float, bool]:
        """Answer a program -> (how it fails, reward of this turn, whether it passes every test). With `partial` a turn
        brings by how much its program is better than the one before, so that an episode is worth its last program.
        """
        assert self._sample is not None, "an episode begins with reset"
        worth, why = self._code.explained(self._sample, text)
        # In one sum, without what rounding has left out: a final 1 is a sum of exactly 1, which counts as solved.
        self._rewards.append(math.fsum([worth, *(-reward for reward in self._rewards)]))
        return f"{why}\n" if why else "", self._rewards[-1], not why

    def gold(self, sample: Sample) -> str:
        """Write the solution at once; "" if the file has none."""
        return self._code.gold(sample)

    def demonstrations(self, count: int, seed: int) -> list[Demonstration]:
        """Show `count` turns: of generated functions a mixture of right and wrong programs, after a wrong one a second
        turn that mends it or is wrong again; of a file its solutions, as first turns.
        """
        if not self._code.alphabet:
            return self._code.demonstrations(count, seed)
        rng, turns, sample = random.Random(seed), list[Demonstration](), self.samples("train")[0]
        # A program with a slip fails in the same way, whatever the function.
        answers = [self._code.explained(sample, sample.answer.replace(*slip))[1] for slip in SLIPS]
        solutions = {sample.prompt: sample.answer for sample in self.samples("train")}
        for first in self._code.demonstrations(count, seed):
            turns += self._episode(first, solutions[first.prompt], answers, rng)
        return turns[:count]

    def _episode(
        self, first: Demonstration, right: str, answers: Sequence[str], rng: random.Random
    ) -> Iterator[Demonstration]:
        """Play a first turn, as it is or with a slip in it, and if it fails a second one."""
        program = first.completion
        answer = "" if program == right else WRONG_ANSWER
        if rng.random() < self._slips:
            slip, answer = rng.choice(list(zip(SLIPS, answers, strict=True)))
            program = program.replace(*slip)
        yield Demonstration(first.prompt, f"{program}\n")
        if answer:
            hasty = f"return x{first.prompt.rstrip(':')}"  # the steps as they stand, where Python multiplies first
            again = right if rng.random() < self._mended else hasty
            yield Demonstration(f"{first.prompt}{program}\n{answer}\n", f"{again}\n")


def _in_settings(error: UsageError, settings: Mapping[str, Any]) -> UsageError:
    """Name the keys in what the task `code` says by their place here, which is [task.settings]."""
    keys = {*settings, *(field.name for field in dataclasses.fields(groupwise.task("code")))}  # type: ignore[arg-type]
    return UsageError(re.sub(rf"\btask\.(?=(?:{'|'.join(map(re.escape, keys))})\b)", "task.settings.", str(error)))
