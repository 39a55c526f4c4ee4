"""Tests as a file writes them (JSON), as the tests that the judge runs.

{"input": text, "output": text}                      a script's stdin and stdout
{"call": "f", "args": [...], "kwargs": {...}, "expected": value}
"assert f(2) == 3"                                   one test; a list of them, or one text with everything
"def check(candidate): assert candidate(2) == 3"     with an entry point: the function that it is given
"""

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
        "".join(test.values()).encode("utf-8", "surrogateescape")  # a ValueError where no program could be given it
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
    defined, used = set(), set()
    for text in texts:
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"the tests are not Python: {error}") from None
        for node in ast.walk(tree):
            _note(node, defined, used)
    tests = list(texts)
    if "check" in defined and "check" not in used:
        if not entry_point:
            raise ValueError("the tests define check(candidate), and no entry point says which function it is given")
        tests[-1] += f"\n\ncheck({entry_point})\n"
        used.add(entry_point)
    names = sorted(used - defined - set(dir(builtins)) - {"__name__"})
    if not names:
        raise ValueError("the tests call nothing that a completion could define")
    return Asserts(tuple(tests), tuple(names))


def _note(node: ast.AST, defined: set[str], used: set[str]) -> None:
    """Adds the names that this part of the test code defines and those that it uses."""
    match node:
        case ast.Name(name, ast.Load()):
            used.add(name)
        case ast.Name(name) | ast.arg(name) | ast.ExceptHandler(name=str(name)):
            defined.add(name)
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
            defined.add(name)
        case ast.alias(name, asname):
            defined.add((asname or name).split(".")[0])
