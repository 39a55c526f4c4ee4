"""The environment `code-turns`: what it answers to a program, what it never says, and that it says it again."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.commands.train.train import resume
from groupwise.core.environment import Conversation, Reply, fingerprint
from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.environments.live import PoolEnvironments, _as_reply, _Loads
from groupwise.rewards.pool.work import Limits
from groupwise.rewards.sandbox.words import LONGEST
from groupwise.tasks.code import Code, hasty, right
from recipes.code_turns import CodeTurns
from tests.environments.test_live import said
from tests.runs.test_run import assert_same_run
from tests.runs.tiny_runs import cut_back, rollouts

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")

HANGS = "return sum(iter(int, 1))"
RIGHT, HASTY = "x+=3;x*=2;return x", "return x+3*2"
#: Seconds that no answer needs: on a busy machine a process may take a while to start.
MANY = 60.0


@pytest.fixture(scope="module")
def turns() -> CodeTurns:
    return CodeTurns(problems=400, seconds=3.0)


@pytest.fixture(scope="module")
def impatient() -> CodeTurns:
    """What waits a sixth as long, for programs that would take any time."""
    return CodeTurns(problems=400, seconds=0.5)


def body(*calls: tuple[int, int]) -> Sample:
    """A function f(x) of these arguments and values, whose body is to be written."""
    tests = [{"call": "f", "args": [x], "expected": value} for x, value in calls]
    return Sample("k", "+3*2:", RIGHT, {"tests": tests, "prefix": "def f(x):"})


def whole(tests: object, entry_point: str = "") -> Sample:
    return Sample("k", "p", "", {"tests": tests, "entry_point": entry_point, "prefix": ""})


def answer(turns: CodeTurns, sample: Sample, text: str) -> str:
    """What is answered to a first turn, without its end of line."""
    episode = turns.fresh()
    episode.reset(sample)
    said_, reward, done = episode.step(text)
    assert (done, reward) == ((True, 1.0) if said_ == "" else (False, 0.0))
    assert said_ == "" or (said_.endswith("\n") and said_.count("\n") == 1 and len(said_) <= LONGEST + 1)
    return said_[:-1]


UNBOUND = "cannot access local variable 'n' where it is not associated with a value"
ADDS = body((1, 8), (4, 14))


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (RIGHT, ""),
        (RIGHT + "\n", ""),
        (HASTY, "wrong answer"),
        ("return object()", "wrong answer: no plain value"),
        ("return y", "NameError: name 'y' is not defined"),
        ("return y if x else xx", "NameError: name 'y' is not defined"),
        ("x+=n;n=1;return x", f"UnboundLocalError: {UNBOUND}"),
        ("return x.foo", "AttributeError: 'int' object has no attribute 'foo'"),
        ("return x/0", "ZeroDivisionError: division by zero"),
        ("return f(x)", "RecursionError: maximum recursion depth exceeded"),
        ("return x+'a'", "TypeError: unsupported operand type(s) for +: 'int' and 'str'"),
        ("return f(x,1)", "TypeError: f() takes 1 positional argument"),
        ("return [][1]", "IndexError: list index out of range"),
        ("return int('a')", "ValueError: invalid literal for int() with base 10"),
        ("import foo", "ModuleNotFoundError: No module named 'foo'"),
        ("retun x", "SyntaxError: invalid syntax (line 1)"),
        ("return 'x", "SyntaxError: unterminated string literal (line 1)"),
        ("\n  x=1\n return x", "IndentationError: unindent does not match any outer indentation level (line 3)"),
        (HANGS, "timeout"),
        ("return bytearray(10**12)", "out of memory"),
        ("return 'a'*10**7", "too much output"),
        ("import os;os._exit(0)", "it ended before it answered"),
        ("import os;os.abort()", "crash"),
        ("\n class Mine(Exception): pass\n raise Mine(x)", "an exception of its own"),
    ],
)  # fmt: skip
def test_the_answer_says_how_a_program_failed(turns: CodeTurns, impatient: CodeTurns, program: str, words: str) -> None:
    assert answer(impatient if program == HANGS else turns, ADDS, program) == words


@pytest.mark.parametrize(
    ("tests", "program", "words"),
    [
        (["assert f(2) == 3"], "def f(x): return x + 1", ""),
        (["assert f(2) == 3"], "def f(x): return x", "wrong answer"),
        (["assert f(2) == 3"], "def f(x): return x / 0", "ZeroDivisionError: division by zero"),
        (["assert f(2) == 3"], "def f(x): assert x > 9, x", "AssertionError"),
        (["assert f(2) == 3"], "def g(x): return x", "NameError: name 'f' is not defined"),
        (["assert f(2) == 3"], "def f(x):\n  while True: pass", "timeout"),
        (["assert f(2) == 3"], "def f(x", "SyntaxError: '(' was never closed (line 1)"),
        (["try: f(0)\nexcept ZeroDivisionError: pass\nassert f(2) == 3"], "def f(x): return 4 / x", "wrong answer"),
        (["assert f(2) == 3", "assert f(0) == 0"], "def f(x): return 6 / x", "ZeroDivisionError: division by zero"),
        ([{"input": "1\n", "output": "2\n"}], "print(int(input()) + 1)", ""),
        ([{"input": "1\n", "output": "2\n"}], "print(input())", "wrong answer"),
        ([{"input": "1\n", "output": "2\n"}], "print(int(inpt()) + 1)", "NameError: name 'inpt' is not defined"),
        ([{"input": "1\n", "output": "2\n"}], "import sys; sys.exit(input())", "it ended with an error"),
        ([{"input": "1\n", "output": "2\n"}], "while True: pass", "timeout"),
    ],
)  # fmt: skip
def test_all_forms_of_tests_are_answered(
    turns: CodeTurns, impatient: CodeTurns, tests: list[object], program: str, words: str
) -> None:
    assert answer(impatient if "while True" in program else turns, whole(tests), program) == words


TELLS = (
    "raise ValueError(x)",
    "raise ValueError(str(x))",
    "raise NameError(f\"name '{x}' is not defined\")",
    "raise NameError(f\"name 'secret{x}' is not defined\")",
    "raise NameError(f\"name 'a.{'.'.join('ab'[int(d) % 2] for d in str(x))}' is not defined\")",
    "raise AttributeError(f\"'int' object has no attribute 'is{x}'\")",
    "raise TypeError(f'f() takes {x} positional arguments but 1 was given')",
    "raise RecursionError(f'maximum recursion depth exceeded {x}')",
    "raise SyntaxError(f'invalid syntax {x}')",
    "return int(f'{x}a')",
    "return {}[x]",
    "assert 0,x",
    "import sys;sys.exit(x)",
    "\n class Mine(Exception): pass\n Mine.__name__=f'Is{x}'\n raise Mine(x)",
    "print(x);return x",
    "import sys;print(x,file=sys.stderr);return x",
)


@pytest.mark.parametrize("program", TELLS)
def test_an_answer_says_nothing_of_the_tests(turns: CodeTurns, program: str) -> None:
    """Whatever the program does to have what it saw passed on: other inputs, other expected values, the same answer."""
    one, other = (answer(turns, body((x, x + 70_001)), program) for x in (48_151, 62_342))
    assert one == other != ""
    assert not {"48151", "118152"} & set(one.split())


def test_a_test_that_fails_by_itself_shows_nothing_of_itself(turns: CodeTurns) -> None:
    tests = ["assert f(1) == 48151, f'expected 48151, not {f(1)}'", "raise ValueError('the answer is 48151')"]
    assert answer(turns, whole(tests), "def f(x): return x") == "wrong answer"
    assert answer(turns, whole([f"assert f(1) == 1\n{tests[1]}"]), "def f(x): return x") == "wrong answer"


@pytest.mark.parametrize(
    "program",
    [
        "import time;raise ValueError(time.time_ns())",
        "import time;raise NameError(f\"name 't{time.time_ns()}' is not defined\")",
        "import os;raise KeyError(os.urandom(8))",
        "raise ValueError(object())",
        "return object().foo",
        "import random;raise ValueError(random.random())",
    ],
)
def test_neither_clock_nor_chance_is_in_an_answer(turns: CodeTurns, program: str) -> None:
    assert answer(turns, ADDS, program) == answer(CodeTurns(problems=20), ADDS, program) != ""


@pytest.mark.parametrize("partial", [False, True])
def test_the_score_is_that_of_the_task_code(partial: bool) -> None:
    code = Code(problems=60, partial=partial)
    for sample in code.samples("train")[:6]:
        for program in (sample.answer, hasty(sample.prompt), "return y", "retun", "return 2*x"):
            assert code.explained(sample, program)[0] == code.score(sample, program)


def test_a_second_turn_that_is_right_ends_an_episode_that_is_worth_1(turns: CodeTurns) -> None:
    turns.reset(ADDS)
    assert turns.step(HASTY) == ("wrong answer\n", 0.0, False)
    assert turns.step(RIGHT) == ("", 1.0, True)
    turns.reset(ADDS)
    assert turns.step(RIGHT) == ("", 1.0, True), "nothing of the episode before"


def test_with_partial_an_episode_is_worth_its_last_program() -> None:
    twelve = body(*((x, 2 * x + 6) for x in range(12)))
    programs = [f"return 2*x+6 if x < {passed} else 0" for passed in (1, 3, 2)]
    settings = {"problems": 20, "partial": True}
    task = groupwise.task("code-turns", {"settings": settings, "max_turns": 4})
    episode = CodeTurns(**settings)
    episode.reset(twelve)
    brought = [episode.step(program)[1] for program in [*programs, RIGHT]]
    assert [12 * reward for reward in brought] == pytest.approx([1, 2, -1, 10])
    assert math.fsum(brought) == 1.0, "to the last bit, for that counts as solved"
    assert task.score(twelve, programs[1]) == 3 / 12


def test_episodes_share_the_sandbox_and_nothing_else(turns: CodeTurns) -> None:
    one, other = turns.fresh(), turns.fresh()
    one.reset(ADDS)
    one.step(HASTY)
    other.reset(body((1, 1)))
    assert other.step("return x") == ("", 1.0, True)
    assert one.step("return x") == ("wrong answer\n", 0.0, False), "its own problem"
    assert one._code._box is other._code._box is turns._code._box


def test_the_sandbox_starts_once_in_a_process_and_outside_of_an_answers_time() -> None:
    task: Any = groupwise.task("code-turns", {"settings": {"problems": 20}})
    player, starts = _Loads(task.game).bind(), list[str]()

    @contextlib.contextmanager
    def starting() -> Iterator[None]:
        starts.append("begun")
        yield
        starts.append("ready")

    assert player.starts is not None
    player.starts.start_inside(starting)
    talks = [Conversation(ADDS, number, 1) for number in range(3)]
    openings = [_as_reply(player.function(talk)) for talk in talks]
    said_then = [said(talk, opening, HASTY) for talk, opening in zip(talks, openings, strict=True)]
    replies = [_as_reply(player.function(talk)) for talk in said_then]
    assert [reply.messages[0].text for reply in replies] == ["wrong answer\n"] * 3
    assert starts == ["begun", "ready"]


def played(environments: PoolEnvironments, episode: int, *programs: str) -> tuple[list[Reply], Conversation]:
    talk = Conversation(ADDS, episode, 1)
    replies = environments.wait([environments.begin(talk)])
    for program in programs:
        talk = said(talk, replies[-1], program)
        replies += environments.wait([environments.begin(talk)])
    return replies, talk


def test_it_is_played_in_processes_where_what_hangs_is_a_wrong_answer_and_no_fault() -> None:
    task = groupwise.task("code-turns", {"settings": {"problems": 20, "seconds": 0.5}})
    game: Any = task.game  # type: ignore[attr-defined]
    assert not game.quick
    limits = Limits(workers=1, seconds=MANY)
    environments = PoolEnvironments(game, limits)
    try:
        replies, talk = played(environments, 0, HANGS, RIGHT)
        others, _ = played(environments, 1, "return y", "return y", "retun x")
    finally:
        environments.close()
    texts = [[message.text for message in reply.messages] for reply in replies]
    assert texts == [[], ["timeout\n"], []]
    assert [(reply.reward, reply.done, reply.cause) for reply in replies[1:]] == [(0.0, False, None), (1.0, True, None)]
    assert [reply.cause for reply in others] == [None] * 4
    elsewhere = PoolEnvironments(game, limits)
    try:
        (again,) = elsewhere.wait([elsewhere.begin(replace(talk, episode=7))])
    finally:
        elsewhere.close()
    assert fingerprint(again) == fingerprint(replies[-1]), "played again from the beginning in another process"


def test_demonstrations_hold_what_the_environment_says_and_are_not_perfect(turns: CodeTurns) -> None:
    shown = turns.demonstrations(600, seed=3)
    assert shown == turns.demonstrations(600, seed=3) != turns.demonstrations(600, seed=4)
    assert len(shown) == 600
    assert set("".join(d.prompt + d.completion for d in shown)) <= set(turns.alphabet)
    train = {sample.prompt: sample for sample in turns.samples("train")}
    firsts = [d for d in shown if d.prompt in train]
    seconds = [d for d in shown if d.prompt not in train]
    for d in shown[:120]:
        prompt, *between = d.prompt.split(":", 1)
        sample = train[prompt + ":"]
        if between != [""]:
            program, line, rest = between[0].split("\n")
            assert answer(turns, sample, program) == line != "", "what stands between is what is answered"
            assert rest == ""
        assert d.completion.endswith("\n")
    for part, least, most in ((firsts, 0.2, 0.45), (seconds, 0.3, 0.5)):
        works = [d.completion == right(d.prompt.split(":")[0]) + "\n" for d in part]
        assert least < sum(works) / len(works) < most
    assert len(seconds) > 200
    assert {d.prompt.split("\n")[1] for d in seconds} > {"wrong answer"}


def test_its_alphabet_holds_all_that_python_says_of_a_program_in_it(turns: CodeTurns) -> None:
    assert set(map(chr, range(32, 127))) | {"\n"} == set(turns.alphabet)


def test_problems_of_a_file_are_those_of_the_task_code(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    lines = [{"q": f"add {i}", "tests": [f"assert f(1) == {i + 1}"], "code": f"f = lambda x: x+{i}"} for i in range(30)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = {"path": str(path), "prompt": "q", "solution": "code", "heldout_share": 0.3}
    task: Any = groupwise.task("code-turns", {"settings": settings})
    code = Code(**settings)  # type: ignore[arg-type]
    for split in ("train", "heldout"):
        assert [s.prompt for s in task.samples(split)] == [s.prompt for s in code.samples(split)]
    assert task.alphabet == ""
    before = task.contents
    path.write_text(path.read_text().replace("x+7", "7+x"))
    assert groupwise.task("code-turns", {"settings": settings}).contents != before  # type: ignore[attr-defined]
    assert task.notes() == code.notes()
    sample = task.samples("train")[0]
    assert task.score(sample, sample.answer) == 1.0
    assert task.score(sample, "f = 1") == 0.0
    assert task.demonstrations(3, 0) == code.demonstrations(3, 0)


CHANGES: dict[str, Any] = {
    "steps": 3,
    "prompts_per_step": 4,
    "samples_per_prompt": 4,
    "task.settings": {"problems": 60, "seconds": 2.0},
    "warm_start.steps": 30,
    "warm_start.demonstrations": 500,
    "evaluation.problems": 4,
    "evaluation.samples": 1,
    "evaluation.every": 0,
    "checkpoint.every": 1,
    "checkpoint.keep": 9,
    "journal.report": False,
    "scoring.workers": 2,
}


def test_a_deadline_that_a_program_could_outlast_is_refused(tmp_path: Path) -> None:
    changes = {**CHANGES, "runs": str(tmp_path), "task.settings": {"seconds": 8.0}}
    with pytest.raises(
        UsageError, match=r"scoring.deadline = 10: an answer .* may take 12 s.* set scoring.deadline = 12"
    ):
        groupwise.train("code-turns", changes)


@pytest.mark.slow
def test_a_run_goes_on_to_the_bit(tmp_path: Path) -> None:
    whole_run = groupwise.train("code-turns", {**CHANGES, "runs": str(tmp_path), "name": "whole"}).folder
    lines = rollouts(whole_run)
    assert max(len(line["turns"]) for line in lines) == 2
    assert {line["ended"] for line in lines} <= {"done", "turns", "tokens"}
    cut = groupwise.train("code-turns", {**CHANGES, "runs": str(tmp_path), "name": "cut"}).folder
    cut_back(cut, 2)
    assert resume(cut).finished
    assert_same_run(whole_run, cut)
