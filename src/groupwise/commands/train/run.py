"""Run as a program holds it: its folder, how it ended, its metrics and its policy."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Self

from groupwise.commands.build.policy import policy_after
from groupwise.config.plan import REWARD_MODEL, Plan
from groupwise.config.recipe_files import read_table
from groupwise.core.errors import GroupwiseError, UsageError, brief
from groupwise.core.files import jsonl
from groupwise.core.files.paths import from_here, location
from groupwise.core.machine.facts import where
from groupwise.core.machine.terminal import Terminal
from groupwise.core.numbers.measure import Measure
from groupwise.health.checks import of_limit
from groupwise.health.symptoms.base import is_number, measured
from groupwise.journal.journal import (
    ROLLOUTS,
    metric_columns,
    read_metrics,
    read_problems,
    read_summary,
    sound_metrics,
)
from groupwise.journal.kept import whole_recipe
from groupwise.journal.live import curve
from groupwise.models.load import Policy
from groupwise.reports.folder.columns import change_of, with_problems
from groupwise.training import checkpoint
from groupwise.training.run import Training
from groupwise.training.settings import Guard
from groupwise.training.start.cached_reward_model import REPORT, read_report


@dataclass(frozen=True)
class Run:
    """Run that has ended, or `Run.open(folder)` of any. It stands for its folder wherever a path does.

    folder      absolute, so that it is found whatever folder the program goes to
    summary     also summary.json in the folder; empty if the run has not come to its last step
    stopped_by  the signal that stopped it early; 0 if none did
    """

    folder: Path
    summary: dict[str, Any]
    stopped_by: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", self.folder.absolute())

    def __fspath__(self) -> str:
        return str(self.folder)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Self:
        """Open the run of a folder, which may go on meanwhile. Raises UsageError if the folder is none."""
        path = location(folder, "run")
        steps, summary = read_table(whole_recipe(path)).get("steps"), read_summary(path)
        return cls(path, summary if summary.get("steps") == steps else {})

    @property
    def finished(self) -> bool:
        """True if the run came to its last step; one that did not is resumed with groupwise.resume."""
        return bool(self.summary)

    def metrics(self) -> dict[str, list[Any]]:
        """Read metrics.jsonl as it is now, as columns: `pandas.DataFrame(run.metrics())`.

        A row a step, step 0 that of the first evaluation; None if a step has no such number. Tables are names with
        dots: `loss`, `seconds.update`, `evaluation.avg_at_k`. What each is: docs/reference/metrics.md.
        """
        return metric_columns(read_metrics(self.folder))

    def rollouts(self, step: int | None = None) -> list[dict[str, Any]]:
        """Read rollouts.jsonl as it is now, or its rows of one step: `pandas.DataFrame(run.rollouts(step=1))`.

        A row a completion, with its prompt, answer, text, score and advantage; docs/reference/metrics.md has the rest.
        Raises UsageError if there are none.
        """
        path = whole_recipe(self.folder).with_name(ROLLOUTS)
        rows = list(jsonl.rows(path, step)) if path.is_file() else []
        if not rows:
            which = "" if step is None else f" of step {brief(step)}"
            steps = [row["step"] for row in sound_metrics(self.folder) if row["step"]]
            have = f"it has trained steps {steps[0]} to {steps[-1]}" if steps else "it has trained no step"
            raise UsageError(f"{path} has no rollouts{which}; {have}")
        return rows

    def policy(self, step: int | None = None, device: str | None = None) -> Policy:
        """Load the policy after a step, from its checkpoint; None is the newest good one's. `.model` and `.tokenizer`.

        An ordinary model of transformers, in evaluation mode; adapters are merged into its weights.

        device  "cpu" or "cuda"; None is the run's own
        Raises UsageError if there is no such checkpoint, or it does not load.
        """
        return policy_after(self.folder, step, Terminal(stderr=True).print, device)[1]

    def _repr_html_(self) -> str:
        """Show the run in a notebook: how far it came, and what was measured on the way."""
        try:
            about = self._facts()
        except GroupwiseError as error:  # the folder was moved, or is damaged
            about = {"cannot be read": str(error)}
        left = 'style="text-align: left"'
        cells = "".join(
            f"<tr><th {left}>{escape(name)}</th><td {left}>{escape(value)}</td></tr>" for name, value in about.items()
        )
        folder = escape(str(from_here(self.folder)))
        return f"<table><tr><th {left}>run</th><th {left}>{folder}</th></tr>{cells}</table>"

    def _facts(self) -> dict[str, str]:
        recipe, s = read_table(whole_recipe(self.folder)), self.summary
        rows = [row for row in sound_metrics(self.folder) if isinstance(row.get("reward_mean"), float)]
        done = f"{rows[-1]['step'] if rows else 0} of {recipe.get('steps')} steps"
        facts = {
            "algorithm": str(recipe.get("algorithm", {}).get("name", "")),
            "model": str(recipe.get("model", "")),
            "trained": done + ("" if s else "; it goes on, or stopped: groupwise.resume(run)"),
        }
        if rows:
            rewards = [row["reward_mean"] for row in rows]
            facts["reward in training"] = f"{rewards[0]:.3f} -> {rewards[-1]:.3f}  {curve(rewards, 40)}"
        if "heldout_after" in s:
            facts[f"held-out {s['heldout_measure']}"] = (
                f"{s['heldout_before']:.3f} -> {s['heldout_after']:.3f} on {s['heldout_problems']} problems x "
                f"{s['heldout_samples']} samples"
            )
            facts["mean length"] = f"{s['length_before']:.1f} -> {s['length_after']:.1f} tokens"
        if "seconds_total" in s:
            facts["time"] = f"{s['seconds_training']:.0f} s of training, {s['seconds_total']:.0f} s in all"
        return facts


#: What the names of a step's totals begin with.
TOTAL = "logged_total."


def summary_of(plan: Plan, run: Training) -> dict[str, Any]:
    """Sum a run up from the rows of metrics.jsonl, so that a resumed run says the same."""
    progress = run.progress
    return {
        "name": plan.folder.name,
        "algorithm": plan.method,
        "seed": plan.recipe.seed,
        "steps": progress.step,
        **_heldout(plan.recipe.measure, evaluations_of(plan.folder), progress.step),
        **_supervised(evaluations_of(plan.folder), progress.step),
        **_reward_model_in_short(plan.folder / REWARD_MODEL / REPORT),
        **_logged_total(plan.folder),
        "checks": _worst_checks(plan.folder),
        "seconds_total": round(progress.seconds_before + run.clock.total, 3),
        "seconds_after": round(math.fsum(run.clock.lap().values()), 3),
        "seconds_training": round(progress.seconds_training, 3),
        "policy": str(checkpoint.folder_of(plan.folder / checkpoint.CHECKPOINTS, progress.step) / checkpoint.POLICY),
        **({"rollbacks": [r.model_dump() for r in progress.rollbacks]} if plan.recipe.guard is Guard.ROLLBACK else {}),
        **where(plan.recipe.device),
    }


def _heldout(measure: Measure, evaluations: Mapping[int, dict[str, Any]], step: int) -> dict[str, Any]:
    """Sum up the evaluations before and after; empty if the run evaluated nothing."""
    if not evaluations.get(step, {}).get("problems"):
        return {}
    what = measured(measure.metric, measure.pass_at is not None)
    unknown = {what.column: None, "length_mean": math.nan, "by_source": {}, "rewards": {}}
    before, after = evaluations.get(0, unknown), evaluations[step]
    return {
        "heldout_measure": what.words,
        "heldout_metric": measure.metric,
        "heldout_before": _or_nan(before[what.column]),
        "heldout_after": _or_nan(after[what.column]),
        "heldout_change": change_of(before, after, what).row,
        "length_before": before["length_mean"],
        "length_after": after["length_mean"],
        **_means("heldout_by_reward", before["rewards"], after["rewards"]),
        **_means("heldout_by_source", *(_measured_means(each["by_source"]) for each in (before, after))),
        "heldout_problems": after["problems"],
        "heldout_samples": after["samples"],
    }


def evaluations_of(folder: Path) -> dict[int, dict[str, Any]]:
    """Read the run's evaluations by the step after which they were made, each with its problems if they are known."""
    rows = [row for row in sound_metrics(folder) if "evaluation" in row]
    with_problems(rows, read_problems(folder))
    return {row["step"]: row["evaluation"] for row in rows}


def _supervised(evaluations: Mapping[int, dict[str, Any]], step: int) -> dict[str, Any]:
    """Give the loss of held-out supervised rows before and after, nats a token; empty if it was not measured."""
    before, after = (evaluations.get(each, {}).get("supervised_loss") for each in (0, step))
    return {} if after is None else {"supervised_loss_before": _or_nan(before), "supervised_loss_after": after}


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _means(
    key: str, before: Mapping[str, float | None], after: Mapping[str, float | None]
) -> dict[str, dict[str, dict[str, float]]]:
    """Give the means before and after by name, if there are names: of rewards that train, or of sources."""
    means = {n: {"before": _or_nan(before.get(n)), "after": _or_nan(mean)} for n, mean in after.items()}
    return {key: means} if means else {}


def _measured_means(by_source: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    return {source: row.get("measured_mean") for source, row in by_source.items()}


def _reward_model_in_short(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    report = read_report(path)
    names = ("accuracy", "accuracy_true", "ceiling", "share_of_ceiling", "calibration_error")
    return {"reward_model": {name: getattr(report, name) for name in names}}


def _logged_total(folder: Path) -> dict[str, Any]:
    """Add up what rewards logged over all steps and evaluations; empty if they logged nothing."""
    totals: dict[str, list[float]] = {}
    for row in sound_metrics(folder):
        own = {name.removeprefix(TOTAL): value for name, value in row.items() if name.startswith(TOTAL)}
        for name, value in (row["evaluation"].get("logged_total", {}) if "evaluation" in row else own).items():
            totals.setdefault(name, []).append(value if is_number(value) else 0.0)
    return {"logged_total": {name: math.fsum(each) for name, each in sorted(totals.items())}} if totals else {}


def _worst_checks(folder: Path) -> dict[str, dict[str, Any]]:
    """Count the steps that measured each check, and find the value that came nearest to its limit."""
    worst: dict[str, dict[str, Any]] = {}
    for row in sound_metrics(folder):
        for name, check in row.get("checks", {}).items():
            known = worst.setdefault(name, {"steps": 0, "largest": 0.0, "limit": check["limit"]})
            if check["value"] is not None and check["limit"] is not None:
                known["steps"] += 1
                if of_limit(check["value"], check["limit"]) >= of_limit(known["largest"], known["limit"] or 0.0):
                    known["largest"], known["limit"] = check["value"], check["limit"]
    return worst
