"""The environment `code-turns`: a program is written, and where it fails its tests, written again.

    +3*2:                  the prompt, a function of the task `code`
    return x+3*2           the policy's first turn
    wrong answer           the environment's answer
    x+=3;x*=2;return x     the policy's second turn

Problems, tests and the sandbox are those of the task `code`; the answer is a line of `sandbox.words`, which says how a
program failed and nothing of its tests. A program that passes them all is worth 1 and ends the episode.
"""

import copy
import math
import random
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

from groupwise.core.errors import UsageError, nearest
from groupwise.core.samples import Sample
from groupwise.core.task import Demonstration, Starting
from groupwise.rewards.sandbox.words import MARGIN, WRONG_ANSWER
from groupwise.tasks.code import generated
from groupwise.tasks.code.task import Code
from groupwise.tasks.settings import field_defaults, require_share, require_type

#: What a slip puts in place of what: in the last statement, which every generated function has.
SLIPS = (("return x", "retun x"), ("return x", "return n"))
#: Every character that Python's messages are written with.
_PRINTABLE = string.digits + string.ascii_letters + string.punctuation + " \n"
_KEY = re.compile(rf"\btask\.(?={'|'.join(field_defaults(Code))}\b)")


class CodeTurns:
    """One episode, or what all episodes of a process share; settings are those of the task `code`, and two of its own.

    slip_share    the share of the demonstrations' first turns that have a slip: a misspelt keyword or name
    mended_share  the share of the demonstrations' second turns that are right, where the first was not
    """

    own_path: ClassVar[str] = "task.settings.path"
    _OWN: ClassVar[Mapping[str, float]] = {"slip_share": 0.2, "mended_share": 0.4}

    def __init__(self, **settings: Any) -> None:
        """Raises UsageError for a setting that does not exist, has another type or cannot be."""
        defaults = {**field_defaults(Code), **self._OWN}
        for key, value in settings.items():
            if key not in defaults:
                raise UsageError(f"task.settings.{key}: code-turns has no such key; {nearest(key, defaults)}")
            require_type(f"task.settings.{key}", value, defaults[key])
        own = {key: float(settings.pop(key, default)) for key, default in self._OWN.items()}
        for key, share in own.items():
            require_share(f"settings.{key}", share)
        self._slips, self._mended = own["slip_share"], own["mended_share"]
        try:
            self._code = Code(**settings)
        except UsageError as error:
            raise UsageError(_KEY.sub("task.settings.", str(error))) from None
        self._sample: Sample | None = None
        self._rewards: list[float] = []

    @property
    def alphabet(self) -> str:
        """Every character of the generated functions and of the answers to them; "" for problems of a file."""
        return "".join(sorted({*self._code.alphabet, *_PRINTABLE})) if self._code.alphabet else ""

    @property
    def longest(self) -> float:
        """Seconds that an answer may take, whatever the program does."""
        return self._code.longest + MARGIN

    @property
    def contents(self) -> str:
        """A hash of what the files say."""
        return self._code.contents

    def notes(self) -> list[str]:
        """What stands between programs and this machine. Raises UsageError where that is too little."""
        return self._code.notes()

    def start_inside(self, starting: Starting) -> None:
        """From now on the sandbox starts inside of `starting()`."""
        self._code.start_inside(starting)

    def fresh(self) -> Self:
        """For an episode: with the same problems and the same sandbox."""
        return copy.copy(self)

    def samples(self, split: str) -> Sequence[Sample]:
        """The problems of "train" or "heldout", those of the task `code`."""
        return self._code.samples(split)

    def reset(self, sample: Sample) -> None:
        """The problem stands in the prompt."""
        self._sample, self._rewards = sample, []

    def step(self, text: str) -> tuple[str, float, bool]:
        """How the program fails; 1 and the end where it passes every test. With `partial` a turn brings by how much
        its program is better than the one before, so that an episode is worth what its last program is.
        """
        assert self._sample is not None, "an episode begins with reset"
        worth, why = self._code.explained(self._sample, text)
        # In one sum, without what rounding has left out: a final 1 is a sum of exactly 1, which counts as solved.
        self._rewards.append(math.fsum([worth, *(-reward for reward in self._rewards)]))
        return f"{why}\n" if why else "", self._rewards[-1], not why

    def demonstrations(self, count: int, seed: int) -> list[Demonstration]:
        """`count` turns: of generated functions a mixture of right and wrong programs, after a wrong one a second turn
        that mends it or is wrong again; of a file its solutions, as first turns.
        """
        if not self._code.alphabet:
            return self._code.demonstrations(count, seed)
        rng, turns, answers = random.Random(seed), list[Demonstration](), self._answers()
        for first in self._code.demonstrations(count, seed):
            turns += self._episode(first, answers, rng)
        return turns[:count]

    def _answers(self) -> list[str]:
        """How a program with each of the slips fails, whatever the function."""
        sample = self.samples("train")[0]
        return [self._code.explained(sample, sample.answer.replace(*slip))[1] for slip in SLIPS]

    def _episode(self, first: Demonstration, answers: Sequence[str], rng: random.Random) -> Iterator[Demonstration]:
        """A first turn, as it is or with a slip in it, and where it fails a second one."""
        right, program = generated.right(first.prompt), first.completion
        answer = "" if program == right else WRONG_ANSWER
        if rng.random() < self._slips:
            slip, answer = rng.choice(list(zip(SLIPS, answers, strict=True)))
            program = program.replace(*slip)
        yield Demonstration(first.prompt, f"{program}\n")
        if answer:
            again = right if rng.random() < self._mended else generated.hasty(first.prompt)
            yield Demonstration(f"{first.prompt}{program}\n{answer}\n", f"{again}\n")
