"""Tests as a file writes them (JSON), made into tests that the judge runs.

{"input": text, "output": text}                      a script's stdin and stdout
{"call": "f", "args": [...], "kwargs": {...}, "expected": value}
"assert f(2) == 3"                                   one test; a list of them, or one text with everything
"def check(candidate): assert candidate(2) == 3"     with an entry point: the function that it is given
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping, Sequence

from groupwise.rewards.sandbox import wire
from groupwise.rewards.sandbox.judge import Asserts, Call, Stdio, Test


def parse(tests: object, entry_point: str = "") -> tuple[Test, ...]:
    """The tests. Raises ValueError, in words, for what is no test and where there is none.

    >>> parse(["assert f(2) == 3", "assert g(f(1)) == 0"])
    (Asserts(tests=('assert f(2) == 3', 'assert g(f(1)) == 0'), names=('f', 'g')),)
    """
    written = tests if isinstance(tests, Sequence) and not isinstance(tests, str) else [tests]
    texts = [test for test in written if isinstance(test, str) and test.strip()]
    data = [_case(test) for test in written if not isinstance(test, str)]
    if not texts and not data:
        raise ValueError("there is no test")
    return (*data, *([_asserts(texts, entry_point)] if texts else []))


def _case(test: object) -> Test:
    if not isinstance(test, Mapping):
        raise ValueError(f"a test must be a text or an object, not {test!r:.80}")
    keys = set(test)
    if keys == {"input", "output"} and all(isinstance(text, str) for text in test.values()):
        return Stdio(test["input"], test["output"])
    if {"call", "expected"} <= keys <= {"call", "args", "kwargs", "expected"}:
        args, kwargs = test.get("args", []), test.get("kwargs", {})
        if isinstance(test["call"], str) and isinstance(args, list) and isinstance(kwargs, dict):
            return Call(test["call"], wire.encode(args), wire.encode(kwargs), _expected(test["expected"]))
    raise ValueError(
        'a test must be {"input": text, "output": text} or {"call": name, "args": [...], "expected": value}, '
        f"not {test!r:.80}"
    )


def _expected(value: object) -> object:
    try:
        return wire.encode(value)
    except wire.NotPlain as error:
        raise ValueError(f"expected: {error}") from None


def _asserts(texts: Sequence[str], entry_point: str) -> Asserts:
    trees = [_parsed(text) for text in texts]
    made, used = set(), set()
    for tree in trees:
        for node in ast.walk(tree):
            _note(node, made, used)
    tests = list(texts)
    if "check" in made and "check" not in used:
        if not entry_point:
            raise ValueError("the tests define check(candidate), and no entry point says which function it is given")
        tests[-1] += f"\n\ncheck({entry_point})\n"
        used.add(entry_point)
    names = sorted(used - made - set(dir(builtins)) - {"__name__"})
    if not names:
        raise ValueError("the tests call nothing that a completion could define")
    return Asserts(tuple(tests), tuple(names))


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"the tests are not Python: {error}") from None


def _note(node: ast.AST, made: set[str], used: set[str]) -> None:
    """Adds the names that this part of the test code makes and those that it uses."""
    if isinstance(node, ast.Name):
        (used if isinstance(node.ctx, ast.Load) else made).add(node.id)
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        made.add(node.name)
    elif isinstance(node, ast.arg):
        made.add(node.arg)
    elif isinstance(node, ast.alias):
        made.add((node.asname or node.name).split(".")[0])
    elif isinstance(node, ast.ExceptHandler) and node.name:
        made.add(node.name)
