"""An answer that was read, and what it is: a number, an equation, a set, a time, ..."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from groupwise.rewards.verifiers.units import Unit


class Kind(StrEnum):
    """The kinds of answers."""

    NUMBER = "number"
    EXPRESSION = "expression"
    EQUATION = "equation"
    INEQUALITY = "inequality"
    INTERVAL = "interval"
    UNION = "union of intervals"
    SET = "set"
    LIST = "list"
    TUPLE = "tuple"
    MATRIX = "matrix"
    RATIO = "ratio"
    MEASURES = "quantity of two units"
    TIME = "time of day"
    CONGRUENCE = "congruence"
    BASE = "number in a base"
    LETTER = "letter of an option"
    TEXT = "words"
    FORMULA = "formula"


@dataclass(frozen=True)
class Answer:
    """An answer that was read.

    kind     what it is
    letters  its text in the one spelling, part by part; "" where its parts say it all
    name     what stands before its equals sign; "" where nothing does
    parts    its entries, its two sides, or what stands behind an option's letter
    mark     what else tells it from others of its kind: brackets, a relation's sign, the modulus, base or letter
    number   its value where it is a plain number
    words    what is said behind a number and is no known unit
    unit     of a number or an expression, None where it has none or it is not known
    """

    kind: Kind
    letters: str = ""
    name: str = ""
    parts: tuple["Answer", ...] = ()
    mark: str = ""
    number: Fraction | None = None
    unit: Unit | None = None
    words: frozenset[str] = frozenset()

    @property
    def one_value(self) -> bool:
        """True if it is one number or one expression."""
        return self.kind in (Kind.NUMBER, Kind.EXPRESSION)

    @property
    def infinite(self) -> int:
        """1 or -1 where it is infinity with that sign, else 0."""
        return {"\\infty": 1, "+ \\infty": 1, "- \\infty": -1}.get(self.letters, 0)


#: The reader of the parts of an answer.
Read = Callable[[str], Answer]
INFINITE = (Answer(Kind.EXPRESSION, "- \\infty"), Answer(Kind.EXPRESSION, "\\infty"))
