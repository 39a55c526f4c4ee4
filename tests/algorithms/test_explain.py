"""What `groupwise explain` says is what the catalog holds."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from groupwise import UsageError
from groupwise.algorithms.catalog import CATALOG
from groupwise.algorithms.explain import compare, explain, objective, page
from groupwise.algorithms.settings import KINDS, algorithm, settings
from groupwise.commands.algorithm import explain as explain_either


def test_the_page_in_docs_is_made_from_todays_catalog() -> None:
    assert (Path(__file__).parents[2] / "docs" / "reference" / "algorithms.md").read_text() == page(), "run make docs"


@pytest.mark.parametrize("name", CATALOG)
def test_an_explanation_tells_every_part_with_its_values_the_paper_and_what_to_watch(name: str) -> None:
    row, told = algorithm(name), explain(name)
    assert row.paper in told
    assert row.watch
    assert row.watch in told
    for part in row.parts.values():
        assert part.equation in told
        for field in dataclasses.fields(part):  # type: ignore[arg-type]
            value = getattr(part, field.name)
            if not dataclasses.is_dataclass(value) and part is not row.kl:
                assert f"{field.name}={value!r}" in told


def test_every_part_has_an_equation() -> None:
    parts = [kind for kinds in KINDS.values() for kind in kinds.values()]
    assert len(parts) > 25
    assert not [kind.__name__ for kind in parts if not hasattr(kind, "equation")]


def test_numbers_laid_over_a_row_are_in_its_equation() -> None:
    row = algorithm("gspo", {"trust.epsilon_high": 0.28, "kl.beta": 0.5, "aggregate.kind": "token-mean"})
    assert objective(row) == ("J = sum_it 1 / sum_i |o_i| [ min(s_i A, clip(s_i, 1 - 0.0003, 1 + 0.28) A) - 0.5 KL ]")
    corrected = algorithm("grpo", {"mismatch.kind": "tis", "entropy_coefficient": 0.01, "kl.beta": 0.0})
    assert objective(corrected) == (
        "J = sum_it 1 / (N |o_i|) [ c (min(r_t A, clip(r_t, 1 - 0.2, 1 + 0.2) A)) + 0.01 H ]"
    )


@pytest.mark.parametrize("name", CATALOG)
def test_what_differs_is_exactly_what_differs(name: str) -> None:
    mine, theirs = settings(algorithm(name)), settings(algorithm("grpo"))
    told, _, same = compare(name, "grpo").partition("the same: ")
    for slot in algorithm(name).parts:
        assert (f"\n{slot}\n" in told) == (mine[slot] != theirs[slot])
        assert (slot in same.split(", ")) == (mine[slot] == theirs[slot])


def test_a_name_that_does_not_exist_gets_the_nearest_ones() -> None:
    with pytest.raises(UsageError, match="gspo"):
        explain("gsppo")


def test_a_folder_that_is_no_run_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^explain '.*': no run folder \(there is no recipe\.toml in it\) and no"):
        explain_either(str(tmp_path), {}, print)


@pytest.mark.parametrize("name", CATALOG)
def test_what_to_watch_is_a_metric_of_the_glossary(name: str) -> None:
    glossary = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    told = re.findall(r"\b[a-z]+(?:_[a-z]+)+\b|\brounds\b", algorithm(name).watch)
    assert told
    assert [word for word in told if word not in glossary] == []


@pytest.mark.parametrize("row", [row for row in CATALOG.values() if row.dialects], ids=lambda row: row.name)
def test_the_constants_of_others_are_keys_that_make_another_algorithm(row):
    text = explain(row.name)
    for one in row.dialects:
        assert one.settings or one.words
        assert one.of in text
        changed = algorithm(row.name, dict(one.settings))
        assert (changed != row) == bool(one.settings), one
