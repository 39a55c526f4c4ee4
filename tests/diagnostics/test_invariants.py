"""Everything that a run can check has a meaning: what it says when it holds, fails, and is not measured."""

from __future__ import annotations

import ast
import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import groupwise.commands.build.witness  # noqa: F401, which knows every reading
from groupwise.diagnostics import checks
from groupwise.diagnostics.checks import Check, CheckVerdict
from groupwise.diagnostics.witness.reading import Reading
from groupwise.health.checks import (
    INVARIANTS,
    LOSS_BY_DEFINITION,
    MODEL_IS_TRAINED,
    UPDATE_AS_ASKED,
    WITNESSED,
    Invariant,
)

SOURCE = Path(checks.__file__).parents[1]
MASK = torch.ones(2, 3, dtype=torch.bool)
LOGP = torch.zeros(2, 3)


def test_every_check_that_a_run_makes_is_of_an_invariant_with_a_meaning() -> None:
    """Whatever code makes a Check names its invariant, and every invariant is one that a report knows."""
    invariants = {name for name, value in vars(checks).items() if isinstance(value, Invariant)}
    given = {LOSS_BY_DEFINITION, MODEL_IS_TRAINED, UPDATE_AS_ASKED}  # to readings that are made for them
    of_the_witness = {getattr(reading, "subject", None) for reading in Reading.__subclasses__()} - {None} | given
    assert of_the_witness == set(WITNESSED), "read a second time and without a meaning, or never read"
    known = {getattr(checks, name) for name in invariants} | of_the_witness
    assert known == set(INVARIANTS), "checked and without a meaning"
    makers = {"Check", "_check", "_gap", "_bias", "_same", "_unmeasured"}
    calls = [node for node in calls_in(Path(checks.__file__)) if name_of(node) in makers]
    assert {ast.unparse(node.args[0]) for node in calls} == invariants | {"invariant"}


def test_checks_and_invariants_are_made_in_one_place_each() -> None:
    for maker, home in (("Check", "diagnostics/checks.py"), ("Invariant", "health/checks.py")):
        files = {path for path in SOURCE.rglob("*.py") if maker in map(name_of, calls_in(path))}
        assert files == {SOURCE / home}


def calls_in(path: Path) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]


def name_of(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


@pytest.mark.parametrize("invariant", INVARIANTS, ids=lambda invariant: invariant.name)
def test_a_meaning_says_all_three_things(invariant: Invariant) -> None:
    assert re.fullmatch(r"[A-Z].+\.", invariant.held)
    for text in (invariant.cause, invariant.unmeasured):
        assert re.fullmatch(r"[a-z].+[^.]", text)
    assert len({each.name for each in INVARIANTS}) == len(INVARIANTS)


def test_a_check_cannot_be_made_without_an_invariant() -> None:
    assert dataclasses.fields(Check)[0].type is Invariant
    check = checks.live_equals_old(LOGP, LOGP + 1, MASK, rounding=None)
    assert (check.verdict, check.name, check.cause) == (CheckVerdict.FAIL, check.invariant.name, check.invariant.cause)
    assert checks.live_equals_old(LOGP, None, MASK, rounding=None).cause == check.invariant.unmeasured


def test_a_report_reads_the_meanings_without_torch() -> None:
    code = "import sys, groupwise.health.checks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
