"""Data as people have it: columns inside columns, the files of verl and of TRL, held-out sets by name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.core.errors import UsageError
from groupwise.core.samples import Attempt
from groupwise.core.task import HoldsOutSets
from groupwise.rewards.functions.adapters import TRL, VERL
from groupwise.tasks.data.task import Data
from tests.tasks.made import refusal, write

FLAT = [{"prompt": f"What is {i} * 2?", "answer": str(2 * i), "level": i % 3} for i in range(90)]


def verl_row(row: dict[str, Any], index: int) -> dict[str, Any]:
    """A row as verl's data preprocessing writes them."""
    return {
        "data_source": "openai/gsm8k" if index % 2 else "own/doubles",
        "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": row["prompt"]}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": row["answer"]},
        "extra_info": {"split": "train", "index": index, "level": row["level"]},
    }


def nested(tmp_path: Path, **keys: Any) -> Data:
    path = write(tmp_path / "rows.jsonl", [verl_row(row, i) for i, row in enumerate(FLAT)])
    return Data(**{"path": path, "prompt": "prompt.1.content", "answer": "reward_model.ground_truth", **keys})


def contents(task: Any, split: str = "train") -> list[tuple[str, str]]:
    return [(sample.prompt, sample.answer) for sample in task.samples(split)]


def test_a_column_inside_another_reads_as_a_column_of_its_own(tmp_path: Path) -> None:
    flat = Data(path=write(tmp_path / "flat.jsonl", FLAT), filter={"level": [1, 2]})
    inside = nested(tmp_path, filter={"extra_info.level": [1, 2]})
    assert contents(inside) == contents(flat)
    assert contents(inside, "heldout") == contents(flat, "heldout")
    template = nested(tmp_path, prompt="{prompt.1.content} {ability}")
    assert {prompt for prompt, _ in contents(template)} <= {f"{row['prompt']} math" for row in FLAT}


def test_a_column_whose_whole_name_has_a_dot_comes_first(tmp_path: Path) -> None:
    rows = [{**row, "gold.value": row["answer"], "gold": {"value": "0"}} for row in FLAT]
    task = Data(path=write(tmp_path / "a.jsonl", rows), answer="gold.value")
    assert contents(task) == contents(Data(path=str(tmp_path / "a.jsonl")))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"answer": "reward.truth"},
            "{path} has no column 'reward'; columns there: data_",
        ),
        ({"answer": "reward_model.truth"}, "has no 'truth' in its column 'reward_model'; there: style, ground_truth"),
        ({"answer": "reward_model.style.name"}, "has no 'name' in its column 'reward_model.style'; it holds text"),
        ({"prompt": "prompt.2.content"}, "{path} has no '2' in its column 'prompt'; it holds a list of 2"),
        ({"source": "extra_info.origin"}, "task.source = 'extra_info.origin': {path} has no 'origin' in its column"),
        ({"filter": {"extra_info": {"level": 1}}}, 'is written filter."extra_info.level"'),
    ],
)
def test_a_path_that_ends_nowhere_says_where_and_what_is_there(tmp_path: Path, keys: Any, words: str) -> None:
    line = refusal(lambda: nested(tmp_path, **keys).samples("train"))
    assert words.format(path=tmp_path / "rows.jsonl") in line


def test_one_row_without_the_inner_column_is_named_by_its_line(tmp_path: Path) -> None:
    rows = [verl_row(row, i) for i, row in enumerate(FLAT)]
    rows[6]["reward_model"] = None
    path = write(tmp_path / "rows.jsonl", rows)
    with pytest.raises(UsageError, match=r"rows\.jsonl, line 7 has no 'ground_truth' in its column 'reward_model'; it"):
        groupwise.task("verl", {"path": path}).samples("train")


def test_verls_parquet_is_read_by_its_name_alone(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").Table
    for name, rows in (("train", FLAT[:60]), ("test", FLAT[60:])):
        verl = [verl_row(row, i) for i, row in enumerate(rows)]
        parquet.write_table(table.from_pylist(verl), tmp_path / f"{name}.parquet")
    task = groupwise.task("verl", {"path": str(tmp_path), "check": "numeric"})
    assert sorted(contents(task)) == sorted((row["prompt"], row["answer"]) for row in FLAT[:60])
    assert sorted(contents(task, "heldout")) == sorted((row["prompt"], row["answer"]) for row in FLAT[60:])
    sample = task.samples("train")[0]
    assert [turn["role"] for turn in sample.messages] == ["system", "user"]
    assert task.score(sample, f"so it is {sample.answer}") == 1.0
    given = VERL.arguments([Attempt(sample, "text")])
    assert given["extra_info"].keys() == {"split", "index", "level"}
    assert given["ground_truth"] == sample.answer
    assert given["data_source"] in ("openai/gsm8k", "own/doubles")


@pytest.mark.parametrize("turns", [False, True])
def test_trls_prompts_are_texts_or_conversations(tmp_path: Path, turns: bool) -> None:
    def prompt(text: str) -> Any:
        return [{"role": "user", "content": text}] if turns else text

    rows = [{"prompt": prompt(row["prompt"]), "solution": row["answer"], "level": row["level"]} for row in FLAT]
    path = write(tmp_path / "train.jsonl", rows)
    chosen = groupwise.task("trl", {"path": path, "answer": "solution", "check": "math"})
    assert set(contents(chosen)) | set(contents(chosen, "heldout")) == {(row["prompt"], row["answer"]) for row in FLAT}
    task = groupwise.task("trl", {"path": path})
    assert set(contents(task)) | set(contents(task, "heldout")) == {(row["prompt"], "") for row in FLAT}
    assert not task.has_answers
    sample = task.samples("train")[0]
    given = TRL.arguments([Attempt(sample, "42")])
    assert given["prompts"] == [prompt(sample.prompt)]
    answers = {row["prompt"]: row["answer"] for row in FLAT}
    assert (given["solution"], given["level"]) == ([answers[sample.prompt]], [sample.extra["level"]])


def test_held_out_sets_keep_their_names_and_their_own_problems(tmp_path: Path) -> None:
    sets = {"small": write(tmp_path / "a.jsonl", FLAT[60:70]), "large": write(tmp_path / "b.jsonl", FLAT[65:90])}
    task = Data(path=write(tmp_path / "t.jsonl", FLAT[:62]), heldout_sets=sets)
    assert isinstance(task, HoldsOutSets)
    prompts = {name: sorted(sample.prompt for sample in own) for name, own in task.sets.items()}
    # 60 and 61 are trained on; 65 to 69 are in both sets, and each set has them.
    assert prompts == {name: sorted(r["prompt"] for r in rows) for name, rows in
                       {"small": FLAT[62:70], "large": FLAT[65:90]}.items()}  # fmt: skip
    assert Counter(sample.heldout_set for sample in task.samples("heldout")) == {"small": 8, "large": 25}
    assert not any(sample.heldout_set for sample in task.samples("train"))
    assert "2 held-out problems are training problems too: not held out" in task.notes()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"heldout": "a.jsonl", "heldout_sets": {"a": "a.jsonl"}}, "are two ways to say one thing"),
        ({"heldout_sets": {"a": 3}}, "task.heldout_sets.a = 3: must be a file, a folder or an id"),
        ({"heldout_sets": {"a": "none.jsonl"}}, "task.heldout_sets.a = 'none.jsonl': there is no such file or folder"),
    ],
)
def test_a_held_out_set_that_cannot_be_is_refused(tmp_path: Path, keys: Any, words: str) -> None:
    path = write(tmp_path / "rows.jsonl", FLAT)
    assert words in refusal(lambda: Data(path=path, **keys).samples("train"))
