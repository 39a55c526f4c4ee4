r"""Comparison of two sympy expressions, exact if they are rational, and to eighty digits else.

Numbers are compared relative to their size: 1/2004! is not 1/2006!. Expressions with symbols are equal if they are at
several points: two different analytic functions agree at points chosen beforehand only by a coincidence of all digits.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from typing import Any

from groupwise.rewards.verifiers.formula import Unread, expression

#: Digits that are computed, and how many of them must agree.
_DIGITS, _AGREE = 100, 80
#: So many points are tried, and so many must have a value.
_NEEDED = 3
#: The values of symbols, none an integer: at the first points all are positive.
_PLACES = tuple(Fraction(top, bottom) for top, bottom in ((17, 13), (7, 11), (23, 9), (31, 29), (19, 17), (5, 43)))
_SIGNS = ((1, 1, 1), (1, 1, 1), (1, 1, 1), (-1, 1, -1), (1, -1, 1), (-1, -1, 1))
_STEP = Fraction(10, 37)
#: A polynomial with more symbols, or of a higher degree, could take long to expand.
_SYMBOLS, _DEGREE = 3, 32


@lru_cache(maxsize=4096)
def parsed(text: str) -> Any:
    """Return the expression of a spelled text, None if it cannot be read."""
    try:
        return expression(text)
    except (Unread, RecursionError, OverflowError):
        return None


def same_value(gold: str, claim: str) -> bool:
    r"""Tell whether two spelled expressions are equal for all values of their symbols.

    >>> same_value("x^{2}+2x+1", "(x+1)^{2}"), same_value(r"\frac{1}{2004!}", r"\frac{1}{2006!}"), same_value("f'", "f")
    (True, False, False)
    """
    one, other = parsed(gold), parsed(claim)
    return one is not None and other is not None and equal(one, other)


def near(exact: str, decimals: str) -> bool:
    r"""Tell whether a number is another one rounded, to a digit at least.

    >>> near(r"\sqrt{2}", "1.4"), near("7", "8")
    (True, False)
    """
    one, other = parsed(exact), parsed(decimals)
    if one is None or other is None or one.free_symbols or other.free_symbols or one == other:
        return False
    return not (one.is_Integer and other.is_Integer) and bool(abs(one - other) <= abs(one) / 20)


def multiple(*sides: str) -> int:
    r"""Return 1 or -1 if the difference of the last two sides is that of the first two, times a number above or below
    0; else 0.

    >>> multiple("x+y", "5", "y", "5-x"), multiple("x", "3", "3", "x"), multiple("x+y", "5", "x-y", "5")
    (1, -1, 0)
    """
    left, right, other_left, other_right = (parsed(text) for text in sides)
    if any(side is None for side in (left, right, other_left, other_right)):
        return 0
    one, other = left - right, other_left - other_right
    symbols = one.free_symbols
    if not symbols or symbols != other.free_symbols:
        return 0
    pairs = _values(one, other)
    if len(pairs) < _NEEDED or any(abs(a) < 10**-_AGREE or abs(b) < 10**-_AGREE for a, b in pairs):
        return 0
    if not all(_near(a * d, b * c) for (a, b), (c, d) in combinations(pairs, 2)):
        return 0
    real, imaginary = (pairs[0][1] / pairs[0][0]).as_real_imag()
    return 0 if abs(imaginary) > 10**-_AGREE else 1 if real > 0 else -1


def equal(one: Any, other: Any) -> bool:
    """Tell whether two sympy expressions are equal for all values of their symbols.

    >>> from sympy import exp, pi, sqrt, symbols
    >>> x, y = symbols("x y")
    >>> equal((x + 1) * (x - 1), x**2 - 1), equal(exp(-50), exp(-60)), equal(sqrt(8), 2 * sqrt(2)), equal(x, y)
    (True, False, True, False)
    """
    from sympy import I, log, nan, zoo

    if one.has(nan, zoo) or other.has(nan, zoo):
        return False
    if one == other:
        return True
    if one.is_Rational and other.is_Rational:
        return False
    if not one.free_symbols | other.free_symbols:
        return _near(one.evalf(_DIGITS), other.evalf(_DIGITS))
    polynomial = zero_polynomial(one - other)
    if polynomial is not None:
        return polynomial
    pairs = _values(one, other)
    if not (one.has(I, log) or other.has(I, log)):  # of roots, those of negative numbers have no one meaning
        pairs = [pair for pair in pairs if all(value.as_real_imag()[1] == 0 for value in pair)]
    return len(pairs) >= _NEEDED and all(_near(a, b) for a, b in pairs)


def zero_polynomial(difference: Any) -> bool | None:
    """Tell whether a polynomial with rational coefficients is 0; None if it is none, or a large one."""
    symbols = sorted(difference.free_symbols, key=str)
    if len(symbols) > _SYMBOLS or _degree(difference) > _DEGREE:
        return None
    from sympy import QQ
    from sympy.polys.orderings import lex
    from sympy.polys.rings import PolyRing

    return not PolyRing(symbols, QQ, lex).from_expr(difference)


def _values(one: Any, other: Any) -> list[tuple[Any, Any]]:
    """Return both at the same points, those where both are finite."""
    from sympy import Rational

    symbols = sorted(one.free_symbols | other.free_symbols, key=str)
    points = []
    for turn, signs in enumerate(_SIGNS):
        places = [
            signs[at % len(signs)] * (_PLACES[(turn + 2 * at) % len(_PLACES)] + at * _STEP)
            for at in range(len(symbols))
        ]
        points.append({s: Rational(p.numerator, p.denominator) for s, p in zip(symbols, places, strict=True)})
    pairs = [(one.subs(point).evalf(_DIGITS), other.subs(point).evalf(_DIGITS)) for point in points]
    return [(a, b) for a, b in pairs if _finite(a) and _finite(b)]


def _near(one: Any, other: Any) -> bool:
    """Tell whether two numbers agree relative to their size. What is noise beside the digits computed is 0."""
    size = max(abs(one), abs(other))
    return bool(_finite(size) and abs(one - other) <= size * 10**-_AGREE)


def _finite(value: Any) -> bool:
    return bool(value.is_number and value.is_finite)


def _degree(expression: Any) -> float:
    """Bound the degree of a polynomial with rational coefficients; infinite for anything else."""
    if expression.is_Symbol:
        return 1
    if expression.is_Add or expression.is_Mul:
        return (max if expression.is_Add else sum)(_degree(part) for part in expression.args)
    if expression.is_Pow and expression.exp.is_Integer and 0 < expression.exp <= _DEGREE:
        return int(expression.exp) * max(1, _degree(expression.base))
    return 0 if expression.is_Rational else float("inf")


#: The question to the child -> the function that answers.
QUESTIONS: dict[str, Callable[..., bool | int]] = {"value": same_value, "multiple": multiple, "near": near}
