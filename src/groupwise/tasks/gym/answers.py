"""The answer in a completion, and the answers that must not reach a scorer that runs them as code."""

import ast
import re
from collections.abc import Callable, Mapping
from functools import partial

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_LONGEST = 2000  # characters; beyond it even reading an expression takes a while
_HIGHEST = 1000  # exponents multiplied: sympy works out 9**9**9**9, or tries to

_NUMBERS = (ast.Expression, ast.Constant, ast.UnaryOp, ast.UAdd, ast.USub, ast.BinOp, ast.Add, ast.Sub)
_LITERAL = (*_NUMBERS, ast.List, ast.Tuple, ast.Name, ast.Load)
_ARITHMETIC = (*_NUMBERS, ast.Mult, ast.Div, ast.Pow)
_FORMULA = (*_ARITHMETIC, ast.Name, ast.Load, ast.Call)
_TRIGONOMETRIC = ("sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan")
_HYPERBOLIC = ("sinh", "cosh", "tanh", "asinh", "acosh", "atanh")
_FUNCTIONS = frozenset({*_TRIGONOMETRIC, *_HYPERBOLIC, "exp", "log", "ln", "sqrt", "abs", "Abs"})


def final_answer(completion: str, after: str, tags: bool) -> str | None:
    """Find the answer in a completion, stripped: in the last <answer> tags (None if there are none), behind the last
    `after` (all of it where there is none), or all of it.

    >>> final_answer("12-4=8", "=", False), final_answer("so <answer>8</answer>.", "", True)
    ('8', '8')
    """
    if tags:
        tagged = _TAGGED.findall(completion)
        return tagged[-1].strip() if tagged else None
    return (completion.rsplit(after, 1)[-1] if after else completion).strip()


def harmless(generator: str, answer: str) -> bool:
    """Tell whether the generator's scorer may see the answer. Nine scorers hand it to Python's or sympy's evaluation,
    so that it could do anything; these get an answer only if it is a literal, or a formula of known functions.

    >>> harmless("countdown", "3*(4 + 5)"), harmless("countdown", "__import__('os').abort()")
    (True, False)
    """
    check = _CHECKS.get(generator)
    return check is None or (len(answer) <= _LONGEST and check(answer))


def _is_literal(answer: str) -> bool:
    """Tell whether an answer is a literal, or no Python at all, which evaluation refuses before anything runs."""
    try:
        return all(isinstance(node, _LITERAL) for node in ast.walk(ast.parse(answer, mode="eval")))
    except SyntaxError:
        return True
    except (ValueError, MemoryError, RecursionError):
        return False


def _is_formula(answer: str, allowed: tuple[type[ast.AST], ...] = _FORMULA) -> bool:
    """Tell whether an answer is a formula. Sympy reads more than Python (`5!`), so what is no Python is refused."""
    try:
        nodes = list(ast.walk(ast.parse(answer, mode="eval")))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return all(isinstance(node, allowed) and _is_tame(node) for node in nodes) and _height(nodes[0]) <= _HIGHEST


def _is_tame(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords
    return not isinstance(node, ast.Constant) or type(node.value) in (int, float)


def _height(node: ast.AST) -> float:
    """Find the largest product of nested exponents, 1 where there are none."""
    operands = (child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))
    inner = max(map(_height, operands), default=1.0)
    is_power = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)
    return inner * max(1.0, _bound(node.right)) if is_power else inner  # type: ignore[union-attr]


def _bound(node: ast.AST) -> float:
    """Bound the value of an exponent, its symbols taken as 1; a division may only be by a whole number."""
    if isinstance(node, ast.Constant):
        return abs(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp):
        return _bound(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _bound(node.left), _bound(node.right)
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div):
            divisor = node.right.value if isinstance(node.right, ast.Constant) else None
            return left if type(divisor) is int and divisor > 0 else float("inf")
        return left + right if isinstance(node.op, (ast.Add, ast.Sub)) else float("inf")
    return 1.0 if isinstance(node, (ast.Name, ast.Call)) else float("inf")


_CHECKS: Mapping[str, Callable[[str], bool]] = {
    **dict.fromkeys(("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"), _is_literal),
    **dict.fromkeys(("countdown", "puzzle24"), partial(_is_formula, allowed=_ARITHMETIC)),
    **dict.fromkeys(("intermediate_integration", "polynomial_multiplication", "simple_integration"), _is_formula),
}
