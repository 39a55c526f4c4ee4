r"""An expression in LaTeX read into sympy, or refused: no letter and no sign of it is ever dropped.

The text is `spelled` before. What has no one meaning is refused, and its text is compared letter by letter: `1/2x`,
`5!!`, `f'`, `AB` (a product of numbers, a segment, or matrices?), integrals, sums, vectors, words.
"""

import re
from collections.abc import Callable
from typing import Any

from groupwise.rewards.verifiers.spelling import GREEK

_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\d+(?:\.\d+)?|\.\d+|\S")
_OTHERS = "varepsilon vartheta varrho varphi Gamma Delta Theta Lambda Xi Sigma Upsilon Phi Psi Omega"
_GREEK = frozenset([*GREEK, *re.findall(r"\w+", _OTHERS)])
#: LaTeX's name of a function -> sympy's.
_CALLS = {
    "sin": "sin", "cos": "cos", "tan": "tan", "cot": "cot", "sec": "sec", "csc": "csc", "arcsin": "asin",
    "arccos": "acos", "arctan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "ln": "log", "exp": "exp",
}  # fmt: skip
_ROUNDED = {"\\lfloor": ("\\rfloor", "floor"), "\\lceil": ("\\rceil", "ceiling")}
#: Letters that are functions where a bracket follows; others are only where a number or a letter alone is in it.
_APPLIED = frozenset("fghFGHPpqEV")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
#: An expression is not nested deeper, and has not more tokens.
_DEEPEST, _LONGEST = 40, 400
#: Bits that a power may have, and the largest number in a factorial: what is above is never built.
_BITS, _LARGEST = 33_000, 3_000


class Unread(ValueError):
    """A text that is no expression, or has more than one meaning."""


def tokens(text: str) -> list[str]:
    r"""Split a formula into its parts, blanks left out: commands, numbers, signs.

    >>> tokens(r"2\pi r^{2}")
    ['2', '\\pi', 'r', '^', '{', '2', '}']
    """
    return _TOKEN.findall(text)


def plausible(text: str) -> bool:
    r"""Tell whether every sign of a spelled text is one that an expression may have; cheap, and without sympy.

    >>> plausible(r"\frac{x}{2}"), plausible(r"\int_0^1 x"), plausible("Evelyn")
    (True, False, False)
    """
    return bool(text) and not _STRANGE.search(text) and not _SPELT.search(text)


def expression(text: str) -> Any:
    r"""Read the sympy expression that a spelled text is. Raises Unread.

    >>> expression("2ab") - expression("2ba"), expression(r"\frac{x^{2}-1}{x-1}"), expression("7!-5!")
    (0, (x**2 - 1)/(x - 1), 4920)
    """
    import sympy

    reader = _Reader(tokens(text), sympy)
    value = reader.sum(0)
    reader.require(None)
    return value


class _Reader:
    """A recursive descent over the tokens: sum, product, power, atom."""

    def __init__(self, tokens: list[str], sympy: Any) -> None:
        self.tokens, self.sympy, self.place, self.bars = tokens, sympy, 0, 0
        if len(tokens) > _LONGEST:
            raise Unread("too long")

    @property
    def next(self) -> str | None:
        return self.tokens[self.place] if self.place < len(self.tokens) else None

    def take(self) -> str:
        token = self.next
        if token is None:
            raise Unread("the text ends too early")
        self.place += 1
        return token

    def require(self, token: str | None) -> None:
        if self.next != token:
            raise Unread(f"{self.next} in place of {token}")
        self.place += 1

    def sum(self, depth: int) -> Any:
        if depth > _DEEPEST:
            raise Unread("too deep")
        value = self.sympy.Integer(0) if self.next in ("+", "-") else self.product(depth)
        while self.next in ("+", "-"):
            sign, term = self.take(), self.product(depth)
            value = value + term if sign == "+" else value - term
        return value

    def product(self, depth: int) -> Any:
        """Read factors, no sign before the first. Behind a slash two factors without a sign between are ambiguous."""
        value, divided = self.power(depth), False
        while True:
            if self.next in ("\\cdot", "/", "\\div"):
                sign = self.take()
                negative = self.next == "-"
                if negative:
                    self.take()
                factor = -self.power(depth) if negative else self.power(depth)
                value = value * factor if sign == "\\cdot" else value / factor
                divided = divided or sign != "\\cdot"
            elif self._begins_factor():
                before = self.tokens[self.place - 1]
                if divided or (
                    re.match(r"[\d.]", self.next or "") and before != "i" and (before.isalnum() or before[0] == "\\")
                ):
                    raise Unread("factors without a sign between them")
                value = value * self.power(depth)
            else:
                return value

    def _begins_factor(self) -> bool:
        token = self.next
        if token is None or (token == "|" and self.bars):
            return False
        return token[0].isalnum() or token in ("(", "[", "{", "|") or (token[0] == "\\" and token not in _ENDS)

    def power(self, depth: int) -> Any:
        value = self.atom(depth)
        while self.next in ("!", "^"):
            if self.take() == "^":
                self.require("{")
                value = _power(value, self.sum(depth + 1))
                self.require("}")
            elif self.next == "!":
                raise Unread("a double factorial")
            else:
                value = self.sympy.factorial(_bounded(value, _LARGEST))
        return value

    def atom(self, depth: int) -> Any:
        token = self.take()
        if token[0].isdigit() or token[0] == ".":
            return self._number(token, depth)
        if token in _CLOSING:
            return self._group(_CLOSING[token], depth)
        if token == "|":
            self.bars += 1
            value = self.sympy.Abs(self.sum(depth + 1))
            self.bars -= 1
            self.require("|")
            return value
        if token in _ROUNDED:
            end, name = _ROUNDED[token]
            return getattr(self.sympy, name)(self._group(end, depth))
        if token[0] == "\\":
            return self._command(token[1:], depth)
        if token.isalpha() and token.isascii():
            return self._letter(token, depth)
        raise Unread(token)

    def _group(self, end: str, depth: int) -> Any:
        bars, self.bars = self.bars, 0
        value = self.sum(depth + 1)
        self.require(end)
        self.bars = bars
        return value

    def _braced(self, depth: int) -> Any:
        self.require("{")
        return self._group("}", depth)

    def _number(self, token: str, depth: int) -> Any:
        value = self.sympy.Rational(token if token[0] != "." else "0" + token)
        if self.next == "\\frac" and "." not in token and self._plain_fraction():
            value += self._command(self.take()[1:], depth)  # a mixed number
        if self.next == "_":
            raise Unread("a number in another base")
        return value

    def _plain_fraction(self) -> bool:
        ahead = " ".join(self.tokens[self.place : self.place + 8])
        return re.match(r"\\frac \{ \d+ \} \{ \d+ \}(?! [\^!])", ahead) is not None

    def _command(self, name: str, depth: int) -> Any:
        sympy = self.sympy
        if name == "pi":
            return sympy.pi
        if name == "frac":
            return self._braced(depth) / self._braced(depth)
        if name == "binom":
            return sympy.binomial(*(_bounded(self._braced(depth), _LARGEST) for _ in range(2)))
        if name == "sqrt":
            index = sympy.Integer(2)
            if self.next == "[":
                self.take()
                index = self._group("]", depth)
            return _power(self._braced(depth), 1 / index)
        if name == "log":
            return self._logarithm(depth)
        if name in _CALLS:
            return self._call(getattr(sympy, _CALLS[name]), name, depth)
        if name in ("zeta", "Gamma") and self.next == "(":
            self.take()
            return sympy.Symbol(f"{name}({self._group(')', depth)})")
        if name in _GREEK:
            return sympy.Symbol(name + self._index())
        raise Unread(name)

    def _logarithm(self, depth: int) -> Any:
        """Read a logarithm to the base that is written; without one it may be 10 or e, and stays open."""
        base = self.sympy.Symbol("base of log")
        if self.next == "_":
            self.take()
            base = self._braced(depth)
        return self._call(lambda value: self.sympy.log(value) / self.sympy.log(base), "log", depth)

    def _call(self, function: Callable[[Any], Any], name: str, depth: int) -> Any:
        power = None
        if self.next == "^":
            self.take()
            power = self._braced(depth)
            if power == -1:
                if name not in ("sin", "cos", "tan"):
                    raise Unread("an inverse function, or a power")
                function, power = getattr(self.sympy, "a" + name), None
        argument = self._argument(depth)
        value = function(_bounded(argument, _LARGEST) if name in ("exp", "sinh", "cosh", "tanh") else argument)
        return value if power is None else _power(value, power)

    def _argument(self, depth: int) -> Any:
        """Read an argument in brackets, or the factors that follow up to a sign, a bracket or another function."""
        if self.next in ("(", "{", "["):
            return self._group(_CLOSING[self.take()], depth)
        value = self.power(depth)
        while self._begins_factor() and self.next not in ("(", "[", "{", "|") and (self.next or "")[1:] not in _NAMES:
            value = value * self.power(depth)
        if self.next in ("(", "[", "/"):
            raise Unread("does it belong to the argument?")
        return value

    def _letter(self, letter: str, depth: int) -> Any:
        sympy = self.sympy
        if letter.isupper() and (self.next or "").isupper() and (self.next or "").isalpha():
            raise Unread("capital letters next to each other")
        name = letter + self._index()
        if self.next == "'":
            raise Unread("a derivative")
        if letter == "d" and (self.next or "").isalpha():
            raise Unread("a differential")
        alone = self.tokens[self.place + 2 : self.place + 3] == [")"] and letter not in "ei"
        if (self.next == "(" and (alone or letter in _APPLIED)) or (self.next == "[" and letter in "EPV"):
            return sympy.Symbol(f"{name}({self._group(_CLOSING[self.take()], depth)})")
        if letter in _APPLIED and self.next == "^" and "(" in self.tokens[self.place : self.place + 6]:
            raise Unread("a power of a function, or its inverse")
        if name == "e":
            return sympy.E
        return sympy.I if name == "i" else sympy.Symbol(name)

    def _index(self) -> str:
        if self.next != "_":
            return ""
        self.take()
        self.require("{")
        inside = []
        while self.next not in ("}", None):
            inside.append(self.take())
            if not re.fullmatch(r"[\w+\-,]+", inside[-1]):
                raise Unread("an index")
        self.require("}")
        return "_" + "".join(inside)


def _bounded(value: Any, largest: int) -> Any:
    """Return the value if neither it nor a number in it is larger. Raises Unread."""
    numbers = [number for number in value.atoms() if number.is_Rational]
    if any(abs(one) > largest for one in numbers) or (value.is_number and not abs(value.evalf(15)) <= largest):
        raise Unread("a number too large to be built")
    return value


def _power(base: Any, exponent: Any) -> Any:
    return base ** _bounded(exponent, _BITS / _bits(base))


def _bits(value: Any) -> Any:
    """Bound the bits of a value where each letter is a short number."""
    if value.is_Rational:
        return max(value.p.bit_length(), value.q.bit_length())
    if value.is_Pow and value.exp.is_Rational:
        return _bits(value.base) * max(1, abs(value.exp))
    return sum(map(_bits, value.args)) or 5


_NAMES = frozenset({*_CALLS, "log"})
#: Commands that are no factor.
_ENDS = frozenset({"\\cdot", "\\div", "\\rfloor", "\\rceil", "\\}"})
_KNOWN = "|".join([*sorted({*_GREEK, *_NAMES}), "frac|sqrt|binom|pi|cdot|div|[lr]floor|[lr]ceil"])
_STRANGE = re.compile(rf"\\(?!(?:{_KNOWN})(?![A-Za-z]))|[^\\A-Za-z0-9\s.+\-/^_(){{}}\[\]!|]")
#: Letters that are a word, not a product.
_SPELT = re.compile(
    r"(?<![\\A-Za-z])(?:[A-Za-z]{4,}|(?:Var|Cov|Re|Im|[Tt]r|arg|deg|dim|max|min|sgn|lcm|gcd|mod)\s?[(\[])|"
    r"^\s*(?:(?=[a-z]*[aeiou])(?!abc)[a-z]{3}|(?=.*[A-Z])[A-Za-z]{3})\s*$|[A-Z]{2}|^\s*[Nn]o\s*$|[A-Za-z]{2,}\s+[A-Za-z]{2,}|\.(?!\d)"
)
