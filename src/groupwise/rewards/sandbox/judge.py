"""Which tests a program passes. Expected values stay here, or in a process that the program cannot reach."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from groupwise.rewards.sandbox import wire
from groupwise.rewards.sandbox.box import Sandbox, Session
from groupwise.rewards.sandbox.job import Job
from groupwise.rewards.sandbox.outcome import Kind, Limits


@dataclass(frozen=True)
class Stdio:
    """A script's input and what it must print."""

    input: str
    output: str


@dataclass(frozen=True)
class Call:
    """A function (`f`, or `Solution.solve`), its arguments and the expected value, as trees of `wire`."""

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

#: Seconds beyond a sandbox's own that `passed` may take: programs are started, and ended where they go on.
MARGIN = 2.0


def passed(box: Sandbox, program: str, tests: Sequence[Test], every: bool = True) -> list[bool]:
    """Which tests the program passes, one for each Stdio, Call and text of Asserts.

    every  run them all; without it the first that fails ends the work, and those after it count as failed

    All processes together, one after another, have the sandbox's seconds: what does not come to its turn failed.
    """
    until = time.monotonic() + box.limits.seconds
    calls = [test for test in tests if isinstance(test, Call)]
    verdicts = _calls(box, program, calls, every) if calls else []
    for test in tests:
        left = replace(box.limits, seconds=until - time.monotonic())
        if left.seconds <= 0 or (not every and not all(verdicts)):
            break
        if isinstance(test, Stdio):
            verdicts.append(_stdio(box, program, test, left))
        elif isinstance(test, Asserts):
            verdicts += _asserts(box, program, test, left)
    count = sum(len(test.tests) if isinstance(test, Asserts) else 1 for test in tests)
    return verdicts + [False] * (count - len(verdicts))


def same_text(output: str, expected: str) -> bool:
    """Whether two outputs are one, blanks at line ends and empty lines at the end aside.

    >>> same_text("1 2 \\n3\\n\\n", "1 2\\n3"), same_text("1 2", "12")
    (True, False)
    """
    left, right = ([line.rstrip() for line in text.rstrip().split("\n")] for text in (output, expected))
    return left == right


def _stdio(box: Sandbox, program: str, test: Stdio, limits: Limits) -> bool:
    room = max(limits.output, 2 * len(test.output.encode("utf-8", "surrogateescape")))
    outcome = box.run(program, test.input, replace(limits, output=room))
    return outcome.kind is Kind.FINISHED and same_text(outcome.stdout, test.output)


def _calls(box: Sandbox, program: str, calls: Sequence[Call], every: bool) -> list[bool]:
    """One process answers all the calls, in order; from its end on they fail."""
    verdicts: list[bool] = []
    with box.session(program) as session:
        for call in calls:
            reply = session.call(call.name, call.args, call.kwargs)
            verdicts.append(reply is not None and not reply.error and wire.equal(reply.value, call.expected))
            if reply is None or not (every or verdicts[-1]):
                break
    return verdicts + [False] * (len(calls) - len(verdicts))


def _asserts(box: Sandbox, program: str, test: Asserts, limits: Limits) -> list[bool]:
    """The tests run apart from the program, and only their own process's verdict counts."""
    failed, until = [False] * len(test.tests), time.monotonic() + limits.seconds
    with box.session(program, limits) as session:
        left = replace(limits, seconds=until - time.monotonic())
        if session.loaded is None or session.loaded.error or left.seconds <= 0:
            return failed
        tester, nonce = box.tester(list(test.tests), list(test.names), left)
        try:
            verdict = _mediate(tester, session, test.names)
        finally:
            tester.stop()
    if verdict is None or verdict.get("nonce") != nonce:
        return failed
    passes = verdict.get("passed")
    if type(passes) is not list or len(passes) != len(failed) or not all(type(test) is bool for test in passes):
        return failed
    return passes


def _mediate(tester: Job, session: Session, names: Sequence[str]) -> dict[str, Any] | None:
    """Carries calls from the tester to the program and answers back, until the tester's verdict.

    None where the program ends before it answers: a test that expects an exception must not take that for one.
    """
    message = tester.exchange()
    while message is not None and "call" in message:
        if message["call"] not in names:
            return None
        reply = session.call(message["call"], message["args"], message["kwargs"])
        if reply is None:
            return None
        answer = {"error": reply.error, "traceback": reply.traceback} if reply.error else {"value": reply.value}
        message = tester.exchange(answer)
    return message
