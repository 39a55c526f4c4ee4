"""Laws of tasks made from data sets: splits that never meet, samples that are the same everywhere, keys that do."""

from __future__ import annotations

import copy
import dataclasses
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import groupwise
from groupwise.core.errors import RunError, UsageError
from groupwise.core.task import Demonstrates
from groupwise.tasks.data import formats
from groupwise.tasks.data.settings import keeps
from groupwise.tasks.data.task import Data
from tests.tasks.made import data, prompts, refusal, refused, write

ROWS = [{"prompt": f"What is {i} + {i}?", "answer": str(2 * i), "level": f"Level {i % 5}"} for i in range(300)]
WORKED = [
    {"question": f"What is {i} + 1?", "answer": f"{i} + 1 = <<{i}+1={i + 1}>>{i + 1}.\n#### {i + 1:,}"}
    for i in range(0, 3000, 10)
]


def _data(path: Path, rows: list[dict[str, Any]] = ROWS, **keys: Any) -> Data:
    return data(path, rows, **keys)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def test_one_file_is_split_into_problems_that_never_meet(path: Path) -> None:
    task = _data(path, [*ROWS, *ROWS[:50], {**ROWS[3], "prompt": "  What is 3\n+ 3?  "}])
    train, heldout = prompts(task, "train"), prompts(task, "heldout")
    assert not train & heldout
    assert len(train | heldout) == len(task.samples("train")) + len(task.samples("heldout")) == 300
    assert 10 <= len(heldout) <= 60
    assert "51 rows repeat a problem: the first is kept" in task.notes()


def test_a_problem_stays_in_its_split_when_lines_move_or_the_file_grows_or_the_instruction_changes(path: Path) -> None:
    heldout = prompts(_data(path), "heldout")
    assert prompts(_data(path, ROWS[::-1]), "heldout") == heldout
    assert prompts(_data(path, ROWS[::2]), "heldout") < heldout
    assert prompts(_data(path, instruction=" Say it."), "heldout") == {text + " Say it." for text in heldout}
    assert prompts(_data(path, seed=7), "heldout") == heldout
    assert heldout < prompts(_data(path, heldout_share=0.2), "heldout")


def test_the_order_is_the_seeds_and_the_texts_and_not_the_files(path: Path) -> None:
    first = [sample.prompt for sample in _data(path).samples("train")]
    assert [sample.prompt for sample in _data(path, ROWS[::-1]).samples("train")] == first
    assert [sample.prompt for sample in _data(path, seed=1).samples("train")] != first
    assert first != [row["prompt"] for row in ROWS if row["prompt"] in first]


def test_samples_are_the_same_in_another_process(path: Path) -> None:
    task = _data(path)
    code = (
        f"import groupwise; t = groupwise.task('data', {{'path': {str(path)!r}, 'check': 'exact'}});"
        "print([s.key for s in t.samples('train')], [s.key for s in t.samples('heldout')], t.contents)"
    )
    told = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    keys = [[sample.key for sample in task.samples(split)] for split in ("train", "heldout")]
    assert told.stdout.strip() == f"{keys[0]} {keys[1]} {task.contents}"


def test_making_and_reading_a_task_imports_nothing_heavy(path: Path) -> None:
    write(path, ROWS)
    code = (
        "import sys, groupwise.tasks.make, groupwise.rewards.sandbox;"
        "heavy = {'torch', 'transformers', 'datasets', 'pyarrow', 'pandas', 'numpy'};"
        "print(sorted(heavy & set(sys.modules)));"
        f"t = groupwise.task('data', {{'path': {str(path)!r}, 'check': 'exact'}}); t.samples('train');"
        "print(sorted(heavy & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.split("\n")[:2] == ["[]", "['numpy']"]


def test_keys_are_unique_and_name_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    other = write(tmp_path / "a" / "rows.jsonl", [{**row, "prompt": "Say " + row["prompt"]} for row in ROWS])
    task = _data(tmp_path / "rows.jsonl", heldout=other)
    keys = [sample.key for split in ("train", "heldout") for sample in task.samples(split)]
    assert len(set(keys)) == 600
    sample = next(sample for sample in task.samples("train") if sample.prompt == ROWS[41]["prompt"])
    assert (sample.key, sample.answer, sample.extra, sample.source) == (
        "rows.jsonl:42",
        "82",
        {"level": "Level 1"},
        "rows",
    )


def test_a_problem_that_is_trained_on_is_not_held_out(tmp_path: Path) -> None:
    task = _data(tmp_path / "a.jsonl", ROWS[:100], heldout=write(tmp_path / "b.jsonl", ROWS[90:150]))
    assert prompts(task, "train") == {row["prompt"] for row in ROWS[:100]}
    assert prompts(task, "heldout") == {row["prompt"] for row in ROWS[100:150]}
    assert task.notes() == [
        "160 rows read",
        "100 problems to train on, 50 held out",
        "10 held-out problems are training problems too: not held out",
    ]


def test_rows_that_repeat_a_problem_are_problems_where_the_recipe_says_so(tmp_path: Path) -> None:
    """As an environment's are, which draws what its prompt does not say."""
    same = [{"prompt": "Find the number.", "answer": "1"}] * 20
    assert len(_data(tmp_path / "one.jsonl", same, heldout_share=0.0).samples("train")) == 1
    both = _data(tmp_path / "two.jsonl", same, repeats=True, heldout_share=0.3)
    keys = {split: {sample.key for sample in both.samples(split)} for split in ("train", "heldout")}
    assert len(keys["train"]) + len(keys["heldout"]) == 20
    assert keys["heldout"]
    own = _data(tmp_path / "three.jsonl", same, repeats=True, heldout=write(tmp_path / "four.jsonl", same))
    assert [len(own.samples(split)) for split in ("train", "heldout")] == [20, 20]
    assert [len(rows) for rows in (own.repeated, own.leaked)] == [0, 0]


def test_a_held_out_file_comes_before_the_paths_own(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", ROWS[:100])
    own = write(tmp_path / "test.jsonl", ROWS[100:150])
    assert len(Data(path=str(tmp_path), check="exact").samples("heldout")) == 50
    task = Data(path=str(tmp_path), heldout=write(tmp_path / "other.jsonl", ROWS[200:220]), check="exact")
    assert prompts(task, "heldout") == {row["prompt"] for row in ROWS[200:220]}
    assert task.notes()[-1] == f"not read: {own}"


def test_slices_are_lists_of_samples_too_and_rows_read_again_are_the_rows_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = _data(path).samples("train")
    assert [s.key for s in kept[3:9:2]] == [kept[i].key for i in (3, 5, 7)]
    assert kept[-1].key == list(kept)[-1].key
    with pytest.raises(IndexError):
        kept[len(kept)]
    monkeypatch.setattr(formats, "SMALL_FILE", 0)
    assert list(_data(path).samples("train")) == list(kept)


@pytest.mark.parametrize(
    "changed",
    [
        [{**ROWS[0], "prompt": "What is 1000?"}, *ROWS],
        [{**row, "prompt": "What's 1 + 1?"} for row in ROWS],
        [{**row, "prompt": row["prompt"].replace("What is", "What's ")} for row in ROWS],
    ],
    ids=["a line more", "other lines", "other lines of the same length"],
)
def test_a_large_file_that_changes_while_it_is_read_stops_the_run(
    changed: list[dict[str, Any]], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "SMALL_FILE", 0)
    train = _data(path).samples("train")
    write(path, changed)
    with pytest.raises(RunError, match=r"rows\.jsonl, line \d+: another row stands there than when the file was"):
        train[0]


def test_a_copy_that_goes_to_another_process_carries_the_settings_and_reads_nothing(path: Path) -> None:
    task = _data(path)
    samples = task.samples("train")
    twin = copy.copy(task)
    path.unlink()
    assert twin == task
    assert twin.score(samples[0], samples[0].answer) == 1.0
    with pytest.raises(UsageError, match="there is no such file"):
        twin.samples("train")


def test_contents_tell_an_answer_and_a_solution_that_changed(path: Path) -> None:
    keys = {"solution": "why", "check": "exact"}
    rows = [{**row, "why": "so"} for row in ROWS]
    same = _data(path, rows, **keys).contents
    assert _data(path, rows, **keys).contents == same
    for change in ({"answer": "7"}, {"why": "no"}, {"prompt": "And?"}):
        assert _data(path, [{**rows[0], **change}, *rows[1:]], **keys).contents != same


# The columns.


def test_gsm8k_is_a_mapping(path: Path) -> None:
    task = groupwise.task("gsm8k", {"path": write(path, WORKED)})
    assert isinstance(task, Demonstrates)
    sample = next(sample for sample in task.samples("train") if sample.prompt.startswith("What is 1230 +"))
    assert sample.answer == "1,231"
    assert task.score(sample, "... so the answer is 1231") == 1.0
    assert task.score(sample, "... so the answer is 1232") == 0.0
    shown = {d.prompt: d.completion for d in task.demonstrations(2000, seed=0)}
    assert shown[sample.prompt] == "1230 + 1 = 1231.\n#### 1,231"
    train = [s for s in task.samples("train") if s.prompt in shown]
    assert all(task.score(s, shown[s.prompt]) == 1.0 for s in train[:50])
    assert not set(shown) & {s.prompt for s in task.samples("heldout")}
    assert list(task.demonstrations(20, seed=3)) == list(task.demonstrations(20, seed=3))


def test_math_is_a_mapping(path: Path) -> None:
    worked = [rf"Not \boxed{{0}}: $\boxed{{\frac{{{i}}}{{2}}}}$." for i in range(100)]
    rows = [{"problem": f"Half of ${i}$?", "level": "Level 5", "solution": text} for i, text in enumerate(worked)]
    task = groupwise.task("math", {"path": write(path, rows), "filter": {"level": ["Level 4", "Level 5"]}})
    sample = next(sample for sample in task.samples("train") if sample.prompt.startswith("Half of $7$?"))
    assert sample.answer == r"\frac{7}{2}"
    assert sample.prompt.endswith("\\boxed{}.")
    assert sample.extra == {"level": "Level 5", "solution": worked[7]}


@pytest.mark.parametrize("name", ["gsm8k", "math"])
def test_a_key_of_the_recipe_replaces_the_mappings(name: str, path: Path) -> None:
    rows = [{"q": f"{i}?", "a": str(i)} for i in range(50)]
    keys = {"path": write(path, rows), "prompt": "q", "answer": "a", "answer_after": "", "answer_boxed": False}
    task = groupwise.task(name, {**keys, "solution": "", "instruction": "", "check": "exact"})
    assert {(s.prompt, s.answer) for s in task.samples("train")} < {(row["q"], row["a"]) for row in rows}


def test_a_template_puts_columns_together_and_letters_choices(path: Path) -> None:
    rows = [{"q": f"Which is {i}?", "choices": [str(i), "none"], "answer": "A"} for i in range(30)]
    task = _data(path, rows, prompt="{q} {{one}}\n{choices}", check="choice")
    assert "Which is 7? {one}\nA. 7\nB. none" in prompts(task, "train") | prompts(task, "heldout")


def test_only_the_letters_of_a_recipe_are_options(path: Path) -> None:
    rows = [{"prompt": f"Which is {i}?", "answer": "ABCD"[i % 4]} for i in range(30)]
    wide, narrow = _data(path, rows, check="choice"), _data(path, rows, check="choice", letters="ABCD")
    sample = next(sample for sample in narrow.samples("train") if sample.answer == "B")
    stray = "The force is X and the field is B. Only B is a field; it is Y."
    assert (wide.score(sample, stray), narrow.score(sample, stray)) == (0.0, 1.0)
    assert narrow.score(sample, "B or C") == narrow.score(sample, "It is X.") == 0.0
    assert "cannot read" in refused(_data(path, rows, check="choice", letters="ABC")), "its gold answers are counted"


def test_demonstrations_need_a_solution(path: Path) -> None:
    assert "task.solution is not set" in refusal(lambda: _data(path).demonstrations(3, seed=0))
    without = _data(path, [{**row, "why": None} for row in ROWS], solution="why")
    assert "task.solution = 'why' holds no text" in refusal(lambda: without.demonstrations(3, seed=0))


# The filter.


@pytest.mark.parametrize(
    ("filter", "left"),
    [
        ({"level": "Level 2"}, 60),
        ({"level": ["Level 1", "Level 2"]}, 120),
        ({"answer": {"min": 10, "max": 20}}, 6),
        ({"answer": {"max": 20}, "level": "Level 0"}, 3),
        ({"answer": 20}, 1),
        ({}, 300),
    ],
)
def test_the_filter_keeps_rows_that_fulfil_all_of_it(filter: dict[str, Any], left: int, path: Path) -> None:
    task = _data(path, filter=filter)
    assert len(task.samples("train")) + len(task.samples("heldout")) == left
    assert (f"{300 - left:,} rows left out by task.filter" in task.notes()) == (left < 300)


def test_what_is_no_number_is_in_no_range() -> None:
    assert not any(keeps({"a": {"min": 0}}, {"a": value}) for value in ("x", None, True, [1], float("nan")))


def test_a_limit_counts_rows_that_stay(path: Path) -> None:
    task = _data(path, filter={"level": "Level 1"}, limit=20)
    assert len(task.samples("train")) + len(task.samples("heldout")) == 20


# What is wrong, in one line.


@pytest.mark.parametrize(
    ("keys", "column", "key"),
    [
        ({"prompt": "question"}, "question", "task.prompt = 'question'"),
        ({"answer": "gold"}, "gold", "task.answer = 'gold'"),
        ({"solution": "why"}, "why", "task.solution = 'why'"),
        ({"messages": "chat"}, "chat", "task.messages = 'chat'"),
        ({"source": "from"}, "from", "task.source = 'from'"),
        ({"prompt": "{prompt} {more}"}, "more", "task.prompt = '{prompt} {more}'"),
        ({"filter": {"points": 3}}, "points", "task.filter.points"),
    ],
)
def test_a_column_that_is_missing_is_named_with_those_present(
    keys: dict[str, Any], column: str, key: str, path: Path
) -> None:
    expected = f"{key}: {path} has no column {column!r}; columns there: prompt, answer, level"
    assert refused(_data(path, **keys)) == expected


def test_a_later_row_without_a_column_is_named_by_its_line(path: Path) -> None:
    told = refused(_data(path, [*ROWS[:16], {"prompt": "a"}]))
    assert told == f"task.answer = 'answer': {path}, line 17 has no column 'answer'; columns there: prompt"


@pytest.mark.parametrize(
    ("row", "keys", "words"),
    [
        ({"prompt": None}, {}, "task.prompt = 'prompt': nothing (null), neither text nor a conversation"),
        ({"prompt": "  "}, {}, "task.prompt = 'prompt': empty; fill it or take the row out"),
        ({"prompt": ["a"]}, {}, "task.prompt = 'prompt': a list, neither text nor a conversation"),
        ({"level": "a"}, {"messages": "level"}, "task.messages = 'level': must hold a list of "),
        ({"prompt": "\ud800"}, {}, "half of a surrogate pair (\\ud800 to \\udfff), which is no character"),
    ],
)
def test_a_row_that_holds_no_problem_is_named(
    row: dict[str, Any], keys: dict[str, Any], words: str, path: Path
) -> None:
    assert refused(_data(path, [{**ROWS[0], **row}], **keys)).startswith(f"{path}, line 1: {words}")


def test_answers_that_cannot_be_read_are_left_out_and_told_or_refused_above_the_limit(path: Path) -> None:
    bad = [{**ROWS[i], "answer": answer} for i, answer in enumerate(["many", "", None, "a lot"])]
    task = _data(path, [*bad, *ROWS[4:]], check="numeric", unreadable_limit=0.02)
    assert len(task.samples("train")) + len(task.samples("heldout")) == 296
    what = (
        f"4 gold answers that 'numeric' cannot read ({path}, line 1: 'many'; {path}, line 2: ''; "
        f"{path}, line 3: None; ...)"
    )
    assert task.notes()[1] == f"{what}: left out"
    task = _data(path, [*bad, *ROWS[4:]], check="numeric")
    assert refused(task) == f"task.answer = 'answer': {what}; of 300 that is 1.3%, above task.unreadable_limit = 0.01"


def test_a_filter_or_a_share_that_leaves_nothing_is_told(path: Path) -> None:
    held = "'level' holds 'Level 0', 'Level 1', 'Level 2', ..."
    assert refused(_data(path, filter={"level": "Level 9"})) == f"task.filter leaves none of the 300 rows; {held}"
    assert "no problem is left to train on" in refused(_data(path, ROWS[:3], heldout_share=0.999999))


# A recipe goes round.


@pytest.mark.parametrize("name", ["data", "gsm8k", "math"])
def test_the_settings_of_a_task_can_be_written_and_read_again(name: str) -> None:
    task = groupwise.task(name, {"path": "a.jsonl", "filter": {"level": ["1"], "points": {"min": 1, "max": 3}}})
    told = tomllib.loads(tomli_w.dumps({"task": dataclasses.asdict(task)}))["task"]  # type: ignore[call-overload]
    assert groupwise.task(name, told) == task
    assert "points" in repr(task)


def test_the_page_tells_every_key_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "data.md").read_text()
    for f in dataclasses.fields(Data):
        default = {} if f.default is dataclasses.MISSING else f.default
        assert f"| `{f.name}` | `{json.dumps(default)}` |" in page
