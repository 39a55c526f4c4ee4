"""Metrics of the batch that trains and of its updates, listed in docs/reference/metrics.md: pure functions."""

import dataclasses
import math

import numpy as np
from torch import Tensor

from groupwise.algorithms.parts.critic import explained_variance
from groupwise.algorithms.parts.kl import KL
from groupwise.algorithms.parts.ratio import bounded
from groupwise.algorithms.parts.shaping import sampled_kl
from groupwise.core.masked import keep, row_mean, row_sum
from groupwise.core.numbers.metrics import Last, Max, Mean, Sum, Value, mean_of, mean_over
from groupwise.core.records import Batch
from groupwise.core.updates import UpdateRecord, UpdateResult

#: Of the ratios of a step, the places in their order that are metrics.
QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
TOKEN_QUANTILES = ("ratio_token_p01", "ratio_token_p10", "ratio_token_p50", "ratio_token_p90", "ratio_token_p99")
SEQUENCE_QUANTILES = (
    "ratio_sequence_p01",
    "ratio_sequence_p10",
    "ratio_sequence_p50",
    "ratio_sequence_p90",
    "ratio_sequence_p99",
)


def batch_metrics(batch: Batch) -> dict[str, Value]:
    """Measure the batch that trains: correction, rewards after shaping, advantages, stale rows, trained tokens."""
    rows = batch.mask.any(-1)
    reward = row_sum(batch.need("reward"), batch.mask)[rows]
    corrected: dict[str, Value] = {}
    if batch.correction is not None:
        corrected["correction_mean"] = mean_over(batch.correction, batch.mask)
        corrected["correction_rejected_share"] = mean_over((batch.correction == 0).double(), batch.mask)
    return {
        **corrected,
        "reward_mean": mean_of(reward.tolist()),
        "advantage_abs_mean": mean_over(seen_by_loss(batch.need("advantage")).abs(), batch.mask),
        "zero_advantage_share": Mean(float((rows & ~preferred(batch)).sum()), float(rows.sum())),
        "trained_completions": Sum(float(rows.sum())),
        "trained_tokens": Sum(float(batch.mask.sum())),
        "stale_rows_share": Mean(float((batch.version < batch.version.max()).sum()), len(batch)),
    }


def preferred(batch: Batch) -> Tensor:
    """Find the rows [N] with an advantage other than 0 at a trained token, as the loss reads it."""
    return (batch.mask & (seen_by_loss(batch.need("advantage")) != 0)).any(-1)


def age_metrics(batch: Batch, newest: int) -> dict[str, Value]:
    """Measure the age of the trained tokens: by how many versions their weights are older than `newest`."""
    versions = batch.version[:, None].expand(batch.mask.shape) if batch.token_version is None else batch.token_version
    age = (newest - versions[batch.mask]).tolist()
    return {"token_age_mean": mean_of(age), "token_age_max": Max(float(max(age, default=0)))}


def value_metrics(batch: Batch) -> dict[str, Value]:
    """Measure the critic's values that credit the batch, before any update on it; explained variance is 1 at best."""
    value, returns = seen_by_loss(batch.need("value")), seen_by_loss(batch.need("returns"))
    return {
        "explained_variance": Last(explained_variance(value, returns, batch.mask)),
        "value_mean": mean_over(value, batch.mask),
        "returns_mean": mean_over(returns, batch.mask),
    }


def reward_kl_metrics(batch: Batch, kl: KL) -> dict[str, Value]:
    """Measure the KL to the reference that the reward is charged with, if it is."""
    if not kl.in_reward:
        return {}
    exact = {name: batch.need(name).double() for name in ("logp_old", "logp_ref")}
    return {"kl_reward_mean": mean_over(sampled_kl(dataclasses.replace(batch, **exact), kl), batch.mask)}


def update_metrics(minibatch: Batch, update: UpdateResult) -> dict[str, Value]:
    """Measure one optimizer update: the loss and its gradient, the trust region, ratio tails, entropy, KL.

    If nothing trained there is no number of the latter four.
    """
    seen = update.seen
    router_losses = seen.routing.losses if seen and seen.routing else {}
    return {
        "loss": Mean(update.loss, 1),
        **supervised_update(update),
        **{name: Mean(value, 1) for name, value in router_losses.items()},
        **({"share_passed": Mean(0.0, 0.0)} if seen is None else loss_metrics(minibatch, seen)),
    }


def supervised_update(update: UpdateResult) -> dict[str, Value]:
    """Measure an update whatever it trains on: its gradient and rate, and the loss of its supervised rows, if any."""
    taught = update.supervised
    rows = {} if taught is None else {"supervised_loss": Mean(taught.loss * taught.tokens, taught.tokens)}
    return {
        "gradient_norm": Mean(update.gradient_norm, 1),
        "gradient_norm_max": Max(update.gradient_norm),
        "learning_rate": Last(update.learning_rate),
        "updates": Sum(1),
        "updates_skipped": Sum(0 if update.applied else 1),
        **rows,
        **({} if taught is None else {"supervised_tokens": Sum(taught.tokens)}),
    }


def loss_metrics(minibatch: Batch, seen: UpdateRecord) -> dict[str, Value]:
    """Measure what the loss saw: trust region, ratio tails, entropy, KL; means are weighted as the loss is."""
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


def engine_gap(logp: Tensor, logp_engine: Tensor, mask: Tensor) -> dict[str, Value]:
    """Compare learner and engine; the mask leaves out rows that older weights sampled.

    The gap in nats; the same as a factor of the probability, exp(|gap|); and what the factors k = exp(gap) leave of the
    sample, (sum k)^2 / (n sum k^2). A factor stays within the bounds of every ratio.
    """
    gap = logp.double() - logp_engine.double()
    largest = float(gap[mask].abs().max()) if mask.any() else 0.0
    return {
        "engine_gap_mean": mean_over(gap.abs(), mask),
        "engine_gap_max": Max(largest),
        "engine_probability_error": mean_over(bounded(gap.abs()).exp(), mask),
        "engine_effective_sample_share": _effective_share(bounded(gap).exp(), mask),
    }


def seen_by_loss(column: Tensor) -> Tensor:
    """Round a column to float32, as the loss reads it and rollouts.jsonl has it; then float64 again, to be added up."""
    return column.float().double()


def _ratio_spread(minibatch: Batch, seen: UpdateRecord) -> dict[str, Value]:
    """Measure how far live is from old, of each token and of each completion (geometric mean), in the last update."""
    mask = minibatch.mask
    old = seen.logp_live if minibatch.logp_old is None else minibatch.logp_old
    gap = keep(seen.logp_live.double() - old.double(), mask)
    token, sequence = gap[mask], row_mean(gap, mask)[mask.any(-1)]
    return {
        "log_ratio_variance": Last(float(token.var(correction=0)) if len(token) else math.nan),
        **dict(zip(TOKEN_QUANTILES, _quantiles(token), strict=True)),
        **dict(zip(SEQUENCE_QUANTILES, _quantiles(sequence), strict=True)),
    }


def _quantiles(log_ratio: Tensor) -> list[Value]:
    """QUANTILES of the ratios, by straight line between two of them; NaN if there is none."""
    if not len(log_ratio):
        return [Last(math.nan)] * len(QUANTILES)
    return [Last(value) for value in np.quantile(bounded(log_ratio).exp().numpy(), QUANTILES).tolist()]


def _weighted(x: Tensor, weight: Tensor, mask: Tensor) -> Mean:
    return Mean(float((x.double() * weight)[mask].sum()), float(weight[mask].sum()))


def _effective_share(ratio: Tensor, mask: Tensor) -> Mean:
    """Measure the effective sample size (sum r)^2 / sum r^2 over the tokens, as a share of them: 1 on policy."""
    r = ratio[mask]
    return Mean(float(r.sum() ** 2 / (r**2).sum() / len(r)), 1.0) if len(r) else Mean(0.0, 0.0)
