"""A learner's forwards over a mixture-of-experts policy: routes recorded, or replayed, and the routers' own losses.

Shapes: n rows, T padded tokens, L layers with experts, K experts a token, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from enum import StrEnum
from functools import partial

import torch
from pydantic import Field
from torch import Tensor, nn

from groupwise.core.engine import Engine
from groupwise.core.errors import RunError, UsageError
from groupwise.core.records import Batch, RoutingRecord
from groupwise.core.settings import Settings
from groupwise.models.moe.balance import Balance, load_share
from groupwise.models.moe.router_logits import router_logits
from groupwise.models.moe.routing import (
    Replay,
    Router,
    Routes,
    lay_out,
    need_routers,
    record_routes,
    replay_routes,
    routers,
)

#: Routes of rows: [tokens run, L, K] each, on the CPU. A row's last token is not run: it has none.
Rows = tuple[Tensor, ...]
#: The routers' own losses, by the name of its metric each: the coefficient, and the loss without it.
Losses = Mapping[str, tuple[float, Balance]]
#: A microbatch's loss -> the same with what the routers add to it.
AddLoss = Callable[[Tensor], Tensor]


class ReplayFrom(StrEnum):
    """Whose experts the updates on a batch run on."""

    NONE = "none"
    LEARNER = "learner"
    ENGINE = "engine"


class RoutingSettings(Settings):
    """The section [routing]: what a run does about its policy's experts. The defaults do nothing; a dense policy
    allows nothing else.

    replay        none: every forward chooses for itself; learner: what the learner chose under the old policy;
                  engine: what the engine chose, already where logp_old is computed
    load_balance  coefficient of the load-balancing loss
    z_loss        coefficient of the router z-loss
    """

    replay: ReplayFrom = Field(default=ReplayFrom.NONE, strict=False)
    load_balance: float = Field(default=0.0, ge=0)
    z_loss: float = Field(default=0.0, ge=0)

    @property
    def reads_routes(self) -> bool:
        """Whether the updates on a batch read routes that were there before them."""
        return self.replay is not ReplayFrom.NONE or self.load_balance > 0

    @property
    def changed(self) -> dict[str, object]:
        """The keys that are not at their defaults."""
        return self.model_dump(mode="json", exclude_defaults=True)

    @property
    def losses(self) -> Losses:
        """Only those that are on."""
        told = {"balance_loss": (self.load_balance, Balance(load=1.0)), "z_loss": (self.z_loss, Balance(z=1.0))}
        return {name: pair for name, pair in told.items() if pair[0]}

    def __str__(self) -> str:
        losses = [f"{name} x {coefficient:g}" for name, (coefficient, _) in self.losses.items()]
        return ", ".join([f'replay "{self.replay.value}"', *losses])


class Gathering:
    """The routes of a batch, gathered microbatch by microbatch. For a dense model it does nothing.

    replayed  routes of the batch's rows to run on, or None where the routers choose
    losses    of RoutingSettings: those to add up; the load they read is counted once, over the batch's routes
    """

    def __init__(
        self,
        backbone: nn.Module,
        found: Sequence[Router],
        batch: Batch,
        replayed: Rows | None = None,
        losses: Losses | None = None,
    ) -> None:
        self._backbone, self._routers, self._replayed = backbone, found, replayed
        self._used: list[Tensor] = [torch.empty(0)] * len(batch)
        self._own = list(self._used)
        self._live = 0
        self._losses = losses or {}
        self._told = dict.fromkeys(self._losses, 0.0)
        self._tokens = int((batch.length - 1).sum())
        self._shares = _shares(batch, found) if "balance_loss" in self._losses else []

    @property
    def result(self) -> RoutingRecord | None:
        """What was gathered, once every row was in a microbatch; None for a dense model."""
        return RoutingRecord(tuple(self._used), tuple(self._own), self._live, self._told) if self._routers else None

    @contextmanager
    def over(self, index: Tensor, micro: Batch) -> Iterator[AddLoss]:
        """Run one forward of the microbatch that holds the rows `index`, and its backward, inside; yields what adds the
        routers' losses to a loss.
        """
        if not self._routers:
            yield _same
            return
        run = _run(micro)
        with ExitStack() as stack:
            replay = None
            if self._replayed is not None:
                laid, present = lay_out([self._replayed[i] for i in index.tolist()], run.shape[1])
                replay = stack.enter_context(replay_routes(self._backbone, laid, present, watch=True))
            used = stack.enter_context(record_routes(self._backbone))
            logits = stack.enter_context(router_logits(self._routers)) if self._losses else []
            yield partial(self._add, logits, run) if self._losses else _same
            self._keep(index, micro, run, used, replay)

    def _keep(self, index: Tensor, micro: Batch, run: Tensor, used: Routes, replay: Replay | None) -> None:
        inside, tokens = run.cpu(), (micro.length - 1).tolist()
        # Taken out of the padding, which parts of the whole would keep in memory.
        rows = used.tensor[inside].split(tokens)
        own = rows if replay is None else replay.own[inside].split(tokens)
        for place, row, its_own in zip(index.tolist(), rows, own, strict=True):
            self._used[place], self._own[place] = row, its_own
        if replay is not None:  # of a row that is not the longest its last token is run too, without a route
            self._live += int((micro.length <= run.shape[1]).sum())

    def _add(self, logits: Sequence[Tensor], run: Tensor, loss: Tensor) -> Tensor:
        """The microbatch's loss with its part of the routers' own, each the mean over layers."""
        inside = run.flatten()
        for name, (coefficient, part) in self._losses.items():
            shares = self._shares or [layer.new_zeros(layer.shape[-1]) for layer in logits]
            parts = [
                part(layer[inside], share.to(layer.device), self._tokens)
                for layer, share in zip(logits, shares, strict=True)
            ]
            value = torch.stack(parts).mean()
            self._told[name] += float(value.detach())
            loss = loss + coefficient * value
        return loss


def rows_of(batch: Batch, column: str, found: Sequence[Router]) -> Rows:
    """The batch's `routes` or `routes_engine`, to be replayed.

    Raises RunError where a row has none, or its routes are of another length, depth or number.
    """
    rows = tuple(row for row in getattr(batch, column) or () if row is not None)
    if len(rows) < len(batch):
        raise RunError(
            f"{len(batch) - len(rows)} of {len(batch)} completions came without routes, so there "
            "is nothing to replay: the engine has "
            'to return them (Completion.routes), or set routing.replay = "learner"'
        )
    for row, length in zip(rows, batch.length.tolist(), strict=True):
        expected = (length - 1, len(found), found[0].chosen)
        if tuple(row.shape) != expected:
            raise RunError(
                f"routes of shape {tuple(row.shape)} came with a prompt and completion of {length} tokens; the policy "
                f"needs {expected}: tokens that are run (all but the last), layers with experts, experts a token"
            )
    return rows


def demand_routing(backbone: nn.Module, settings: RoutingSettings) -> tuple[Router, ...]:
    """The routers whose routes a run records; none for a dense policy, or for one whose routes nothing asks for and
    that cannot be recorded and replayed.

    Tries on two tokens what the run will do. Raises UsageError where that is impossible.
    """
    try:
        found = need_routers(backbone) if settings.changed else routers(backbone)
        if found:
            _try(backbone, found, settings)
    except UsageError as error:
        if settings.changed:
            told = ", ".join(f"routing.{key} = {value!r}" for key, value in settings.changed.items())
            raise UsageError(f"{told}: {error}") from None
        return ()
    return found


def demand_engine(engine: Engine, settings: RoutingSettings) -> None:
    """Raises UsageError where the engine's experts are to be replayed and it does not say which they were."""
    if settings.replay is ReplayFrom.ENGINE and not engine.routes:
        raise UsageError(
            f"routing.replay = 'engine': {type(engine).__name__} does not return the experts it chose "
            '(Completion.routes); set routing.replay = "learner", or take an engine that does'
        )


def _try(backbone: nn.Module, found: Sequence[Router], settings: RoutingSettings) -> None:
    """One forward that records, whose logits are heard where a loss reads them, and one that replays what it gave."""
    ids = torch.zeros(1, 2, dtype=torch.long, device=next(backbone.parameters()).device)
    with torch.no_grad():
        with record_routes(backbone) as routes, router_logits(found) if settings.losses else nullcontext():
            backbone(input_ids=ids, use_cache=False)
        with replay_routes(backbone, routes):  # without a replay in training too: the probe after a weight load has one
            backbone(input_ids=ids, use_cache=False)


def _shares(batch: Batch, found: Sequence[Router]) -> list[Tensor]:
    """Per layer [E], the share of the batch's choices that fell on each expert, prompts included."""
    if batch.routes is None:
        raise ValueError("column routes is read before it is written")
    whole = torch.cat(batch.routes)
    return [load_share(whole[:, layer], router.experts) for layer, router in enumerate(found)]


def _run(micro: Batch) -> Tensor:
    """[n,T-1] bool, True at tokens that are run and have a route: neither padding nor a row's last token."""
    places = torch.arange(max(1, micro.tokens.shape[1] - 1), device=micro.length.device)
    return places < (micro.length - 1)[:, None]


def _same(loss: Tensor) -> Tensor:
    return loss
