"""Two ranks hold what shapes say, and a thread that scores takes turns with the one that trains."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests import two_ranks


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank wrote down, by case."""
    folder = tmp_path_factory.mktemp("ranks")
    done = two_ranks.ran("tests.training.rank_model_acts", [str(folder)], seconds=120)
    assert [d.returncode for d in done] == [0, 0], "\n".join(d.stdout[-3000:] for d in done)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.slow
def test_each_rank_keeps_room_for_as_many_rows_and_holds_its_own(seen: list[dict[str, Any]]) -> None:
    for rank in (0, 1):
        held, planned = seen[rank]["held"]
        assert held == planned
    assert seen[0]["held"][0][1] > seen[1]["held"][0][1], "the last rank has fewer rows"


@pytest.mark.slow
def test_a_thread_that_scores_takes_turns_with_the_one_that_trains(seen: list[dict[str, Any]]) -> None:
    same, asked = seen[0]["two threads"]
    assert same == asked
