"""Every sentence of the threat model has a test, and every test that it names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "dev" / "threats.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def sentences(page: str) -> list[tuple[str, str]]:
    """The rows of the tables that have a column of tests: what is said, and where it is held."""
    tables = re.findall(r"\| sentence \| test \|\n\|---\|---\|\n((?:\|.*\|\n)+)", page)
    rows = [row for table in tables for row in table.splitlines()]
    return [tuple(cell.strip() for cell in row.strip("|").rsplit("|", 1)) for row in rows]  # type: ignore[misc]


def lost(page: str) -> list[str]:
    """The tests that are named and are nowhere."""
    missing = []
    for file, name in NAMED.findall(page):
        path = ROOT / file
        defined = (
            {node.name for node in ast.parse(path.read_text()).body if hasattr(node, "name")} if path.exists() else ()
        )
        if name not in defined:
            missing.append(f"{file}::{name}")
    return missing


def test_each_sentence_of_the_threat_model_names_its_tests() -> None:
    assert len(sentences(PAGE)) >= 30
    assert [
        said for said, held in sentences(PAGE) if not re.fullmatch(rf"{NAMED.pattern}(, {NAMED.pattern})*", held)
    ] == []


def test_each_test_that_the_threat_model_names_is_there() -> None:
    assert lost(PAGE) == []
    assert lost("`tests/docs/test_threats.py::test_nothing` `tests/no.py::test_x`") == [
        "tests/docs/test_threats.py::test_nothing",
        "tests/no.py::test_x",
    ]
