"""The two ways a command ends badly. Each carries one line: what is wrong, where, and what to do."""

import errno
import os
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any

#: Characters that a message has at most, and a value in it; names that it lists at most.
LONGEST_MESSAGE, LONGEST_VALUE, MOST_NAMES = 1_000, 300, 12


class GroupwiseError(Exception):
    """A message for a person, printed without a traceback: one line, whatever it repeats."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(shortened(" ".join(message.splitlines()), LONGEST_MESSAGE))


class UsageError(GroupwiseError):
    """The request cannot be carried out as written: a recipe, a key, a path. Nothing was started."""

    exit_code = 2


class RunError(GroupwiseError):
    """A run that had started had to stop. The message names the step and what is kept on disk."""


class ProcessLost(RunError):
    """A process that a run cannot do without was lost. What is saved is sound, so that the run can go on from it.

    loss    which process, and how it was lost
    remedy  what a person can do; the run, which knows its folder, adds the command
    final   whether the run is not to go on by itself, because a person has asked it to stop
    """

    def __init__(self, loss: str, remedy: str = "resume the run to go on from its newest checkpoint") -> None:
        super().__init__(f"{loss}; {remedy}")
        self.loss, self.remedy, self.final = loss, remedy, False


class CheckFailed(RunError):
    """A run's own invariant does not hold (DESIGN: a run proves itself)."""


def nearest(wrong: str, known: Iterable[str], elsewhere: Sequence[str] = ()) -> str:
    """Return the end of a message about a name that does not exist; the first of `elsewhere` is for where none is near.

    >>> nearest("gropo", ["grpo", "dapo"])
    "did you mean 'grpo'? known: grpo, dapo"
    """
    names = list(known)
    near = get_close_matches(shortened(wrong), names, n=1, cutoff=0.6) or elsewhere
    return (f"did you mean {near[0]!r}? " if near else "") + f"known: {listed(names)}"


def no_such_algorithm(name: object, known: Iterable[str]) -> str:
    """Return the message about an algorithm that the catalog does not have."""
    return f"algorithm.name = {brief(name)}: there is no such algorithm; {nearest(str(name), known)}"


def listed(names: Iterable[str], most: int = MOST_NAMES) -> str:
    """List names as a message does: the first ones, and how many more there are.

    >>> listed("abcdefghijklmn"), listed("abcd", most=3)
    ('a, b, c, d, e, f, g, h, i, j, k, l and 2 more', 'a, b, c and 1 more')
    """
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(shortened(name, 60) for name in every[:most]) + more


def shortened(text: str, longest: int = LONGEST_VALUE) -> str:
    """Return the text, without its middle where it is longer.

    >>> shortened("0123456789", 7)
    '01...89'
    """
    half = (longest - 3) // 2
    return text if len(text) <= longest else f"{text[:half]}...{text[-half:]}"


def brief(value: object) -> str:
    """Return a value as a message repeats it: as Python writes it, shortened."""
    try:
        return shortened(repr(value))
    except (ValueError, RecursionError):  # thousands of digits, thousands of lists in lists
        return f"a {type(value).__name__} that cannot be shown"


def need(module: str, extra: str, what: str) -> Any:
    """Import an optional library. Raises UsageError, with what needs it and its install, if it is missing.

    >>> need("json", "tasks", "task reasoning_gym").dumps([1])
    '[1]'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise  # it is there, and something that it needs itself is not
        raise UsageError(f"{what} needs {module}, which is not installed: pip install 'groupwise[{extra}]'") from None


def one_line(error: BaseException) -> str:
    """Return an exception's message in one line, the name of its type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def disk_words(error: Exception) -> str:
    """Return the system's words where the disk refused, also when a library wrapped them; empty for any other error."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    text = " ".join(str(error).split())
    return text if "os error" in text.lower() or "I/O error" in text else ""


def disk_remedy(error: Exception, other: str) -> str:
    """Return "free space" if the disk is full, else `other`. Of an error that a library wrapped, the words are read."""
    full = {os.strerror(number).lower() for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)}
    return "free space" if any(words in disk_words(error).lower() for words in full) else other


def counted(count: int, noun: str) -> str:
    """Write a number and its noun: "1 step", "2 steps", "2 passes"."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{'' if count == 1 else ending}"
