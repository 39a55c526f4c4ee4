"""Whether a completion's final answer (`extract`) is the gold one: by mathematics, as a number, a letter, or text."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from importlib.util import find_spec
from typing import Protocol

from groupwise.core.errors import UsageError, need
from groupwise.core.task import Starting
from groupwise.rewards.verifiers.extract import BRACE, LONGEST_CLAIM, claimed, claims, ending, listed, spoken
from groupwise.rewards.verifiers.numerals import clean, close, read
from groupwise.rewards.verifiers.verify import Guard, Tally

_MATH_SPAN = re.compile(r"\$\$([^$]+)\$\$|\$([^$\n]+)\$|\\\(([^\n]+?)\\\)|\\\[([^\]]+?)\\\]")
_WRAP = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|boldsymbol)\s?\{([^{}]{0,200})\}")
_SPACING = re.compile(r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\[,;:! ]|\s+|\.$")
_LONG_WORD = re.compile(r"(?<![\\A-Za-z])(?!sqrt|infty)[A-Za-z]{4,}")
_WORDS = re.compile(r"[A-Za-z][A-Za-z '-]{3,}")


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
        """Whether the answer is a number."""
        return read(answer) is not None

    def __call__(self, completion: str, answer: str) -> float:
        gold = read(answer)
        if gold is None:
            return 0.0
        text = spoken(completion)
        marked = claims(text, numeric=True)
        values = [claimed(claim) for claim in marked] if marked else [ending(text)]
        return float(all(value is not None and close(value, gold, self.tolerance) for value in values))


@dataclass(frozen=True)
class Exact:
    """The completion, or what it marks as its answer, is the gold text: without outer space, one space between words.

    ignore_case  whether `Paris` and `paris` are the same
    A full stop at the end of a marked answer does not count. Nothing else is changed.

    >>> Exact()("The answer is  New  York.", "New York"), Exact()("new york", "New York"), Exact(True)("a", "A")
    (1.0, 0.0, 1.0)
    """

    ignore_case: bool = False
    quick = True

    def readable(self, answer: str) -> bool:
        """Whether there is anything to compare with."""
        return bool(answer.strip())

    def __call__(self, completion: str, answer: str) -> float:
        text, gold = spoken(completion), self._normal(answer)
        marked = [self._normal(claim) for claim in claims(text, numeric=False)]
        if self._normal(text) == gold:
            return float(gold != "")
        return float(bool(marked) and all(gold in (claim, claim.rstrip(".")) for claim in marked))

    def _normal(self, text: str) -> str:
        joined = " ".join(text.split())
        return joined.casefold() if self.ignore_case else joined


@dataclass(frozen=True)
class Choice:
    r"""Multiple choice: the one letter that the completion names is the gold one. Naming several is wrong.

    letters  the letters that exist

    >>> [Choice()(text, "B") for text in ("(B)", "B. Paris", "A is wrong. The answer is B", r"\boxed{\text{B}}")]
    [1.0, 1.0, 1.0, 1.0]
    >>> [Choice()(text, "B") for text in ("A or B", "A, B, C", "The answer is A or B", "C")]
    [0.0, 0.0, 0.0, 0.0]
    """

    letters: str = "ABCDE"
    quick = True

    def __post_init__(self) -> None:
        if not (self.letters.isascii() and self.letters.isalpha() and self.letters.isupper()):
            raise UsageError(f"letters must be capital letters such as 'ABCD', not {self.letters!r}")

    def readable(self, answer: str) -> bool:
        """Whether the answer is one of the letters, bare or in brackets."""
        return self._gold(answer) != ""

    def __call__(self, completion: str, answer: str) -> float:
        gold, text = self._gold(answer), spoken(completion)
        marked = [named for claim in claims(text, numeric=False) if (named := self._named(claim, first=True))]
        named = set().union(*marked) if marked else self._named(text, first=False)
        return float(gold != "" and named == {gold})

    def _gold(self, answer: str) -> str:
        letter = answer.strip().strip("().:").upper()
        return letter if len(letter) == 1 and letter in self.letters else ""

    def _named(self, text: str, first: bool) -> set[str]:
        """The letters that a text names; an article (`A dog`) only where the text begins with it."""
        plain = _WRAP.sub(r"\1", text).replace("**", "").replace("$", "").strip()
        if alone := self._gold(plain):
            return {alone}
        article = r"(?<=[AI])\s+(?!or\b|and\b|is\b)[a-z]"
        token = re.compile(rf"\(([{self.letters}])\)|(?<![\w'])([{self.letters}])(?![\w'])(?!{article})")
        named = {one or two for one, two in token.findall(plain)}
        opening = re.match(rf"\W*([{self.letters}])(?![\w'])", plain) if first else None
        return named | ({opening.group(1)} if opening else set())


@dataclass(frozen=True)
class Math:
    r"""The final answer equals the gold one mathematically: numbers exactly, everything else by math-verify.

    deadline   seconds for one answer; what cannot be verified in time is wrong, and counted in `tally.late`
    tolerance  for two plain numbers, as in Numeric

    Where both are plain numbers no library is asked, and a percent sign or degree is a unit: 10\% is 10, not 0.1. The
    rest is compared in one child process per checker, which starts when it is first needed. Any thread may call.
    """

    deadline: float = 5.0
    tolerance: float = 0.0
    quick = False
    _guard: Guard = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _fraction(self.tolerance)
        if not self.deadline > 0:
            raise UsageError(f"deadline must be above 0 seconds, not {self.deadline}")
        if find_spec("math_verify") is None:
            need("math_verify", "tasks", 'answers of kind "math"')
        object.__setattr__(self, "_guard", Guard(self.deadline))

    @property
    def tally(self) -> Tally:
        """How many questions to the child had no answer so far, in this process."""
        return self._guard.tally

    def start(self) -> None:
        """Starts the child without waiting, so that the first answer does not wait for it."""
        self._guard.start()

    def start_inside(self, starting: Starting) -> None:
        """From now on `starting()` is entered where an answer waits for the child to be ready."""
        self._guard.starting = starting

    def readable(self, answer: str) -> bool:
        """Whether the answer is a number, or a text of sane length whose braces are balanced."""
        return bool(answer.strip()) and len(answer) <= LONGEST_CLAIM and _level(answer)

    def __call__(self, completion: str, answer: str) -> float:
        if not self.readable(answer):
            return 0.0
        gold, text = read(answer), spoken(completion)
        marked = claims(text, numeric=gold is not None)
        if not marked and gold is not None:
            value = ending(text)
            if value is not None:
                return float(close(value, gold, self.tolerance))
            marked = [formula for formula in _last_formula(text) if not listed(clean(formula))]
        marked = marked or (_last_formula(text) if gold is None else [])
        return float(bool(marked) and all(self._same(answer, gold, claim) for claim in marked))

    def _same(self, answer: str, gold: Fraction | None, claim: str) -> bool:
        value = claimed(claim) if gold is not None else read(claim)
        own = _bare(answer)
        if gold is not None and value is not None:
            return close(value, gold, self.tolerance)
        if gold is not None and listed(clean(claim[:LONGEST_CLAIM])):
            return False
        spans = _last_formula(claim)
        theirs = _bare(spans[0] if spans else claim)
        if own == theirs:
            return True
        if not theirs or len(theirs) > LONGEST_CLAIM or not _level(theirs):
            return False
        words = [_WORDS.fullmatch(text) for text in (_plain(answer), _plain(claim))]
        if all(words):
            return _plain(answer).casefold() == _plain(claim).casefold()
        return self._guard.same(_outer(answer), _outer(spans[0] if spans else claim))


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
#: Those that compare with no answer.
WITHOUT_ANSWERS = frozenset(name for name, checker in CHECKERS.items() if checker is NoAnswer)


def _last_formula(text: str) -> list[str]:
    """The one formula of an unmarked text: of the last line that has some, or a line that is a formula itself."""
    lines = [line for line in text.strip().split("\n") if line.strip()]
    if not lines:
        return []
    if len(lines) == 1 and "$" not in text and "\\(" not in text and not _LONG_WORD.search(_WRAP.sub("", lines[0])):
        return [lines[0]]
    spans = ["".join(groups) for groups in _MATH_SPAN.findall(lines[-1])]
    return spans if len(spans) == 1 else []


def _outer(text: str) -> str:
    """The text without its dollar signs or brackets of a formula, and without a full stop."""
    text = text.strip().rstrip(".").strip()
    for opening, closing in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")):
        if text.startswith(opening) and text.endswith(closing) and len(text) > len(opening) + len(closing):
            return text[len(opening) : -len(closing)].strip()
    return text


def _bare(text: str) -> str:
    """The text without spacing, for a comparison letter by letter."""
    return _SPACING.sub("", _outer(text)).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")


def _plain(text: str) -> str:
    return _WRAP.sub(r"\1", _outer(text)).strip().rstrip(".")


def _level(text: str) -> bool:
    """Whether braces open before they close, and all close."""
    depth = 0
    for brace in BRACE.findall(text):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return False
    return depth == 0


def _fraction(tolerance: float) -> None:
    if not 0 <= tolerance < 1:
        raise UsageError(f"tolerance is a share of the gold answer, from 0 to below 1, not {tolerance}")
