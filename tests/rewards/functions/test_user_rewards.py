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
from groupwise.core.samples import Attempt, Cause, Sample
from groupwise.rewards.functions.adapters import score_result, score_results
from groupwise.rewards.functions.form import TaskScore, User, with_file
from groupwise.tasks.arithmetic import Arithmetic

HERE = Path(__file__).parent
TRL, VERL = str(HERE / "rewards_trl.py"), str(HERE / "rewards_verl.py")
DOC = HERE.parents[2] / "docs" / "howto" / "rewards.md"

TWO = Sample("two", "1+1=", "2", {"index": 7, "task": "math"}, "gsm8k")
SIX = Sample("six", "2*3=", "6", {"index": 8, "task": "code"}, "gsm8k")
CHAT = Sample("chat", "say a", "a", messages=[{"role": "user", "content": "say a"}])


def scores(use: str, *attempts: Attempt, **settings: Any) -> list[float]:
    return list(User(use, settings)(attempts))


def own(tmp_path: Path, text: str) -> str:
    (tmp_path / "own.py").write_text(text)
    return str(tmp_path / "own.py")


BOTH = [Attempt(TWO, r"\boxed{2}", tokens=[1, 2, 3]), Attempt(SIX, "6", tokens=[4])]
RIGHT, WRONG, OTHER = Attempt(TWO, "so #### 2"), Attempt(SIX, "so #### 5"), Attempt(CHAT, "a")
NO = math.nan


@pytest.mark.parametrize(
    ("use", "attempts", "expected"),
    [
        (f"{TRL}:length", BOTH, [9.0, 1.0]),
        (f"{TRL}:tokens", BOTH, [3.0, 1.0]),
        (f"{TRL}:boxed", BOTH, [1.0, 0.0]),
        (f"{TRL}:slow", BOTH, [1.0, 1.0]),
        (f"{TRL}:logged", BOTH, [0.0, 0.0]),
        (f"{TRL}:Named", BOTH, [0.0, 1.0]),
        (f"{TRL}:only_math", BOTH, [1.0, NO]),
        (f"{TRL}:think", [Attempt(CHAT, "<think>x</think><answer>a</answer>"), OTHER], [1.0, 0.0]),
        (f"{TRL}:echo", [Attempt(CHAT, "say a"), OTHER], [1.0, 0.0]),
        (f"{VERL}:compute_score", [RIGHT, WRONG], [1.0, 0.1]),
        (f"{VERL}:compute_score", [OTHER, RIGHT], [NO, 1.0]),
        (f"{VERL}:my_reward_fn", [RIGHT], [0.09]),
        (f"{VERL}:batched", [Attempt(TWO, "2"), Attempt(SIX, "2")], [1.0, 0.0]),
    ],
    ids=lambda value: value.rpartition("/")[2] if isinstance(value, str) else "",
)
def test_files_for_trl_and_verl_run_unchanged(use: str, attempts: list[Attempt], expected: list[float]) -> None:
    """NaN is no score: None that a reward returned, or an exception, which leaves the others theirs."""
    assert list(map(repr, scores(use, *attempts))) == list(map(repr, expected))


def test_coroutines_run_together() -> None:
    assert User(f"{VERL}:judged").bind().description.startswith("verl compute_score, async: data_source, solution_str")
    started = time.monotonic()
    assert scores(f"{VERL}:judged", *[Attempt(TWO, str(i)) for i in range(20)]) == [float(i == 2) for i in range(20)]
    assert time.monotonic() - started < 2.0, "20 times 0.2 s one after the other"


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


COUNTS = """class f:
    def __init__(self, base): self.n = base
    def __call__(self, attempt):
        self.n += 1
        return self.n"""
ANSWERED = Sample("k", "p", "2", {"solution": "worked out"})


@pytest.mark.parametrize(
    ("text", "attempts", "settings", "expected"),
    [
        pytest.param(COUNTS, [RIGHT] * 3, {"base": 10}, [11, 12, 13], id="a class is made once"),
        pytest.param(
            "def f(sample, completion, scale): return scale", [RIGHT], {"scale": 3.0}, [3.0], id="a function each time"
        ),
        pytest.param(
            "def f(completions, solution): return [float(s == 'worked out') for s in solution]",
            [Attempt(ANSWERED, "")], {}, [1.0], id="a column comes before our names for the answer",
        ),
    ],
)  # fmt: skip
def test_what_a_reward_is_given(
    text: str, attempts: list[Attempt], settings: dict[str, Any], expected: list[float], tmp_path: Path
) -> None:
    assert scores(f"{own(tmp_path, text)}:f", *attempts, **settings) == expected


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


def test_a_task_scores_as_a_reward() -> None:
    task = Arithmetic()
    sample = task.samples("heldout")[0]
    attempts = [Attempt(sample, sample.answer), Attempt(sample, "x")]
    assert [m.value for part in TaskScore(task).bind().score(attempts, print) for m in part] == [1.0, 0.0]


# What cannot be used


NOBODY = r"sample 'k' has; present: .*, or name the column of the gold answer as task"


@pytest.mark.parametrize(
    ("text", "settings", "words"),
    [
        ("def f(completions, level, **kwargs): return [0.0]", {}, r"'level' .*sample 'k'.*present: .*index"),
        ("def f(completions, solution): return [1.0]", {}, NOBODY),
        ("def f(data_source, solution_str, ground_truth): return 1.0", {}, NOBODY),
        ("def f(attempt, scale=1): return 1.0", {"scael": 3.0}, r"setting 'scael' .*did you mean 'scale'"),
        ("def f(text, gold): return 0.0", {}, r"takes \(text, gold\), which is none of .*verl's \(data_source"),
        ("import math\n\nmath.nope\n", {}, r"importing it raised AttributeError: .*own.py, line 3"),
        ("import not_installed_here", {}, r"imports 'not_installed_here', which is not installed"),
        (
            "class f:\n    def __init__(self, url): raise OSError('no ' + url)", {"url": "x"},
            r"f\(url='x'\) raised OSError: no x \(.*own.py, line 2\)",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_in_one_line(
    text: str, settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """No gold answer is made up; what a user's file raises is told with its own line, and its lines are the note."""
    with pytest.raises(UsageError, match=words) as told:
        scores(f"{own(tmp_path, text)}:f", Attempt(Sample("k", "p", "", {"index": 7}), "a"), **settings)
    assert "\n" not in str(told.value)
    notes = "".join(getattr(told.value, "__notes__", []))
    assert ("own.py" in notes) == ("raised" in words or "imports" in words)
    assert "groupwise/rewards" not in notes


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
