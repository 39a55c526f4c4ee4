"""Readings of a finished run: one set of numbers for every experiment that trains, so that claims can share runs.

Curves have one number a step, in five digits; what is taken over tokens and completions is of those whose columns are
written (journal.token_budget), of updates after the first on a batch, for in the first every ratio is 1.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from groupwise.core.files import jsonl
from groupwise.journal.journal import MACHINE, ROLLOUTS, read_metrics, read_summary
from groupwise.journal.per_token import expand

#: Another number where other things are read, or the same ones otherwise: older rows no longer count.
VERSION = 1

#: Metrics of each step that a row keeps (docs/reference/metrics.md), and what tables call them.
CURVES = {
    "pass_rate": "pass rate",
    "length_mean": "tokens",
    "length_right_mean": "tokens of right answers",
    "length_wrong_mean": "tokens of wrong answers",
    "truncated_share": "truncated completions",
    "entropy_mean": "entropy, nats a token",
    "gradient_norm": "norm of the gradient",
    "share_passed": "share of the gradient that passes",
    "share_passed_positive": "share of the gradient of positive advantages that passes",
    "share_passed_negative": "share of the gradient of negative advantages that passes",
    "effective_sample_share": "effective sample size, as a share",
    "log_ratio_variance": "variance of token log-ratios",
    "groups_mixed_share": "groups with signal",
    "generated_tokens": "tokens generated",
    "rounds": "rounds of generation a step",
    "kl_mean": "KL, nats a token",
    "engine_gap_mean": "gap between engine and learner, nats a token",
}
#: Steps at a run's end whose mean is called "at the end".
LAST = 10
#: Upper ends of the classes of tokens by the old policy's probability.
PROBABILITIES = (0.05, 0.2, 0.5, 0.9, 1.0)
#: Columns of a row of rollouts.jsonl -> fields of `Seen`.
COLUMNS = {"logp_old": "old", "logp_live": "live", "share": "share", "logp_ref": "reference"}
#: What tables call the other numbers of a run that claims read.
NUMBERS = {
    "heldout_mean": "mean held-out pass rate",
    "heldout_end": "final held-out pass rate",
    "heldout_best": "best held-out pass rate",
    "seconds_training": "seconds of training",
    "seconds_update": "seconds of updates",
    "memory_peak_mib": "peak memory, MiB",
    "stopped_tokens": "share of tokens clipped",
    "probability": "mean old probability, all tokens",
    "probability_stopped_positive": "mean old probability, tokens clipped from above",
    "probability_stopped_negative": "mean old probability, tokens clipped from below",
    "ratio_far": "tokens with |r - 1| above 0.2",
    "variance_above": "completions with a variance above 0.02",
    "variance_median": "variance within a completion, median",
    "variance_p99": "variance within a completion, 99th percentile",
    "gate_gap": "gap between mean gate and gate of the mean",
    "gate_gap_p99": "gap between gates, 99th percentile",
    "reference_k3": "distance from the reference (k3), nats a token, last quarter",
}
#: Which part of a curve a mean is over, in words.
PARTS: Mapping[str, str] = {"": "", "mean": "", "start": ", first three steps", "end": ", last ten steps"}


def in_words(*names: str) -> dict[str, str]:
    """Name numbers of a run: what each is in words -> its name.

    >>> in_words("heldout_best", "pass_rate.end")
    {'best held-out pass rate': 'heldout_best', 'pass rate, last ten steps': 'pass_rate.end'}
    """
    parted = ((name, *name.partition(".")) for name in names)
    return {(CURVES | NUMBERS)[first] + PARTS[part]: name for name, first, _, part in parted}


def read(folder: Path) -> dict[str, Any]:
    """Read the numbers of a finished run's folder, by name."""
    rows, summary = read_metrics(folder), read_summary(folder)
    steps = [row for row in rows if "evaluation" not in row]
    return {
        **of_steps(steps, [row for row in rows if "evaluation" in row]),
        **of_machine(steps, summary, list(jsonl.rows(folder / MACHINE))),
        **of_tokens(seen_rows(jsonl.rows(folder / ROLLOUTS))),
    }


def of_steps(steps: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Read held-out pass rates and curves, with their means over the run (`..._mean`) and at its end (`..._end`)."""
    rates = [float(row["evaluation"]["avg_at_k"]) for row in evaluations]
    curves = {name: [short(row.get(name)) for row in steps] for name in CURVES}
    curves = {name: curve for name, curve in curves.items() if any(value is not None for value in curve)}
    told: dict[str, Any] = {
        "heldout": [[int(row["step"]), short(rate)] for row, rate in zip(evaluations, rates, strict=True)],
        "curves": curves,
        "heldout_start": rates[0],
        "heldout_end": rates[-1],
        "heldout_best": max(rates),
        "heldout_mean": fmean(rates[1:] or rates),
        "heldout_length_end": evaluations[-1]["evaluation"].get("length_mean", math.nan),
        "heldout_truncated_end": evaluations[-1]["evaluation"].get("truncated_share", math.nan),
    }
    for name, curve in curves.items():
        told[f"{name}.mean"], told[f"{name}.end"] = mean(curve), mean(curve[-LAST:])
        told[f"{name}.start"] = mean(curve[:3])
    return {name: writable(value) for name, value in told.items()}


def of_machine(
    steps: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], machine: Sequence[Mapping[str, Any]]
) -> dict[str, float | None]:
    """Sum up what the run cost: seconds, tokens, memory."""
    phases = [row["seconds"] for row in steps]
    return {
        "seconds_training": short(summary.get("seconds_training")),
        "seconds_generate": short(math.fsum(row.get("generate", 0.0) for row in phases)),
        "seconds_update": short(math.fsum(row.get("update", 0.0) for row in phases)),
        "generated_tokens": short(math.fsum(row["generated_tokens"] for row in steps)),
        "memory_peak_mib": short(max((row["memory_peak_mib"] for row in machine), default=math.nan)),
    }


@dataclass(frozen=True)
class Seen:
    """A completion as one update after the first saw it; columns [T] over its tokens.

    old, live    nats, before the first update on the batch and now
    share        what of the token's gradient passed
    advantage    of the completion
    score        the task's
    reference    nats, of the reference; None if the run has none
    """

    old: np.ndarray
    live: np.ndarray
    share: np.ndarray
    advantage: float
    score: float
    reference: np.ndarray | None = None

    @property
    def z(self) -> np.ndarray:
        """The log-ratios of its tokens."""
        return self.live - self.old


def seen_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[Seen]:
    """Read the completions of rollouts.jsonl that an update after the first on their batch trained."""
    for row in rows:
        given = row.get("per_token") or {}
        for update in row.get("updates") or ():
            if update["update"] > 1 and "logp_old" in given and row["advantage"]:
                told, count = {**given, **update}, len(row["pieces"])
                columns = {field: expand(told[name], count) for name, field in COLUMNS.items() if name in told}
                arrays = {field: np.asarray(column, dtype=float) for field, column in columns.items()}
                yield Seen(**arrays, advantage=row["advantage"], score=row["score"])


def of_tokens(seen: Iterable[Seen]) -> dict[str, Any]:
    """Tell of the tokens and completions that updates saw which were stopped, and how ratios lie in a completion."""
    every = list(seen)
    if not every:
        return {}
    return {**stopped_tokens(every), **spreads(every), **kept_completions(every), **distances(every)}


def stopped_tokens(every: Sequence[Seen]) -> dict[str, Any]:
    """Count tokens by the old policy's probability, and those stopped with a positive and with a negative advantage."""
    probability = np.concatenate([np.exp(each.old) for each in every])
    stopped = np.concatenate([each.share for each in every]) == 0
    positive = np.concatenate([np.full(len(each.old), each.advantage > 0) for each in every])
    kind = np.searchsorted(PROBABILITIES, probability.clip(max=1.0))
    kinds = {
        "tokens": kind,
        "stopped_positive": kind[stopped & positive],
        "stopped_negative": kind[stopped & ~positive],
    }
    return {
        "by_probability": {n: np.bincount(each, minlength=len(PROBABILITIES)).tolist() for n, each in kinds.items()},
        "probability": writable(float(probability.mean())),
        "probability_stopped_positive": writable(_mean_of(probability[stopped & positive])),
        "probability_stopped_negative": writable(_mean_of(probability[stopped & ~positive])),
        "stopped_tokens": float(stopped.mean()),
    }


def spreads(every: Sequence[Seen]) -> dict[str, Any]:
    """Check what SAPO assumes: token ratios near 1, and log-ratios that vary little inside a completion."""
    z = np.concatenate([each.z for each in every])
    variances = np.array([each.z.var() for each in every])
    gaps = np.array([abs(gate(each.z).mean() - gate(each.z.mean())) for each in every])
    return {
        "ratio_far": float((np.abs(np.expm1(z)) > 0.2).mean()),
        "variance_median": short(np.median(variances)),
        "variance_p90": short(np.quantile(variances, 0.9)),
        "variance_p99": short(np.quantile(variances, 0.99)),
        "variance_above": float((variances > 0.02).mean()),
        "gate_gap": short(gaps.mean()),
        "gate_gap_p99": short(np.quantile(gaps, 0.99)),
    }


def gate(z: Any, tau: float = 1.0) -> Any:
    """Compute SAPO's gate as it is computed, sech^2(tau (r - 1) / 2), from log-ratios."""
    return 1 / np.cosh(tau * np.expm1(z) / 2) ** 2


def kept_completions(every: Sequence[Seen]) -> dict[str, Any]:
    """Count whole completions that the trust region stopped and those that it did not, with their scores. By quadrant,
    the sign of the advantage and that of the mean log-ratio: how many, and what share passed.
    """
    told: dict[str, Any] = {}
    stopped = [not each.share.any() for each in every]
    for name, which in (("stopped", True), ("kept", False)):
        chosen = [each for each, is_stopped in zip(every, stopped, strict=True) if is_stopped is which]
        told[f"completions_{name}"] = len(chosen)
        told[f"score_{name}"] = writable(mean([each.score for each in chosen]))
    for sign, way in product(("positive", "negative"), ("up", "down")):
        signed = [each for each in every if (each.advantage > 0) == (sign == "positive")]
        chosen = [each for each in signed if bool(each.z.mean() > 0) == (way == "up")]
        told[f"completions_{sign}_{way}"] = len(chosen)
        told[f"passed_{sign}_{way}"] = writable(mean([float(each.share.mean()) for each in chosen]))
    return told


def distances(every: Sequence[Seen]) -> dict[str, Any]:
    """Measure the old policy's distance from the reference by k3, nats a token, over the last quarter of all."""
    last = [each for each in every if each.reference is not None][-max(1, len(every) // 4) :]
    if not last:
        return {}
    x = np.concatenate([each.reference - each.old for each in last if each.reference is not None])
    return {"reference_k3": short(np.mean(np.expm1(x) - x))}


def mean(values: Iterable[float | None]) -> float:
    """Average those that there are; NaN of none."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else math.nan


def short(value: Any) -> float | None:
    """Round to five digits, which say all that a few seeds can; None for what is no number."""
    return None if value is None or math.isnan(value) else float(f"{float(value):.5g}")


def writable(value: Any) -> Any:
    """Round a number to six digits, None if it is not finite; anything else stays as it is."""
    if isinstance(value, float):
        return None if not math.isfinite(value) else float(f"{value:.6g}")
    return value


def _mean_of(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else math.nan
