"""The examples of TRL's README and of verl's quickstart, their data and rewards, are runs by a recipe alone."""

from __future__ import annotations

import json
import re
import textwrap
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.config.recipe_files import dump
from tests.runs.tiny_runs import rollouts

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "from-trl-and-verl.md").read_text()
#: Of both: what makes a run of seconds on a CPU of what stands on the page.
SMALL = {
    "steps": 1,
    "model": "tiny-chat",
    "prompts_per_step": 4,
    "sampling.max_new_tokens": 12,
    "evaluation.problems": 2,
    "scoring.workers": 1,
    "journal.report": False,
}
ACCURACY = """
import re

def accuracy(completions: list[list[dict[str, str]]], solution: list[str], log_extra=None, **kwargs):
    texts = [completion[0]["content"] for completion in completions]
    golds = [re.findall(r"\\d+", gold) for gold in solution]
    log_extra("gold_parsed", [str(gold) for gold in golds])
    return [float(gold[-1] in text) if gold else None for text, gold in zip(texts, golds)]

def reward_len(completions, **kwargs):
    return [-abs(20 - len(completion[0]["content"])) for completion in completions]
"""
GSM8K = """
import re

def compute_score(solution_str, ground_truth, method="strict", format_score=0.0, score=1.0):
    found = re.findall(r"#### (-?[0-9.,]+)", solution_str[-300:])
    if not found:
        return -len(set(solution_str)) / 100
    return score if found[-1].replace(",", "") == ground_truth else format_score
"""
Row = dict[str, Any]
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def to_file(text: str) -> Path:
        (tmp_path / "theirs.toml").write_text(dump(tomllib.loads(text)))
        return tmp_path / "theirs.toml"

    return to_file


def of_the_page(title: str) -> str:
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return textwrap.dedent("\n".join(line for line in section.splitlines() if line.startswith("    ")))


@pytest.fixture
def trl(write: Write) -> Path:
    """The right half of the page's example, on rows as in DeepMath: conversations with a solution."""
    Path("rewards.py").write_text(ACCURACY)
    rows = [{"prompt": [{"role": "user", "content": f"What is {i} + 2?"}], "solution": f"${i + 2}$"} for i in range(40)]
    rows[0]["solution"] = "none"
    Path("train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    halves = [line[46:] for line in of_the_page("A TRL run as a recipe").splitlines() if len(line) > 46]
    return write("\n".join(halves))


def test_trls_example_is_a_run_by_its_recipe_alone(trl: Path) -> None:
    done = groupwise.train(str(trl), SMALL)
    assert "length is TRL reward_funcs: completions, **kwargs" in (done.folder / "log.txt").read_text()
    assert (done.summary["heldout_measure"], done.summary["heldout_problems"]) == ("reward", 2)
    lines = rollouts(done.folder)
    assert len(lines) == 4 * 8
    assert all(row["parts"]["length"] == -abs(20 - len(row["completion"])) for row in lines)
    assert all(row["score"] is None and row["answer"] == "" for row in lines)


def test_trls_accuracy_with_its_solutions_trains_where_it_votes(trl: Path) -> None:
    own = {"rewards": {"accuracy": {"use": "rewards.py:accuracy"}}, "prompts_per_step": 36, "samples_per_prompt": 2}
    done = groupwise.train(str(trl), {**SMALL, **own})
    for row in rollouts(done.folder):
        gold = re.findall(r"\d+", row["prompt"])[0]
        expected = {} if gold == "0" else {"accuracy": float(str(int(gold) + 2) in row["completion"])}
        assert row.get("parts", {}) == expected
        assert row["logged"]["accuracy.gold_parsed"] == ("[]" if gold == "0" else f"['{int(gold) + 2}']")


def test_verls_quickstart_is_a_run_by_its_recipe_alone(write: Write) -> None:
    parquet, table = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow").Table
    ask = 'Let\'s think step by step and output the final answer after "####".'

    def row(i: int, split: str) -> Row:
        question, answer = f"Ann has {i} apples and buys {i + 3} more. How many has she?", str(2 * i + 3)
        return {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": f"{question} {ask}"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": answer},
            "extra_info": {"split": split, "index": i, "answer": f"#### {answer}", "question": question},
        }

    parquet.write_table(table.from_pylist([row(i, "train") for i in range(20)]), "train.parquet")
    parquet.write_table(table.from_pylist([row(i, "test") for i in range(40, 46)]), "test.parquet")
    Path("gsm8k.py").write_text(GSM8K)
    recipe = write(of_the_page("A verl run as a recipe"))
    # The task's own score is no matter here, and each process that asks mathematics imports it for seconds.
    done = groupwise.train(str(recipe), {**SMALL, "task.check": "numeric"})
    assert done.summary["heldout_by_source"].keys() == {"openai/gsm8k"}
    assert done.summary["algorithm"] == "ppo"
    for line in rollouts(done.folder):
        assert line["parts"]["gsm8k"] == line["measured"] <= 1.0
        assert line["source"] == "openai/gsm8k"
        assert line["answer"] == str(2 * int(line["prompt"].split()[2]) + 3)
