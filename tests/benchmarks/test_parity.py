"""The parity table: it sees a planted difference, says which peer is not there, and its page is made of its rows."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import pytest
import torch

from groupwise.algorithms.catalog import CATALOG


@pytest.fixture
def parity(module: Any) -> ModuleType:
    return module("parity")


@pytest.fixture
def comparing(module: Any) -> ModuleType:
    return module("peers.comparing")


def rows(parity: ModuleType) -> list[dict[str, Any]]:
    return parity.newest(list(parity.whole_rows(parity.EVIDENCE)))


def itself(comparing: ModuleType, row: str, settings: dict[str, object]) -> Any:
    """A peer that is this package, with settings of its own."""
    case = comparing.Case(row, "", lambda batch, live: (None, None), settings)
    return lambda batch, live: comparing.ours(case, batch, live)


@pytest.mark.parametrize(
    ("row", "settings", "kind"),
    [
        ("grpo", {"trust.epsilon_low": 0.2001}, {}),
        ("grpo", {"kl.beta": 0.0401}, {}),
        ("grpo", {"advantage.epsilon": 1e-4}, {}),
        ("vespo", {"trust.k_negative": 3.001}, {}),
        ("dppo-kl", {"trust.delta_high": 0.06}, {}),
        ("gdpo", {"advantage.whiten": False}, {"rewards": 3}),
        ("maxrl", {"advantage.kind": "group-mean"}, {"binary": True}),
    ],
)
def test_a_planted_difference_is_seen(comparing, row: str, settings: dict[str, object], kind: dict[str, Any]) -> None:
    same = comparing.Case(row, "", itself(comparing, row, {}), kind=comparing.Kind(**kind))
    planted = dataclasses.replace(same, theirs=itself(comparing, row, settings))
    assert [comparing.compared(case)["verdict"] for case in (same, planted)] == ["same", "differs"]


def test_batches_have_both_signs_ragged_rows_and_no_group_without_a_signal(comparing) -> None:
    for seed in comparing.SEEDS:
        batch = comparing.draw(seed, 0.2, torch.float32, comparing.Kind())
        advantage, _ = itself(comparing, "grpo", {})(batch, batch.live)
        by_row = advantage.sum(1)
        assert (by_row > 0).any()
        assert (by_row < 0).any()
        assert len(batch.mask.sum(1).unique()) > 3
        assert all(by_row[batch.group == group].any() for group in range(comparing.GROUPS))


def test_a_peer_that_is_not_there_is_a_row(parity) -> None:
    (row,) = parity.of_peer("verl", "of_nobody")
    assert (row["row"], row["verdict"]) == ("all", "not compared")
    assert "of_nobody" in row["words"]


def test_the_page_is_made_of_the_rows(parity) -> None:
    assert parity.PAGE.read_text() == parity.text(rows(parity)), "run benchmarks/parity.py"


def test_each_algorithm_is_compared_or_has_a_reason(parity) -> None:
    compared = {row["row"] for row in rows(parity) if row["verdict"] != "not compared"}
    assert set(CATALOG) - compared == set(parity.ELSEWHERE)
    assert [row for row in rows(parity) if row["verdict"] == "differs" and not row["words"]] == []
