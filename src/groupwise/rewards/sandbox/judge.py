"""Tests of a program, as a file writes them (JSON), and which of them the program passes.

{"input": text, "output": text}                      a script's stdin and stdout
{"call": "f", "args": [...], "kwargs": {...}, "expected": value}
"assert f(2) == 3"                                   one test; a list of them, or one text with everything
"def check(candidate): assert candidate(2) == 3"     with an entry point: the function that it is given

Expected values stay here, or in a process that the program cannot reach.
"""

import ast
import builtins
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from groupwise.core.processes import codec
from groupwise.rewards.sandbox.box import Reply, Sandbox, Session
from groupwise.rewards.sandbox.job import Job, Kind, Limits


@dataclass(frozen=True)
class Stdio:
    """A script's input and what it must print."""

    input: str
    output: str


@dataclass(frozen=True)
class Call:
    """A function (`f`, or `Solution.solve`), its arguments and the expected value, as trees of the codec."""

    name: str
    args: Any
    kwargs: Any
    expected: Any


@dataclass(frozen=True)
class Asserts:
    """Test code, one text each test, and the names in it that the program must define."""

    tests: tuple[str, ...]
    names: tuple[str, ...]


Test = Stdio | Call | Asserts


@dataclass(frozen=True)
class Failure:
    """Reason why a program fails a test. The words are the program's own and prove nothing; without either, the program
    answered, and the answer is wrong.

    kind       how it ended, where it did not answer
    error      the name of the exception's type, where it answered with one
    traceback  of that exception, its last line the type and the message
    """

    kind: Kind | None = None
    error: str = ""
    traceback: str = ""


WRONG, LATE = Failure(), Failure(Kind.TIMEOUT)

#: Seconds beyond a sandbox's own that `passed` may take: programs are started, and ended where they go on.
MARGIN = 2.0


def passed(box: Sandbox, program: str, tests: Sequence[Test], every: bool = True) -> list[bool]:
    """Return which tests the program passes, one for each Stdio, Call and text of Asserts.

    every  run them all; without it the first that fails ends the work, and those after it count as failed
    """
    return [failure is None for failure in failures(box, program, tests, every)]


def failures(box: Sandbox, program: str, tests: Sequence[Test], every: bool = True) -> list[Failure | None]:
    """Say why the program fails each test, None where it passes; in the order and with the arguments of `passed`.

    All processes together, one after another, have the sandbox's seconds: what does not come to its turn failed. Where
    one is ended from outside, all is done once more: that is no fault of the program.
    """
    struck = box.struck
    verdicts = _failures(box, program, tests, every)
    return verdicts if box.struck == struck else _failures(box, program, tests, every)


def _failures(box: Sandbox, program: str, tests: Sequence[Test], every: bool) -> list[Failure | None]:
    until = time.monotonic() + box.limits.seconds
    calls = [test for test in tests if isinstance(test, Call)]
    verdicts = _calls(box, program, calls, every) if calls else []
    for test in tests:
        left = replace(box.limits, seconds=until - time.monotonic())
        if left.seconds <= 0 or (not every and any(verdicts)):
            break
        if isinstance(test, Stdio):
            verdicts.append(_stdio(box, program, test, left))
        elif isinstance(test, Asserts):
            verdicts += _asserts(box, program, test, left)
    count = sum(len(test.tests) if isinstance(test, Asserts) else 1 for test in tests)
    return verdicts + [LATE] * (count - len(verdicts))


def called(test: Test) -> tuple[str, ...]:
    """Return the names that a test calls."""
    return (test.name,) if isinstance(test, Call) else test.names if isinstance(test, Asserts) else ()


def same_text(output: str, expected: str) -> bool:
    """Tell if two outputs are one, blanks at line ends and empty lines at the end aside.

    >>> same_text("1 2 \\n3\\n\\n", "1 2\\n3"), same_text("1 2", "12")
    (True, False)
    """
    left, right = ([line.rstrip() for line in text.rstrip().split("\n")] for text in (output, expected))
    return left == right


def _stdio(box: Sandbox, program: str, test: Stdio, limits: Limits) -> Failure | None:
    room = max(limits.output, 2 * len(test.output.encode("utf-8", "surrogateescape")))
    outcome = box.run(program, test.input, replace(limits, output=room))
    if outcome.kind is not Kind.FINISHED:
        last = outcome.stderr.rstrip().rpartition("\n")[2]
        return Failure(outcome.kind, last.partition(":")[0], last)
    return None if same_text(outcome.stdout, test.output) else WRONG


def _calls(box: Sandbox, program: str, calls: Sequence[Call], every: bool) -> list[Failure | None]:
    """Let one process answer all the calls, in order; from its end on they fail."""
    verdicts: list[Failure | None] = []
    with box.session(program) as session:
        for call in calls:
            reply = session.call(call.name, call.args, call.kwargs)
            if reply is None:
                return verdicts + [_ending(session)] * (len(calls) - len(verdicts))
            verdicts.append(_raised(reply) or (None if equal(reply.value, call.expected) else WRONG))
            if verdicts[-1] and not every:
                break
    return verdicts + [WRONG] * (len(calls) - len(verdicts))


def _asserts(box: Sandbox, program: str, test: Asserts, limits: Limits) -> list[Failure | None]:
    """Run the tests apart from the program; only their own process's verdict counts."""
    until, replies = time.monotonic() + limits.seconds, list[Reply]()
    with box.session(program, limits) as session:
        left = replace(limits, seconds=until - time.monotonic())
        if session.loaded is None or session.loaded.error or left.seconds <= 0:
            return [_ending(session) if left.seconds > 0 else LATE] * len(test.tests)
        tester, nonce = box.tester(list(test.tests), list(test.names), left)
        try:
            verdict = _mediate(tester, session, test.names, replies)
        finally:
            late = tester.stop().kind is Kind.TIMEOUT
        if verdict is None:
            return [LATE if late else _ending(session)] * len(test.tests)
    return _read(verdict, nonce, replies, len(test.tests))


def _read(verdict: dict[str, Any], nonce: str, replies: Sequence[Reply], count: int) -> list[Failure | None]:
    """Return what the tester's verdict says of so many tests: all failed where it is none."""
    passes, raised = verdict.get("passed"), verdict.get("raised")
    if verdict.get("nonce") != nonce or type(passes) is not list or len(passes) != count:
        return [WRONG] * count
    if not all(type(test) is bool for test in passes):
        return [WRONG] * count
    causes = raised if type(raised) is list and len(raised) == count else [None] * count
    return [None if good else _cause(replies, number) for good, number in zip(passes, causes, strict=True)]


def _cause(replies: Sequence[Reply], number: object) -> Failure:
    if not isinstance(number, int) or not 0 <= number < len(replies):
        return WRONG
    return _raised(replies[number]) or WRONG


def _raised(reply: Reply) -> Failure | None:
    return Failure(None, reply.error, reply.traceback) if reply.error else None


def _ending(session: Session) -> Failure:
    """Say why a program answers no more: it did not load, or is at its end."""
    unloaded = _raised(session.loaded) if session.loaded is not None else None
    return unloaded or Failure(session.close().kind)


def _mediate(tester: Job, session: Session, names: Sequence[str], replies: list[Reply]) -> dict[str, Any] | None:
    """Carry calls from the tester to the program and answers back, into `replies` too, until the tester's verdict.

    None where the program ends before it answers: a test that expects an exception must not take that for one.
    """
    message = tester.exchange()
    while message is not None and "call" in message:
        if message["call"] not in names:
            return None
        reply = session.call(message["call"], message["args"], message["kwargs"])
        if reply is None:
            return None
        replies.append(reply)
        answer = {"error": reply.error, "traceback": reply.traceback} if reply.error else {"value": reply.value}
        message = tester.exchange(answer)
    return message


def parse(tests: object, entry_point: str = "") -> tuple[Test, ...]:
    """Read tests. Raises ValueError, in words, for what is no test and where there is none.

    >>> parse(["assert f(2) == 3", "assert g(f(1)) == 0"])
    (Asserts(tests=('assert f(2) == 3', 'assert g(f(1)) == 0'), names=('f', 'g')),)
    """
    written = tests if isinstance(tests, Sequence) and not isinstance(tests, str) else [tests]
    texts = [test for test in written if isinstance(test, str) and test.strip()]
    data = [_parsed_case(test) for test in written if not isinstance(test, str)]
    if not texts and not data:
        raise ValueError("there is no test")
    return (*data, *([_parsed_asserts(texts, entry_point)] if texts else []))


def _parsed_case(test: object) -> Test:
    if not isinstance(test, Mapping):
        raise ValueError(f"a test must be a text or an object, not {test!r:.80}")
    keys = set(test)
    if keys == {"input", "output"} and all(isinstance(text, str) for text in test.values()):
        "".join(test.values()).encode("utf-8", "surrogateescape")  # a ValueError where no program could be given it
        return Stdio(test["input"], test["output"])
    if {"call", "expected"} <= keys <= {"call", "args", "kwargs", "expected"}:
        args, kwargs = test.get("args", []), test.get("kwargs", {})
        if isinstance(test["call"], str) and isinstance(args, list) and isinstance(kwargs, dict):
            try:
                expected = codec.encode(test["expected"])
            except codec.NotPlain as error:
                raise ValueError(f"expected: {error}") from None
            return Call(test["call"], codec.encode(args), codec.encode(kwargs), expected)
    raise ValueError(
        'a test must be {"input": text, "output": text} or {"call": name, "args": [...], "expected": value}, '
        f"not {test!r:.80}"
    )


def _parsed_asserts(texts: Sequence[str], entry_point: str) -> Asserts:
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
    """Add the names that this part of the test code defines and those that it uses."""
    match node:
        case ast.Name(name, ast.Load()):
            used.add(name)
        case ast.Name(name) | ast.arg(name) | ast.ExceptHandler(name=str(name)):
            defined.add(name)
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
            defined.add(name)
        case ast.alias(name, asname):
            defined.add((asname or name).split(".")[0])


def equal(value: Any, expected: Any, depth: int = codec.DEPTH) -> bool:
    """Tell if two trees mean the same value, the second being trusted.

    Trees are compared, and no set or dict is built of a child's data: keys chosen to collide would cost quadratic time.
    A bool is no number, a float equals the int of its value, NaN equals nothing. A tuple equals a list where the
    expected value is a list: JSON has no tuples.

    >>> equal(["t", 1, 2.0], ["l", 1, 2]), equal(True, 1), equal(float("nan"), float("nan"))
    (True, False, False)
    """
    value, expected = _number(value), _number(expected)
    if type(expected) in (int, float):
        return type(value) in (int, float) and value == expected
    if type(expected) is not list or type(value) is not list:
        return type(value) is type(expected) and value == expected
    if len(value) != len(expected) or depth == 0:
        return False
    kind = expected[0]
    if value[0] != kind and not (kind == "l" and value[0] == "t"):
        return False
    if kind == "d":
        pairs = zip(*(sorted(tree[1:], key=lambda pair: _key(pair[0])) for tree in (value, expected)), strict=True)
        return all(equal(a[0], b[0], depth - 1) and equal(a[1], b[1], depth - 1) for a, b in pairs)
    sides = (sorted(tree[1:], key=_key) if kind == "s" else tree[1:] for tree in (value, expected))
    return all(equal(a, b, depth - 1) for a, b in zip(*sides, strict=True))


def _number(tree: Any) -> Any:
    return int(tree[1], 16) if type(tree) is list and tree[0] == "i" else tree


def _key(tree: Any) -> str:
    """Return a text that is the same for equal members of a set, or keys of a dict: 2.0 is 2."""
    return json.dumps(_with_ints(tree))


def _with_ints(tree: Any) -> Any:
    if type(tree) is list:
        return [_with_ints(item) for item in tree]
    return int(tree) if type(tree) is float and tree.is_integer() else tree
