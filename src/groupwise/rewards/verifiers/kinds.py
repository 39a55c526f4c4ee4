"""Kinds of answers, and the readers of one value: a name, an expression with its unit, or words."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction

from groupwise.rewards.verifiers import formula
from groupwise.rewards.verifiers.numerals import Unit, is_name, is_unit, measure, unit


class Kind(StrEnum):
    """Kinds of answers."""

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
        """Sign of infinity, 1 or -1, if it is that; else 0."""
        return {"\\infty": 1, "+ \\infty": 1, "- \\infty": -1}.get(self.letters, 0)


#: The reader of the parts of an answer.
Read = Callable[[str], Answer]
INFINITE = (Answer(Kind.EXPRESSION, "- \\infty"), Answer(Kind.EXPRESSION, "\\infty"))


_SENTENCE = re.compile(r"[A-Za-z0-9 ,.'\-?!()&/\u00c0-\uffff]+")


def words_of(text: str, read: Read | None = None) -> Answer | None:
    """Read words in letters, digits beside them included: names, dates, yes and no."""
    plain = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text)
    plain = " ".join(re.sub(r"(?<=\d)(?:st|nd|rd|th)\b", "", plain).split()).rstrip(".")
    plain = re.sub(r"^(?:an?|the)\s+(?=\w{2})", "", plain, flags=re.IGNORECASE)
    if plain.casefold() == "no":
        return Answer(Kind.TEXT, "no")
    if not _SENTENCE.fullmatch(plain) or not re.search(r"[A-Za-z]{3}|[\u00c0-\uffff]", plain):
        return None
    named = re.match(r"[A-Za-z][a-z]{2}|\d+(?:th|st|nd|rd)? [A-Z]", plain)
    if "\\text" not in text and re.search(r"[0-9]", plain) and not named:
        return None
    return Answer(Kind.TEXT, re.sub(r"(?<=\w{4})s\b", "", plain.casefold().replace(",", "")))


_UNIT_BEHIND = re.compile(r"(.*[\w})!|])\s*(?:\\text\{([^{}]+)\}|(\\%|\^\\circ|(?<![\\A-Za-z])%))\s*(\^\{?[23]\}?)?")


def expression(text: str, read: Read | None = None) -> Answer | None:
    """Read a value that is no plain number, maybe with a unit behind it."""
    found, value = None, text
    if behind := _UNIT_BEHIND.fullmatch(text):
        word = (behind.group(2) or {"\\%": "%", "%": "%", "^\\circ": "°"}[behind.group(3)]) + (behind.group(4) or "")
        found, value = unit(word), behind.group(1).strip()
        if behind.group(2) and found is None and not is_unit(" " + word):
            return None
    elif (bare := re.fullmatch(r"(.*[\w})!|])\s+([A-Za-z]{2,}(?:/[a-z]+)?(?:\^\{\d\})?)", text)) and unit(
        bare.group(2)
    ):
        found, value = unit(bare.group(2)), bare.group(1)
    if value.startswith("\\$"):
        found, value, other = unit("$"), value[2:].strip(), found
        if other and other != found:
            return None
    letters = " ".join(formula.tokens(value))
    if value.startswith("[") and value.endswith("]"):
        return None
    if not formula.plausible(value) and not Answer(Kind.EXPRESSION, letters).infinite:
        return None
    return Answer(Kind.EXPRESSION, letters, unit=found)


#: A name that is no symbol alone: an inverse or a transpose, several, a derivative, a limit or a sum, a norm or a
#: determinant, and the value of a function.
_NAME = re.compile(
    r"[A-Z]\^\{(?:-1|T)\}|\(?(?:\s*[A-Za-z]\s*,)+\s*[A-Za-z]\s*\)?"
    r"|\\frac\{d(?:\^\{\d\})?\s?[a-z]\}\{d\s?[a-z](?:\^\{\d\})?\}|\\(?:lim|int|sum|prod)(?![A-Za-z])[^=+]*"
    r"|\\\|.*\\\||\\begin\{vmatrix\}.*\\end\{vmatrix\}|\\det\s?[({A-Z].*"
    r"|[A-Za-z](?:\^\{(?:-1|\(\d\))\})?'*\s?\([^()]*\)"
)


def name_of(text: str) -> str:
    r"""Spell a name in the one spelling; "" if the text is none.

    >>> name_of("f(2)"), name_of("x + y"), name_of(r"(x, y)"), name_of(r"\frac{dy}{dx}")
    ('f ( 2 )', '', '( x , y )', '\\frac { d y } { d x }')
    """
    text = text.strip()
    plain = re.sub(r"\\(?:text|overline|vec)\{([^{}]*)\}", r"\1", text).strip()
    if is_name(plain) or _NAME.fullmatch(plain) or (text.startswith("\\text{") and text.endswith("}")):
        return " ".join(formula.tokens(plain if len(plain) == 1 else text))
    return ""


def is_closed(text: str) -> bool:
    """Tell whether a side has a value of its own: digits or constants, and no letter."""
    if measure(text) is not None:
        return True
    letters = re.sub(
        r"\\(?:frac|sqrt|binom|pi|cdot|div|times|sin|cos|tan|ln|log|exp|[lr]floor|[lr]ceil)(?![A-Za-z])", " ", text
    )
    return formula.plausible(text) and re.search(r"[A-Za-z]", letters) is None


def is_constant(part: Answer) -> bool:
    """Tell whether it is a number, a constant included."""
    return part.kind is Kind.NUMBER or part.letters in ("e", "\\pi", "i")


def part_of(text: str, read: Read) -> Answer:
    """Read a part: a capital letter that stands in a formula is a symbol, and no option."""
    answer = read(text)
    return replace(answer, kind=Kind.EXPRESSION) if answer.kind is Kind.LETTER and not answer.parts else answer
