"""A pass of a mixture-of-experts policy over a batch: routes recorded, or replayed, and the routers' own losses."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from groupwise.core.errors import RunError
from groupwise.core.records import Batch, RoutingRecord
from groupwise.models.forward.layout import Layout
from groupwise.models.moe.balance import load_shares
from groupwise.models.moe.record import Router, Routes, RowRoutes, record_routes, route_dtype, router_logits
from groupwise.models.moe.replay import Replay, place_routes, replay_routes
from groupwise.models.moe.settings import RouterLosses

#: A microbatch's loss -> the same with what the routers add to it.
AddLoss = Callable[[Tensor], Tensor]


class RoutingPass:
    """One pass over a batch, microbatch by microbatch, whose routes are gathered. For a dense model it does nothing.

    replayed  routes of the batch's rows to run on, or None where the routers choose
    losses    of RoutingSettings: those to add up; the load they read is counted once, over the batch's routes
    """

    def __init__(
        self,
        backbone: nn.Module,
        routers: Sequence[Router],
        batch: Batch,
        replayed: RowRoutes | None = None,
        losses: RouterLosses | None = None,
    ) -> None:
        self._backbone, self._routers, self._replayed = backbone, routers, replayed
        self._ids = batch.tokens
        self._used = _no_routes(routers, batch)
        self._own = list(self._used)
        self._live = 0
        self._losses = losses or {}
        self._sums = dict.fromkeys(self._losses, 0.0)
        self._tokens = int((batch.length - 1).sum())
        self._shares: list[Tensor] = []
        if "balance_loss" in self._losses:
            if batch.routes is None:
                raise ValueError("column routes is read before it is written")
            self._shares = load_shares(torch.cat(batch.routes), [router.experts for router in routers])

    def record(
        self, joined: Callable[[Tensor], Tensor], sums: Callable[[Sequence[float]], list[float]]
    ) -> RoutingRecord | None:
        """What the routers did, once every row was in a microbatch of some rank; None for a dense model.

        joined  tensors that are 0 but in places of one rank each -> their sum
        sums    numbers -> their sums over the ranks
        """
        if not self._routers:
            return None
        rows = [len(row) for row in self._used]
        used = joined(torch.cat(self._used)).split(rows)
        own = used if self._replayed is None else joined(torch.cat(self._own)).split(rows)
        live, *losses = sums([self._live, *self._sums.values()])
        return RoutingRecord(used, own, int(live), dict(zip(self._sums, losses, strict=True)))

    @cached_property
    def keys(self) -> Tensor:
        """[N,T] int64 of the batch's rows: numbers that two of them have in common as long as they are one computation.

        Those are the tokens; on replayed routes, each token with its routes.
        """
        tokens = self._ids
        if self._replayed is None:
            return tokens
        keys, numbers = torch.zeros_like(tokens), dict[tuple[int, bytes], int]()
        for row, ids, routes in zip(keys, tokens, self._replayed, strict=True):
            chosen = map(bytes, routes.flatten(1).contiguous().view(torch.uint8).numpy())
            pairs = zip(ids[: len(routes)].tolist(), chosen, strict=True)
            row[: len(routes)] = torch.tensor([numbers.setdefault(pair, len(numbers)) for pair in pairs])
        return keys

    @contextmanager
    def microbatch(self, index: Tensor, layout: Layout) -> Iterator[AddLoss]:
        """Run one forward of the microbatch that holds the rows `index`, and its backward, inside; yields what adds the
        routers' losses to a loss. Of a microbatch without rows nothing is recorded or added.
        """
        if not self._routers or not len(index):
            yield lambda loss: loss
            return
        with ExitStack() as stack:
            replay = None
            if self._replayed is not None:
                routes, present = place_routes([self._replayed[i] for i in index.tolist()], layout)
                replay = stack.enter_context(replay_routes(self._backbone, routes, present, watch=True))
                self._live += layout.tokens - int(present.sum())
            used = stack.enter_context(record_routes(self._backbone))
            logits = stack.enter_context(router_logits(self._routers)) if self._losses else []
            yield partial(self._add_losses, logits, layout)
            self._gather(index, layout, used, replay)

    def _gather(self, index: Tensor, layout: Layout, used: Routes, replay: Replay | None) -> None:
        places, tokens = layout.place[layout.run].cpu(), layout.run.sum(1).tolist()
        # Indexed, so that neither padding nor other rows stay in memory behind a view.
        rows = used.tensor.flatten(0, 1)[places].split(tokens)
        own_rows = rows if replay is None else replay.own.flatten(0, 1)[places].split(tokens)
        for i, row, own in zip(index.tolist(), rows, own_rows, strict=True):
            self._used[i], self._own[i] = row, own

    def _add_losses(self, logits: Sequence[Tensor], layout: Layout, loss: Tensor) -> Tensor:
        """The microbatch's loss with its part of the routers' own, each the mean over layers.

        They are means over the tokens of rows: a prompt that is run once counts as often as it has completions.
        """
        places = layout.place[layout.run]
        shares = self._shares or [layer.new_zeros(layer.shape[-1]) for layer in logits]
        for name, (coefficient, balance) in self._losses.items():
            value = balance.mean_over_layers([layer[places] for layer in logits], shares, self._tokens)
            self._sums[name] += float(value.detach())
            loss = loss + coefficient * value
        return loss


def _no_routes(routers: Sequence[Router], batch: Batch) -> list[Tensor]:
    """Zeros in place of each row's routes [length - 1,L,K]."""
    if not routers:
        return []
    dtype, chosen = route_dtype(max(r.experts for r in routers)), routers[0].chosen
    return [torch.zeros(n - 1, len(routers), chosen, dtype=dtype) for n in batch.length.tolist()]


def routes_to_replay(batch: Batch, column: str, routers: Sequence[Router]) -> RowRoutes:
    """The batch's column `routes` or `routes_engine`, to be replayed.

    Raises RunError where a row has none, or its routes are of another length, depth or number.
    """
    rows = tuple(row for row in getattr(batch, column) or () if row is not None)
    if len(rows) < len(batch):
        raise RunError(
            f"{len(batch) - len(rows)} of {len(batch)} completions came without routes, so there is nothing to replay: "
            'the engine has to return them (Completion.routes), or set routing.replay = "learner"'
        )
    for row, length in zip(rows, batch.length.tolist(), strict=True):
        expected = (length - 1, len(routers), routers[0].chosen)
        if tuple(row.shape) != expected:
            raise RunError(
                f"routes of shape {tuple(row.shape)} came with a prompt and completion of {length} tokens; the policy "
                f"needs {expected}: tokens that are run (all but the last), layers with experts, experts a token"
            )
    return rows
