"""The score of the early warnings: what counts as a collapse, as in time, and as the same run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def score(module: Any) -> ModuleType:
    return module("collapse_score")


@pytest.fixture
def collapse(module: Any) -> ModuleType:
    return module("collapse")


def row(*rates: float, tails_from: int = 99, **more: Any) -> dict[str, Any]:
    """Held-out rates of every second step, and ratios that have tails from a step on."""
    steps = 2 * (len(rates) - 1)
    ratios = [3.0 if step >= tails_from else 1.0 for step in range(1, steps + 1)]
    curves = {"pass_rate": [0.5] * steps, "ratio_token_p01": [1.0] * steps, "ratio_token_p99": ratios}
    heldout = [[2 * at, rate] for at, rate in enumerate(rates)]
    return {"kind": "learning rate", "heldout": heldout, "curves": curves, "stopped": "", "returns": [], **more}


def test_a_fifth_may_be_lost_from_the_step_after_the_last_evaluation_that_had_it(score: ModuleType) -> None:
    assert score.lost_at(row(0.5, 0.6, 0.5, 0.48)) == 5
    assert score.lost_at(row(0.5, 0.6, 0.5, 0.49)) is None
    assert score.lost_at(row(0.5, 0.9, 0.7, 0.9)) == 3, "that it came back is no excuse"
    assert score.lost_at(row(0.5, 0.3)) == 1
    assert score.lost_at(row(0.5, 0.9, 0.9, stopped="step 5: the gradient is not finite")) == 5


@pytest.mark.parametrize(("tails_from", "first", "lead"), [(1, 3, 2), (3, 4, 1), (4, 5, 0), (99, None, None)])
def test_a_warning_is_in_time_while_the_score_was_still_there(
    score: ModuleType, tails_from: int, first: int | None, lead: int | None
) -> None:
    """Of tails a run is warned at the second time, and not before its third step."""
    lost = row(0.5, 0.9, 0.9, 0.4, tails_from=tails_from)
    assert score.lost_at(lost) == 5
    assert score.warned(lost).get("ratio tails") == first
    assert score.lead(lost) == score.lead(lost, "ratio tails") == lead
    assert score.in_time(lost) == bool(lead)
    assert not score.in_time(lost, "engine gap")


def test_what_a_stop_leaves_is_the_last_score_up_to_the_warning(score: ModuleType) -> None:
    assert score.at_stop(row(0.5, 0.6, 0.7, 0.8, tails_from=1)) == 0.6  # warned of at step 3
    assert score.at_stop(row(0.5, 0.6, 0.7, 0.8)) == 0.8


def test_the_tables_count_what_the_rows_say(score: ModuleType) -> None:
    rows = [
        row(0.5, 0.9, 0.9, 0.4, tails_from=1, seed=0),
        row(0.5, 0.9, 0.9, 0.4, seed=1),
        row(0.5, 0.9, 0.9, 0.9, seed=2),
        row(0.5, 0.9, 0.9, 0.9, seed=0, kind="sound, grpo"),
        row(0.5, 0.9, 0.9, 0.9, seed=1, kind="sound, grpo", tails_from=1),
    ]
    (line,) = [line for line in score.kinds_table(rows) if line.startswith("| learning rate")]
    assert line.startswith(
        "| learning rate | 3 | 0.90 (0.90 to 0.90) | 0.40 (0.40 to 0.90) | 2 | 1 of 2 | 2 (2 to 2) |"
    )
    lines = list(score.warnings_table(rows))
    assert lines[0].endswith("| false alarms in 2 sound runs |")
    assert [line for line in lines if line.startswith(("| any", "| ratio"))] == [
        "| any of them | 1 | 0 | 0 | 0 | 0 | 2 (2 to 2) | 1 |",
        "| ratio tails | 1 | 0 | 0 | 0 | 0 | 2 (2 to 2) | 1 |",
    ]
    back = [row(0.5, 0.9, 0.9, 0.8, seed=seed, returns=[{}]) for seed in (0, 1)]
    (line,) = [line for line in score.returns_table(rows, back) if line.startswith("| learning rate")]
    assert line.split(" | ")[1:5] == ["2", "0.40 (0.40 to 0.40)", "0.65 (0.40 to 0.90)", "0.80 (0.80 to 0.80)"]
    assert "+0.400 (0.400 to 0.400) | 1: 2 | 0 |" in line


def test_a_kind_that_was_changed_is_another_and_a_return_by_other_thresholds_too(
    collapse: ModuleType, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    plain, back = collapse.Job("stale engine", 3, "warn"), collapse.Job("stale engine", 3, "rollback")

    def write(*keys: Mapping[str, Any]) -> None:
        file.write_text("".join(json.dumps({**row(0.5, 0.9), **key}) + "\n" for key in keys))

    write(plain.key, back.key)
    for guard, job in (("warn", plain), ("rollback", back)):
        assert [r["seed"] for r in collapse.scored(file, guard)] == [3]
        assert job not in collapse.wanted(file, guard, ["stale engine"], range(10))
    write({**plain.key, "digest": "another"}, {**back.key, "thresholds": "others"})
    for guard, job in (("warn", plain), ("rollback", back)):
        assert not collapse.scored(file, guard)
        assert job in collapse.wanted(file, guard, ["stale engine"], range(10))


def test_a_seed_on_which_conditions_were_chosen_does_not_score(collapse: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    job = collapse.Job("stale engine", 100, "warn")
    assert collapse.wanted(file, "warn", ["stale engine"], [100]) == [job]
    file.write_text(json.dumps({**row(0.5, 0.9), **job.key}) + "\n")
    assert not collapse.scored(file, "warn")
    assert not collapse.wanted(file, "warn", ["stale engine"], [100])


def test_sound_runs_are_twenty(module: Any, collapse: ModuleType, tmp_path: Path) -> None:
    kinds = module("collapse_kinds")
    jobs = collapse.wanted(tmp_path / "none.jsonl", "warn", list(kinds.KINDS), kinds.SEEDS)
    assert sum(job.kind in kinds.SOUND for job in jobs) == 20
    assert all(sum(job.kind == name for job in jobs) == 10 for name in kinds.COLLAPSES)
    assert len({kind.digest for kind in kinds.KINDS.values()}) == len(kinds.KINDS)
