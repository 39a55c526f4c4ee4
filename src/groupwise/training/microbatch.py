"""A pass of the policy over a batch, microbatch by microbatch, each with the routes that its routers take."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from groupwise.algorithms.algorithm import Algorithm, LossOut
from groupwise.core.errors import RunError
from groupwise.core.numbers.transfer import columns_to_device, to_device
from groupwise.core.records import Batch
from groupwise.core.updates import RoutingRecord
from groupwise.models.forward.adjustment import UNADJUSTED, Adjustment
from groupwise.models.forward.flex import Windows
from groupwise.models.forward.heads import halves, logit_change
from groupwise.models.forward.layout import moved, packed, padded
from groupwise.models.forward.logprobs import Scored
from groupwise.models.forward.predictions import Predictions
from groupwise.models.moe.record import Router, RowRoutes, record_routes, route_dtype, router_logits
from groupwise.models.moe.replay import place_routes, replay_routes
from groupwise.models.moe.settings import RouterLosses, load_shares
from groupwise.models.shards import unsharded
from groupwise.training.mesh import Mesh


class Routed(NamedTuple):
    """Routes of a microbatch: the numbers of its rows, the tokens of each that were run, and of all of these, row after
    row, the routes taken [M,L,K] and those that the routers would have taken, on the model's device.
    """

    index: Tensor
    tokens: list[int]
    used: Tensor
    own: Tensor


class Pass:
    """One pass of a model over a batch: what its microbatches share, and what the routers did in all of them.

    routers   of a mixture of experts; none for a model whose routes are not recorded
    replayed  the column of the batch with the routes to run on, `routes` or `routes_engine`; None: the routers choose
    losses    of RoutingSettings: those to add up; the load they read is counted once, over the batch's routes
    sampled   whether the probabilities are those of sampling; else, of supervised rows, they are the model's own
    teacher   the pass of the reference beside this one, where the loss compares whole distributions
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Batch,
        routers: Sequence[Router] = (),
        replayed: str | None = None,
        losses: RouterLosses | None = None,
        sampled: bool = True,
        teacher: "Pass | None" = None,
    ) -> None:
        self.model, self.batch, self.routers, self.sampled, self.teacher = model, batch, routers, sampled, teacher
        (self.backbone, self.head), self.change = halves(model), logit_change(model)
        self.replayed = routes_to_replay(batch, replayed, routers) if replayed else None
        self.losses = losses or {}
        self.sums: dict[str, Tensor | float] = dict.fromkeys(self.losses, 0.0)
        self.tokens = int((batch.length - 1).sum())
        self.shares: list[Tensor] = []
        self.live = 0
        self.routed: list[Routed] = []
        if "balance_loss" in self.losses:
            if batch.routes is None:
                raise ValueError("column routes is read before it is written")
            self.shares = load_shares(torch.cat(batch.routes), [router.experts for router in routers])

    @cached_property
    def keys(self) -> Tensor:
        """Numbers [N,T] int64 that two of the batch's rows have in common as long as they are one computation.

        Those are the tokens; on replayed routes, each token with its routes.
        """
        tokens = self.batch.tokens
        if self.replayed is None:
            return tokens
        keys, numbers = torch.zeros_like(tokens), dict[tuple[int, bytes], int]()
        for row, ids, routes in zip(keys, tokens, self.replayed, strict=True):
            chosen = map(bytes, routes.flatten(1).contiguous().view(torch.uint8).numpy())
            pairs = zip(ids[: len(routes)].tolist(), chosen, strict=True)
            row[: len(routes)] = torch.tensor([numbers.setdefault(pair, len(numbers)) for pair in pairs])
        return keys

    @cached_property
    def whole_head(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of the head, without gradient; of a model in shards gathered once, on every rank."""
        return unsharded(self.head.weight), None if self.head.bias is None else unsharded(self.head.bias)

    def record(self, mesh: Mesh) -> RoutingRecord | None:
        """Return what the routers did, once every row was in a microbatch of some rank; None for a dense model."""
        if not self.routers:
            return None
        dtype, chosen = route_dtype(max(router.experts for router in self.routers)), self.routers[0].chosen
        rows = [n - 1 for n in self.batch.length.tolist()]
        every_used = [torch.zeros(n, len(self.routers), chosen, dtype=dtype) for n in rows]
        every_own = list(every_used)
        for index, tokens, used, own in self.routed:
            of_rows = zip(index.tolist(), used.cpu().split(tokens), own.cpu().split(tokens), strict=True)
            for i, row, own_row in of_rows:
                every_used[i], every_own[i] = row, own_row
        used = mesh.joined(torch.cat(every_used)).split(rows)
        own = used if self.replayed is None else mesh.joined(torch.cat(every_own)).split(rows)
        live, *losses = mesh.sums([self.live, *map(float, self.sums.values())])
        return RoutingRecord(used, own, int(live), dict(zip(self.sums, losses, strict=True)))


class Microbatch:
    """Rows of a batch as one forward runs them: where their tokens lie, and the routes they take.

    All that is a question of numbers is found on the CPU, and sent to the model's device: it is waited for nowhere.

    index   [n] their numbers in the batch; empty where the microbatch is idle: it runs because another rank runs one,
            and nothing is read of it
    rows    their columns, on the model's device; so are `layout` and `read`, the predictions that are read
    places  [M] where in the layout the rows' tokens are run, row after row
    """

    def __init__(
        self,
        run: Pass,
        index: Tensor,
        rows: Batch,
        packs: bool,
        windows: Windows | None = None,
        adjustment: Adjustment = UNADJUSTED,
    ) -> None:
        """`rows` on the CPU; `packs` and `windows` say how they lie: by themselves, or packed, in blocks or as one
        (layout.packed).
        """
        self.index, self.run = index, run
        self._logits: list[Tensor] = []
        if packs:
            keys = run.keys[index] if len(index) else None
            self._laid = packed(rows.tokens, rows.length, keys, rows.read_from, windows)
        else:
            self._laid = padded(rows.tokens, rows.length, rows.read_from)
        device = run.head.weight.device
        # Ids of each token's own, even if two tokens have one prefix.
        own = rows.ref_ids is not None or rows.engine_ids is not None
        self.read = Predictions.of(rows.tokens, rows.mask, self._laid, rows.support, adjustment, own).on(device)
        self.layout, self.rows = moved(self._laid, device, to_device), columns_to_device(rows, device)
        if run.routers:
            self.places = to_device(self._laid.place[self._laid.run], device)

    @contextmanager
    def routed(self) -> Iterator[None]:
        """Run the microbatch's forward, and its backward, inside: on the routes to replay, and its routes recorded."""
        run, replay = self.run, None
        if not len(self.index):
            yield
            return
        with ExitStack() as stack:
            if run.replayed is not None:
                routes, present = place_routes([run.replayed[i] for i in self.index.tolist()], self._laid)
                replay = stack.enter_context(replay_routes(run.backbone, routes, present, watch=True))
                run.live += self.layout.tokens - int(present.sum())
            used = stack.enter_context(record_routes(run.backbone))
            if run.losses:
                self._logits = stack.enter_context(router_logits(run.routers))
            yield
        # Indexed, so that neither padding nor other rows stay in memory behind a view.
        taken = used.chosen.flatten(0, 1)[self.places]
        own = taken if replay is None else replay.own_chosen.flatten(0, 1)[self.places]
        run.routed.append(Routed(self.index, self._laid.run.sum(1).tolist(), taken, own))

    @property
    def asked(self) -> Tensor | None:
        """The ids [M,K] beside the token's own whose log-probabilities a loss reads: the reference's, the engine's."""
        ids = [self.read.of_each(x) for x in (self.rows.ref_ids, self.rows.engine_ids) if x is not None]
        return torch.cat(ids, -1) if ids else None

    def objective(self, algorithm: Algorithm, scored: Scored) -> LossOut:
        """Compute the microbatch's part of the loss, of what its forward gave."""
        rows, kl, divergence, centre = self.rows, algorithm.kl.divergence, scored.divergence, None
        of_reference = 0 if rows.ref_ids is None else rows.ref_ids.shape[-1]
        if kl is not None and kl.k:
            log_p = scored.among[:, :of_reference]
            divergence = self.read.spread(kl(log_p, self.read.of_each(rows.need("ref_top"))))
        if algorithm.trust.sampler_top:
            log_p, log_q = scored.among[:, of_reference:], self.read.of_each(rows.need("engine_top"))
            centre = self.read.spread(algorithm.trust.centre(log_p, log_q))
        return algorithm.objective(
            rows.need("weight"),
            scored.logp,
            scored.logp.detach() if rows.logp_old is None else rows.logp_old,
            rows.need("advantage"),
            rows.mask,
            logp_ref=rows.logp_ref,
            correction=rows.correction,
            entropy=scored.entropy,
            likelihood=rows.likelihood,
            divergence=divergence,
            logp_engine=rows.logp_engine,
            centre=centre,
        )

    def with_router_losses(self, loss: Tensor) -> Tensor:
        """Add to the microbatch's loss its part of the routers' own, each the mean over layers.

        They are means over the tokens of rows: a prompt that is run once counts as often as it has completions.
        """
        run = self.run
        if not run.losses or not len(self.index):
            return loss
        shares = run.shares or [layer.new_zeros(layer.shape[-1]) for layer in self._logits]
        for name, (coefficient, balance) in run.losses.items():
            value = balance.mean_over_layers([layer[self.places] for layer in self._logits], shares, run.tokens)
            run.sums[name] = run.sums[name] + value.detach().double()
            loss = loss + coefficient * value
        return loss


def routes_to_replay(batch: Batch, column: str, routers: Sequence[Router]) -> RowRoutes:
    """Take the batch's column `routes` or `routes_engine`, to be replayed.

    Raises RunError if a row has none, or its routes are of another length, depth or number.
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
