"""What a sweep writes of its runs: names of folders, means and intervals over seeds, and a table that fits."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from groupwise.commands.sweep.grid import MOST_RUNS, Cell, cells, count, read_over, split
from groupwise.commands.sweep.results import RunRow, as_csv, as_json, groups
from groupwise.commands.sweep.table import WIDTH, table
from groupwise.config.recipe import Recipe
from groupwise.core.numbers.statistics import over_seeds
from tests.refusals import refused

VALUES = st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), st.text(max_size=60), st.lists(st.text()))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(["seed", "start", "a.b", "c.b"]), st.lists(VALUES, min_size=1, max_size=3)))
def test_folders_have_names_that_a_recipe_may_have_and_no_two_the_same(over: dict[str, list[object]]) -> None:
    made = list(cells(over, taken={"sweep.csv", "run"}))
    assert len(made) == count(over)
    assert len({cell.name for cell in made} | {"sweep.csv", "run"}) == len(made) + 2
    for cell in made:
        Recipe.model_validate({"seed": 0, "steps": 1, "name": cell.name, **REST})


REST = {
    "model": "tiny-dense",
    "prompts_per_step": 1,
    "samples_per_prompt": 2,
    "task": {"name": "arithmetic"},
    "algorithm": {"name": "grpo"},
    "sampling": {"max_new_tokens": 8},
    "learner": {"learning_rate": 1e-3},
}


def test_values_are_read_as_those_of_set() -> None:
    texts = ["seed=0,1", "algorithm.name=grpo,dapo", "task.operands=[2, 3],[2,4]", 'chat.system="a, b",c', "guard=true"]
    assert read_over(texts, {}) == {
        "seed": (0, 1),
        "algorithm.name": ("grpo", "dapo"),
        "task.operands": ([2, 3], [2, 4]),
        "chat.system": ("a, b", "c"),
        "guard": (True,),
    }
    assert split("a]b,c") == ["a]b", "c"]
    with refused("1 is given twice"):
        read_over(["seed=1, 1"], {})
    assert read_over(["seed=1,true,1.0"], {})["seed"] == (1, True, 1.0)


def test_a_hundred_runs_start_and_one_more_asks() -> None:
    hundred = f"seed={','.join(map(str, range(MOST_RUNS)))}"
    assert count(read_over([hundred], {})) == MOST_RUNS
    with refused("these are 200 runs"):
        read_over([hundred, "steps=1,2"], {})
    assert count(read_over([hundred, "steps=1,2"], {}, many=True)) == 200


def rows(algorithm: str, heldout: Sequence[float | None], errors: Sequence[str] = ()) -> list[RunRow]:
    made = [
        RunRow(
            Cell(f"{algorithm}-seed-{seed}", {"seed": seed, "algorithm.name": algorithm}),
            measure="pass rate",
            heldout_after=value,
            training=value,
            steps=4,
            seconds=2.0 + seed,
        )
        for seed, value in enumerate(heldout)
    ]
    failed = [
        RunRow(Cell(f"{algorithm}-seed-9{n}", {"seed": 90 + n, "algorithm.name": algorithm}), error=error)
        for n, error in enumerate(errors)
    ]
    return [*made, *failed]


def test_an_interval_is_students_over_the_seeds_that_finished() -> None:
    scores = [0.5, 0.6, 0.55]
    (group,) = groups(rows("grpo", scores, ["it ended"]))
    due = over_seeds(scores)
    assert due is not None
    assert group.heldout is not None
    assert group.heldout.mean == pytest.approx(0.55)
    assert (group.heldout.low, group.heldout.high) == (pytest.approx(due.low), pytest.approx(due.high))
    assert group.table()["seeds"] == [0, 1, 2]
    assert (group.table()["finished"], group.table()["failed"]) == (3, 1)


def test_two_seeds_have_no_interval_and_a_share_stays_one() -> None:
    (two,) = groups(rows("grpo", [0.5, 0.6]))
    assert two.table()["heldout_after"] == {"mean": pytest.approx(0.55), "low": None, "high": None}
    (high,) = groups(rows("grpo", [1.0, 1.0, 0.9]))
    assert high.table()["heldout_after"]["high"] == 1.0
    (none,) = groups(rows("grpo", [None, None, None]))
    assert none.table()["heldout_after"] is None


def test_runs_that_differ_in_more_than_their_seed_are_groups_of_their_own() -> None:
    both = [row for pair in zip(rows("grpo", [0.1, 0.2]), rows("dapo", [0.3, 0.4]), strict=True) for row in pair]
    assert [group.values for group in groups(both)] == [{"algorithm.name": "grpo"}, {"algorithm.name": "dapo"}]
    text = "\n".join(table("quickstart", both))
    assert "\ngrpo  2     0.150" in text
    assert "\ndapo  2     0.350" in text


def test_the_table_fits_and_names_what_failed() -> None:
    some = [*rows("grpo", [0.5, 0.6, 0.7], ["it ended: killed by SIGKILL"]), *rows("d" * 90, [0.5, 0.6, 0.7])]
    lines = list(table("quickstart", some))
    assert max(map(len, lines)) <= WIDTH
    assert "grpo-seed-90 failed: it ended: killed by SIGKILL" in lines
    assert lines[1].split()[1:4] == ["3", "of", "4"]
    assert lines[1].split()[-1] == "3.0"
    assert list(table("quickstart", rows("grpo", [], ["a", "b"])))[-2:] == [
        "grpo-seed-90 failed: a",
        "grpo-seed-91 failed: b",
    ]


def test_csv_and_json_hold_a_row_a_run_without_seconds() -> None:
    some = rows("grpo", [0.5, None], ['a "line", with signs'])
    (head, *lines) = csv.reader(io.StringIO(as_csv(["seed", "algorithm.name"], some).decode()))
    assert head[:5] == ["run", "seed", "algorithm.name", "state", "error"]
    assert head[5:] == ["measure", "heldout_before", "heldout_after", "training", "last_step"]
    assert lines[0] == ["grpo-seed-0", "0", "grpo", "finished", "", "pass rate", "", "0.5", "0.5", "4"]
    assert lines[2][3:5] == ["failed", 'a "line", with signs']
    written = as_json({"recipe": "quickstart"}, some)
    assert [run["run"] for run in written["runs"]] == ["grpo-seed-0", "grpo-seed-1", "grpo-seed-90"]
    assert "seconds" not in json.dumps(written)
