"""summary.json of a run, from the rows of its metrics.jsonl, and the summary in words."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from groupwise.config import about
from groupwise.config.plan import REWARD_MODEL, Plan
from groupwise.core.numbers.measure import Measure
from groupwise.health.checks import of_limit
from groupwise.health.symptoms.base import measured
from groupwise.journal.journal import read_problems, sound_metrics
from groupwise.reports.folder.columns import change_of, with_problems
from groupwise.training import checkpoint
from groupwise.training.rollback import Guard
from groupwise.training.run import Training
from groupwise.training.start.reward_report import REPORT, read_report

#: What the names of a step's totals begin with.
TOTAL = "logged_total."


def summary_of(plan: Plan, run: Training) -> dict[str, Any]:
    """Sum a run up from the rows of metrics.jsonl, so that a resumed run says the same."""
    progress = run.progress
    return {
        "name": plan.folder.name,
        "algorithm": plan.algorithm.name,
        "seed": plan.recipe.seed,
        "steps": progress.step,
        **_heldout(plan.recipe.measure, evaluations_of(plan.folder), progress.step),
        **_reward_model_in_short(plan.folder / REWARD_MODEL / REPORT),
        **_logged_total(plan.folder),
        "checks": _worst_checks(plan.folder),
        "seconds_total": round(progress.seconds_before + run.clock.total, 3),
        "seconds_after": round(math.fsum(run.clock.lap().values()), 3),
        "seconds_training": round(progress.seconds_training, 3),
        "policy": str(checkpoint.folder_of(plan.folder / checkpoint.CHECKPOINTS, progress.step) / checkpoint.POLICY),
        **({"rollbacks": [r.model_dump() for r in progress.rollbacks]} if plan.recipe.guard is Guard.ROLLBACK else {}),
        **about.where(plan.recipe.device),
    }


def _heldout(measure: Measure, evaluations: Mapping[int, dict[str, Any]], step: int) -> dict[str, Any]:
    """Sum up the evaluations before and after; empty if the run evaluated nothing."""
    if step not in evaluations:
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
        **_by_reward(before, after),
        **_by_source(before, after),
        "heldout_problems": after["problems"],
        "heldout_samples": after["samples"],
    }


def evaluations_of(folder: Path) -> dict[int, dict[str, Any]]:
    """Read the run's evaluations by the step after which they were made, each with its problems if they are known."""
    rows = [row for row in sound_metrics(folder) if "evaluation" in row]
    with_problems(rows, read_problems(folder))
    return {row["step"]: row["evaluation"] for row in rows}


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _by_reward(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Give the means before and after of each reward that trains, if the recipe names rewards."""
    means = {
        name: {"before": _or_nan(before["rewards"].get(name)), "after": _or_nan(mean)}
        for name, mean in after["rewards"].items()
    }
    return {"heldout_by_reward": means} if means else {}


def _by_source(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Give the means before and after of what is measured, by source, if the task mixes several."""
    scores = {
        source: {
            "before": _or_nan(before["by_source"].get(source, {}).get("measured_mean")),
            "after": _or_nan(row.get("measured_mean")),
        }
        for source, row in after["by_source"].items()
    }
    return {"heldout_by_source": scores} if scores else {}


def _reward_model_in_short(path: Path) -> dict[str, Any]:
    """Take the numbers of the run's reward model, if it made one."""
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
            totals.setdefault(name, []).append(value or 0.0)
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


def in_words(summary: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Say a summary in lines, and the files of the run's folder."""
    s = summary
    if "heldout_after" in s:
        yield (
            f"held-out {s['heldout_measure']} {s['heldout_before']:.3f} -> {s['heldout_after']:.3f} on "
            f"{s['heldout_problems']} problems x {s['heldout_samples']} samples, "
            f"mean length {s['length_before']:.1f} -> {s['length_after']:.1f} tokens"
        )
        yield f"held-out {s['heldout_measure']} {s['heldout_change']['words']}"
    for kind, title in (("heldout_by_reward", "reward {}"), ("heldout_by_source", "{}")):
        for name, mean in s.get(kind, {}).items():
            yield f"{title.format(name)}: held-out mean {mean['before']:.3f} -> {mean['after']:.3f}"
    if totals := s.get("logged_total"):
        yield "logged by rewards, added up: " + ", ".join(f"{name} {value:.6g}" for name, value in totals.items())
    steps = f"{s['steps']} step{'s' * (s['steps'] != 1)}"
    yield f"{steps} of {s['algorithm']} in {s['seconds_training']:.0f} s, {s['seconds_total']:.0f} s in all"
    for name, check in s["checks"].items():
        if check["steps"]:
            far = f"largest {check['largest']:.2g}, limit {check['limit']:.3g}"
            yield f"checked on {check['steps']} step{'s' * (check['steps'] != 1)}: {name} ({far})"
        else:
            yield f"not measured: {name}"
    files = [name for name in ("rollouts.jsonl", "heldout.jsonl", "checkpoints") if (folder / name).exists()]
    yield f"the run is in {folder} ({', '.join(['summary.json', 'metrics.jsonl', *files])})"
    if (folder / "report.html").is_file():
        yield f"read it in a browser: {folder / 'report.html'}"
