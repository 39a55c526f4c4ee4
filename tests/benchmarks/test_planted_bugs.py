"""Planted bugs: the table is true of the source as it is, and runs find them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Module = Callable[[str], ModuleType]

SOURCE = Path(__file__).parents[2] / "src/groupwise"


def test_each_bug_can_be_planted(module: Module) -> None:
    bugs = module("planted_bugs")
    everything = [*module("bugs.data").DATA, *module("bugs.updates").UPDATES, *module("bugs.models").MODELS]
    assert len(bugs.BUGS) == len(everything) >= 64
    for bug in everything:
        sound = (SOURCE / bug.file).read_text()
        changed = bugs.with_bug(bug, sound)
        assert ast.parse(changed), bug.name
        assert changed != sound, bug.name
        assert bug.kind in module("bugs.kinds").KINDS


def test_a_text_that_is_not_there_once_is_refused(module: Module) -> None:
    bugs = module("planted_bugs")
    bug = bugs.BUGS["the sign of the KL"]
    for text in ("", 2 * f"{bug.old}\n"):
        with pytest.raises(ValueError, match=r"the sign of the KL: algorithms/algorithm\.py has \d times"):
            bugs.with_bug(bug, text)


def test_a_row_says_what_the_sound_run_did_not(module: Module) -> None:
    bugs = module("planted_bugs")
    bug = bugs.BUGS["the sign of the KL"]
    sound = {"by": "", "checks": [], "step": 3, "words": "", "findings": {"few": "x"}, "numbers": [{"a": 1.0}]}
    silent = bugs.row_of(bug, sound | {"numbers": [{"a": 2.0}]}, sound)
    assert (silent["found"], silent["differs"]) == (False, 0)
    hinted = bugs.row_of(bug, sound | {"findings": {"few": "x", "far": "y"}}, sound)
    assert (hinted["found"], hinted["differs"], bugs.found_by(hinted)) == (True, -1, "finding: far")


@pytest.mark.slow
def test_runs_find_all_bugs_but_those_that_are_explained(module: Module, tmp_path: Path) -> None:
    bugs = module("planted_bugs")
    for bug in bugs.BUGS.values():
        sound = bugs.of_bug(bug, False, tmp_path / "cache")
        assert not sound["by"], (bug.kind, sound["words"])
        row = bugs.row_of(bug, bugs.of_bug(bug, True, tmp_path / "cache"), sound)
        assert row["found"] or bug.missed, bug.name
