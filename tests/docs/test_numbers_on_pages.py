"""Numbers and lists on pages are those of the evidence that they name, or of the code."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from groupwise.algorithms.catalog import CATALOG
from groupwise.config.answers import sections
from groupwise.rewards.verifiers.answers import CHECKERS
from groupwise.training.start.initial_policy import TINY
from tests.docs.pages import PAGES, ROOT

TEXTS = {page.name: page.read_text() for page in PAGES}


def rows(name: str) -> list[dict[str, Any]]:
    """The rows of a file of evidence."""
    return [json.loads(line) for line in (ROOT / "docs" / "evidence" / name).read_text().splitlines()]


def first_cells(text: str, head: str) -> set[str]:
    """The first column of the table with this head, without code marks."""
    table = text.partition(f"| {head} |")[2].partition("\n\n")[0]
    return {line.split("|")[1].strip().strip("`") for line in table.splitlines()[2:]}


def seconds_by_phase() -> Counter[str]:
    """The seconds of the quickstart's steps, added up by phase."""
    steps = next(run["steps"] for run in rows("sound-runs.jsonl") if run["recipe"]["name"] == "quickstart")
    phases: Counter[str] = Counter()
    for step in steps:
        phases.update(step["seconds"])
    return phases


def test_where_a_step_goes_is_the_sum_of_the_runs_seconds() -> None:
    phases = seconds_by_phase()
    told = re.search(r"added up\): (.*?); ([\d.]+) in\s+all", TEXTS["performance.md"], re.DOTALL)
    assert told
    assert " ".join(told[1].split()) == ", ".join(
        f"{name} {value:.1f}" for name, value in phases.most_common() if value >= 0.1
    )
    assert told[2] == f"{sum(phases.values()):.1f}"
    share = 100 * phases["journal"] / sum(phases.values())
    assert f"gathered and written, is {share:.0f} % of a quickstart step" in TEXTS["metrics.md"]


def test_the_quickstarts_table_is_its_rows_and_says_when_they_were_measured() -> None:
    table = TEXTS["evidence.md"].partition("## The quickstart learns")[2].partition("\n## ")[0]
    measured = re.search(r"Measured at (\w+)", table)
    assert measured
    # Rows of the first sweep: as the recipe is.
    known = {(row["algorithm"], row["seed"]): row for row in rows("quickstart.jsonl") if row["commit"] == measured[1]}
    shown = re.findall(r"^\| (\w+) \| (\d) \| (.*) \|$", table, re.MULTILINE)
    assert len(shown) == 10
    for name, seed, cells in shown:
        row = known[name, int(seed)]
        columns = [f"{row[key]:.3f}" for key in ("heldout_before", "heldout_after")]
        columns += [f"{row[key]:.1f}" for key in ("length_before", "length_after")]
        assert cells.split(" | ") == [*columns, *(f"{row[key]:.0f}" for key in ("seconds_training", "seconds_total"))]


def test_tables_of_checks_and_checkers_are_whole() -> None:
    run = rows("sound-runs.jsonl")[0]
    measured = {name for step in run["steps"] for name in step["checks"]}
    assert len(measured) >= 6
    assert measured - first_cells(TEXTS["checks.md"], "check") == set()
    assert first_cells(TEXTS["answers.md"], "check") == CHECKERS.keys()


def test_the_key_model_names_every_tiny_policy() -> None:
    (meaning,) = (key.meaning for section in sections() for key in section.keys if key.name == "model")
    assert [name for name in TINY if name not in meaning] == []


def test_pages_count_the_algorithms_of_the_catalog() -> None:
    counted = {
        page: [int(n) for n in re.findall(r"(?:[Aa]ll|Each of the) (\d+) (?:algorithms|side by side|is about)", text)]
        + [4 + int(n) for n in re.findall(r"(\d+) more algorithms", text)]
        for page, text in {**TEXTS, "README.md": (ROOT / "README.md").read_text()}.items()
    }
    said = {page: numbers for page, numbers in counted.items() if numbers}
    assert {"README.md", "index.md", "which.md", "choose_algorithm.md"} <= set(said)
    assert {n for numbers in said.values() for n in numbers} == {len(CATALOG)}, said
