"""Metrics of a step about its policy's experts: pure functions, listed in docs/reference/metrics.md.

Rows are [tokens run, L, K] each; a trained token's route is that of the token before it, whose forward predicted it.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from groupwise.core.numbers.metrics import Last, Mean, Sum, Value
from groupwise.core.records import Batch
from groupwise.models.moe.record import RowRoutes
from groupwise.models.moe.settings import load_shares

#: Rows whose experts differ between two passes are left out of a comparison as long as they are no more than this.
MOST_UNLIKE = 0.5


def changed(routes: Tensor, other: Tensor) -> Tensor:
    """Map [..., K] each -> [...] float64: the share of the choices in `routes` that are not among those in `other`.

    The order inside a token's K does not count.

    >>> changed(torch.tensor([[0, 1], [2, 3], [4, 5]]), torch.tensor([[1, 0], [2, 7], [6, 7]]))
    tensor([0.0000, 0.5000, 1.0000], dtype=torch.float64)
    """
    same = (routes[..., :, None] == other[..., None, :]).any(-1)
    return 1 - same.double().mean(-1)


def at_trained(rows: RowRoutes, mask: Tensor) -> Tensor:
    """Map routes of n rows, mask [n,T] -> [M,L,K]: those of the trained tokens, row by row.

    >>> at_trained((torch.tensor([[[3]], [[5]]]),), torch.tensor([[False, False, True]])).tolist()
    [[[5]]]
    """
    length = torch.tensor([len(row) for row in rows])
    inside = torch.arange(mask.shape[1] - 1) < length[:, None]
    return torch.cat(rows)[mask[:, 1:][inside]]


def layered(name: str, share: Tensor) -> dict[str, Value]:
    """Map [M,L] -> the mean over tokens of each layer, and of all layers together; null without tokens.

    >>> layered("routing.changed", torch.tensor([[0.0, 1.0], [0.0, 0.0]]))["routing.changed"]
    Last(value=0.25)
    """
    mean = share.double().mean(0).tolist() if len(share) else [math.nan] * share.shape[1]
    layers: dict[str, Value] = {f"{name}.layer_{layer}": Last(value) for layer, value in enumerate(mean)}
    return {name: Last(math.fsum(mean) / len(mean)), **layers}


def drift_metrics(own: Tensor, old: Tensor, gap: Tensor, after: int) -> dict[str, Value]:
    """Compare, of an update, what the live routers chose against what the old policy's did, [M,L,K] each.

    gap    [M] nats, live - old log-probability of the tokens, whose variance is split by whether a route changed
    after  updates on the batch before this one; after none the live policy is the old one, and no mean counts it
    """
    share = _by_layer(own, old)
    moved = (share > 0).any(-1)
    mean = float(share.mean()) if len(share) else 0.0
    return {
        **layered("routing.changed", share),
        **(_after(share, after) if after else {}),
        "routing.changed_mean": Mean(mean, 1.0) if after and len(share) else Mean(0.0, 0.0),
        "log_ratio_variance_changed": Last(_variance(gap[moved])),
        "log_ratio_variance_same": Last(_variance(gap[~moved])),
    }


def load_metrics(routes: Tensor, experts: Sequence[int]) -> dict[str, Value]:
    """Map [M,L,K] and the experts of each layer -> how evenly tokens fall on them; 1, 1 and 0 where all is even."""
    metrics: dict[str, Value] = {}
    for layer, share in enumerate(load_shares(routes, experts)):
        count = len(share)
        entropy = -float(torch.special.xlogy(share, share).sum()) / math.log(max(2, count))
        metrics[f"routing.load_entropy.layer_{layer}"] = Last(entropy)
        metrics[f"routing.load_max.layer_{layer}"] = Last(float(share.max()) * count)
        metrics[f"routing.dead_experts.layer_{layer}"] = Last(float((share == 0).sum()))
    return metrics


def engine_metrics(own: RowRoutes, batch: Batch, newest: int) -> dict[str, Value]:
    """Compare what the learner's routers choose under the old policy with what the engine's did, for the tokens that
    the newest weights sampled; nothing if the engine does not say. `own` are the batch's rows.
    """
    if batch.routes_engine is None:
        return {}
    rows = zip(own, batch.routes_engine, (batch.version == newest).tolist(), strict=True)
    pairs = {i: (row, engine) for i, (row, engine, new) in enumerate(rows) if new and engine is not None}
    if not pairs:
        return {}
    mask = batch.mask[list(pairs)]
    learner, engine = (at_trained(routes, mask) for routes in zip(*pairs.values(), strict=True))
    return layered("routing.engine_changed", _by_layer(learner, engine))


def replay_metrics(own: Tensor, replayed: Tensor, live: int) -> dict[str, Value]:
    """Tell what a replay took away: the share of the live routers' choices [M,L,K] that it did not let through."""
    return {**layered("routing.removed", _by_layer(own, replayed)), "routing.replayed_live_positions": Sum(live)}


def difference(routes: RowRoutes, others: Sequence[Tensor | None]) -> float:
    """Return the share of all choices in rows of routes that are not among the others'; 0 where there are none."""
    left, right = torch.cat(routes), torch.cat([row for row in others if row is not None])
    return 0.0 if torch.equal(left, right) else float(_by_layer(left, right).mean())


def comparable(mask: Tensor, routes: RowRoutes | None, others: Sequence[Tensor | None] | None) -> Tensor:
    """mask [n,T] without the rows in which two passes took different experts; the very mask where that is unknown.

    Where two experts are equally good but for rounding, two sound passes may choose differently, and no limit on
    rounding errors holds then. A fault would show in most rows: where more than half of those in the mask differ,
    none is left out.
    """
    if routes is None or others is None:
        return mask
    pairs = zip(routes, others, strict=True)
    alike = torch.tensor([b is None or torch.equal(a, b) or not bool(_by_layer(a, b).any()) for a, b in pairs])
    trained = alike[mask.any(-1)]
    return mask & alike[:, None] if (~trained).sum() <= MOST_UNLIKE * len(trained) else mask


def _after(share: Tensor, after: int) -> dict[str, Value]:
    """Map [M,L] -> the means by the number of updates before, under names of their own: all layers, and each."""
    mean, *layers = layered("", share).values()
    by_layer = {f"routing.changed_in.layer_{layer}.after_{after}": value for layer, value in enumerate(layers)}
    return {f"routing.changed_after.{after}": mean, **by_layer}


def _by_layer(routes: Tensor, others: Tensor) -> Tensor:
    """Map [M,L,K] each -> [M,L]: `changed`, layer by layer, for it holds K^2 comparisons a token."""
    return torch.stack([changed(a, b) for a, b in zip(routes.unbind(1), others.unbind(1), strict=True)], dim=1)


def _variance(x: Tensor) -> float:
    return float(x.double().var(correction=0)) if len(x) else math.nan
