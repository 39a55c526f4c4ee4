"""The stress board: what its rows prove is said, what they do not is not; runs come in order, once, with their end."""

from __future__ import annotations

import json
import math
import random
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import groupwise
from groupwise.core.errors import RunError
from groupwise.core.files import jsonl

ROOT = Path(__file__).parents[2]
PAGE, ROWS = ROOT / "docs" / "which.md", ROOT / "docs" / "evidence" / "stress.jsonl"


@pytest.fixture
def stress(module: Any) -> ModuleType:
    return module("stress")


@pytest.fixture
def board(module: Any) -> ModuleType:
    return module("stress_board")


def row(algorithm: str, seed: int, rates: Iterable[float], **more: Any) -> dict[str, Any]:
    heldout = [[3 * at, rate] for at, rate in enumerate(rates)]
    known = {"condition": "on-policy", "rate": 1e-3, "sweep": False, "stopped": "", "warned": {}}
    return {"algorithm": algorithm, "seed": seed, "heldout": heldout, **known, **more}


def planted(
    shifts: dict[str, float], noise: float = 0.01, condition: str = "on-policy", draw: int = 4
) -> list[dict[str, Any]]:
    """Rows of grpo and others, whose curves lie a shift above its own, with noise of their own and luck of the seed."""
    draws = random.Random(draw)
    luck = {seed: draws.gauss(0, 0.05) for seed in range(5)}
    return [
        row(name, seed, [0.4 + luck[seed] + shift + draws.gauss(0, noise)] * 5, condition=condition)
        for name, shift in {"grpo": 0.0, **shifts}.items()
        for seed in range(5)
    ]


@pytest.fixture
def said(board: ModuleType) -> Callable[..., str]:
    def said(rows: list[dict[str, Any]], condition: str = "on-policy") -> str:
        names = tuple(dict.fromkeys(r["algorithm"] for r in rows))
        words = {"on-policy": "On policy", "16-updates": "16 updates"}
        made = board.Board(rows, words, names, range(5), 12, {"16-updates": "on-policy"})
        return " ".join(made.sentences(condition))

    return said


@pytest.mark.parametrize(("shift", "words"), [(0.2, "above"), (-0.2, "below")])
def test_a_planted_difference_turns_the_sentence(said: Callable[..., str], shift: float, words: str) -> None:
    text = said(planted({"dapo": shift, "gspo": 0.0}))
    found = re.findall(r"`([\w-]+)` (above|below) by ([\d.]+)", text)
    assert [(name, side) for name, side, _ in found] == [("dapo", words)]
    assert float(found[0][2]) == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize("noise", [0.01, 0.1])
def test_noise_is_no_sentence(said: Callable[..., str], noise: float) -> None:
    text = said(planted({"dapo": 0.0, "gspo": 0.0, "sapo": 0.0}, noise))
    assert "no difference is told" in text
    assert "above" not in text
    assert "below" not in text


def test_a_condition_of_noise_is_said_to_differ_in_one_board_of_twenty_at_most(said: Callable[..., str]) -> None:
    """Of 100 boards of 9 comparisons: more than 11 would come of a chance of 0.05 once in 200 times."""
    none = dict.fromkeys("abcdefghi", 0.0)
    assert sum("no difference is told" not in said(planted(none, draw=draw)) for draw in range(100)) <= 11


def test_luck_of_a_seed_that_both_share_cancels_and_a_difference_of_one_seed_is_none(said: Callable[..., str]) -> None:
    rows = planted({"dapo": 0.0})
    rows[-1]["heldout"] = [[step, 1.0] for step, _ in rows[-1]["heldout"]]
    assert "no difference is told" in said(rows)


def test_a_cell_without_all_its_seeds_is_in_no_sentence(said: Callable[..., str]) -> None:
    rows = planted({"dapo": 0.2, "gspo": 0.0})
    assert "`dapo`" in said(rows)
    assert "`dapo`" not in said([r for r in rows if (r["algorithm"], r["seed"]) != ("dapo", 4)])
    assert said([r for r in rows if r["seed"] < 4]) == "", "nor where every cell lacks the same one"


def test_a_condition_that_lowers_an_algorithm_is_said_against_the_one_it_is_like(said: Callable[..., str]) -> None:
    later = planted({"dapo": -0.2}, condition="16-updates")
    text = said(planted({"dapo": 0.0}) + later, "16-updates")
    assert re.search(r"16 updates, area less that on policy, 2 algorithms: `dapo` below by 0\.\d+", text)


@pytest.mark.parametrize(("shift", "side", "back"), [(0.2, "above", "below"), (-0.2, "below", "above")])
def test_the_page_says_where_a_difference_is_and_where_there_is_none(
    board: ModuleType, shift: float, side: str, back: str
) -> None:
    def findings(shift: float) -> list[str]:
        rows = planted({"dapo": shift}) + planted({"dapo": 0.0}, condition="16-updates")
        words = {"on-policy": "On policy", "16-updates": "16 updates"}
        return board.Board(rows, words, ("grpo", "dapo"), range(5), 12, {"16-updates": "on-policy"}).findings

    grpos, none, own, fell = findings(shift)
    assert grpos.startswith(f"`on-policy`, area against `grpo`'s: `dapo` {side} by 0.")
    assert re.fullmatch(
        r"No area is told apart from `grpo`'s; intervals reach .* \(median\): `16-updates` 0\.\d{3}\.", none
    )
    assert own.startswith(f"`16-updates`, area against the algorithm's own on policy: `dapo` {back} by 0.")
    assert fell.endswith("`on-policy` 0 of 10 (0), `16-updates` 0 of 10 (0).")
    assert [line.partition(" ")[0] for line in findings(0.0)] == ["No", "No", "Runs"]


def test_holm_is_the_calculation_by_hand(board: ModuleType) -> None:
    """p sorted 0.001, 0.01, 0.04, 0.05 of five tested: times 5, 4, 3, 2 and never less than the one before."""
    made = board.holm({"d": 0.05, "a": 0.001, "c": 0.04, "b": 0.01}, 5)
    assert made == pytest.approx({"a": 0.005, "b": 0.04, "c": 0.12, "d": 0.12})
    assert board.holm({"a": 0.6, "b": 0.9}, 2) == {"a": 1.0, "b": 1.0}


@pytest.mark.parametrize("t", [0.0, 0.5, 2.776445105, 30.0])
def test_p_is_students(board: ModuleType, t: float) -> None:
    """Closed forms of the distribution of 1, 2 and 4 degrees of freedom."""
    root = math.sqrt(1 + t * t / 4)
    four = 1 - 2 * (3 / 8 * t / root * (1 - t * t / (12 * root * root)))
    due = {1: 1 - 2 / math.pi * math.atan(t), 2: 1 - t / math.sqrt(2 + t * t), 4: four}
    assert {v: board.two_sided(t, v) for v in due} == pytest.approx(due, abs=1e-9)
    assert board.two_sided(-t, 4) == board.two_sided(t, 4)


def test_of_differences_without_spread(board: ModuleType) -> None:
    assert (board.p_value([0.0] * 5), board.p_value([0.5] * 5)) == (1.0, 0.0)


def test_a_collapse_is_a_fall_from_the_runs_own_best_that_chance_does_not_make(board: ModuleType) -> None:
    assert board.lost_at(row("grpo", 0, (0.5, 0.9, 0.73))) is None
    assert board.lost_at(row("grpo", 0, (0.5, 0.9, 0.71, 0.9))) == 4
    assert board.lost_at(row("grpo", 0, (0.1, 0.05, 0.02))) is None, "256 problems cannot tell it"
    fell = (0.5, 0.9, 0.1)
    before = [board.warned_before(row("grpo", 0, fell, warned=w)) for w in ({}, {"entropy": 3}, {"entropy": 4})]
    assert before == [False, True, False]


def test_a_run_that_stopped_keeps_its_last_rate(board: ModuleType) -> None:
    assert board.area(row("grpo", 0, (0.5, 0.5), stopped="step 4"), 12) == pytest.approx(0.5)


def asked(stress: ModuleType, rows: list[dict[str, Any]], *conditions: str) -> list[Any]:
    return list(stress.wanted(stress.current(rows), conditions or ("on-policy", "16-updates"), ("dapo", "grpo")))


def ended(stress: ModuleType, job: Any, **more: Any) -> dict[str, Any]:
    return {**row(job.algorithm, job.seed, (0.4, 0.5 + job.rate)), **job.key, **more}


def test_runs_come_condition_by_condition_the_baseline_first_each_cell_whole_before_the_next(
    stress: ModuleType,
) -> None:
    rows, order = list[dict[str, Any]](), []
    while jobs := asked(stress, rows):
        order.append(jobs[0])
        rows.append(ended(stress, jobs[0]))
    cells = [("on-policy", "grpo"), ("on-policy", "dapo"), ("16-updates", "grpo"), ("16-updates", "dapo")]
    assert [(job.condition, job.algorithm) for job in order] == [cell for cell in cells for _ in range(3 + 5)]
    assert [job.sweep for job in order] == [*[True] * 3, *[False] * 5] * 4
    assert [job.seed for job in order if not job.sweep] == [*stress.SEEDS] * 4
    assert {job.seed for job in order if job.sweep}.isdisjoint(stress.SEEDS)
    assert {job.rate for job in order if not job.sweep} == {max(stress.RATES)}, "planted as the best"


def test_the_smaller_rate_is_picked_of_equals_and_none_before_the_sweep_is_whole(stress: ModuleType) -> None:
    jobs = [job for job in asked(stress, [], "on-policy") if job.algorithm == "grpo"]
    rows = [{**ended(stress, job), "heldout": [[0, 0.4], [12, 0.5]]} for job in jobs]
    assert stress.picked(rows) == min(stress.RATES)
    assert stress.picked(rows[:2]) is None


def test_a_crash_is_tried_again_and_what_is_refused_or_of_other_settings_is_not_run(stress: ModuleType) -> None:
    jobs = asked(stress, [], "on-policy")
    assert asked(stress, [ended(stress, jobs[0], error="RuntimeError: x (y.py:1)")], "on-policy") == jobs
    assert {j.algorithm for j in asked(stress, [ended(stress, jobs[0], refused="no steps")], "on-policy")} == {"dapo"}
    assert asked(stress, [ended(stress, jobs[0], digest="another")], "on-policy") == jobs


def test_generation_is_equal(stress: ModuleType) -> None:
    jobs = [stress.Job(name, condition, 0, 1e-3, False) for name in stress.CATALOG for condition in stress.CONDITIONS]
    for condition in stress.CONDITIONS:
        own = [stress.keys(job, Path("runs")) for job in jobs if job.condition == condition]
        names = ("steps", "prompts_per_step", "samples_per_prompt", "updates_per_batch", "passes_per_batch")
        assert len({tuple(keys[name] for name in names) for keys in own}) == 1
    rounds = {job.algorithm for job in jobs if "algorithm.filter.max_rounds" in stress.keys(job, Path("runs"))}
    assert rounds == {name for name, made in stress.CATALOG.items() if made.filter.max_rounds > 1} | {"reinforce-rej"}


@pytest.mark.parametrize("at_once", [1, 3])
def test_the_board_is_run_once_whole_and_goes_on_where_it_was_left(
    stress: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    file, begun = tmp_path / "rows.jsonl", []

    def one(job: Any, runs: Path) -> dict[str, Any]:
        begun.append(job)
        time.sleep(0.01 * (len(begun) % 3))  # they end at different times
        return ended(stress, job, cpu_seconds=1.0, seconds=1.0)

    monkeypatch.setattr(stress, "one", one)
    cells = (("on-policy",), ("grpo", "dapo"), tmp_path)
    with ThreadPoolExecutor(at_once) as pool:
        stress.run(file, *cells, pool, at_once, 0.0)
        assert not begun, "its time is over"
        stress.run(file, *cells, pool, at_once, math.inf)
        assert len(begun) == len(set(begun)) == 2 * (3 + 5)
        whole = file.read_text().splitlines()
        file.write_text("\n".join(whole[:9]) + "\n")
        stress.run(file, *cells, pool, at_once, math.inf)
    assert len(begun) == 16 + 7
    made = stress.board(list(jsonl.rows(file)))
    assert [len(made.cell(name, "on-policy")) for name in ("grpo", "dapo")] == [5, 5]


def test_the_tables_run_nothing(
    stress: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stress, "run", None)
    file, digest = tmp_path / "rows.jsonl", stress.CONDITIONS["16-updates"].digest
    rows = planted({"dapo": 0.2, "gspo": 0.0}, condition="16-updates")
    file.write_text("".join(json.dumps({**r, "digest": digest}) + "\n" for r in rows))
    stress.main(file, only_table=True)
    out = capsys.readouterr().out
    assert re.search(r"^\| dapo \| 0\.001 \| 0\.\d+ \(0\.\d+ to 0\.\d+\) \| .* \| \+0\.\d+ \(", out, re.MULTILINE)
    assert "`dapo` above by 0." in out


SMALL = {"steps": 1, "prompts_per_step": 4, "samples_per_prompt": 2, "warm_start.steps": 0, "evaluation.problems": 2}


def test_a_run_is_a_row_with_how_it_ended(stress: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stress, "COMMON", {**stress.COMMON, **SMALL})
    job = stress.Job("grpo", "on-policy", 0, 1e-3, False)
    made = stress.one(job, tmp_path)
    assert [step for step, _ in made["heldout"]] == [0, 1]
    assert {"refused", "error"}.isdisjoint(made)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("on-policy")]
    refused = stress.one(stress.Job("grpo-process", "long", 0, 1e-3, False), tmp_path)
    assert "step" in refused["refused"]

    monkeypatch.setattr(stress.groupwise, "train", lambda *_, **__: groupwise.Run(tmp_path, {}, stopped_by=15))
    with pytest.raises(KeyboardInterrupt):
        stress.one(job, tmp_path)

    def raising(error: Exception) -> Callable[..., None]:
        def train(*_: Any, **__: Any) -> None:
            raise error

        return train

    for error, name in ((RunError("step 3: not finite Saved: x"), "stopped"), (ZeroDivisionError("x"), "error")):
        monkeypatch.setattr(stress.groupwise, "train", raising(error))
        assert stress.one(job, tmp_path)[name].startswith(
            ("step 3: not finite", "ZeroDivisionError: x (test_stress.py")
        )


def test_the_page_is_written_from_the_rows(stress: ModuleType, board: ModuleType) -> None:
    text, rows = PAGE.read_text(), list(jsonl.rows(ROWS))
    assert text == board.page(text, stress.board(rows)), "python benchmarks/stress.py --page docs/which.md"
    assert not [r for r in stress.current(rows) if r.get("error")]
