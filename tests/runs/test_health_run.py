"""A run in trouble says so itself, once, in words."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import groupwise
from groupwise.config.recipe import load
from groupwise.core.errors import RunError
from groupwise.health.symptoms.base import BAD, WARN, History
from groupwise.health.watch import findings
from groupwise.journal.journal import read_metrics


def warnings(folder: Path) -> list[str]:
    return re.findall(r"^step \d+: warning, ([^:]+): ", (folder / "log.txt").read_text(), re.MULTILINE)


def test_a_learning_rate_of_a_tenth_is_named(small: Callable[..., dict[str, Any]], capsys) -> None:
    settings = small(learner__learning_rate=0.1, steps=6, name="wild")
    with contextlib.suppress(RunError):  # three updates in a row that are not finite end it, which is as good
        groupwise.train("quickstart", settings)
    folder = Path(settings["runs"]) / "wild"
    told = warnings(folder)
    assert "few effective samples" in told
    assert len(told) == len(set(told))
    shown = capsys.readouterr().out
    assert all(f"warning, {name}: " in shown for name in told)
    assert "learner.learning_rate = 3e-02 (it is 0.1)" in shown
    recipe = load(str(folder / "recipe.toml")).model_dump(exclude_none=True)
    rows = [row for row in read_metrics(folder) if "evaluation" not in row]
    found = {f.name for f in findings(History(rows, recipe=recipe)) if f.tone in (WARN, BAD)}
    assert "few effective samples" in found
