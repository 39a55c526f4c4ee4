r"""Numbers as people and models write them, read exactly: `1,000`, `$18`, `18.00`, `\frac{3}{4}`, `18 dollars`.

Nothing is evaluated: a number is recognised as text and becomes a Fraction, so `10^10^10` costs nothing.
"""

import re
from fractions import Fraction
from typing import NamedTuple

#: No single answer is longer; more digits than this are not a number.
LONGEST = 100

_DECIMAL = r"(?:\d{1,3}(?:,\d{3})+(?![\d])(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
_CURRENCY = r"(?:(?:US\$|[$€£¥₹]|(?:USD|EUR|GBP|Rs\.?)(?=[\s\d]))\s?)"
_POWER = r"(?:[eE](?P<e>[+-]?\d{1,3})(?!\d)|\s?[×x*]\s?10\s?\^\s?\{?(?P<p>[+-]?\d{1,3})(?!\d)\}?)"
_NUMBER = (
    rf"(?P<sign>(?:(?<![\w)])[+-]\s?)?{_CURRENCY}?(?:[+-])?)"
    rf"(?:(?:(?P<whole>\d{{1,9}})\s)?(?P<top>{_DECIMAL})\s?/\s?(?P<bottom>{_DECIMAL})|(?P<decimal>{_DECIMAL}){_POWER}?)"
)
# A unit cannot change the value: no operator word, no variable, no second number.
_WORD = (
    r"(?!(?:or|and|to|of|out|plus|minus|times|over|mod|not|but|is|so|if|half|point|pi|sqrt|sin|cos|tan|log|ln|exp|dot"
    r"|i|hundred|thousand|million|billion|trillion|either|maybe|perhaps|possibly)\b)(?:[A-Za-z']{2,20}\b|[mglLshCFKVWJN]\b)"
)
_UNIT = rf"(?:\s?[%€£¥₹$°¢](?:\s?[CF]\b)?)?(?:[\s/-]{{0,2}}{_WORD}\.?(?:\^?\{{?[23²³]\}}?)?){{0,4}}"
_READ = re.compile(_NUMBER + _UNIT)
_SCAN = re.compile(rf"(?<![\w.\\]){_NUMBER}(?!(?:st|nd|rd|th)\b)")
_NAME = re.compile(r"[^\d=<>!]{1,40}=\s*")

_SPELLED = str.maketrans(
    {"\u2212": "-", "\u2013": "-", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u2248": "=", "\u00b2": "²", "⁄": "/"}
)
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"<<[^<>\n]*>>", ""),  # the calculator's notes of GSM8K
        (r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\!", ""),
        (r"(?<=\d)(?:\{,\}|\\,|\\ )(?=\d{3})", ","),
        (r"\\[,;: ]|~", " "),
        (r"\\([$%{}])", r"\1"),
        (r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|boldsymbol)\s?\{([^{}]{0,60})\}", r" \1"),
        (r"\^\s?\{?\s?\\circ\s?\}?|\\degree\b", "°"),
        (r"\\(?:times|cdot)(?![A-Za-z])", "×"),
        (r"\\approx(?![A-Za-z])", "="),
        (r"(?<=\d)\s?\\[dt]?frac", r" \\frac"),
        (r"\\[dt]?frac\s?(\d)\s?(\d)(?!\d)", r"\1/\2"),
        (r"\\[dt]?frac\s?\{\s?(-?\d+)\s?\}\s?\{\s?(\d+)\s?\}", r"\1/\2"),
        (r"\\[()\[\]]|\*\*|__|`", " "),
    )
)


class Number(NamedTuple):
    """A number in a text: where it stands, and its value (None where it is too long or divides by zero)."""

    start: int
    end: int
    value: Fraction | None


def clean(text: str) -> str:
    r"""The text with LaTeX's and Unicode's ways to write digits, signs and units spelled plainly.

    >>> clean(r"\$1{,}000 \text{ dollars}"), clean(r"\dfrac{3}{4}"), clean("48/2 = <<48/2=24>>24")
    ('$1,000  dollars', '3/4', '48/2 = 24')
    """
    text = text.translate(_SPELLED)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text


def read(text: str) -> Fraction | None:
    r"""The number that is all of the text, a unit and a `name =` before it apart; None where it is anything else.

    The percent sign, currency signs and degrees are units: `10\%` is 10. Magnitude words are not read.

    >>> [str(read(text)) for text in ("1,000", "$18", "18.00", r"\frac{3}{4}", "x = -5 cm", "1.5e3", "2 1/2")]
    ['1000', '18', '18', '3/4', '-5', '1500', '5/2']
    >>> [read(text) for text in ("16, 17", "2x", "2^5", "18 or 19", "2 million", "")]
    [None, None, None, None, None, None]
    """
    if len(text) > 2 * LONGEST:
        return None
    text = clean(text).strip().rstrip(".,;:!").strip()
    if len(text) > 2 and text[0] == text[-1] == "$":
        text = text[1:-1]
    named = _NAME.match(text)
    if named:
        text = text[named.end() :]
    match = _READ.fullmatch(text.strip(" \"'").removesuffix("$"))
    return _value(match) if match else None


def scan(text: str) -> list[Number]:
    """Every number of a cleaned text, in order. A minus directly after a digit, letter or bracket is an operator.

    >>> [str(number.value) for number in scan("48-24 = 24, the 2nd is -3")]
    ['48', '24', '24', '-3']
    """
    return [Number(match.start(), match.end(), _value(match)) for match in _SCAN.finditer(text)]


def close(value: Fraction, gold: Fraction, tolerance: float) -> bool:
    """Whether the two are equal, or within `tolerance` times the gold answer where it is above 0."""
    return value == gold if tolerance == 0 else abs(value - gold) <= Fraction(tolerance) * abs(gold)


def _value(match: re.Match[str]) -> Fraction | None:
    if match.end() - match.start() > LONGEST:
        return None
    part = match.groupdict()
    if part["bottom"]:
        bottom = _decimal(part["bottom"])
        if bottom == 0:
            return None
        size = Fraction(part["whole"] or 0) + _decimal(part["top"]) / bottom
    else:
        size = _decimal(part["decimal"]) * Fraction(10) ** int(part["e"] or part["p"] or 0)
    return -size if "-" in part["sign"] else size


def _decimal(text: str) -> Fraction:
    return Fraction(text.replace(",", ""))
