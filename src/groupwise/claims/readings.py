"""What is read of a finished run: one set of numbers for every experiment that trains, so that claims can share runs.

Curves have one number a step, in five digits; what is taken over tokens and completions is of those whose columns are
written (journal.token_budget), of updates after the first on a batch, for in the first every ratio is 1.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from groupwise.core import jsonl
from groupwise.journal.columns_json import expand
from groupwise.journal.journal import MACHINE, ROLLOUTS, read_metrics, read_summary

#: Another number where other things are read, or the same ones otherwise: older rows no longer count.
VERSION = 1

#: Metrics of each step that a row keeps (docs/metrics.md).
CURVES = (
    "pass_rate",
    "length_mean",
    "length_right_mean",
    "length_wrong_mean",
    "truncated_share",
    "entropy_mean",
    "gradient_norm",
    "share_passed",
    "share_passed_positive",
    "share_passed_negative",
    "effective_sample_share",
    "log_ratio_variance",
    "groups_mixed_share",
    "generated_tokens",
    "rounds",
    "kl_mean",
    "engine_gap_mean",
)
#: Steps at a run's end whose mean is called "at the end".
LAST = 10
#: Upper ends of the classes of tokens by the old policy's probability.
PROBABILITIES = (0.05, 0.2, 0.5, 0.9, 1.0)


def read(folder: Path) -> dict[str, Any]:
    """The numbers of a finished run's folder, by name."""
    rows, summary = read_metrics(folder), read_summary(folder)
    steps = [row for row in rows if "evaluation" not in row]
    return {
        **of_steps(steps, [row for row in rows if "evaluation" in row]),
        **of_machine(steps, summary, list(jsonl.rows(folder / MACHINE))),
        **of_tokens(seen_rows(jsonl.rows(folder / ROLLOUTS))),
    }


def of_steps(steps: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Held-out pass rates and curves, with their means over the run (`..._mean`) and at its end (`..._end`)."""
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
    """What the run cost: seconds, tokens, memory."""
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
    reference    nats, of the reference; None where the run has none
    share        what of the token's gradient passed
    advantage    of the completion
    score        the task's
    """

    old: np.ndarray
    live: np.ndarray
    reference: np.ndarray | None
    share: np.ndarray
    advantage: float
    score: float


def seen_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[Seen]:
    """The completions of rollouts.jsonl that an update after the first on their batch trained."""
    for row in rows:
        given = row.get("per_token") or {}
        for update in row.get("updates") or ():
            if update["update"] > 1 and "logp_old" in given and row["advantage"]:
                yield _seen(row, given, update)


def _seen(row: Mapping[str, Any], given: Mapping[str, Any], update: Mapping[str, Any]) -> Seen:
    def column(value: Any) -> np.ndarray:
        return np.asarray(expand(value, len(row["pieces"])), dtype=float)

    return Seen(
        old=column(given["logp_old"]),
        live=column(update["logp_live"]),
        reference=column(given["logp_ref"]) if "logp_ref" in given else None,
        share=column(update["share"]),
        advantage=row["advantage"],
        score=row["score"],
    )


def of_tokens(seen: Iterable[Seen]) -> dict[str, Any]:
    """Of the tokens and completions that updates saw: which were stopped, and how ratios lie in a completion."""
    every = list(seen)
    if not every:
        return {}
    return {**stopped_tokens(every), **spreads(every), **kept_completions(every), **distances(every)}


def stopped_tokens(every: Sequence[Seen]) -> dict[str, Any]:
    """By the old policy's probability: tokens, and those stopped with a positive and with a negative advantage."""
    probability = np.concatenate([np.exp(each.old) for each in every])
    stopped = np.concatenate([each.share for each in every]) == 0
    positive = np.concatenate([np.full(len(each.old), each.advantage > 0) for each in every])
    kind = np.searchsorted(PROBABILITIES, probability.clip(max=1.0))
    counts = {
        "tokens": np.bincount(kind, minlength=len(PROBABILITIES)),
        "stopped_positive": np.bincount(kind[stopped & positive], minlength=len(PROBABILITIES)),
        "stopped_negative": np.bincount(kind[stopped & ~positive], minlength=len(PROBABILITIES)),
    }
    return {
        "by_probability": {name: count.tolist() for name, count in counts.items()},
        "probability": writable(float(probability.mean())),
        "probability_stopped_positive": writable(_mean_of(probability[stopped & positive])),
        "probability_stopped_negative": writable(_mean_of(probability[stopped & ~positive])),
        "stopped_tokens": float(stopped.mean()),
    }


def spreads(every: Sequence[Seen]) -> dict[str, Any]:
    """What SAPO assumes: token ratios near 1, and log-ratios that vary little inside a completion."""
    z = np.concatenate([each.live - each.old for each in every])
    variances = np.array([(each.live - each.old).var() for each in every])
    gaps = np.array([abs(gate(each.live - each.old).mean() - gate((each.live - each.old).mean())) for each in every])
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
    """sech^2(tau (r - 1) / 2) of log-ratios: SAPO's gate as it is computed."""
    return 1 / np.cosh(tau * np.expm1(z) / 2) ** 2


def kept_completions(every: Sequence[Seen]) -> dict[str, Any]:
    """Whole completions that the trust region stopped and those that it did not: how many, and their scores. By
    quadrant, the sign of the advantage and that of the mean log-ratio: how many, and what share passed.
    """
    told: dict[str, Any] = {}
    stopped = [not each.share.any() for each in every]
    for name, which in (("stopped", True), ("kept", False)):
        chosen = [each for each, is_stopped in zip(every, stopped, strict=True) if is_stopped is which]
        told[f"completions_{name}"] = len(chosen)
        told[f"score_{name}"] = writable(mean([each.score for each in chosen]))
    for sign in ("positive", "negative"):
        for way in ("up", "down"):
            chosen = [e for e in every if (e.advantage > 0) == (sign == "positive") and _rose(e) == (way == "up")]
            told[f"completions_{sign}_{way}"] = len(chosen)
            told[f"passed_{sign}_{way}"] = writable(mean([float(each.share.mean()) for each in chosen]))
    return told


def _rose(seen: Seen) -> bool:
    return bool((seen.live - seen.old).mean() > 0)


def distances(every: Sequence[Seen]) -> dict[str, Any]:
    """The old policy's distance from the reference by k3, nats a token, over the last quarter of what was seen."""
    last = [each for each in every if each.reference is not None][-max(1, len(every) // 4) :]
    if not last:
        return {}
    x = np.concatenate([each.reference - each.old for each in last if each.reference is not None])
    return {"reference_k3": short(np.mean(np.expm1(x) - x))}


def mean(values: Iterable[float | None]) -> float:
    """Of those that there are; NaN of none."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else math.nan


def short(value: Any) -> float | None:
    """Five digits say all that a few seeds can; None for what is no number."""
    return None if value is None or math.isnan(value) else float(f"{float(value):.5g}")


def writable(value: Any) -> Any:
    """A number in six digits, None where it is not finite; anything else as it is."""
    if isinstance(value, float):
        return None if not math.isfinite(value) else float(f"{value:.6g}")
    return value


def _mean_of(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else math.nan


def taken_over(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of docs/evidence/moe-stability.jsonl, whose curves are of the same kind, in the words of `of_steps`."""
    count = max(len(curve) for curve in row["curves"].values())
    steps = [{name: curve[i] for name, curve in row["curves"].items()} for i in range(count)]
    return of_steps(steps, [{"step": step, "evaluation": {"avg_at_k": rate}} for step, rate in row["heldout"]])
