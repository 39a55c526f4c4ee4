"""The task `code`: what counts as right, what a file may hold, and what the generated functions teach."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest

import groupwise
from groupwise.core.processes import codec
from groupwise.core.samples import Sample
from groupwise.core.task import Demonstrates
from groupwise.rewards.sandbox import ACCEPTED, Sandbox, judge
from groupwise.tasks.code import Code, assemble, hasty, right
from tests.tasks.made import refusal, write

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")


@pytest.fixture(scope="module")
def task() -> Code:
    return Code(problems=400)


@pytest.fixture(scope="module")
def box() -> Sandbox:
    return Sandbox()


def score(completion: str, tests: object, entry_point: str = "", prefix: str = "", partial: bool = False) -> float:
    sample = Sample("k", "p", "", {"tests": tests, "entry_point": entry_point, "prefix": prefix})
    return (_PARTIAL if partial else _WHOLE).score(sample, completion)


_WHOLE, _PARTIAL = Code(problems=50), Code(problems=50, partial=True)


def test_generated_functions_score_the_right_way_and_not_the_hasty_one(task: Code) -> None:
    for sample in task.samples("train")[:40]:
        assert task.score(sample, sample.answer) == 1.0
        assert task.score(sample, hasty(sample.prompt)) == 0.0
    for junk in ("", "return x", "x+=", "return 0", "```", "return f(x)"):
        assert task.score(task.samples("heldout")[0], junk) == 0.0


def test_generated_splits_never_meet_and_stay_within_the_alphabet(task: Code) -> None:
    train, held = ({s.prompt for s in task.samples(split)} for split in ("train", "heldout"))
    assert not train & held
    assert abs(len(held) / (len(train) + len(held)) - task.heldout_share) < 0.06
    other = Code(problems=400, seed=1)
    assert not {s.prompt for s in other.samples("train")} & held
    shown = task.demonstrations(400, seed=0)
    assert isinstance(task, Demonstrates)
    assert {d.prompt for d in shown} <= train
    assert set("".join(d.prompt + d.completion for d in shown)) <= set(task.alphabet)
    works = sum(d.completion == right(d.prompt) for d in shown) / len(shown)
    assert abs(works - task.worked_share) < 0.08


def test_calls_compare_values_not_what_they_claim() -> None:
    tests = [{"call": "f", "args": [1], "expected": 1}, {"call": "f", "args": [2], "expected": 4}]
    assert score("def f(x): return x * x", tests) == 1.0
    assert score("def f(x): return float(x * x)", tests) == 1.0
    assert score("def f(x): return x == 1", [tests[0]]) == 0.0
    assert score("def f(x): return str(x * x)", tests) == 0.0
    assert score("def f(x): return 1", tests, partial=True) == 0.5
    assert (
        score("class Solution:\n  def sq(self, x): return x*x", [{"call": "Solution.sq", "args": [3], "expected": 9}])
        == 1
    )
    assert score("def f(*, a): return (a, [a])", [{"call": "f", "kwargs": {"a": 1}, "expected": [1, [1]]}]) == 1.0


def test_scripts_are_compared_by_their_output() -> None:
    tests = [{"input": "1 2\n", "output": "3\n"}, {"input": "5 5", "output": "10"}]
    assert score("print(sum(map(int, input().split())), end='  ')", tests) == 1.0
    assert score("print(3)", tests, partial=True) == 0.5
    assert score("print(sum(map(int, input().split())))\n1/0", tests) == 0.0


def test_assertions_run_apart_from_the_program() -> None:
    tests = ["assert f(2) == (2, {1})", "assert f('a')[0] == 'a'", "import math\nassert math.isclose(f(0.1)[0], 0.1)"]
    assert score("def f(x): return x, {1}", tests) == 1.0
    assert score("def f(x): return 2, {1}", tests, partial=True) == pytest.approx(1 / 3)
    raising = "try:\n    f(-1)\nexcept ValueError as e:\n    assert 'negative' in str(e)\nelse:\n    assert False"
    assert score("def f(x):\n    raise ValueError('negative')", raising) == 1.0
    assert score("def f(x):\n    raise KeyError('negative')", raising) == 0.0


def test_a_program_that_dies_is_not_taken_for_one_that_raises() -> None:
    swallowing = "try:\n    f(-1)\nexcept Exception:\n    pass"
    assert score("def f(x): raise RuntimeError", swallowing) == 1.0
    for dying in (
        "import os\ndef f(x): os._exit(0)",
        "import ctypes\ndef f(x): ctypes.string_at(0)",
        "1/0",
        "import sys\nsys.exit(0)",
    ):
        assert score(dying, swallowing) == 0.0


def test_check_functions_are_given_the_entry_point() -> None:
    tests = "def check(candidate):\n    assert candidate(3) == 4\n"
    assert score("    return x + 1", tests, "inc", "def inc(x):\n") == 1.0
    assert score("    return x", tests, "inc", "def inc(x):\n") == 0.0
    assert score("def check(c): pass\ndef inc(x): return x", tests, "inc") == 0.0


F = "def f(x):\n    return x + 1\n"
FENCED = f"```python\n{F}```\n"


@pytest.mark.parametrize(
    ("completion", "prefix", "program"),
    [
        ("return 1", "def f(): ", "def f(): return 1"),
        ("so:\n```python\ndef f(): return 1\n```\nthat is it", "def f(): ", "def f(): return 1\n"),
        ("```\nold\n```\nbetter:\n```py\nreturn 2\n```", "def f(): ", "def f(): return 2\n"),
        ("```python\ndef f(): return 3", "", "def f(): return 3"),
        ("```json\n{}\n```\n```python\nx\n```", "", "x\n"),
        (f"{FENCED}Output:\n```\n3\n```", "", F),
        (f"{FENCED}Use:\n```python\nprint(f(1))\n```", "", F),
        (f"```python\ndef f(): pass\n```\nNo:\n{FENCED}", "", F),
        (f"{FENCED}Output:\n```\n3\n```", "def f(x):\n", F),
        (FENCED.replace("```", "~~~~"), "", F),
        (FENCED.replace("```", "````").replace("x + 1", "x + 1  # ```"), "", F.replace("x + 1", "x + 1  # ```")),
        ("1. So:\n   " + FENCED.replace("\n", "\n   "), "", F),
        ("```python\nimport math\n```\nand\n```python\ng = math.pi\n```", "", "import math\n\ng = math.pi\n"),
        ("```python\nf = lambda x: x + 1\n```\n```python\nf(1)\n```", "", "f = lambda x: x + 1\n"),
    ],
)
def test_programs_are_found_in_completions(completion: str, prefix: str, program: str) -> None:
    assert assemble(completion, prefix, "f") == program


def test_a_file_of_problems_is_read(tmp_path: Path) -> None:
    rows = [{"q": f"problem {i}", "tests": [f"assert f({i}) == {i}"], "code": "def f(x): return x"} for i in range(40)]
    path = _file(tmp_path, *map(json.dumps, rows))
    task = groupwise.task("code", {"path": path, "prompt": "q", "solution": "code", "heldout_share": 0.3})
    train, held = task.samples("train"), task.samples("heldout")
    assert len(train) + len(held) == 40
    assert task.alphabet == ""
    assert task.score(train[0], train[0].answer) == 1.0
    assert task.score(held[0], "def f(x): return -1") == 0.0
    apart = Code(path=path, heldout=_file(tmp_path, json.dumps(rows[0]), name="held"), prompt="q")
    assert [len(apart.samples(split)) for split in ("train", "heldout")] == [40, 1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", "not JSON"),
        ("[1]", "a list, not an object"),
        ('{"prompt": "p", "text": 1}', "no column 'tests'; it has prompt, text"),
        ('{"prompt": "p", "tests": []}', "tests: there is no test"),
        ('{"prompt": "p", "tests": [" "]}', "tests: there is no test"),
        ('{"prompt": 1, "tests": ["assert f()"]}', "prompt must be text"),
        ('{"prompt": "p", "tests": ["assert f( == 1"]}', "tests: the tests are not Python"),
        ('{"prompt": "p", "tests": ["assert 1 == 1"]}', "tests: the tests call nothing"),
        ('{"prompt": "p", "tests": "def check(candidate): pass"}', "no entry point"),
        ('{"prompt": "p", "tests": [{"input": "1"}]}', "tests: a test must be"),
    ],
)
def test_bad_rows_are_refused_by_line(tmp_path: Path, line: str, message: str) -> None:
    path = _file(tmp_path, '{"prompt": "p", "tests": ["assert f(1)"]}', line)
    told = refusal(lambda: Code(path=path))
    assert "line 2: " in told
    assert message in told


def test_bad_files_and_settings_are_refused(tmp_path: Path) -> None:
    broken = tmp_path / "latin.jsonl"
    broken.write_bytes(b'{"prompt": "\xe9"}\n')
    for settings, message in (
        ({"path": str(tmp_path / "none.jsonl")}, "none.jsonl: there is no such file"),
        ({"path": _file(tmp_path, name="empty")}, "is empty"),
        ({"path": str(broken)}, "line 1: byte 13 (0xe9) is not UTF-8"),
        ({"heldout": "x"}, "task.path"),
        ({"sandbox": "off"}, ACCEPTED),
        ({"seconds": 0.0}, "task.seconds"),
        ({"steps": [1, 9]}, "task.steps"),
        ({"heldout_share": 1.0}, "task.heldout_share"),
        ({"worked_share": 2.0}, "task.worked_share"),
    ):
        assert message in refusal(lambda settings=settings: groupwise.task("code", settings))


def test_a_copy_in_another_process_has_its_own_sandbox(task: Code) -> None:
    task.score(task.samples("train")[0], "return 1")
    copy = pickle.loads(pickle.dumps(task))
    assert copy == task
    assert "_box" in vars(task)
    assert "_box" not in vars(copy)
    assert copy.score(copy.samples("train")[0], copy.samples("train")[0].answer) == 1.0


def test_plain_values_survive_the_border_and_others_do_not() -> None:
    value = {"a": [1, -(2**80), 2.5, True, None], (1, "x"): {1, 2}, 3: (), "ü\ud800": [[]]}
    tree = json.loads(json.dumps(codec.encode(value)))
    codec.validate(tree)
    assert codec.decode(tree) == value
    assert judge.equal(tree, codec.encode(value))
    deep: list[object] = []
    for _ in range(100):
        deep = [deep]
    for wrong in (object(), deep, type("I", (int,), {})(1), b"x", 1j, range(3), lambda: 0):
        with pytest.raises(codec.NotPlain):
            codec.encode(wrong)
    for tree in ([], ["x", 1], ["i", "zz"], ["i", 5], ["d", 1], ["d", ["l", 1, 2]], {"a": 1}, [["l"]], ["l", ["q"]]):
        with pytest.raises(codec.NotPlain):
            codec.validate(tree)


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        (1, 1.0, True), (1.0, 1, True), (True, 1, False), (1, True, False), (float("nan"), float("nan"), False),
        (2**70, float(2**70), True), ("1", 1, False), (None, False, False), ((1, 2), [1, 2], True),
        ([1, 2], (1, 2), False), ({1, 2.0}, {1.0, 2}, True), ({1}, {True}, False), ({"a": 1}, {"a": 1.0}, True),
        ({1: 2, "1": 3}, {"1": 3, 1: 2}, True), ({1: 2}, {2: 1}, False), ([1], [1, 2], False), ({1, 2}, [1, 2], False),
    ],
)  # fmt: skip
def test_equality_is_of_values(found: object, expected: object, same: bool) -> None:
    assert judge.equal(codec.encode(found), codec.encode(expected)) is same


def test_without_every_the_first_failure_ends_the_work(box: Sandbox) -> None:
    tests = judge.parse([{"call": "f", "args": [i], "expected": 1} for i in range(3)])
    program = "def f(x):\n    if x == 2: raise SystemExit\n    return x"
    assert judge.passed(box, program, tests) == [False, True, False]
    assert judge.passed(box, program, tests, every=False) == [False, False, False]


def _file(folder: Path, *lines: str, name: str = "problems") -> str:
    return write(folder / f"{name}.jsonl", lines)
