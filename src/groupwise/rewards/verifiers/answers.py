"""Checkers of a final answer (`marks`, `stated`) against the gold one: as mathematics, a number, a letter or text."""

import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Protocol

from groupwise.core.errors import UsageError
from groupwise.core.task import Starting
from groupwise.rewards.verifiers.choice import Choice
from groupwise.rewards.verifiers.kinds import Answer, Kind
from groupwise.rewards.verifiers.marks import (
    BRACE,
    LONGEST_CLAIM,
    SPAN,
    Claim,
    boxed,
    claims,
    denied,
    spoken,
    statement,
)
from groupwise.rewards.verifiers.numerals import close, read
from groupwise.rewards.verifiers.reading import read as read_answer
from groupwise.rewards.verifiers.same import Ask, Judge
from groupwise.rewards.verifiers.spelling import untypeset
from groupwise.rewards.verifiers.stated import claimed, ending, signed
from groupwise.rewards.verifiers.symbolic import Guard, Tally

_LONG_WORD = re.compile(r"(?<![\\A-Za-z])(?!sqrt|infty)[A-Za-z]{4,}")
#: Words that a sentence has and an answer in words does not.
_SENTENCE = re.compile(r"\b(?:is|are|get|gets|gives|so|thus|hence|therefore|answer|equals?|have|has)\b", re.IGNORECASE)
#: A gold answer of more words that states nothing is no answer.
_MOST_WORDS = 12
#: Kinds in which a claim may be words around a number.
_WORDY = (Kind.FORMULA, Kind.TEXT)


class Checker(Protocol):
    """(completion, gold answer) -> 1.0 where it is right, 0.0 where it is wrong or where there is no one answer.

    readable(answer)  whether this gold answer can be checked at all; cheap
    quick             whether a check is a pure function of microseconds
    """

    @property
    def quick(self) -> bool: ...

    def readable(self, answer: str) -> bool: ...

    def __call__(self, completion: str, answer: str) -> float: ...


@dataclass(frozen=True)
class Numeric:
    r"""The final answer is the gold number, compared exactly.

    tolerance  how far it may be off, as a share of the gold answer; 0: not at all (1/3 is not 0.333)

    >>> check = Numeric()
    >>> [check(text, "1000") for text in ("1,000", "$1000", "1000.00", r"\boxed{1000}", "#### 1000", "She has 1,000.")]
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    >>> [check(text, "18") for text in ("16, 17, 18", r"\boxed{17} \boxed{18}", "19")]
    [0.0, 0.0, 0.0]
    """

    tolerance: float = 0.0
    quick = True

    def __post_init__(self) -> None:
        _fraction(self.tolerance)

    def readable(self, answer: str) -> bool:
        """Tell whether the answer is a number."""
        return read(answer) is not None

    def __call__(self, completion: str, answer: str) -> float:
        value, text = read(answer), spoken(completion)
        if value is None:
            return 0.0
        if marked := claims(text, numeric=True):
            judge = Judge(
                lambda *question: False, self.tolerance
            )  # of expressions nothing is known without mathematics
            gold = Answer(Kind.NUMBER, str(value), number=value)
            return float(all(_right(judge, gold, claim) for claim in marked))
        stated = ending(text)
        return float(stated is not None and close(stated, value, self.tolerance))


@dataclass(frozen=True)
class Exact:
    """The completion, or what it marks as its answer, is the gold text: without outer space, one space between words.

    ignore_case  whether `Paris` and `paris` are the same
    Around an answer a full stop, quotes and the marks of Markdown and LaTeX do not count; nor does how Unicode
    puts an accent on its letter. Nothing else is changed.

    >>> Exact()("The answer is  New  York.", "New York"), Exact()("new york", "New York"), Exact(True)("a", "A")
    (1.0, 0.0, 1.0)
    """

    ignore_case: bool = False
    quick = True

    def readable(self, answer: str) -> bool:
        """Tell whether there is anything to compare with."""
        return bool(answer.strip())

    def __call__(self, completion: str, answer: str) -> float:
        text, gold = spoken(completion), self._normal(answer)
        given = [claim.text for claim in claims(text, numeric=False)] or [text]
        same = self._normal(text) == gold or all(gold in _unwrapped(self._normal(one)) for one in given)
        return float(gold != "" and same)

    def _normal(self, text: str) -> str:
        joined = unicodedata.normalize("NFC", " ".join(text.split()))
        return joined.casefold() if self.ignore_case else joined


@dataclass(frozen=True)
class Math:
    r"""The final answer is the gold one: of its kind, and equal by mathematics (`kinds`, `same`).

    deadline   seconds for one answer; what cannot be decided in time is wrong, and counted in `tally.late`
    tolerance  for two plain numbers, as in Numeric

    Numbers, sets of them, times, words are compared here, and a percent sign or degree is a unit: 10\% is 10, not 0.1.
    Expressions are compared in one child process per checker, which starts when it is first needed. Any thread may
    call.
    """

    deadline: float = 5.0
    tolerance: float = 0.0
    quick = False
    _guard: Guard = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _fraction(self.tolerance)
        if not self.deadline > 0:
            raise UsageError(f"deadline must be above 0 seconds, not {self.deadline}")
        object.__setattr__(self, "_guard", Guard())

    @property
    def tally(self) -> Tally:
        """Count of the questions to the child that had no answer so far, in this process."""
        return self._guard.tally

    def start(self) -> None:
        """Start the child without waiting, so that the first answer does not wait for it."""
        self._guard.start()

    def start_inside(self, starting: Starting) -> None:
        """Enter `starting()` from now on where an answer waits for the child to be ready."""
        self._guard.starting = starting

    def readable(self, answer: str) -> bool:
        """Tell whether the answer is of sane length, with balanced braces, and no sentence that states nothing."""
        return gold_answer(answer) is not None

    def __call__(self, completion: str, answer: str) -> float:
        gold, text = gold_answer(answer), spoken(completion)
        if gold is None:
            return 0.0
        judge = Judge(self._asker(), self.tolerance)
        marked = claims(text, numeric=gold.kind is Kind.NUMBER)
        if marked:
            return float(all(_right(judge, gold, claim) for claim in marked))
        if whole := _whole_formula(text) or _bare(text):
            return float(judge.same(gold, _answer(whole)))
        if gold.number is not None and not (gold.name and _last_formula(text)):
            value = ending(text)
            if value is not None:
                return float(close(value, gold.number, self.tolerance))
        formula = _last_formula(text)
        return float(formula != "" and judge.same(gold, _answer(formula)))

    def _asker(self) -> Ask:
        """Make what asks the questions of one answer, which have the deadline together."""
        left = self.deadline

        def ask(*question: str) -> bool | int:
            nonlocal left
            if left <= 0:
                return False
            answer, took = self._guard.ask(*question, seconds=left)
            left -= took
            return answer

        return ask


@lru_cache(maxsize=8192)
def gold_answer(text: str) -> Answer | None:
    r"""Read the answer that a gold text is, or that it states if it is a sentence; None if there is none.

    >>> str(gold_answer("The answer is 7.").number), str(gold_answer("We add 2 and 5. So we get $2+5=7$.").number)
    ('7', '7')
    >>> gold_answer(r"\frac{1}{2"), gold_answer("")
    (None, None)
    """
    if not text.strip() or len(text) > LONGEST_CLAIM or not _level(text):
        return None
    boxes = boxed(text)
    answer = read_answer(boxes[0] if len(boxes) == 1 else text)
    if boxes or answer.kind not in _WORDY or not _SENTENCE.search(SPAN.sub("", text)):
        return answer
    for claim in claims(text, numeric=False):
        return read_answer(statement(claim.text) if claim.prose else claim.text)
    if (value := ending(text)) is not None:
        return read_answer(str(value))
    if (formula := _last_formula(text)) not in ("", text.strip()):
        return read_answer(formula)
    return answer if len(text.split()) <= _MOST_WORDS else None


def _answer(text: str) -> Answer:
    """Read the answer that a claim is; a claim that is too long or whose braces do not fit is none."""
    if len(text) > LONGEST_CLAIM or not text.strip() or not _level(text):
        return Answer(Kind.FORMULA)
    return read_answer(text)


def _right(judge: Judge, gold: Answer, claim: Claim) -> bool:
    """Tell whether a claim is the gold answer, or words that state it."""
    text = statement(claim.text) if claim.prose else claim.text
    if gold.kind is Kind.TEXT and not text:  # `does not exist` denies nothing
        text = claim.text
    given = _answer(signed(text.lstrip("*_ ").rstrip("*_. ")) if claim.prose else text)
    if judge.same(gold, given) or (claim.prose and text[-1:] == "!" and judge.same(gold, _answer(text[:-1]))):
        return True
    if gold.number is None or given.kind not in _WORDY or given.name:
        return False
    value = claimed(claim.text, claim.prose and not SPAN.fullmatch(text.strip().rstrip(".")))
    return value is not None and close(value, gold.number, judge.tolerance)


@dataclass(frozen=True)
class NoAnswer:
    """No answer to compare with: rewards or a reward model score, and this says NaN to everything."""

    quick = True

    def readable(self, answer: str) -> bool:
        return True

    def __call__(self, completion: str, answer: str) -> float:
        return math.nan


#: The word a recipe uses -> the checker.
CHECKERS: Mapping[str, type[Checker]] = {
    "math": Math,
    "numeric": Numeric,
    "exact": Exact,
    "choice": Choice,
    "learned": NoAnswer,
    "none": NoAnswer,
}
#: The checks that compare with no answer.
WITHOUT_ANSWERS = frozenset(name for name, checker in CHECKERS.items() if checker is NoAnswer)


def _last_formula(text: str) -> str:
    """Find the one formula of an unmarked text: of its last line, behind a word such as `hence`, or all of the text."""
    line = _last_line(text)
    spans = [match.group() for match in SPAN.finditer(line) if not denied(line[: match.start()])]
    if spans:
        return spans[0] if len(spans) == 1 else ""
    rest = _SAYS.sub("", line)
    if rest != line and _answer(rest).kind not in _WORDY:
        return rest
    return line if line == text.strip() else ""


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2].strip()


def _whole_formula(text: str) -> str:
    """Return the last line if it is one formula between its delimiters and nothing else."""
    line = _last_line(text)
    match = SPAN.fullmatch(line.rstrip("."))
    return line if match and not re.fullmatch(r"\$[\d.,]+\$?", line) else ""


def _bare(text: str) -> str:
    """Return the last line if it is a formula without delimiters, and no number, calculation or prose."""
    line = _last_line(text)
    if len(line) > LONGEST_CLAIM or not _SIGNS.search(line) or _LONG_WORD.search(line) or read(line) is not None:
        return ""
    return line if _answer(line).kind not in (*_WORDY, Kind.EQUATION) else ""


_SIGNS = re.compile(r"[-²³⁴-⁹^!√π(]|[<>≤≥≠]|\\[a-z]")
_SAYS = re.compile(
    r"^(?:(?:so|thus|hence|therefore|then|we get|this gives|it is|it follows that|that is)[\s,:]+)+", re.IGNORECASE
)


def _unwrapped(claim: str) -> tuple[str, ...]:
    """Return a marked text as it stands, and without marks of Markdown and LaTeX, quotes and a full stop."""
    bare = claim.rstrip(".。")
    inner = untypeset(bare).strip("*_`$\"'“”‘’ ").rstrip(".。")
    return claim, bare, inner


def _level(text: str) -> bool:
    depths = list(accumulate(1 if brace == "{" else -1 for brace in BRACE.findall(text)))
    return min(depths, default=0) >= 0 and depths[-1:] in ([], [0])


def _fraction(tolerance: float) -> None:
    if not 0 <= tolerance < 1:
        raise UsageError(f"tolerance is a share of the gold answer, from 0 to below 1, not {tolerance}")
