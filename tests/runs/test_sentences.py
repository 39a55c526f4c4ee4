"""Two dozen runs out of the ordinary: every sentence with a number or a cause, in the terminal, the log, the summary
and the report, is what the rows of metrics.jsonl and the files of the run say; and no advice is refused.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import groupwise
from groupwise.commands.train.callbacks import StepRecord
from groupwise.config.recipe import load
from groupwise.config.resolve import resolve
from groupwise.core.errors import GroupwiseError
from groupwise.health.symptoms.base import RECENT, percent
from groupwise.journal.journal import read_metrics, read_summary
from groupwise.reports.compare import compare
from groupwise.reports.page.page import page_of_run
from groupwise.reports.records import RunPage
from groupwise.training.start.initial_policy import TINY
from tests.runs.tiny_runs import rollouts, tiny_policy, tiny_run

OWN = Path(__file__).parent / "task_of_a_run.py"
WRONG, RIGHT, LENGTH = ({"use": f"{OWN}:Sums", "verdict": verdict} for verdict in ("wrong", "right", "length"))
CONSTANT, SILENT, RAISES = ({"use": f"{OWN}:{name}"} for name in ("constant", "silent", "raises"))
#: Stands for a policy that is not the start.
TEACHER = "TEACHER"

#: What each run has that is out of the ordinary.
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one sample, ppo": {"algorithm.name": "ppo", "samples_per_prompt": 1, "task": LENGTH},
    "one sample, reinforce": {"algorithm.name": "reinforce", "samples_per_prompt": 1, "task": LENGTH},
    "one sample, reinforce, all wrong": {"algorithm.name": "reinforce", "samples_per_prompt": 1, "task": WRONG},
    "one sample, reinforce++": {"algorithm.name": "reinforce++", "samples_per_prompt": 1, "task": WRONG},
    "ppo, all right": {"algorithm.name": "ppo", "task": RIGHT},
    "critic alone at first": {"algorithm.name": "ppo", "critic.warmup_steps": 1, "task": LENGTH},
    "rloo, all wrong": {"algorithm.name": "rloo", "task": WRONG},
    "all wrong": {"task": WRONG},
    "all wrong, nothing beside": {"task": WRONG, "algorithm.kl.beta": 0.0},
    "all right": {"task": RIGHT},
    "a teacher": {"task": WRONG, "reference.model": TEACHER},
    "a teacher in the reward": {"task": WRONG, "reference.model": TEACHER, "algorithm.kl.place": "reward"},
    "dapo, nothing to keep": {"task": WRONG, "algorithm.name": "dapo", "algorithm.filter.max_rounds": 2},
    "dapo, all solved": {"task": RIGHT, "algorithm.name": "dapo", "algorithm.filter.max_rounds": 2},
    "a constant reward alone": {"rewards": {"constant": CONSTANT}},
    "a constant reward beside": {"rewards": {"task": {}, "constant": CONSTANT}, "task": LENGTH},
    "a constant reward, ppo": {"rewards": {"constant": CONSTANT}, "algorithm.name": "ppo"},
    "a reward of weight 0": {"rewards": {"task": {}, "constant": {**CONSTANT, "weight": 0.0}}, "task": LENGTH},
    "measured by a constant": {"rewards": {"task": {}, "constant": CONSTANT}, "evaluation.metric": "constant"},
    "nothing votes": {"rewards": {"silent": SILENT}},
    "scoring fails": {"rewards": {"raises": RAISES}},
    "one problem": {"prompts_per_step": 1, "updates_per_batch": 1},
    "one step": {"steps": 1},
    "no evaluation": {"evaluation": {"problems": 0}},
    "no checkpoint before the last": {"checkpoint.every": 100, "evaluation.every": 100},
    "one token": {"sampling.max_new_tokens": 1},
    "stopped": {"steps": 3},
}

#: Algorithms of these runs that do not compare the completions of a prompt, so that no group is without a signal.
ALONE = ("ppo", "reinforce", "reinforce++")

#: Keys of the first level that advice names.
KEYS = ("steps", "seed", "samples_per_prompt", "prompts_per_step", "updates_per_batch", "passes_per_batch")


@dataclass(frozen=True)
class Told:
    """A run, what was asked for, and all that it said. `error` is what ended it."""

    settings: dict[str, Any]
    folder: Path
    shown: str
    error: str

    @cached_property
    def log(self) -> str:
        return (self.folder / "log.txt").read_text()

    @cached_property
    def steps(self) -> list[dict[str, Any]]:
        return [row for row in read_metrics(self.folder) if "evaluation" not in row]

    @cached_property
    def evaluations(self) -> dict[int, dict[str, Any]]:
        return {row["step"]: row["evaluation"] for row in read_metrics(self.folder) if "evaluation" in row}

    @cached_property
    def page(self) -> RunPage:
        return page_of_run(self.folder).runs[0]

    @property
    def checkpoints(self) -> set[int]:
        return {int(one.name.rpartition("-")[2]) for one in (self.folder / "checkpoints").glob("step-*")}

    def mean(self, name: str) -> float:
        values = [row[name] for row in self.steps[-RECENT:] if row.get(name) is not None]
        return fmean(values) if values else math.nan

    def sentences(self) -> Iterator[str]:
        yield from (answer.answer for answer in self.page.answers)
        yield from (f"{finding.words} Try: {finding.advice}" for finding in self.page.findings)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Told]:
    """A run by its name, made when it is asked for the first time."""
    place = tmp_path_factory.mktemp("odd")
    teacher, runs = str(tiny_policy(place / "teacher", seed=5)), dict[str, Told]()

    def made(name: str) -> Told:
        if name not in runs:
            runs[name] = _made(name, place, teacher)
        return runs[name]

    return made


def _made(name: str, place: Path, teacher: str) -> Told:
    settings = tiny_run(place, name=re.sub(r"\W+", "-", name), samples_per_prompt=4, learner__learning_rate=0.01)
    settings |= {"evaluation.samples": 2}
    for key, value in RUNS[name].items():
        for own in [own for own in settings if own.startswith(f"{key}.")]:
            del settings[own]
        settings[key] = teacher if value is TEACHER else value
    out, error = io.StringIO(), ""
    with contextlib.redirect_stdout(out):
        try:
            groupwise.train("quickstart", settings, callbacks=[_stops] if name == "stopped" else [])
        except GroupwiseError as raised:
            error = str(raised)
    return Told(settings, Path(settings["runs"]) / settings["name"], out.getvalue(), error)


def _stops(record: StepRecord) -> bool:
    return record.step == 1


#: Those that say nothing that another one does not say as well.
SLOW = (
    "one sample, reinforce", "ppo, all right", "critic alone at first", "one sample, reinforce++",
    "a constant reward, ppo", "nothing votes", "rloo, all wrong", "all wrong, nothing beside", "dapo, all solved",
    "a constant reward alone", "measured by a constant", "one problem", "no checkpoint before the last",
)  # fmt: skip
every_run = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in RUNS]
)


@every_run
def test_what_a_step_without_preference_trains_is_what_its_row_has(name: str, told: Callable[[str], Told]) -> None:
    """The terminal and the log say "advantages are 0" of the steps whose advantages are 0, and of no others."""
    run = told(name)
    for row in run.steps:
        form = rf"^step {row['step']}: ((?!warning).*(?:advantages are 0|nothing trains).*)$"
        said = re.findall(form, run.log, re.MULTILINE)
        silent = row["trained_tokens"] == 0 or row["advantage_abs_mean"] == 0
        assert len(said) == silent, said
        assert silent == (row["zero_advantage_share"] in (1.0, None))
        by_score = "rewards" not in RUNS[name]
        for words in said:
            assert f"step {row['step']}: {words}" in run.shown
            assert ("nothing trains" in words) == (row.get("kl_mean") is None or row["trained_tokens"] == 0)
            assert ("KL term" in words) == ("kl_mean" in row and row["trained_tokens"] > 0)
            assert ("every completion is right" in words) == (by_score and row.get("pass_rate") == 1.0)
            assert ("every completion is wrong" in words) == (by_score and row.get("pass_rate") == 0.0)
            assert ("no completion has a score" in words) == (
                row["unscored_completions"] == row["generated_completions"]
            )


@every_run
def test_shares_of_groups_and_of_silent_rows_are_the_rows_means(name: str, told: Callable[[str], Told]) -> None:
    run = told(name)
    for words in run.sentences():
        for kind, pattern in (("right", "all right"), ("wrong", "all wrong")):
            for share in re.findall(rf"^([\d.]+ %) of the groups of .* were {pattern}:", words):
                assert share == percent(run.mean(f"groups_all_{kind}_share"))
        for share in re.findall(r"([\d.]+ %) of the trained completions had advantages of 0", words):
            assert share == percent(run.mean("zero_advantage_share"))
        assert ("trained only the KL term" in words) <= any("kl_mean" in row for row in run.steps)
        assert ("All of them train" in words) <= (run.mean("zero_advantage_share") == 0)
        assert "their advantages are 0" not in words
        for share, limit in re.findall(r"^([\d.]+ %) of the completions of .* reached the limit of (\d+) token", words):
            assert share == percent(run.mean("truncated_share"))
            assert int(limit) == run.settings["sampling.max_new_tokens"]
            lines = rollouts(run.folder)
            cut = [line["score"] < 1 for line in lines if line["finish"] == "length"]
            assert ("most count as wrong" in words) <= (fmean(cut) > 0.5)


@every_run
def test_the_terminal_has_the_rows_numbers(name: str, told: Callable[[str], Told]) -> None:
    run = told(name)
    for row in run.steps:
        (line,) = re.findall(rf"^[\d:]+ step +{row['step']}/\d+ (.*)$", run.shown, re.MULTILINE)
        what, column = ("pass", "pass_rate") if "pass_rate" in row else ("reward", "measured_mean")
        values = {what: row[column], "len": row["length_mean"]}
        values |= {
            words: row.get(key) for words, key in (("kl", "kl_mean"), ("ent", "entropy_mean")) if f" {words} " in line
        }
        for words, value in values.items():
            shown = re.search(rf"\b{words} ([\d.-]+)", line)
            assert shown is not None
            assert value is None or float(shown[1]) == pytest.approx(value, abs=0.051)
        share, signal = row["groups_signal_share"], re.search(r"\bsig (\d+)%", line)
        assert (signal is not None) == (run.settings.get("algorithm.name") not in ALONE and share is not None)
        assert signal is None or float(signal[1]) / 100 == pytest.approx(share, abs=0.006)
    for step, one in run.evaluations.items():
        (line,) = re.findall(rf"^[\d:]+ eval +{step}/\d+ (.*)$", run.shown, re.MULTILINE)
        value = one["measured_mean"] if one["avg_at_k"] is None else one["avg_at_k"]
        assert value is None or re.search(rf" {value:.3f}.* \({one['problems']} x {one['samples']}\) ", line)


@every_run
def test_what_is_kept_and_measured_is_there(name: str, told: Callable[[str], Told]) -> None:
    run = told(name)
    every = f"{run.shown}\n{run.error}\n{run.page.status.words}"
    for step in re.findall(r"checkpoint of step (\d+) is kept", every):
        assert int(step) in run.checkpoints
    if "No checkpoint was saved yet" in every:
        assert not run.checkpoints
    assert ("saved; go on with" in every) <= bool(run.checkpoints)
    first = run.page.answers[0].answer
    finished = (run.folder / "summary.json").is_file()
    assert finished == (not run.error and name != "stopped")
    assert ("yet" in first) <= (not finished)
    assert ("evaluation.problems = 0" in first) == (not run.evaluations)
    of_training = re.search(r"in training the .* went from ([\d.]+) to ([\d.]+) over (\d+) step", first)
    assert of_training is None or int(of_training[3]) == len(run.steps)
    if finished:
        summary = read_summary(run.folder)
        assert summary["steps"] == run.settings["steps"] == len(run.steps)
        assert ("heldout_after" in summary) == bool(run.evaluations)
        for key, step in (("heldout_before", 0), ("heldout_after", summary["steps"])):
            if key in summary:
                one = run.evaluations[step]
                value = one["measured_mean"] if one["avg_at_k"] is None else one["avg_at_k"]
                assert summary[key] == value
        for check, worst in summary["checks"].items():
            values = [row["checks"][check]["value"] for row in run.steps if check in row["checks"]]
            assert worst["steps"] == sum(value is not None for value in values)


@every_run
def test_what_was_run_is_what_the_rollouts_have(name: str, told: Callable[[str], Told]) -> None:
    run = told(name)
    shown = re.search(
        r"(\d+) completions? of at most (\d+) tokens? for each of (\d+) prompts?", run.page.answers[1].answer
    )
    assert shown is not None
    samples, limit, prompts = map(int, shown.groups())
    if not run.error:
        lines = rollouts(run.folder)
        trained = [line for line in lines if line["step"] == 1 and line["fate"] == "trained"]
        assert len(trained) == samples * prompts
        assert max(line["tokens"] for line in lines) <= limit


@every_run
def test_faults_are_counted_once_and_have_the_remedy_of_what_failed(name: str, told: Callable[[str], Told]) -> None:
    run = told(name)
    kinds = set(re.findall(r"first of its kind: ([\w ]+):", run.shown)) - {"no vote"}
    counted = {key.removeprefix("faults.") for row in run.steps for key in row if key.startswith("faults.")}
    assert kinds == (counted if not run.error else kinds)
    if name == "scoring fails":
        assert kinds == {"exception in raises"}
        assert "24 of 24 completions could not be scored (24 exception in raises)" in run.error
        assert "mend the reward raises" in run.error
    for finding in run.page.findings:
        if finding.name == "completions without a score":
            assert sum(row["unscored_completions"] for row in run.steps) > 0


@every_run
def test_no_advice_is_refused(name: str, told: Callable[[str], Told]) -> None:
    """Each key that is advised, laid over what was asked for, makes a recipe that would run."""
    run = told(name)
    advised = [finding.advice for finding in run.page.findings] + [run.page.answers[-1].answer]
    for advice in advised:
        assert ("warm start" in advice) <= (run.settings["model"] in TINY)
        changes = [{key: value} for key, value in _settings_in(advice).items()]
        changes += [{"seed": int(seed)} for seed in re.findall(r"seed = \d+ and (\d+)", advice)]
        for change in changes:
            resolve(load("quickstart", {**run.settings, **change}))
        for left_out in re.findall(r"leave \[rewards\.(\w+)\] out", advice):
            rewards = {reward: table for reward, table in RUNS[name]["rewards"].items() if reward != left_out}
            resolve(load("quickstart", {**run.settings, "rewards": rewards}))


def _settings_in(advice: str) -> Mapping[str, Any]:
    pairs = re.findall(r"([a-z_]+(?:\.[a-z_0-9]+)*) = (\"[^\"]*\"|[\d.e+-]*\d)", advice)
    return {key: json.loads(value) for key, value in pairs if "." in key or key in KEYS}


def test_a_reward_that_only_watches_is_no_finding_and_a_flat_one_is(told: Callable[[str], Told]) -> None:
    beside, zero = "a constant reward beside", "a reward of weight 0"
    found = {name: {finding.name for finding in told(name).page.findings} for name in (beside, zero)}
    assert [name for name, findings in found.items() if "reward without spread" in findings] == [beside]


def test_what_dapo_cannot_keep_is_said_by_what_it_found(told: Callable[[str], Told]) -> None:
    run = told("dapo, nothing to keep")
    assert "2 rounds gave 30 groups and not one that mixes right and wrong completions (30 all wrong)" in run.error
    assert "too hard" in run.error
    assert run.error.endswith("No checkpoint was saved yet")


@pytest.mark.slow
def test_two_seeds_are_told_apart_by_their_rows(told: Callable[[str], Told], tmp_path: Path) -> None:
    """The page of two runs that differ in their seed: one group, whose mean curves are the means of the rows."""
    one = told("plain")
    settings = {**one.settings, "seed": 2, "name": "plain-2"}
    with contextlib.redirect_stdout(io.StringIO()):
        other = groupwise.train("quickstart", settings).folder
    page = compare.page([one.folder, other])
    (run,) = page.runs
    assert run.members == 2
    assert "(2 seeds)" in run.label
    rows = [one.steps, [row for row in read_metrics(other) if "evaluation" not in row]]
    means = [fmean(row["pass_rate"] for row in pair) for pair in zip(*rows, strict=True)]
    assert run.steps.columns["pass_rate"] == pytest.approx(means, rel=1e-6)
    finite = [x for values in run.steps.columns.values() for x in values if x is not None]
    assert all(map(math.isfinite, finite))
