"""The end of the record that flows: what an optimizer update did and saw, over n rows of T tokens (records.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class RoutingRecord:
    """Record of what the routers did in a forward pass over n rows.

    used    the experts that computed
    own     those that the routers would have taken; the same where nothing was replayed
    live    tokens of the rows that had no route and chose for themselves, padding not counted
    losses  the routers' own losses by name, each before its coefficient
    """

    used: tuple[Tensor, ...]
    own: tuple[Tensor, ...]
    live: int = 0
    losses: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class UpdateRecord:
    """Record of what one optimizer update saw, detached, [n,T] each: the columns that diagnostics and checks read.

    routing  what the routers of its forward did; None for a dense policy
    centre   of a trust region that centers tokens; None of another
    """

    logp_live: Tensor
    log_ratio: Tensor
    share: Tensor
    entropy: Tensor
    kl: Tensor | None
    routing: RoutingRecord | None = None
    centre: Tensor | None = None


@dataclass(frozen=True)
class Supervised:
    """Supervised rows of an update: the value minimised, the mean loss, nats a token, and how many tokens train."""

    value: float
    loss: float
    tokens: int


@dataclass(frozen=True)
class UpdateResult:
    """One optimizer update of the policy: what it did, and what it saw.

    loss           the minimised value, the routers' own losses included, supervised rows not
    gradient_norm  before it was scaled down
    learning_rate  of this update
    applied        whether the weights moved; False where loss or gradient was not finite
    seen           None where no row of the minibatch had a gradient: then nothing was run for the record either
    supervised     None without supervised rows
    """

    loss: float
    gradient_norm: float
    learning_rate: float
    applied: bool
    seen: UpdateRecord | None
    supervised: Supervised | None = None
