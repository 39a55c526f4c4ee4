"""What a step says about itself: pure functions from the record to metrics. docs/metrics.md has a line for each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from groupwise.algorithms.parts.critic import explained_variance
from groupwise.algorithms.parts.filters import RIGHT, Signal, signal
from groupwise.algorithms.parts.kl import KL
from groupwise.algorithms.parts.ratio import bounded
from groupwise.algorithms.parts.shaping import sampled_kl
from groupwise.core.masked import keep, row_mean
from groupwise.core.metrics import Last, Max, Mean, Sum, Value, mean_over
from groupwise.core.records import Batch, Completion, Group, UpdateRecord

#: Of the ratios of a step, which places in their order are told.
QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)


def group_metrics(groups: Sequence[Group]) -> dict[str, Value]:
    """Of the groups that a step generated, before any was dropped: scores, lengths, endings, signal."""
    completions = [c for g in groups for c in g.completions]
    scored = [c for c in completions if not math.isnan(c.score)]
    right = [c for c in scored if c.score >= RIGHT]
    wrong = [c for c in scored if c.score < RIGHT]
    found = [signal(g) for g in groups]
    n = len(groups)
    return {
        **_learned_metrics(completions, right, wrong),
        **_part_metrics(groups),
        **_source_metrics(groups),
        **_fault_metrics(completions),
        "score_mean": _mean([c.score for c in scored]),
        "pass_rate": Mean(len(right), len(scored)),
        "length_mean": _mean([len(c.tokens) for c in completions]),
        "length_max": Max(max((len(c.tokens) for c in completions), default=0)),
        "length_right_mean": _mean([len(c.tokens) for c in right]),
        "length_wrong_mean": _mean([len(c.tokens) for c in wrong]),
        "truncated_share": Mean(sum(c.finish == "length" for c in completions), len(completions)),
        "unscored_completions": Sum(len(completions) - len(scored)),
        "score_spread_batch": Mean(_deviation([c.score for c in completions]), 1.0 if len(scored) > 1 else 0.0),
        "score_spread_within_groups": _mean([_deviation(g.scores) for g in groups]),
        "groups_mixed_share": Mean(found.count(Signal.MIXED), n),
        "groups_all_right_share": Mean(found.count(Signal.ALL_RIGHT), n),
        "groups_all_wrong_share": Mean(found.count(Signal.ALL_WRONG), n),
        "generated_completions": Sum(len(completions)),
        "generated_tokens": Sum(sum(len(c.tokens) for c in completions)),
    }


def batch_metrics(batch: Batch) -> dict[str, Value]:
    """Of the batch that trains: rewards after shaping, advantages, age of the rows, trained tokens."""
    rows = batch.mask.any(-1)
    reward = torch.where(batch.mask, batch.need("reward"), 0.0).sum(-1)[rows]
    return {
        **_correction_metrics(batch),
        "reward_mean": _mean(reward.tolist()),
        "advantage_abs_mean": mean_over(seen_by_loss(batch.need("advantage")).abs(), batch.mask),
        "trained_completions": Sum(float(rows.sum())),
        "trained_tokens": Sum(float(batch.mask.sum())),
        "stale_rows_share": Mean(float((batch.version < batch.version.max()).sum()), len(batch)),
    }


def value_metrics(batch: Batch) -> dict[str, Value]:
    """Of the critic's values that credit the batch, before any update on it; explained variance is 1 at best."""
    value, returns = seen_by_loss(batch.need("value")), seen_by_loss(batch.need("returns"))
    return {
        "explained_variance": Last(explained_variance(value, returns, batch.mask)),
        "value_mean": mean_over(value, batch.mask),
        "returns_mean": mean_over(returns, batch.mask),
    }


def waiting_metrics() -> dict[str, Value]:
    """Of a step in which the critic learns and the policy waits: no update, so no number where there is one else."""
    return {"updates": Sum(0), "updates_skipped": Sum(0), "share_passed": Mean(0.0, 0.0)}


def _learned_metrics(
    completions: Sequence[Completion], right: Sequence[Completion], wrong: Sequence[Completion]
) -> dict[str, Value]:
    """A reward model's scores beside the truth: right completions that stop scoring higher mean over-optimisation."""
    told = (("", completions), ("_right", right), ("_wrong", wrong))
    if not any(c.learned is not None for c in completions):
        return {}
    return {f"learned{of}_mean": _mean([c.learned for c in some if c.learned is not None]) for of, some in told}


def _part_metrics(groups: Sequence[Group]) -> dict[str, Value]:
    """Each reward by itself, where several train: its mean, and its spread within groups, which is its signal."""
    told = [[dict(c.parts) for c in g.completions] for g in groups]
    names = dict.fromkeys(name for group in told for parts in group for name in parts)
    metrics: dict[str, Value] = {}
    for name in names:
        scores = [[parts.get(name, math.nan) for parts in group] for group in told]
        metrics[f"rewards.{name}.mean"] = _mean([s for group in scores for s in group if not math.isnan(s)])
        metrics[f"rewards.{name}.spread_within_groups"] = _mean([_deviation(group) for group in scores])
    return metrics


def _source_metrics(groups: Sequence[Group]) -> dict[str, Value]:
    """The pass rate of each source, where a task mixes several."""
    votes: dict[str, list[bool]] = {}
    for group in groups:
        told = [c.score >= RIGHT for c in group.completions if not math.isnan(c.score)]
        if group.prompt.sample.source:
            votes.setdefault(group.prompt.sample.source, []).extend(told)
    return {f"sources.{source}.pass_rate": Mean(sum(told), len(told)) for source, told in sorted(votes.items())}


def _fault_metrics(completions: Sequence[Completion]) -> dict[str, Value]:
    """How many completions could not be scored, by cause and scorer: "timeout in task"."""
    causes = [c.fault for c in completions if c.fault]
    return {f"faults.{cause}": Sum(causes.count(cause)) for cause in sorted(set(causes))}


def _correction_metrics(batch: Batch) -> dict[str, Value]:
    """How far the engine's mismatch is corrected, and the share of tokens that the correction rejects."""
    if batch.correction is None:
        return {}
    rejected = (batch.correction == 0).double()
    return {
        "correction_mean": mean_over(batch.correction, batch.mask),
        "correction_rejected_share": mean_over(rejected, batch.mask),
    }


def reward_kl_metrics(batch: Batch, kl: KL) -> dict[str, Value]:
    """The KL to the reference that the reward is charged with, where it is."""
    if not kl.in_reward:
        return {}
    exact = {name: batch.need(name).double() for name in ("logp_old", "logp_ref")}
    return {"kl_reward_mean": mean_over(sampled_kl(dataclasses.replace(batch, **exact), kl), batch.mask)}


def update_metrics(minibatch: Batch, seen: UpdateRecord) -> dict[str, Value]:
    """Of one optimizer update: the trust region, ratio tails, entropy, KL; weighted ones by the loss's own weights."""
    mask, weight, advantage = minibatch.mask, minibatch.need("weight").double(), minibatch.need("advantage")
    ratio = seen.log_ratio.double().exp()
    positive, negative = mask & (advantage > 0), mask & (advantage < 0)
    metrics: dict[str, Value] = {
        "share_passed": _weighted(seen.share, weight, mask),
        "share_passed_positive": _weighted(seen.share, weight, positive),
        "share_passed_negative": _weighted(seen.share, weight, negative),
        "ratio_mean": mean_over(ratio, mask),
        "ratio_max": Max(float(ratio[mask].max()) if mask.any() else 1.0),
        "log_ratio_abs_max": Max(float(seen.log_ratio[mask].abs().max()) if mask.any() else 0.0),
        "log_ratio_clamped_tokens": Sum(float((seen.log_ratio[mask].abs() >= 60).sum())),
        "effective_sample_share": _effective_share(ratio, mask),
        "entropy_mean": mean_over(seen.entropy, mask),
        **_ratio_spread(minibatch, seen),
    }
    if seen.kl is not None:
        metrics["kl_mean"] = _weighted(seen.kl, weight, mask)
    return metrics


def engine_gap(logp: Tensor, batch: Batch, newest: int) -> dict[str, Value]:
    """Learner against engine over the rows that the current weights sampled; older rows are left out.

    The gap in nats; the same as a factor of the probability, exp(|gap|); and what the factors k = exp(gap) leave of the
    sample, (sum k)^2 / (n sum k^2). A factor stays within the bounds of every ratio.
    """
    mask = batch.mask & (batch.version == newest)[:, None]
    gap = logp.double() - batch.logp_engine.double()
    largest = float(gap[mask].abs().max()) if mask.any() else 0.0
    return {
        "engine_gap_mean": mean_over(gap.abs(), mask),
        "engine_gap_max": Max(largest),
        "engine_probability_error": mean_over(bounded(gap.abs()).exp(), mask),
        "engine_effective_sample_share": _effective_share(bounded(gap).exp(), mask),
    }


def seen_by_loss(column: Tensor) -> Tensor:
    """A column as the loss reads it and rollouts.jsonl has it, in float32; then float64 again, to be added up."""
    return column.float().double()


def _ratio_spread(minibatch: Batch, seen: UpdateRecord) -> dict[str, Value]:
    """How far live is from old: of each token, and of each completion (its geometric mean). Of the last update only."""
    mask = minibatch.mask
    old = seen.logp_live if minibatch.logp_old is None else minibatch.logp_old
    gap = keep(seen.logp_live.double() - old.double(), mask)
    rows = mask.any(-1)
    told = {"token": gap[mask], "sequence": row_mean(gap, mask)[rows]}
    variance = float(gap[mask].var(correction=0)) if mask.any() else math.nan
    quantiles = {
        f"ratio_{name}_p{round(100 * place):02d}": Last(value)
        for name, log_ratio in told.items()
        for place, value in zip(QUANTILES, _quantiles(bounded(log_ratio).exp()), strict=True)
    }
    return {"log_ratio_variance": Last(variance), **quantiles}


def _quantiles(x: Tensor) -> list[float]:
    """Between two numbers of the order by straight line; NaN where there is none."""
    return np.quantile(x.numpy(), QUANTILES).tolist() if len(x) else [math.nan] * len(QUANTILES)


def in_words(groups: Sequence[Group]) -> str:
    """What the groups' correctness means for this step, as a sentence; empty where there is signal."""
    found = [signal(g) for g in groups]
    if not found or Signal.MIXED in found:
        return ""
    if all(s is Signal.ALL_RIGHT for s in found):
        return "every group is all right: nothing left to learn here, advantages are 0"
    if all(s is Signal.ALL_WRONG for s in found):
        return "every group is all wrong: no group has a right completion to prefer, advantages are 0"
    if all(s is Signal.UNSCORED for s in found) and any(
        not math.isnan(c.trains_on) for g in groups for c in g.completions
    ):
        return ""  # a reward model scores, and nobody knows what is right
    if all(s is Signal.UNSCORED for s in found):
        return "no completion has a score: nothing trains"
    return "no group mixes right and wrong completions: advantages are 0"


def _mean(values: Sequence[float]) -> Mean:
    return Mean(math.fsum(values), len(values))


def _deviation(scores: Sequence[float]) -> float:
    votes = [s for s in scores if not math.isnan(s)]
    if len(votes) < 2:
        return 0.0
    mean = math.fsum(votes) / len(votes)
    return math.sqrt(math.fsum((s - mean) ** 2 for s in votes) / (len(votes) - 1))


def _weighted(x: Tensor, weight: Tensor, mask: Tensor) -> Mean:
    return Mean(float((x.double() * weight)[mask].sum()), float(weight[mask].sum()))


def _effective_share(ratio: Tensor, mask: Tensor) -> Mean:
    """Effective sample size (sum r)^2 / sum r^2 over the tokens, as a share of them: 1 on policy."""
    r = ratio[mask]
    return Mean(float(r.sum() ** 2 / (r**2).sum() / len(r)), 1.0) if len(r) else Mean(0.0, 0.0)
