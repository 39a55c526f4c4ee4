"""math-verify's parser and its test for zero, faster and with the same verdicts (docs/answers.md has the times).

Three names of the library are replaced, in the child that asks it alone, each by something whose result is the same.
"""

from collections.abc import Callable, Iterator
from math import inf
from types import ModuleType
from typing import Any

#: A polynomial with more symbols, or of a higher degree, could take long to expand.
_SYMBOLS, _DEGREE = 3, 32
#: A number further from 0 than this, at 15 digits, is not 0.
_NEAR = 1e-9


def replacements(latex: ModuleType, grader: ModuleType) -> Iterator[tuple[ModuleType, str, object]]:
    """(module, name, what to put there); nothing for a name that this version of the library does not have.

    latex   latex2sympy2_extended.latex2sympy2
    grader  math_verify.grader
    """
    if hasattr(latex, "PSParser"):
        yield latex, "PSParser", two_stages(latex.PSParser)
    if hasattr(getattr(latex, "_Latex2Sympy", None), "parse_number"):
        yield latex, "_Latex2Sympy", digits_first(latex._Latex2Sympy)
    if hasattr(grader, "simplify"):
        yield grader, "simplify", zero_first(grader.simplify)


def two_stages(parser: Any) -> Any:
    """The generated parser, which predicts without the context of the whole text first.

    ANTLR's authors show that this gives the tree that full prediction gives, or a syntax error (Parr, Harwell, Fisher:
    Adaptive LL(*) Parsing, 2014), after which the text is parsed again. It alone remembers what it learned from texts.
    """
    from antlr4 import PredictionMode

    class TwoStages(parser):
        def math(self) -> Any:
            # A lexer goes on behind a character that it does not know: after its error there must be no second try.
            self._input.fill()
            self._interp.predictionMode = PredictionMode.SLL
            try:
                return super().math()
            except Exception:
                self.reset()
                self._interp.predictionMode = PredictionMode.LL
                return super().math()

    return TwoStages


def digits_first(converter: Any) -> Any:
    """The converter of trees, which reads a numeral of digits directly, not by evaluating a Python expression."""
    from sympy import Integer

    class DigitsFirst(converter):
        def parse_number(self, text: str) -> Any:
            return Integer(text) if text.isascii() and text.isdigit() else super().parse_number(text)

    return DigitsFirst


def zero_first(simplify: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`simplify` for one whose only question is whether the result is zero: 0 or 1 where that is certain without it."""

    def simplified(difference: Any) -> Any:
        from sympy import Integer

        zero = is_zero(difference)
        return simplify(difference) if zero is None else Integer(not zero)

    return simplified


def is_zero(expression: Any) -> bool | None:
    """Whether a sympy expression is 0 for all values of its symbols; None where that is not certain at little cost.

    Certain: a polynomial with rational coefficients, expanded exactly, and a real number that 15 digits tell from 0.
    An expression with a float is never certain.

    >>> from sympy import pi, sqrt, sin, symbols
    >>> x, y = symbols("x y")
    >>> is_zero((x + 1) ** 2 - x**2 - 2 * x - 1), is_zero(x * y - y), is_zero(sqrt(8) - pi)
    (True, False, False)
    >>> is_zero(sin(x)), is_zero(0.5 * x), is_zero((x + 1) ** 99)
    (None, None, None)
    """
    from sympy import Expr, Float

    if not isinstance(expression, Expr) or expression.has(Float):
        return None
    return _zero_number(expression) if expression.is_number else _zero_polynomial(expression)


def _zero_number(expression: Any) -> bool | None:
    try:
        value = expression.evalf(15, strict=True)  # without strict a difference of large equals comes out as noise
    except (ArithmeticError, NotImplementedError, ValueError):
        return None
    return False if value.is_Float and abs(value) > _NEAR else None


def _zero_polynomial(expression: Any) -> bool | None:
    symbols = sorted(expression.free_symbols, key=str)
    if len(symbols) > _SYMBOLS or _degree(expression) > _DEGREE:
        return None
    from sympy import QQ
    from sympy.polys.orderings import lex
    from sympy.polys.rings import PolyRing

    return not PolyRing(symbols, QQ, lex).from_expr(expression)


def _degree(expression: Any) -> float:
    """At least the degree of a polynomial with rational coefficients; infinite for anything else."""
    if expression.is_Symbol:
        return 1 if expression.is_commutative else inf
    if expression.is_Add or expression.is_Mul:
        return (max if expression.is_Add else sum)(_degree(part) for part in expression.args)
    if expression.is_Pow and expression.exp.is_Integer and 0 < expression.exp <= _DEGREE:
        return int(expression.exp) * max(1, _degree(expression.base))
    return 0 if expression.is_Rational else inf
