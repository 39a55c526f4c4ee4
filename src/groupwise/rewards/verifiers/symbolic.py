r"""Comparison of two expressions, exact if they are rational and to eighty digits else, by a child process.

Numbers are compared relative to their size: 1/2004! is not 1/2006!. Expressions with symbols are equal if they are at
several points: two different analytic functions agree at points chosen beforehand only by a coincidence of all digits.

A time limit by SIGALRM holds in the main thread only, and not while C code runs. Here a question is put to another
process; one that is late is killed with its whole process group and replaced.
"""

import resource
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from typing import Any

from groupwise.core.channel import Channel
from groupwise.core.errors import RunError
from groupwise.core.peer import PeerLost
from groupwise.core.processes.children import Child
from groupwise.core.task import Starting
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


#: A child that has not said that it is ready after this long never will: seconds. Not part of a question's deadline,
#: and less than a pool's limit for loading, which would say less.
START_SECONDS = 100.0
#: An answer that needs more memory than this fails: bytes of address space.
MEMORY = 4 * 2**30
#: Questions whose forms sympy meets first here, where no deadline runs.
_WARM = (
    ("value", r"\frac{\sqrt{3}}{2}", r"\sin(\frac{\pi}{3})"),
    ("value", "x^{2}+2x+1", "(x+1)^{2}"),
    ("multiple", "e^{x}", "y", "y-e^{x}", "0"),
)


@dataclass
class Tally:
    """Counts of questions that had no answer: too late, or with the end of the child (a crash, or out of memory)."""

    late: int = 0
    died: int = 0


@dataclass(eq=False, repr=False)
class Guard:
    """Questions from any thread to one persistent child, this module's `main`, which starts at the first question.

    starting  entered while the child gets ready

    A copy, also one that is sent to another process or made by a fork, starts a child of its own.
    """

    tally: Tally = field(default_factory=Tally)
    starting: Starting = nullcontext
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _child: Child | None = None
    _ready: bool = False

    def __reduce__(self) -> tuple[object, ...]:
        return Guard, ()

    def start(self) -> None:
        """Start the child without waiting for it, so that the first question need not."""
        with self._lock:
            self._running()

    def ask(self, *question: str, seconds: float) -> tuple[bool | int, float]:
        """Ask the child -> its answer, False if it was late or died (`tally` tells these apart), and the seconds that
        it took.

        Neither the start of the child nor the questions of other threads count. Raises RunError.
        """
        with self._lock:
            child = self._running()
            try:
                self._wait_until_ready(child)
                begin = time.monotonic()
                child.send({"question": question}, seconds=seconds)
                return child.receive(seconds)["answer"], time.monotonic() - begin
            except PeerLost as lost:
                self.tally.late += lost.late
                self.tally.died += not lost.late
                child.close()
                self._running()
                return False, seconds
            except BaseException:
                child.close()  # an interrupt in between: its answer would be taken for the next question's
                raise

    def _running(self) -> Child:
        if self._child is None or self._child.closed:
            self._child, self._ready = Child(__name__), False
        return self._child

    def _wait_until_ready(self, child: Child) -> None:
        if self._ready:
            return
        try:
            with self.starting():
                child.receive(START_SECONDS)
        except PeerLost:
            raise RunError(
                f"the process that checks answers did not start ({sys.executable} -m {__name__}): "
                f"run this command by hand to see why"
            ) from None
        self._ready = True


def prepare() -> Callable[..., bool | int]:
    """Load sympy and return the function that answers questions."""

    @lru_cache(maxsize=4096)
    def answer(kind: str, *texts: str) -> bool | int:
        try:
            return QUESTIONS[kind](*texts)
        except (ArithmeticError, MemoryError, NotImplementedError, RecursionError, TypeError, ValueError):
            return False

    for question in _WARM:
        answer(*question)
    return answer


def main(parent: Channel) -> None:
    """Answer questions until the parent is gone."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer = prepare()
    parent.send({})
    while True:
        parent.send({"answer": answer(*parent.receive()["question"])})


if __name__ == "__main__":
    prepare()
