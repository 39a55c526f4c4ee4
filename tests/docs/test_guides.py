"""Tutorials, how-tos and concepts: the first example of each page runs, and its tables are those of the code."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import tomllib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.cli.__main__ import main
from groupwise.config import recipe
from groupwise.config.recipe_files import assignment
from groupwise.config.rewards import read_reward_weights
from groupwise.config.usual import USUAL
from groupwise.core.samples import Attempt, Sample
from groupwise.rewards.pool.pool import Pool
from groupwise.rewards.pool.work import Limits
from tests.config.made import plan as planned
from tests.rewards.judge.server import chat, judge_server

DOCS = Path(__file__).parents[2] / "docs"
TRAINED = (
    "concepts/on_off_policy",
    "concepts/precision",
    "concepts/rl_in_15_minutes",
    "howto/compare_runs",
    "howto/install",
    "howto/stopped",
    "tutorials/quickstart",
)
RUN = (
    "concepts/glossary",
    "howto/choose_algorithm",
    "howto/choose_numbers",
    "howto/cost",
    "howto/out_of_memory",
    "tutorials/environment",
    "tutorials/gpu_gsm8k",
    "tutorials/own_reward",
)
#: Pages whose first example is not run here, with what is looked at in its place.
SHOWN = {
    "howto/judge": "rlhf trains a reward model first, tests/runs has it: its recipe is read, and the judge is run",
    "tutorials/real_model": "it needs a model of 542 MB: its target and its recipe are read",
}
FILE = re.compile(r"```(?:python|toml)\n# (\S+)\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"^    (?:\.venv/bin/)?groupwise (.+)$", re.MULTILINE)


def page(name: str) -> str:
    """Read a page."""
    return (DOCS / f"{name}.md").read_text()


def first_command(text: str) -> list[str]:
    """Split the first command of a page into words, a line that goes on included."""
    found = COMMAND.search(text.replace("\\\n", ""))
    assert found
    return shlex.split(found[1])


def sets(words: list[str]) -> dict[str, Any]:
    """Read what --set gives."""
    return dict(assignment(value) for word, value in pairwise(words) if word == "--set")


def run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Give a command in this process -> its exit code."""
    monkeypatch.setattr("sys.argv", ["groupwise", *words])
    with pytest.raises(SystemExit) as leaving:
        main()
    return int(leaving.value.code or 0)


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Write the files of a page where commands are given, and run those that make data."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> None:
        for name, content in FILE.findall(text):
            (tmp_path / name).write_text(content)
            if name.startswith("make_"):
                runpy.run_path(str(tmp_path / name))

    return write


@pytest.mark.parametrize("name", TRAINED)
def test_the_first_example_trains(name: str, small: Callable[..., dict[str, Any]]) -> None:
    verb, what, *rest = first_command(page(name))
    assert verb == "train"
    theirs = {**sets(rest), "steps": 1}
    assert groupwise.train(what, {**small(evaluation__problems=2), **theirs}, quiet=True).summary["steps"] == 1


@pytest.mark.parametrize("name", RUN)
def test_the_first_example_runs(
    name: str, there: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there(page(name))
    assert run(first_command(page(name)), monkeypatch) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("name", ["tutorials/own_reward", "tutorials/environment"])
def test_the_recipe_of_a_tutorial_trains(
    name: str, there: Callable[[str], None], small: Callable[..., dict[str, Any]]
) -> None:
    there(page(name))
    (path,) = (file for file, _ in FILE.findall(page(name)) if file.endswith(".toml"))
    changes = {
        "steps": 1,
        "warm_start.steps": 2,
        "prompts_per_step": 2,
        "samples_per_prompt": 2,
        "evaluation.samples": 1,
    }
    assert groupwise.train(path, {"runs": small()["runs"], **changes}, quiet=True).summary["steps"] == 1


def test_the_plan_of_the_first_tutorial_is_the_quickstarts() -> None:
    page = (DOCS / "tutorials" / "quickstart.md").read_text().partition("## The plan")[2].partition("\n## ")[0]
    shown = re.sub(r"\n {13,}", " ", "\n".join(re.findall(r"^    (.*)$", page, re.MULTILINE)))
    plan = " ".join(planned().describe().split())
    entries = [" ".join(line.split()) for line in shown.splitlines()]
    assert len(entries) > 12
    assert [entry for entry in entries if entry not in plan] == []


def test_each_page_is_run_or_has_a_reason() -> None:
    mine = {*TRAINED, *RUN, *SHOWN}
    assert all((DOCS / f"{name}.md").exists() for name in mine)
    tutorials = {f"tutorials/{path.stem}" for path in (DOCS / "tutorials").glob("*.md")}
    assert tutorials <= mine
    assert first_command(page("howto/judge")) == ["train", "rlhf"]
    assert recipe.load("rlhf", {}).preference
    assert "    make real\n" in page("tutorials/real_model")
    assert recipe.load("times-tables", {}).adapter.rank == 16


def test_the_table_of_usual_ranges_is_the_codes() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (\S+) to (\S+) \|", page("howto/choose_numbers"), re.MULTILINE)
    asked = {usual.key: (usual.low, usual.high) for usual in USUAL}
    found = {key: (float(low), float(high)) for key, low, high in rows if key in asked}
    assert len(found) == len(rows) > 10
    assert found == {key: asked[key] for key in found}
    assert asked.keys() - found.keys() == {"learner.beta1", "learner.beta2"}


def test_the_judge_of_its_page_scores_and_logs_what_the_page_says(tmp_path: Path) -> None:
    text = page("howto/judge")
    (block,) = (found for found in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if "[rewards.judge]" in found)
    tables = tomllib.loads(block)["rewards"]
    key = tmp_path / "key"
    key.write_text("secret\n")
    key.chmod(0o600)
    answer = json.dumps({"reason": "Right.", "correct": 10, "clear": 6})
    with judge_server(lambda body, number: chat(answer)) as served:
        local = {"url": served.url, "key_file": str(key), "cache": str(tmp_path / "cache")}
        reward = read_reward_weights({"judge": {**tables["judge"], **local}}, each=False).own["judge"]
        with Pool({"judge": reward}, Limits(workers=1)) as pool:
            (result,) = pool.wait(pool.submit("judge", [Attempt(Sample("one", "2+2?", "4"), "4")]))
    assert result.value == pytest.approx((3 * 10 + 6) / 4 / 10)
    assert result.columns.keys() - {"correct", "clear"} == set(re.findall(r"`judge\.(\w+)`", text))
