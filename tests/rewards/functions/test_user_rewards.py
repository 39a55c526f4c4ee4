"""A user's own rewards: every form they may have, and what is said where they cannot be used."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from groupwise.core.errors import UsageError
from groupwise.core.processes import codec
from groupwise.core.reward import Cause
from groupwise.core.samples import Attempt, Sample
from groupwise.rewards.functions.adapters import bound, score_result, score_results
from groupwise.rewards.functions.user import TaskScore, User, with_file
from groupwise.tasks.arithmetic import Arithmetic

HERE = Path(__file__).parent
TRL, VERL = str(HERE / "rewards_trl.py"), str(HERE / "rewards_verl.py")
DOC = HERE.parents[2] / "docs" / "rewards.md"

TWO = Sample("two", "1+1=", "2", {"index": 7, "task": "math"}, "gsm8k")
SIX = Sample("six", "2*3=", "6", {"index": 8, "task": "code"}, "gsm8k")
CHAT = Sample("chat", "say a", "a", messages=[{"role": "user", "content": "say a"}])


def scores(use: str, *attempts: Attempt, **settings: Any) -> list[float]:
    return list(User(use, settings)(attempts))


def own(tmp_path: Path, text: str) -> str:
    (tmp_path / "own.py").write_text(text)
    return str(tmp_path / "own.py")


# TRL


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("length", [9.0, 1.0]),
        ("tokens", [3.0, 1.0]),
        ("boxed", [1.0, 0.0]),
        ("slow", [1.0, 1.0]),
        ("logged", [0.0, 0.0]),
        ("Named", [0.0, 1.0]),
    ],
)
def test_trl_file_runs_unchanged(name: str, expected: list[float]) -> None:
    attempts = [Attempt(TWO, r"\boxed{2}", tokens=[1, 2, 3]), Attempt(SIX, "6", tokens=[4])]
    assert scores(f"{TRL}:{name}", *attempts) == expected


def test_trl_conversations_are_messages() -> None:
    assert scores(f"{TRL}:think", Attempt(CHAT, "<think>x</think><answer>a</answer>"), Attempt(CHAT, "a")) == [1, 0]
    assert scores(f"{TRL}:echo", Attempt(CHAT, "say a"), Attempt(CHAT, "b")) == [1, 0]


def test_trl_none_is_no_score() -> None:
    first, second = scores(f"{TRL}:only_math", Attempt(TWO, ""), Attempt(SIX, ""))
    assert first == 1
    assert math.isnan(second)


def test_a_column_of_the_data_comes_before_our_names_for_the_answer(tmp_path: Path) -> None:
    file = own(tmp_path, "def f(completions, solution): return [float(s == 'worked out') for s in solution]")
    assert scores(f"{file}:f", Attempt(Sample("k", "p", "2", {"solution": "worked out"}), "")) == [1.0]


def test_missing_column_names_those_present(tmp_path: Path) -> None:
    file = own(tmp_path, "def f(completions, difficulty, **kwargs): return [0.0]")
    with pytest.raises(UsageError, match=r"parameter 'difficulty' .*sample 'two'.*present: .*index, task"):
        scores(f"{file}:f", Attempt(TWO, ""))


@pytest.mark.parametrize("signature", ["completions, solution", "data_source, solution_str, ground_truth"])
def test_a_gold_answer_that_nobody_has_is_refused_and_not_made_up(signature: str, tmp_path: Path) -> None:
    file = own(tmp_path, f"def f({signature}): return 1.0")
    with pytest.raises(UsageError, match=r"sample 'k' has; present: .*, or name the column of the gold answer as task"):
        scores(f"{file}:f", Attempt(Sample("k", "p", ""), "a"))


# verl


def test_verl_file_runs_unchanged() -> None:
    right, wrong = Attempt(TWO, "so #### 2"), Attempt(SIX, "so #### 5")
    assert scores(f"{VERL}:compute_score", right, wrong) == [1.0, 0.1]
    assert scores(f"{VERL}:my_reward_fn", right) == [0.09]
    assert scores(f"{VERL}:batched", Attempt(TWO, "2"), Attempt(SIX, "2")) == [1.0, 0.0]


def test_one_exception_leaves_the_others_their_scores() -> None:
    first, second = scores(f"{VERL}:compute_score", Attempt(CHAT, "a"), Attempt(TWO, "#### 2"))
    assert math.isnan(first)
    assert second == 1.0


def test_coroutines_run_together() -> None:
    started = time.monotonic()
    assert scores(f"{VERL}:judged", *[Attempt(TWO, str(i)) for i in range(20)]) == [float(i == 2) for i in range(20)]
    assert time.monotonic() - started < 2.0, "20 times 0.2 s one after the other"


def test_settings_are_passed_and_checked() -> None:
    assert scores(f"{VERL}:scaled", Attempt(TWO, "2"), scale=3.0) == [3.0]
    with pytest.raises(UsageError, match=r"setting 'scael' .*did you mean 'scale'"):
        scores(f"{VERL}:scaled", Attempt(TWO, "2"), scael=3.0)


def test_a_reward_is_what_its_file_said_when_the_run_began(tmp_path: Path) -> None:
    """It is sent to the processes that score, which may start after an edit."""
    use = own(tmp_path, "def f(sample, completion): return 1.0") + ":f"
    reward = with_file(User(use))
    own(tmp_path, "def f(sample, completion): return 2.0")
    sent = codec.unpack(codec.pack(reward))
    assert (list(sent([Attempt(TWO, "")])), scores(use, Attempt(TWO, ""))) == ([1.0], [2.0])
    assert repr(sent) == repr(User(use))
    with pytest.raises(UsageError, match=r"own2\.py.*did you mean 'own\.py'"):
        with_file(User(f"{tmp_path}/own2.py:f"))


# Ours


@pytest.mark.parametrize(
    "text",
    [
        "def f(sample, completion): return float(completion == sample.answer)",
        "def f(attempt): return float(attempt.completion == attempt.sample.answer)",
        "def f(samples, completions): return [float(c == s.answer) for s, c in zip(samples, completions)]",
        "def f(attempts): return [float(a.completion == a.sample.answer) for a in attempts]",
        "async def f(sample, completion): return float(completion == sample.answer)",
        "async def f(attempts): return [float(a.completion == a.sample.answer) for a in attempts]",
        "class f:\n    def __call__(self, sample, completion): return float(completion == sample.answer)",
        "class f:\n    async def __call__(self, sample, completion): return float(completion == sample.answer)",
    ],
)
def test_our_forms(tmp_path: Path, text: str) -> None:
    assert scores(f"{own(tmp_path, text)}:f", Attempt(TWO, "2"), Attempt(SIX, "2"), Attempt(SIX, "6")) == [1, 0, 1]


def test_a_class_is_made_once_with_its_settings(tmp_path: Path) -> None:
    text = "class C:\n    def __init__(self, base): self.n = base\n"
    text += "    def __call__(self, attempt):\n        self.n += 1\n        return self.n"
    assert scores(f"{own(tmp_path, text)}:C", *[Attempt(TWO, "")] * 3, base=10) == [11, 12, 13]


def test_the_plan_says_the_form() -> None:
    assert User(f"{TRL}:boxed").bind().description == "TRL reward_funcs: completions, ground_truth, **kwargs"
    assert User(f"{VERL}:judged").bind().description.startswith("verl compute_score, async: data_source, solution_str")


def test_a_task_scores_as_a_reward() -> None:
    task = Arithmetic()
    sample = task.samples("heldout")[0]
    attempts = [Attempt(sample, sample.answer), Attempt(sample, "x")]
    assert [m.value for part in TaskScore(task).bind().score(attempts, print) for m in part] == [1.0, 0.0]


# What cannot be used


@pytest.mark.parametrize(
    ("use", "words"),
    [
        ("rewards", "write path/to/file.py:Name or package.module:Name"),
        (f"{HERE}/rewards_trk.py:length", "did you mean 'rewards_trl.py'"),
        (f"{TRL}:lenght", "did you mean 'length'"),
        (f"{TRL}:re", "is a module, not something to call"),
        ("no_such_module_at_all:f", "no module 'no_such_module_at_all'"),
        ("~no-such-user/x.py:f", "there is no such user"),
        ("a/" * 3000 + "x.py:f", "File name too long"),
        ("a\0b.py:f", "null byte"),
    ],
)
def test_what_is_not_there_is_said_with_the_nearest_name(use: str, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)) as told:
        User(use).bind()
    assert "\n" not in str(told.value)


def test_a_module_that_raises_is_told_with_its_own_line(tmp_path: Path) -> None:
    file = own(tmp_path, "import math\n\nmath.nope\n\ndef f(attempt): return 0.0")
    with pytest.raises(UsageError, match=r"importing it raised AttributeError: .*own.py, line 3") as told:
        User(f"{file}:f").bind()
    (note,) = told.value.__notes__
    assert "math.nope" in note
    assert "groupwise/rewards" not in note


def test_what_a_module_needs_and_is_missing_is_not_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "needs_more.py").write_text("import not_installed_here\n")
    with pytest.raises(UsageError, match=r"raised ModuleNotFoundError: No module named 'not_installed_here'"):
        User("needs_more:f").bind()


def test_a_constructor_that_raises(tmp_path: Path) -> None:
    file = own(tmp_path, "class C:\n    def __init__(self, url): raise OSError('no ' + url)")
    with pytest.raises(UsageError, match=r"C\(url='x'\) raised OSError: no x \(.*own.py, line 2\)"):
        User(f"{file}:C", {"url": "x"}).bind()


def test_unknown_parameters_are_answered_with_the_forms() -> None:
    with pytest.raises(UsageError, match=r"takes \(text, gold\), which is none of .*verl's \(data_source"):
        bound(lambda text, gold: 0.0, "mine", {})


def test_half_a_surrogate_pair_in_what_is_raised_reaches_every_file_and_terminal(tmp_path: Path) -> None:
    file = own(tmp_path, "def f(attempt): raise ValueError(chr(0xD800))\n\nclass C:\n    __init__ = f")
    (first,) = (one for one in User(f"{file}:f").bind().score([Attempt(TWO, "")], print))
    assert first[0].detail.encode().decode().endswith("ValueError: \ufffd")
    with pytest.raises(UsageError, match=r"C\(\) raised ValueError: \ufffd") as told:
        User(f"{file}:C").bind()
    assert told.value.__notes__[0].encode()
    assert score_result(Wordy()).detail.encode()


# Marks and counts


class Wordy:
    def __float__(self) -> float:
        raise ValueError("\ud800")


class Scalar:
    def __float__(self) -> float:
        return 0.25


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.5, 0.5), (3, 3.0), (True, 1.0), (Scalar(), 0.25), ("1", Cause.WRONG_TYPE),
     ({"a": 1}, Cause.WRONG_TYPE), (1e9, 1e9), (1e308, Cause.TOO_LARGE), (-1.1e9, Cause.TOO_LARGE),
     (float("nan"), Cause.NAN), (float("inf"), Cause.NAN), ([1], Cause.WRONG_TYPE),
     (10**400, Cause.WRONG_TYPE)],
)  # fmt: skip
def test_a_value_is_a_score_or_a_cause(value: object, expected: object) -> None:
    one = score_result(value)
    assert (one.cause or one.value) == expected
    assert (one.cause is None) == (not math.isnan(one.value))


@pytest.mark.parametrize(
    ("values", "cause"),
    [([1.0], Cause.WRONG_LENGTH), (1.0, Cause.WRONG_TYPE), (None, Cause.WRONG_TYPE), ("11", Cause.WRONG_TYPE),
     ({"a": 1, "b": 2}, Cause.WRONG_TYPE)],
)  # fmt: skip
def test_a_wrong_list_gives_nobody_a_score(values: object, cause: Cause) -> None:
    assert [one.cause for one in score_results(values, 2)] == [cause, cause]


def test_workers_start_without_torch() -> None:
    heavy = "{'torch', 'numpy', 'pydantic'}"
    code = f"import sys; from groupwise.rewards.pool import pool, worker; print({heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


# The page


BLOCKS = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", DOC.read_text(), re.DOTALL)
CALLS = re.findall(r"^\| `(\w+\.py:\w+)` \| ([^|]+) \|", DOC.read_text(), re.MULTILINE)


@pytest.mark.parametrize(("use", "words"), CALLS)
def test_the_examples_of_the_page_score(use: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in BLOCKS:
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert User(use).bind().description.startswith(words.strip().split(":")[0])
    assert scores(use, Attempt(TWO, "the answer is 2"), Attempt(TWO, "I do not know")) == [1.0, 0.0]


def test_the_page_has_its_four_examples() -> None:
    assert len(CALLS) >= 4
    assert all(len(text.splitlines()) <= 12 for _, text in BLOCKS)
