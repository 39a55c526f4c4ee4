"""docs/howto/extending.md: what it adds works as the page says."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import create_model

import groupwise
from groupwise.cli import __main__ as cli
from groupwise.commands.algorithm import laws
from groupwise.commands.train import resume as changes
from groupwise.config import keys, recipe, recipe_files
from groupwise.config.described import chosen
from groupwise.config.resolve import resolve
from groupwise.core.settings import Fixed
from groupwise.diagnostics import checks, groups
from groupwise.engines import kinds
from groupwise.journal.journal import read_metrics
from tests.laws import recompute, test_recomputed

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "extending.md").read_text()
BLOCKS: dict[str, str] = dict(re.findall(r"```python\n# ([^\n]+)\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = re.findall(r"^    groupwise (.+)$", PAGE, re.MULTILINE)
PART_USE, TASK_USE = "my_parts.py:Fade", "my_task.py:Doubles"


@pytest.fixture(autouse=True)
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of a user's with the page's two files, where the commands are given."""
    for name in ("my_parts.py", "my_task.py"):
        (tmp_path / name).write_text(BLOCKS[name])
    monkeypatch.chdir(tmp_path)


def test_the_part_obeys_its_laws_at_every_width() -> None:
    for width in (0.1, 0.5, 10.0):
        assert [seen for _, seen in laws(PART_USE, {"width": width}).laws if seen] == []


@pytest.mark.parametrize("line", ["keep(log_ratio, mask)", "bounded(keep(log_ratio, mask))"])
def test_the_part_without_a_helper_breaks_a_law_that_names_the_helper(line: str) -> None:
    helper, _, inside = line.removesuffix(")").removesuffix(", mask").partition("(")
    assert line in BLOCKS["my_parts.py"]
    Path("my_parts.py").write_text(BLOCKS["my_parts.py"].replace(line, inside))
    assert any(f"{helper}(" in seen for _, seen in laws(PART_USE, {"width": 100.0}).laws)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_are_understood(
    mine: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    verb, name, *rest = command.split()
    if verb == "laws":
        monkeypatch.setattr("sys.argv", ["groupwise", verb, name, *rest])
        with pytest.raises(SystemExit) as leaving:
            cli.main()
        assert not leaving.value.code
        assert "Fade(width=0.5)" in capsys.readouterr().out
        return
    plan = resolve(recipe.load(name, dict(recipe_files.assignment(word) for word in rest if word != "--set")))
    if "engine.name" in command:
        assert plan.recipe.engine.name == "mine"
    else:
        assert repr(plan.algorithm.trust) == "Fade(width=0.2)"


def test_the_task_trains_from_its_file() -> None:
    problems = groupwise.task(None, {"use": TASK_USE, "largest": 8})
    assert [problems.score(sample, sample.answer) for sample in problems.samples("heldout")] == [1.0] * 3
    (table,) = (tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
    assert table["task"] == {"use": TASK_USE, "largest": 40}
    assert groupwise.task(None, table["task"]).samples("train")[-1].answer == "78"


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's engine in the table."""
    names: dict[str, Any] = dict(vars(kinds))
    exec(BLOCKS["src/groupwise/engines/kinds.py"], names)
    table = eval(BLOCKS["src/groupwise/engines/kinds.py: KINDS"], names)
    assert table.keys() - kinds.KINDS.keys() == {"mine"}
    monkeypatch.setitem(kinds.KINDS, "mine", table["mine"])  # type: ignore[arg-type]


def test_the_engine_trains(mine: None, small: Callable[..., dict[str, Any]]) -> None:
    run = groupwise.train("quickstart", small(steps=1, evaluation__problems=4, engine__name="mine"))
    assert run.summary["steps"] == 1
    assert 'name = "mine"' in (run.folder / "recipe.toml").read_text()


def test_the_metric_is_logged_has_its_line_and_follows_from_the_rollouts(
    monkeypatch: pytest.MonkeyPatch, small: Callable[..., dict[str, Any]]
) -> None:
    before = groups.group_metrics

    def with_it(of: Any, *rest: Any) -> Any:
        completions = [c for group in of for c in group.completions]
        here = {**vars(groups), "completions": completions}
        return {**before(of, *rest), **eval(BLOCKS["src/groupwise/diagnostics/groups.py: group_metrics"], here)}

    monkeypatch.setattr(groups, "group_metrics", with_it)
    folder = groupwise.train("quickstart", small(steps=1, evaluation__problems=4, sampling__max_new_tokens=4)).folder
    rows = [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]
    (found,) = eval(BLOCKS["tests/laws/recompute.py: of_generated"], {**vars(recompute), "rows": rows}).values()
    (logged,) = (row["stopped_share"] for row in read_metrics(folder) if "rounds" in row)
    assert 0 < found < 1
    assert math.isclose(found, logged)


def test_the_metrics_line_is_one_of_the_glossarys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not test_recomputed.documented().fullmatch("stopped_share")
    (line,) = re.findall(r"```markdown\n(.*?)\n```", PAGE, re.DOTALL)
    glossary = test_recomputed.DOCS.read_text()
    (tmp_path / "metrics.md").write_text(f"{glossary}\n{line}\n")
    monkeypatch.setattr(test_recomputed, "DOCS", tmp_path / "metrics.md")
    assert test_recomputed.documented().fullmatch("stopped_share")
    columns = next(row for row in glossary.splitlines() if row.startswith("| truncated_share")).count("|")
    assert line.count("|") == columns


def test_the_key_is_read_has_a_meaning_and_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    names = dict(vars(checks))
    exec(
        BLOCKS["src/groupwise/diagnostics/checks.py: CheckSettings"],
        names,
    )
    section = type("Section", (names["CheckSettings"], checks.CheckSettings), {})
    with_it = create_model("WithIt", __base__=recipe.Recipe, checks=(Annotated[section, Fixed("none")], section()))
    monkeypatch.setattr(keys, "Recipe", with_it)
    monkeypatch.setattr(recipe, "Recipe", with_it)
    (shown,) = (
        key for part in chosen(keys.sections(), "checks") for key in part.keys if key.name == "checks.probe_first"
    )
    assert (shown.kind, shown.default, shown.bounds) == ("integer", "4", "0 to 1,000,000,000")
    assert shown.meaning == "the first steps, after each of which engine and learner are both asked the probe"
    assert "checks.probe_first" in changes.changeable_keys(with_it)
    table = {**recipe_files.read_table(recipe_files.find("quickstart")), "name": "it", "checks": {"probe_first": 2}}
    given = with_it.model_validate(table).checks
    assert [step for step in range(1, 9) if given.asks(step)] == [1, 2, 4, 8]
    assert [step for step in range(1, 9) if section().asks(step)] == [1, 2, 3, 4, 8]


def test_nothing_takes_more_than_three_files() -> None:
    rows = re.findall(r"^\| \[.*?\]\(#([\w-]+)\).*?\| ([^|]+) \|$", PAGE, re.MULTILINE)
    headings = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    assert [anchor for anchor, _ in rows] == [heading.lower().replace(" ", "-") for heading in headings]
    assert all(touched.count(",") <= 2 for _, touched in rows)
