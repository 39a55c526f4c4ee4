"""Parts of the page made in Python: what never moves, equal lines, events, first and last completions, sums."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from groupwise.reports.compare.apart import by_difference
from groupwise.reports.compare.compare import comparison
from groupwise.reports.compare.scores import final_scores
from groupwise.reports.folder.contrast import contrasts
from groupwise.reports.folder.events import events
from groupwise.reports.folder.read import HELDOUT, LOG, METRICS, RECIPE, ROLLOUTS, read
from groupwise.reports.folder.totals import again, totals
from groupwise.reports.page.plots import plots_for
from groupwise.reports.page.unchanged import folded
from groupwise.reports.records import Curves, RunPage, Status, Table
from tests.reports.test_compare import DAPO, curves, grouped, member


def lines(path: Path, *rows: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of three steps with two evaluations, a checkpoint, a warning and a resume."""
    run = tmp_path / "run"
    (run / "checkpoints" / "step-000002").mkdir(parents=True)
    (run / "checkpoints" / "step-000003.partial").mkdir()
    (run / RECIPE).write_text("# All\n# from quickstart\nsteps = 3\ndeterministic = true\n[learner]\nranks = 2\n")
    steps = [{"step": s, "generated_tokens": 10 * s, "seconds": {"update": 900.0}} for s in (1, 2, 3)]
    held = [{"step": s, "evaluation": {"avg_at_k": s / 4, "problems": 5, "samples": 2}} for s in (0, 3)]
    lines(run / METRICS, held[0], *steps, held[1])
    (run / LOG).write_text("step 1: a check: pass\nstep 2: warning, entropy cliff: it fell. Try: less.\n")
    (run / "about.json").write_text(json.dumps({"resumed": [{"step": 1}], "versions": {"torch": "2"}, "commit": "abc"}))
    return run


# Lines that never move


def test_a_chart_without_a_line_that_moves_becomes_words_and_no_other() -> None:
    steps = {"learning_rate": [0.1, None, 0.1, 0.1], "entropy_mean": [1.0, 1.0, 1.1, 1.0], "pass_rate": [0.0] * 4}
    plots, unchanged = folded(plots_for(steps, {}, []), steps, {})
    assert [plot.id for plot in plots] == ["pass-rate", "entropy"], "a pass rate that stands still is no small matter"
    assert unchanged == {"healthy": ["Learning rate: 0.1"]}


def test_two_numbers_are_too_few_to_call_a_line_still() -> None:
    steps = {"learning_rate": [0.1, 0.1]}
    assert folded(plots_for(steps, {}, []), steps, {})[1] == {}


def test_a_line_that_moves_keeps_the_chart_of_those_that_do_not() -> None:
    steps = {"truncated_share": [0.0, 0.0, 0.0]}
    held = {"truncated_share": [0.0, 0.5, 0.0]}
    (plot,), unchanged = folded(plots_for(steps, held, []), steps, held)
    assert (len(plot.series), unchanged) == (2, {})


def test_equal_lines_are_drawn_once_by_both_names_and_unequal_ones_are_not() -> None:
    same = {"score_mean": [0.1, 0.2, None, 0.3], "reward_mean": [0.1, 0.2, None, 0.3]}
    (plot,) = plots_for(same, {}, [])
    assert [line.name for line in plot.series] == ["score = reward"]
    assert [key.name for key in plot.keys] == ["score_mean", "reward_mean"]
    (plot,) = plots_for({**same, "reward_mean": [0.1, 0.2, 0.0, 0.3]}, {}, [])
    assert [line.name for line in plot.series] == ["score", "reward"]


def test_lines_of_an_evaluation_and_of_training_are_two_even_if_equal() -> None:
    (plot,) = plots_for({"score_mean": [0.1, 0.2, 0.3]}, {"score_mean": [0.1, 0.2, 0.3]}, [])
    assert [line.name for line in plot.series] == ["score", "held-out score"]


# Events


def test_events_are_evaluations_checkpoints_warnings_and_resumes(folder: Path) -> None:
    found = [(event.step, event.kind, event.words) for event in events(read(folder))]
    assert found == [
        (0, "evaluation", ""),
        (1, "resumed", ""),
        (2, "checkpoint", ""),
        (2, "warning", "entropy cliff"),
        (3, "evaluation", ""),
    ]


def test_a_run_without_a_log_or_checkpoints_has_its_evaluations(folder: Path) -> None:
    (folder / LOG).unlink()
    for inside in (folder / "checkpoints").iterdir():
        inside.rmdir()
    (folder / "checkpoints").rmdir()
    assert {event.kind for event in events(read(folder))} == {"evaluation", "resumed"}


# First and last completions


def completion(step: int, group: int, key: str, text: str, **more: Any) -> dict[str, Any]:
    told = {"step": step, "group": group, "fate": "heldout", "key": key, "prompt": f"{key}?", "answer": "7"}
    return {**told, "completion": text, "score": 1.0, "tokens": 1, "finish": "stop", **more}


def test_first_and_last_are_of_the_same_problem_and_the_first_completion_of_each(folder: Path) -> None:
    rows = [completion(s, g, f"p{g}", f"{s}-{g}-{i}") for s in (0, 2, 3) for g in range(5) for i in range(2)]
    lines(folder / HELDOUT, *rows)
    found, words = contrasts(folder)
    assert [(one.prompt, one.first.text, one.last.text) for one in found] == [
        ("p0?", "0-0-0", "3-0-0"),
        ("p2?", "0-2-0", "3-2-0"),
        ("p4?", "0-4-0", "3-4-0"),
    ]
    assert "after step 0 and after step 3" in words


def test_a_problem_that_one_of_the_two_lacks_is_not_compared(folder: Path) -> None:
    lines(folder / HELDOUT, completion(0, 0, "a", "x"), completion(0, 1, "b", "x"), completion(3, 0, "b", "y"))
    assert [one.prompt for one in contrasts(folder)[0]] == ["b?"]


def test_without_evaluations_problems_alike_stand_side_by_side_and_are_called_so(folder: Path) -> None:
    rows = [completion(1, 0, "aa", "x", source="s"), completion(3, 0, "other", "z", source="t")]
    rows += [completion(3, 1, "dddd", "no", source="s"), completion(3, 2, "bb", "y", source="s")]
    lines(folder / ROLLOUTS, *rows)
    (one,), words = contrasts(folder)
    assert (one.prompt, one.last_prompt, one.last.text) == ("aa?", "bb?", "y")
    assert "alike" in words


def test_one_step_alone_has_nothing_to_compare(folder: Path) -> None:
    lines(folder / HELDOUT, completion(0, 0, "a", "x"))
    assert contrasts(folder) == ((), "")


# Sums, and how to run it again


def pairs(table: Table) -> dict[str, str]:
    return {row[0]: row[1] for row in table.rows}


def test_sums_by_hand(folder: Path) -> None:
    assert pairs(totals(read(folder))) == {
        "steps": "3",
        "tokens sampled": "60",
        "held-out completions": "20",
        "time": "45 min 0 s (0.75 hours)",
        "time of all ranks": "1.5 hours (2 ranks)",
    }


def test_how_to_run_it_again_names_command_recipe_and_commit(folder: Path) -> None:
    table = again(read(folder))
    told = {"command": f"groupwise train {folder}/recipe.toml", "recipe": "made from quickstart", "commit": "abc"}
    assert pairs(table) == {**told, "with": "torch 2"}
    assert "the same numbers" in table.words
    (folder / RECIPE).write_text("steps = 3\n")
    assert "the same numbers" not in again(read(folder)).words, "a run that is not deterministic promises nothing"


def test_an_older_folder_has_fewer_parts_and_no_error(tmp_path: Path) -> None:
    lines(tmp_path / METRICS, {"step": 1, "pass_rate": 0.5})
    run = read(tmp_path)
    assert again(run).rows == ()
    assert pairs(totals(run)) == {"steps": "1"}
    assert events(run) == ()


# Comparison


def test_one_seed_each_has_neither_best_nor_worst() -> None:
    table = final_scores(grouped([member(), member("dapo-0", recipe=DAPO)]))
    assert not {"best seed", "worst seed"} & {*table.head}
    assert all(len(row) == len(table.head) for row in table.rows)


def test_charts_stand_by_how_much_the_runs_differ() -> None:
    noise = [0.0, 0.1, 0.0, 0.1, 0.0, 0.1]
    near = {
        "loss": noise,
        "pass_rate": noise,
        "entropy_mean": [1 + x for x in noise],
        "kl_mean": [3 + x for x in noise],
    }
    far = {**near, "entropy_mean": [1.02 + x for x in noise], "kl_mean": [9 + x for x in noise]}
    runs = [RunPage(str(i), "", Status("going", ""), steps=curves(range(6), **c)) for i, c in enumerate((near, far))]
    assert [plot.id for plot in by_difference(plots_for(near, {}, ()), runs)] == ["pass-rate", "kl", "entropy", "loss"]
    assert [plot.id for plot in by_difference(plots_for(near, {}, ()), runs[:1])] == [
        "pass-rate",
        "entropy",
        "kl",
        "loss",
    ]


def test_a_comparison_folds_what_is_the_same_in_every_run() -> None:
    flat = {"learning_rate": [0.1] * 3, "pass_rate": [0.1, 0.2, 0.3]}
    other = {**flat, "learning_rate": [0.2] * 3}
    both = [member(steps=curves((1, 2, 3), **flat)), member("b", recipe=DAPO, steps=curves((1, 2, 3), **flat))]
    assert comparison(both, "t").unchanged["healthy"] == ["Learning rate: 0.1"]
    both[1] = member("b", recipe=DAPO, steps=curves((1, 2, 3), **other))
    assert "learning-rate" in {plot.id for plot in comparison(both, "t").plots}


def test_curves_of_one_step_are_no_reason_to_fail() -> None:
    runs = [RunPage(str(i), "", Status("going", ""), steps=Curves([1], {"loss": [float(i)]})) for i in (1, 2)]
    assert len(by_difference(plots_for({"loss": [1.0]}, {}, ()), runs)) == 1
