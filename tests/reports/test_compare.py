"""Runs side by side: groups of seeds, and the tables of a comparison."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
from pathlib import Path

import pytest

from groupwise.core.errors import UsageError
from groupwise.core.numbers import statistics
from groupwise.reports.compare.compare import comparison, notes, run_page, status, tables, what_differs
from groupwise.reports.compare.members import Member, grouped, mean, telling
from groupwise.reports.compare.scores import differences, final_scores, in_words, per_run, score_of
from groupwise.reports.folder.read import RunFolder
from groupwise.reports.page.plots import SECTIONS, plots_for
from groupwise.reports.records import Curves, Status, Table

RECIPE = {
    "name": "grpo-0",
    "seed": 0,
    "steps": 3,
    "runs": "runs",
    "model": "tiny-dense",
    "task": {"name": "arithmetic", "largest": 4},
    "algorithm": {"name": "grpo", "trust": {"kind": "clip", "epsilon_high": 0.2}, "kl": {"beta": 0.04}},
    "learner": {"learning_rate": 3e-4},
    "warm_start": {"learning_rate": 5e-3},
    "evaluation": {"problems": 100, "samples": 4},
}
DAPO = {"algorithm": {"name": "dapo", "trust": {"kind": "clip", "epsilon_high": 0.28}, "kl": {"beta": 0.0}}}
FINISHED = Status("finished", "finished")


def curves(steps, **columns) -> Curves:
    return Curves(list(steps), {name: list(values) for name, values in columns.items()})


def member(label="grpo-0", after=0.9, seed=0, before=0.5, error=0.01, status=FINISHED, length=3, **changes) -> Member:
    """A run of `length` steps that went from `before` to `after`."""
    recipe = {**RECIPE, "name": label, "seed": seed, **changes.pop("recipe", {})}
    rising = [before + (after - before) * step / length for step in range(1, length + 1)]
    asked = {"standard_error": error, "problems": 100, "samples": 4}
    rows = [
        {"step": step, "evaluation": {"avg_at_k": score, "length_mean": size, **asked}}
        for step, score, size in ((0, before, 6.0), (length, after, 12.0))
    ]
    steps = changes.pop("steps", curves(range(1, length + 1), pass_rate=rising, seconds_total=[2.0] * length))
    held_out = curves((0, length), avg_at_k=[before, after], low=[0.0, 0.0], high=[1.0, 1.0])
    evaluations = changes.pop("evaluations", held_out)
    told = {"recipe": recipe, "recipe_text": f"seed = {seed}", "about": {}, "summary": None, "status": status}
    rows_of = {"step_rows": [], "evaluation_rows": rows, "machine_rows": [], "notes": ()}
    return Member(
        RunFolder(**{"folder": Path("runs") / label, "name": label, **told, **rows_of, **changes}), steps, evaluations
    )


def six() -> list[Member]:
    """Three seeds of grpo, three of dapo."""
    grpo = [member(f"grpo-{s}", after, seed=s) for s, after in enumerate((0.90, 0.92, 0.94))]
    return grpo + [member(f"dapo-{s}", after, seed=s, recipe=DAPO) for s, after in enumerate((0.95, 0.96, 0.98))]


def row(table: Table, first: str) -> dict[str, str]:
    found = [each for each in table.rows if each[0] == first]
    assert len(found) == 1, [each[0] for each in table.rows]
    return dict(zip(table.head, found[0], strict=True))


# Groups


def test_seeds_of_a_recipe_are_a_group_and_its_label_is_what_differs():
    groups = grouped(six())
    assert [group.label for group in groups] == ["dapo (3 seeds)", "grpo (3 seeds)"]
    assert [[each.seed for each in group.members] for group in groups] == [[0, 1, 2]] * 2


def test_the_order_in_which_runs_are_given_does_not_matter():
    members = six()[:2] + six()[3:5] + [member("by-hand", seed=7, recipe={"steps": 9})]
    shuffled, pages = random.Random(1), set()
    for _ in range(20):
        shuffled.shuffle(members)
        pages.add(json.dumps(dataclasses.asdict(comparison(members, "t"))))
    assert len(pages) == 1


def test_runs_given_by_another_name_of_the_same_folder_are_refused_in_one_line():
    with pytest.raises(UsageError, match=r"runs/\.\./runs/grpo-0: this run is given twice") as caught:
        grouped([member(), member("again", seed=1, folder=Path("runs/../runs/grpo-0"))])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "labels"),
    [
        (
            [{"learner": {"learning_rate": 1e-3}}, {"learner": {"learning_rate": 3e-4}}],
            ["learner.learning_rate 0.0003", "learner.learning_rate 0.001"],
        ),
        ([{"steps": 20}, {"steps": 100}, {"steps": 3}], ["steps 3", "steps 20", "steps 100"]),
        ([{"model": "a/b"}, {"model": "a/c"}], ["a/b", "a/c"]),
        ([{"steps": 1}, {"steps": 2, "model": "b"}, {"steps": 3}], ["steps 1", "steps 2", "steps 3"]),
        ([{}, {"critic": {"warmup_steps": 5}}], ["warmup_steps 5", "warmup_steps not set"]),
        ([{"critic": {"from": ""}}, {"critic": {"from": "x"}}], ['from ""', "from x"]),
        ([{"critic": {"on": True}}, {"critic": {"on": False}}], ["on false", "on true"]),
        (
            [{**a, **b} for a, b in itertools.product(({}, DAPO), ({"steps": 1}, {"steps": 2}))],
            ["dapo, steps 1", "dapo, steps 2", "grpo, steps 1", "grpo, steps 2"],
        ),
        ([DAPO, {**DAPO, "steps": 4}, {}], ["dapo, steps 3", "dapo, steps 4", "grpo, steps 3"]),
        (
            [
                {"algorithm": {"advantage": part, "trust": {"kind": "clip"}}}
                for part in ({"kind": "group-zscore", "epsilon": 1e-6}, {"use": "my.py:Mine"})
            ],
            ["advantage.kind Mine", "advantage.kind group-zscore"],
        ),
        (
            [{"algorithm": {"ratio": part}} for part in ({"level": "token"}, {"use": "a.b:Wide", "width": 2})],
            ["level Wide", "level token"],
        ),
        ([{"task": {"name": "chain"}}, {"task": {"use": "my_task.py:Sums"}}], ["Sums", "chain"]),
        ([{"task": {"use": f"{name}.py:Sums"}} for name in "ab"], ["use a.py:Sums", "use b.py:Sums"]),
        ([{"rewards": {"x": {"use": "r.py:f"}}}, {"rewards": {"x": {"kind": "tags"}}}], ["x.kind f", "x.kind tags"]),
    ],
)
def test_a_label_is_the_fewest_keys_that_tell_the_groups_apart(changes, labels):
    members = [member(f"run-{i}", recipe=change) for i, change in enumerate(changes)]
    assert sorted(group.label for group in grouped(members)) == sorted(labels)


def of_code(label: str, path: str, sha256: str, seed: int = 0) -> Member:
    """A run with a reward and tools of a file, which said what has this hash."""
    recipe = {"rewards": {"mine": {"use": f"{path}:f"}}, "task": {"tools": [f"{path}:tool"]}}
    return member(label, seed=seed, recipe=recipe, about={"code": [{"path": path, "sha256": sha256 * 8}]})


def test_a_file_that_was_edited_between_two_runs_is_another_recipe():
    groups = grouped([of_code("before", "/a/r.py", "11aa22bb"), of_code("after", "/a/r.py", "33cc44dd")])
    assert [group.label for group in groups] == ["use r.py@11aa22bb:f", "use r.py@33cc44dd:f"]
    assert [len(group.counted) for group in groups] == [1, 1]
    differs = what_differs(groups)
    assert differs is not None
    assert [line[0] for line in differs.rows][:2] == ["rewards.mine.use", "task.tools"]


def test_seeds_whose_files_say_the_same_in_other_places_are_one_group():
    """As the functions of a notebook, which each run has in its own folder."""
    members = [of_code(f"run-{seed}", f"/runs/{seed}/code/f.py", "11aa22bb", seed) for seed in range(3)]
    (group,) = grouped(members)
    assert group.label == "grpo (3 seeds)"
    for damaged in ({"code": 3}, {"code": ["x", {}]}, {}):
        alone = member("alone", recipe={"task": {"use": "x.py:T"}}, about=damaged)
        assert len(grouped([alone, member("plain")])) == 2


@pytest.mark.parametrize(
    ("key", "values", "labels"),
    [("steps", (100, 20, 3), ["steps 3", "steps 20", "steps 100"]), ("model", ("c", "a", "b"), ["a", "b", "c"])],
)
def test_groups_stand_in_the_order_of_their_values(key, values, labels):
    groups = grouped([member(f"run-{value}", recipe={key: value}) for value in values])
    assert [group.label for group in groups] == labels


def test_where_no_few_keys_tell_recipes_apart_the_runs_names_do():
    # 16 recipes over four keys with two values each: no three keys are enough.
    keys = ("steps", "model", "device", "prompts_per_step")
    recipes = [dict(zip(keys, values, strict=True)) for values in itertools.product((1, 2), repeat=4)]
    members = [member(f"run-{i}", recipe=recipe) for i, recipe in enumerate(recipes)]
    assert telling(recipes) == ()
    assert {group.label for group in grouped(members)} == {f"run-{i}" for i in range(16)}


def test_labels_are_never_the_same():
    models = ("x" * 50 + "y" * 60, "z" * 50 + "y" * 60, 1, "1")
    members = [member(f"run-{i}", recipe={"model": model}) for i, model in enumerate(models)]
    members += [member("same", recipe={"steps": 8}, folder=Path("a/same")), member("same", folder=Path("b/same"))]
    labels = [group.label for group in grouped(members)]
    assert len(set(labels)) == len(labels) == 6


def test_a_run_without_a_recipe_is_a_group_by_itself():
    runs = [member(f"bare-{i}", after=0.8) for i in range(2)]
    bare = [dataclasses.replace(each, run=dataclasses.replace(each.run, recipe={})) for each in runs]
    groups = grouped([*bare, *six()[:3]])
    assert [group.label for group in groups] == ["grpo (3 seeds)", "bare-0", "bare-1"]
    assert "bare-0, bare-1" in tables(groups)[0].words


def test_what_a_run_writes_beside_its_training_is_no_difference():
    members = [member(), member("grpo-1", seed=1, recipe={"journal": {"report": False}, "runs": "x"})]
    (group,) = grouped(members)
    assert group.label == "grpo (2 seeds)"


def test_a_seed_that_comes_twice_counts_once():
    stopped = member("grpo-0-a", 0.6, length=2, status=Status("stopped", "stopped at step 2 of 3"))
    (group,) = grouped([stopped, member("grpo-0-b", 0.9), member("grpo-1", 0.92, seed=1)])
    assert [each.label for each in group.members] == ["grpo-0-a", "grpo-0-b", "grpo-1"]
    assert [each.label for each in group.counted] == ["grpo-0-b", "grpo-1"]
    assert any("grpo-0-a has the seed of another run here (0)" in note for note in notes(group))
    assert row(final_scores([group]), "grpo (2 seeds)")["held-out pass rate"] == "0.910"
    assert run_page(group, "a").members == 2


# Curves


def test_a_group_of_one_is_the_run_itself():
    run = member(notes=("log.txt is missing",))
    (group,) = grouped([run])
    page = run_page(group, "a")
    assert page.steps is run.steps
    assert page.evaluations is run.evaluations
    assert (page.status, page.members, page.notes) == (run.run.status, 1, run.run.notes)


@pytest.mark.parametrize(
    ("values", "middle", "low", "high"),
    [((1.0, 2.0, 6.0), 3.0, 3 - math.sqrt(7), 3 + math.sqrt(7)), ((1.0, 6.0), 3.5, 1.0, 6.0)],
)
def test_three_seeds_are_a_mean_and_a_standard_deviation_and_two_a_range(values, middle, low, high):
    met = mean([curves([1], loss=[value]) for value in values])
    ends = {"loss.low": [pytest.approx(low, rel=1e-6)], "loss.high": [pytest.approx(high, rel=1e-6)]}
    assert met.columns == {"loss": [middle], **ends}
    page = run_page(grouped(six()[: len(values)])[0], "a")
    assert ("one sample standard deviation" if len(values) > 2 else "range") in page.notes[0]


def test_a_gap_of_one_seed_leaves_the_others_and_a_huge_number_is_one():
    gaps = [None, math.nan, math.inf, 1.7e308]
    met = mean([curves([1, 2], loss=[gap, 1.0], kl=[gap, gap]) for gap in gaps] + [curves([1, 2], loss=[5.0, 1.0])])
    assert met.columns["loss"] == [5.0, 1.0]
    assert (met.columns["loss.low"], met.columns["loss.high"]) == ([None, 1.0], [None, 1.0])
    assert met.columns["kl"] == [None, None]


def test_runs_that_differ_in_length_and_in_metrics():
    met = mean([curves([1, 2, 3], a=[1, 2, 3]), curves([1, 2], a=[3, 4], b=[7, 8])])
    assert met.step == [1, 2, 3]
    assert met.columns["a"] == [2, 3, 3]
    assert met.columns["b"] == [7, 8, None]
    (group,) = grouped([member(), member("grpo-1", seed=1, length=2)])
    assert any("3, 2 steps. After step 2 the mean is over those" in note for note in notes(group))


def test_evaluations_have_students_interval_over_seeds():
    met = mean([each.evaluations for each in six()[:3]])
    expected = statistics.over_seeds([0.90, 0.92, 0.94])
    assert met.columns["avg_at_k"] == [0.5, pytest.approx(0.92)]
    assert met.columns["avg_at_k.low"] == [None, pytest.approx(expected.low, rel=1e-6)], "equal seeds have no interval"
    assert met.columns["avg_at_k.high"] == [None, pytest.approx(expected.high, rel=1e-6)]
    assert set(met.columns) == {"avg_at_k", "avg_at_k.low", "avg_at_k.high"}, "one run's own interval is no seeds'"
    high = mean([each.evaluations for each in (member(after=0.9), member(after=1.0))])
    assert (high.columns["avg_at_k.low"][1], high.columns["avg_at_k.high"][1]) == (0.9, 1.0), "two seeds: their range"


# Tables


def test_final_scores_by_hand():
    table = final_scores(grouped(six()))
    assert row(table, "grpo (3 seeds)") == {
        "runs": "grpo (3 seeds)",
        "seeds": "0, 1, 2",
        "held-out pass rate": "0.920",
        "95 % interval": "0.870 to 0.970",
        "before": "0.500",
        "length before": "6.0",
        "length after": "12.0",
        "steps": "3",
        "seconds of training": "6 (6 to 6)",
        "best seed": "0.940 (seed 2)",
        "worst seed": "0.900 (seed 0)",
        "status": "finished",
    }
    assert "Student t over 3 seeds" in table.words


def test_each_interval_is_named_where_they_differ():
    table = final_scores(grouped([*six()[:3], member("dapo-0", 0.95, recipe=DAPO)]))
    assert row(table, "grpo (3 seeds)")["95 % interval"].endswith("(Student t over 3 seeds)")
    assert row(table, "dapo")["95 % interval"] == "0.919 to 0.970 (Wilson over problems)"
    assert (row(table, "dapo")["best seed"], row(table, "dapo")["worst seed"]) == ("", "")


def test_differences_by_hand():
    table = differences(grouped(six()))
    (told,) = (dict(zip(table.head, each, strict=True)) for each in table.rows)
    # The means are 0.963333 and 0.92; s^2 / 3 is 7.7778e-5 and 1.3333e-4, 3.73 degrees of freedom, t 2.8576.
    assert told["pair"] == "grpo (3 seeds) against dapo (3 seeds)"
    assert told["difference"] == "-0.043"
    assert told["95 % interval"] == "-0.085 to -0.002 (Welch t, 3.7 degrees of freedom)"
    assert told["paired by seed"] == "-0.058 to -0.029"
    assert told["in words"] == "lower by 0.043, interval -0.085 to -0.002: excludes 0"


def test_a_difference_in_words():
    wide, narrow = statistics.Interval(-0.01, 0.05, ""), statistics.Interval(0.01, 0.03, "")
    assert in_words(0.02, wide, None).endswith("includes 0, so these runs do not tell them apart")
    assert in_words(0.02, wide, narrow).endswith("; paired by seed, 0.010 to 0.030: excludes 0")
    assert in_words(0.02, narrow, narrow) == "higher by 0.020, interval 0.010 to 0.030: excludes 0"
    assert (
        in_words(-0.02, None, None, ["-0.010", "-0.030"]) == "lower by 0.020 (seed by seed -0.010, -0.030); without an "
        "interval: it takes 3 seeds of each that differ, to tell more"
    )


def test_seeds_that_are_two_or_agree_are_no_interval_anywhere():
    two = [
        member(f"{name}-{seed}", 0.9 + seed / 50, seed=seed, recipe=recipe)
        for name, recipe in (("grpo", {}), ("dapo", DAPO))
        for seed in (0, 1)
    ]
    groups = grouped(two)
    assert row(final_scores(groups), "dapo (2 seeds)")["95 % interval"] == "none: 0.900 and 0.920"
    (apart,) = differences(groups).rows
    assert apart[2:4] == ("none", "none")
    assert "seed by seed +0.000, +0.000" in apart[4]
    assert "two seeds are not an interval" in " ".join(notes(groups[0]))
    agreed = grouped([member(f"grpo-{s}", 1.0, seed=s) for s in (0, 1, 2)])
    assert row(final_scores(agreed), "grpo (3 seeds)")["95 % interval"] == "none: all 1.000"


def test_two_runs_of_one_seed_each_are_told_apart_by_problems_alone():
    table = differences(grouped([member("grpo-0", 0.90), member("dapo-0", 0.95, recipe=DAPO)]))
    assert table.rows[0][2] == "-0.089 to -0.009 (not paired, over 100 problems)"
    assert table.rows[0][4].startswith("fell by 0.050 (95 % -0.089 to -0.009, not paired, over 100 problems)")
    assert "another seed may say otherwise" in table.rows[0][4]
    assert table.words == "", "nothing of Welch where there are no seeds to compare"
    assert "Welch" in differences(grouped(six())).words


def test_of_many_groups_the_best_is_set_against_the_next():
    members = [member(f"run-{i}", 0.5 + i / 20, recipe={"steps": i}) for i in range(1, 9)]
    table = differences(grouped(members))
    assert [each[0] for each in table.rows] == [f"steps 8 against steps {i}" for i in (7, 6, 5, 4, 3, 2)]
    assert table.words.startswith("6 of 28 pairs")
    assert len(differences(grouped(members[:4])).rows) == 6


def test_the_row_of_a_run():
    old = member("grpo-1", 0.8, seed=1, error=None)
    table = per_run(grouped([member("grpo-0", 0.9), old]))
    assert row(table, "runs/grpo-0")["95 % interval"] == "0.866 to 0.926 (Wilson over problems)"
    assert row(table, "runs/grpo-1")["95 % interval"].endswith("(Wilson over problems, one vote each)")
    assert "samples of one problem are alike" in table.words
    assert row(table, "runs/grpo-1")["seed"] == "1"
    assert row(table, "runs/grpo-1")["at step"] == "3"


def test_runs_that_go_on_or_crashed_are_in_with_their_last_evaluation_and_marked():
    going = member("grpo-1", 0.7, seed=1, length=2, status=Status("going", "step 2 of 3"))
    failed = member("grpo-2", 0.8, seed=2, length=2, status=Status("failed", "stopped by an error: no space left"))
    groups = grouped([member("grpo-0", 0.9), going, failed])
    table = tables(groups)[0]
    told = row(table, "grpo (3 seeds)")
    assert (told["held-out pass rate"], told["steps"], told["status"]) == ("0.800", "2 to 3", "1 of 3 finished")
    assert "grpo-1 has not finished: its score is that of step 2." in table.words
    assert row(per_run(groups), "runs/grpo-2")["status"] == "stopped by an error: no space left"
    found = status(groups[0].members)
    assert found.state == "going"
    assert "1 of 3 runs have finished" in found.words
    assert "no space left" in found.words


def test_no_evaluations_at_all():
    empty = [member(f"grpo-{s}", seed=s, evaluation_rows=(), evaluations=Curves()) for s in range(2)]
    page = comparison([*empty, member("dapo-0", recipe=DAPO)], "t")
    assert row(page.tables[0], "grpo (2 seeds)")["held-out pass rate"] == "no evaluation"
    assert [table.title for table in page.tables] == ["Final scores", "What differs", "Per run"]
    assert mean([Curves(), Curves()]) == Curves()


def test_an_empty_run_and_a_run_of_one_step():
    empty = {"steps": Curves(), "evaluations": Curves(), "evaluation_rows": ()}
    nothing = member("grpo-1", seed=1, status=Status("empty", "nothing yet"), **empty)
    page = comparison([member(length=1), nothing], "t")
    assert page.runs[0].steps.step == [1]
    assert row(page.tables[0], "grpo (2 seeds)")["steps"] == "0 to 1"
    assert "scores of 1 of 2 seeds" in page.tables[0].words


def test_scores_that_are_no_numbers():
    rows = [
        {"step": s, "evaluation": {"avg_at_k": value, "problems": 10, "samples": 2}}
        for s, value in ((0, 0.5), (1, 0.6), (2, math.nan))
    ]
    score = score_of(member(evaluation_rows=rows))
    assert (score.before, score.after, score.step) == (0.5, 0.6, 1)
    assert score_of(member(evaluation_rows=[{"step": 0, "evaluation": {"avg_at_k": None}}])) is None
    assert score_of(member(evaluation_rows=[{"step": 0, "evaluation": {"avg_at_k": 0.5}}])).interval is None


def test_a_reward_models_score_is_measured_where_there_is_no_pass_rate():
    asked = {"avg_at_k": None, "problems": 100, "samples": 4}
    rows = [{"step": s, "evaluation": {**asked, "measured_mean": value}} for s, value in ((0, -1.0), (3, 2.5))]
    assert score_of(member(evaluation_rows=rows)).interval is None, "without a standard error there is none"
    sure = [{**row, "evaluation": {**row["evaluation"], "standard_error": 0.1}} for row in rows]
    assert str(score_of(member(evaluation_rows=sure)).interval) == "2.302 to 2.698"
    by = {"evaluation": {"metric": "learned"}}
    learned = [member(f"ppo-{s}", seed=s, evaluation_rows=rows, recipe={"steps": 4, **by}) for s in range(2)]
    table = tables(grouped(learned))[0]
    assert row(table, "grpo (2 seeds)")["held-out learned score"] == "2.500"
    mixed = tables(grouped([*learned, member()]))
    assert "Measures differ: " in mixed[0].words
    assert "Differences" not in [each.title for each in mixed]


def test_different_tasks_are_a_page_without_differences_of_scores():
    page = comparison([member(), member("gsm", recipe={"task": {"name": "gsm8k"}})], "t")
    assert "Tasks differ: arithmetic, gsm8k: their scores are not comparable." in page.tables[0].words
    assert "Differences" not in [table.title for table in page.tables]
    assert [run.label for run in page.runs] == ["arithmetic", "gsm8k"]


def test_other_problems_and_other_evaluations_are_said():
    asked = {"problems": 100, "samples": 4}
    harder = {"task": {"name": "arithmetic", "largest": 9}, "evaluation": {**asked, "samples": 8}}
    found = tables(grouped([member(), member("harder", recipe=harder)]))
    assert "task differ (task.largest)" in found[0].words
    assert "Evaluations differ (evaluation.samples)" in found[0].words
    often = tables(grouped([member(), member("often", recipe={"evaluation": {"every": 1, **asked}})]))
    assert "Evaluations differ" not in often[0].words, "how often is not how"
    assert "Differences" in [table.title for table in found]


def test_what_differs_is_told_key_by_key():
    table = what_differs(grouped(six()))
    assert table.head == ("key", "dapo (3 seeds)", "grpo (3 seeds)")
    assert table.rows == (
        ("algorithm.name", "dapo", "grpo"),
        ("algorithm.kl.beta", "0.0", "0.04"),
        ("algorithm.trust.epsilon_high", "0.28", "0.2"),
    )
    assert what_differs(grouped(six()[:3])) is None
    critic = what_differs(grouped([member(), member("ppo", recipe={"critic": {"warmup_steps": 5}})]))
    assert critic.rows == (("critic.warmup_steps", "5", "not set"),)


def test_what_differs_tells_equations_and_versions():
    def about(equation: str, torch: str) -> dict:
        parts = [{"slot": "trust", "equation": equation}, {"slot": "kl", "equation": "k"}]
        return {"groupwise": "0.1.0", "versions": {"torch": torch}, "algorithm": {"objective": "J", "parts": parts}}

    one = member(about=about("min(r A)", "2.13"))
    other = member("dapo-0", recipe=DAPO, about=about("clip higher", "2.11"))
    rows = what_differs(grouped([one, other])).rows
    assert ("trust, equation", "clip higher", "min(r A)") in rows
    assert ("versions.torch", "2.11", "2.13") in rows
    assert not [each for each in rows if each[0] in ("kl, equation", "objective", "groupwise")]
    rows = what_differs(grouped([one, member("dapo-0", recipe=DAPO)])).rows
    assert ("groupwise", "not known", "0.1.0") in rows
    (group,) = grouped([one, member("grpo-1", seed=1, about=about("min(r A)", "2.11"))])
    assert "The runs differ in versions.torch: 2.13, 2.11." in notes(group)


def test_a_metric_that_only_some_runs_have_is_drawn_and_said():
    critic = member(
        "ppo-0",
        recipe={"critic": {"warmup_steps": 5}},
        steps=curves([1], pass_rate=[0.5], value_mean=[0.1], gap=[None]),
    )
    page = comparison([*six()[:3], critic], "t")
    columns, held = ("pass_rate", "seconds_total", "value_mean"), ("avg_at_k", "low", "high")
    expected = plots_for({name: [1.0] for name in columns}, {name: [1.0] for name in held}, ())
    assert [plot.id for plot in page.plots] == [plot.id for plot in expected]
    assert "value_mean" in {series.column for plot in page.plots for series in plot.series}
    assert (page.sections, page.title) == (SECTIONS, "t")
    without = next(run for run in page.runs if run.members == 3)
    assert "Not measured here, though in another run on this page: value_mean." in without.notes


def test_tables_and_texts_of_a_group_are_those_of_its_first_run():
    page = run_page(grouped([member(), member("grpo-1", seed=1)])[0], "a")
    alone = run_page(grouped([member()])[0], "a")
    for several, one in zip((*page.tables, *page.texts), (*alone.tables, *alone.texts), strict=True):
        assert several == dataclasses.replace(one, title=f"{one.title}: grpo-0, the first of them")
    assert [text.text for text in alone.texts] == ["seed = 0"]
    titles = ["The run", "How to run it again", "The algorithm: grpo", "In total"]
    assert [table.title for table in alone.tables] == titles


def test_a_band_of_a_share_ends_where_shares_do_and_any_other_does_not():
    high = [Curves([1], {"pass_rate": [x], "pass_at_k.4": [x], "reward_mean": [x]}) for x in (1.0, 1.0, 0.7)]
    columns = mean(high).columns
    for name in ("pass_rate", "pass_at_k.4"):
        assert columns[f"{name}.high"] == [1.0], "0.9 + 0.17 is no share"
        assert columns[f"{name}.low"] == [pytest.approx(0.9 - 0.17320508)]
    assert columns["reward_mean.high"] == [pytest.approx(0.9 + 0.17320508)]
    low = [Curves([1], {"pass_rate": [x]}) for x in (0.0, 0.0, 0.3)]
    assert mean(low).columns["pass_rate.low"] == [0.0]
