"""summary.json: what a finished run came to."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groupwise.config import about
from groupwise.config.plan import REWARD_MODEL, Plan
from groupwise.journal import journal
from groupwise.loop import Training
from groupwise.training import checkpoint
from groupwise.training.reward_report import REPORT, read_report


def summarise(plan: Plan, run: Training) -> dict[str, Any]:
    """summary.json, from the rows of metrics.jsonl, so that a resumed run says the same."""
    evaluations = [row["evaluation"] for row in journal.read_metrics(plan.folder) if "evaluation" in row]
    before, after = evaluations[0], evaluations[-1]
    judged, progress = run.components.rollout.scorer.judged, run.progress
    return {
        "name": plan.name,
        "algorithm": plan.algorithm.name,
        "seed": plan.seed,
        "steps": progress.step,
        "heldout_measure": "learned score" if judged else "pass rate",
        "heldout_before": before["learned_mean" if judged else "avg_at_k"],
        "heldout_after": after["learned_mean" if judged else "avg_at_k"],
        "length_before": before["length_mean"],
        "length_after": after["length_mean"],
        **_by_source(before, after),
        "heldout_problems": after["problems"],
        "heldout_samples": after["samples"],
        **_reward_model_in_short(plan.folder / REWARD_MODEL / REPORT),
        "checks": worst_checks(plan.folder),
        "seconds_total": round(progress.seconds_before + run.clock.total, 3),
        "seconds_after": round(math.fsum(run.clock.lap().values()), 3),
        "seconds_training": round(progress.seconds_training, 3),
        "policy": str(checkpoint.folder_of(plan.folder / checkpoint.CHECKPOINTS, progress.step) / checkpoint.POLICY),
        **about.where(plan.device),
    }


def _by_source(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Mean score before and after of each source, where the task mixes several."""
    scores = {
        source: {"before": before["by_source"][source]["score_mean"], "after": row["score_mean"]}
        for source, row in after["by_source"].items()
    }
    return {"heldout_by_source": scores} if scores else {}


def _reward_model_in_short(path: Path) -> dict[str, Any]:
    """What summary.json says of the run's reward model, where it made one."""
    if not path.is_file():
        return {}
    report = read_report(path)
    names = ("accuracy", "accuracy_true", "ceiling", "share_of_ceiling", "calibration_error")
    return {"reward_model": {name: getattr(report, name) for name in names}}


def worst_checks(folder: Path) -> dict[str, dict[str, Any]]:
    """Of each check over the whole run: how many steps measured it, and its largest value beside the limit."""
    worst: dict[str, dict[str, Any]] = {}
    for row in journal.read_metrics(folder):
        for name, check in row.get("checks", {}).items():
            known = worst.setdefault(name, {"steps": 0, "largest": 0.0, "limit": check["limit"]})
            if check["value"] is not None:
                known["steps"] += 1
                known["largest"], known["limit"] = max(known["largest"], check["value"]), check["limit"]
    return worst
