"""What a check says: findings in sections, and problems as the model will see them."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """ok: looked at and right. note: worth knowing, and a run is sound all the same. fault: to be put right."""

    OK = "ok"
    NOTE = "note"
    FAULT = "fault"


@dataclass(frozen=True)
class Finding:
    """One line about one thing."""

    level: Level
    what: str


@dataclass(frozen=True)
class ShownProblem:
    """A problem as the model sees it: the prompt's text, then what is trained, end id included.

    key                            the sample's
    prompt, trained                text, special tokens visible
    prompt_tokens, trained_tokens  how many ids each is
    """

    key: str
    prompt: str
    trained: str
    prompt_tokens: int
    trained_tokens: int


@dataclass(frozen=True)
class Section:
    """A part of the check. `text` and `problems` are shown as they are; faults are among the findings alone."""

    title: str
    findings: Sequence[Finding] = ()
    text: str = ""
    problems: Sequence[ShownProblem] = ()

    @property
    def faults(self) -> list[str]:
        return [finding.what for finding in self.findings if finding.level is Level.FAULT]


def ok(what: str) -> Finding:
    return Finding(Level.OK, what)


def note(what: str) -> Finding:
    return Finding(Level.NOTE, what)


def fault(what: str) -> Finding:
    return Finding(Level.FAULT, what)


def graded(share: float, limit: float, what: str) -> Finding:
    """A share of something unwanted: none is ok, up to the limit a note, beyond it a fault.

    >>> graded(0.0, 0.05, "0 of 9 too long").level, graded(0.5, 0.05, "5 of 10 too long").level
    (<Level.OK: 'ok'>, <Level.FAULT: 'fault'>)
    """
    return Finding(Level.FAULT if share > limit else Level.NOTE if share > 0 else Level.OK, what)


def listed(words: Sequence[str], shown: int = 3) -> str:
    """The first few, and that there are more.

    >>> listed(["a", "b", "c", "d"]), listed(["a"])
    ('a, b, c, ...', 'a')
    """
    return ", ".join([*words[:shown], *["..."] * (len(words) > shown)])
