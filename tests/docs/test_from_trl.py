"""The first example of docs/howto/from_trl.md: the file on the page is imported and gives what the page shows."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from groupwise.config.bridge.given import read
from groupwise.config.bridge.recipe import imported
from groupwise.config.recipe import load

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "from_trl.md"


def blocks() -> list[str]:
    return [textwrap.dedent(one).strip("\n") for one in re.findall(r"(?:^ {4}.*\n)+", PAGE.read_text(), re.MULTILINE)]


def test_the_first_example_runs_and_prints_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config, command, answers = blocks()[:3]
    assert command == "groupwise import grpo.yaml --out recipe.toml"
    Path("grpo.yaml").write_text(config)
    done = imported(read("grpo.yaml"))
    assert "\n".join(done.lines()).startswith(answers)
    Path("recipe.toml").write_text(done.text())
    recipe = load("recipe.toml")
    assert (recipe.prompts_per_step, recipe.samples_per_prompt, recipe.steps) == (8, 8, 100)


def test_its_lines_are_short() -> None:
    assert max(map(len, PAGE.read_text().splitlines())) <= 110
