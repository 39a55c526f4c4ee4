"""The learner: frozen log-probabilities for a batch, and one optimizer update on a minibatch."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from groupwise.algorithms.algorithm import Algorithm, LossOut
from groupwise.core.collate import collate, microbatches
from groupwise.core.prefixes import prefix_microbatches
from groupwise.core.records import Batch, Group, UpdateRecord, UpdateResult
from groupwise.core.settings import Changeable
from groupwise.models.adjustment import UNADJUSTED, Adjustment
from groupwise.models.compiled import CompiledLayers
from groupwise.models.fused_layers import FusedLayers
from groupwise.models.heads import halves
from groupwise.models.layout import Layout, packed, padded
from groupwise.models.line_attention import in_line, runs_in_line
from groupwise.models.load import load_policy, save_policy
from groupwise.models.logprobs import CHUNK_ELEMENTS, HELD_ELEMENTS, sequence_logprobs
from groupwise.models.moe.record import Router, RowRoutes
from groupwise.models.moe.routing_pass import RoutingPass, routes_to_replay
from groupwise.models.moe.settings import ReplayFrom, RouterLosses, RoutingSettings
from groupwise.models.recompute import recomputed
from groupwise.training import checkpoint
from groupwise.training.optimizer import AUTO, Count, OptimizerSettings, TrainedModel

#: The columns of an UpdateRecord that are made inside the loss.
SEEN = ("logp_live", "log_ratio", "share", "entropy", "kl")


class LearnerSettings(OptimizerSettings):
    """The section [learner]: how the policy is trained.

    precision        "bf16" computes in bfloat16 over float32 master weights
    shared_prefixes  what rows have in common at their start, such as a prompt, is run once, and no padding is run
    recompute        activations are computed again in the backward pass instead of held: less memory, a third more time
    compile          layers are compiled by torch.compile (models/compiled.py): minutes at first, then fewer kernels
    chunk_logits     logits computed at once; "auto": as many as memory has room for
    held_logits      log-probabilities held for the backward pass, which computes them again where they are more
    """

    precision: Literal["fp32", "bf16"] = "fp32"
    shared_prefixes: Changeable[bool] = True
    recompute: Changeable[bool] = False
    compile: Changeable[bool] = False
    chunk_logits: Changeable[Count] = AUTO
    held_logits: Changeable[Literal["auto"] | Annotated[int, Field(ge=0)]] = AUTO

    @property
    def bf16(self) -> bool:
        return self.precision == "bf16"


class Learner(TrainedModel):
    """Holds the policy being trained, its optimizer, and the frozen reference where an algorithm reads one."""

    def __init__(
        self,
        model: nn.Module,
        reference: nn.Module | None,
        settings: LearnerSettings,
        temperature: float,
        total_updates: int,
        routing: RoutingSettings = RoutingSettings(),
        routers: Sequence[Router] = (),
        adjustment: Adjustment = UNADJUSTED,
    ) -> None:
        """`routers` are those of a mixture of experts whose routes are recorded; none, and there are no routes.

        adjustment  what sampling does to logits before it divides them by the temperature
        """
        super().__init__(model, settings, total_updates, settings.bf16)
        self.routing, self.routers = routing, routers
        self.reference = None if reference is None else reference.eval().requires_grad_(False)
        self.temperature, self.adjustment, self.recompute = temperature, adjustment, settings.recompute
        self.chunk_logits = CHUNK_ELEMENTS if settings.chunk_logits == AUTO else settings.chunk_logits
        self.held_logits = HELD_ELEMENTS if settings.held_logits == AUTO else settings.held_logits
        models = [model] if reference is None else [model, reference]
        self.in_line = settings.shared_prefixes and all(runs_in_line(halves(m)[0]) for m in models)
        self.fused = CompiledLayers(*models, bf16=settings.bf16) if settings.compile else FusedLayers(*models)

    def annotate(self, batch: Batch, old: bool, ref: bool) -> Batch:
        """Adds `logp_old` and `logp_ref` [N,T] without gradient, each only where it is read.

        With experts also `routes`: those of the very pass that makes logp_old, or of one made for them where only they
        are read. With the engine's replayed there, `routes_own` says what the routers would have chosen.
        """
        with torch.no_grad():
            logp_old, routed = self._under_old_policy(batch, old)
            logp_ref = self.reference_logprobs(batch) if ref else None
        return batch.add(logp_old=logp_old, logp_ref=logp_ref, **routed)

    def _under_old_policy(self, batch: Batch, old: bool) -> tuple[Tensor | None, dict[str, RowRoutes]]:
        """logp_old where it is read, and the columns of routes."""
        from_engine = self.routing.replay is ReplayFrom.ENGINE
        replayed = routes_to_replay(batch, "routes_engine", self.routers) if from_engine else None
        if not old and replayed is not None:
            return None, {"routes": replayed}
        if not old and not self.routing.reads_routes:
            return None, {}
        routing = self._routing_pass(batch, replayed)
        logp, seen = self.logprobs(self.model, batch, routing), routing.record
        own = {"routes_own": seen.own} if seen and from_engine else {}
        return logp if old else None, {"routes": seen.used, **own} if seen else {}

    def reference_logprobs(self, batch: Batch) -> Tensor | None:
        """[N,T] nats under the reference; None where there is none."""
        return None if self.reference is None else self.logprobs(self.reference, batch)

    def logprobs(self, model: nn.Module, batch: Batch, routing: RoutingPass | None = None) -> Tensor:
        """[N,T] nats on the CPU, 0 where masked; `routing` gathers the routes of the pass."""
        routing = routing or RoutingPass(model, (), batch)
        out = torch.zeros(batch.tokens.shape, dtype=self.precision)
        for index, micro, layout in self.pieces(batch, routing, torch.arange(len(batch))):
            with self._attending(model, layout), routing.microbatch(index, layout):
                logp, _ = self._forward(model, micro, layout, entropy_gradient=False)
            out[index, : logp.shape[1]] = logp.cpu()
        return out

    def pieces(self, batch: Batch, routing: RoutingPass, rows: Tensor) -> Iterator[tuple[Tensor, Batch, Layout]]:
        """Microbatches of some of a batch's rows: their indices, they on the model's device, and how they are run."""
        if not self.in_line:
            for part in microbatches(batch.length[rows], self.tokens_per_microbatch):
                micro = self.on_device(batch.rows(rows[part]))
                yield rows[part], micro, padded(micro.tokens, micro.length, micro.read_from)
            return
        keys = routing.keys
        for part in prefix_microbatches(keys[rows], batch.length[rows], self.tokens_per_microbatch):
            index = rows[part]
            micro = self.on_device(batch.rows(index))
            yield index, micro, packed(micro.tokens, micro.length, keys[index], micro.read_from)

    def completion_logprobs(self, groups: Sequence[Group], pad: int) -> list[Tensor]:
        """[tokens] nats of each completion in order, under the weights as they are, and on the engine's experts
        where they are known: this compares weights, and a choice between two equal experts may fall either way.
        """
        scored = [
            Group(group.prompt, tuple(dataclasses.replace(c, score=0.0) for c in group.completions)) for group in groups
        ]
        batch = collate(scored, pad)
        known = self.routers and batch.routes_engine
        replayed = routes_to_replay(batch, "routes_engine", self.routers) if known else None
        with torch.no_grad():
            logp = self.logprobs(self.model, batch, self._routing_pass(batch, replayed))
        return [row[inside] for row, inside in zip(logp, batch.mask, strict=True)]

    def gradients(self, minibatch: Batch, algorithm: Algorithm) -> tuple[float, UpdateRecord]:
        """Adds the minibatch's gradient to the parameters; any split adds up to the same. -> the loss, what it saw."""
        exact = {"logp_live": self.precision}
        seen = {name: torch.zeros(minibatch.tokens.shape, dtype=exact.get(name)) for name in SEEN}
        loss = 0.0
        replays = self.routing.replay is not ReplayFrom.NONE
        replayed = routes_to_replay(minibatch, "routes", self.routers) if replays else None
        routing = self._routing_pass(minibatch, replayed, self.routing.losses)
        for trains, index, micro, layout in self._trained_and_others(minibatch, algorithm, routing):
            bonus = algorithm.entropy_coefficient != 0
            with (
                torch.set_grad_enabled(trains),
                self._attending(self.model, layout),
                routing.microbatch(index, layout) as add_router_losses,
            ):
                live, entropy = self._forward(self.model, micro, layout, entropy_gradient=bonus)
                out = self._objective(algorithm, micro, live, entropy)
                value = add_router_losses(out.value)
                if trains:
                    value.backward()
            loss += value.item()
            for name, column in zip(SEEN, (live, out.log_ratio, out.share, entropy, out.kl), strict=True):
                if column is not None:
                    seen[name][index, : column.shape[1]] = column.detach().to("cpu", seen[name].dtype)
        kl = seen.pop("kl")
        return loss, UpdateRecord(**seen, kl=kl if algorithm.kl.in_loss else None, routing=routing.record)

    def _trained_and_others(
        self, minibatch: Batch, algorithm: Algorithm, routing: RoutingPass
    ) -> Iterator[tuple[bool, Tensor, Batch, Layout]]:
        """Microbatches of the rows that have a gradient, then of those that are run for the record alone: True, False.

        Where no row has one, the shortest is trained: an optimizer with momentum moves on a gradient of 0 too.
        """
        trained = algorithm.trained_rows(minibatch)
        if self.routing.losses:
            trained = torch.ones_like(trained)
        elif not trained.any():
            trained[minibatch.length.argmin()] = True
        for trains in (True, False):
            for piece in self.pieces(minibatch, routing, (trained == trains).nonzero()[:, 0]):
                yield trains, *piece

    def update(self, minibatch: Batch, algorithm: Algorithm) -> UpdateResult:
        """One optimizer update on a weighted minibatch; skipped where loss or gradient is not finite."""
        rate = self.optimizer.begin()
        loss, seen = self.gradients(minibatch, algorithm)
        outcome = self.optimizer.finish(loss)
        return UpdateResult(loss, outcome.gradient_norm, learning_rate=rate, applied=outcome.applied, seen=seen)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter by its name, as an engine takes them."""
        return self.model.named_parameters()

    def save(self, folder: Path, tokenizer: Any) -> None:
        """The policy, as `from_pretrained` loads it, and its optimizer, into a checkpoint's folder."""
        save_policy(self.model, tokenizer, folder / checkpoint.POLICY)
        checkpoint.write_optimizer(folder, self.model, self.optimizer.adamw)

    def restore(self, folder: Path, updates: int) -> None:
        """Policy and optimizer as a checkpoint has them, bit for bit, after `updates` updates.

        The policy is loaded as a model, because the files of some name weights otherwise than the model does, such as
        each expert by itself where the model holds them as one.
        """
        self.model.load_state_dict(load_policy(folder / checkpoint.POLICY).model.state_dict())
        checkpoint.read_optimizer(folder, self.model, self.optimizer.adamw)
        self.optimizer.updates = updates

    def _objective(self, algorithm: Algorithm, micro: Batch, live: Tensor, entropy: Tensor) -> LossOut:
        old = live.detach() if micro.logp_old is None else micro.logp_old
        return algorithm.objective(
            micro.need("weight"),
            live,
            old,
            micro.need("advantage"),
            micro.mask,
            logp_ref=micro.logp_ref,
            correction=micro.correction,
            entropy=entropy,
        )

    def _forward(self, model: nn.Module, micro: Batch, layout: Layout, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
        with self.autocast():
            return sequence_logprobs(
                *halves(model),
                micro.tokens,
                micro.mask,
                self.temperature,
                micro.support,
                entropy_gradient,
                layout,
                chunk_elements=self.chunk_logits,
                held_elements=self.held_logits,
                adjustment=self.adjustment,
            )

    @contextmanager
    def _attending(self, model: nn.Module, layout: Layout) -> Iterator[None]:
        """Inside, a forward of the model and its backward run as the layout and the settings have it."""
        backbone, _ = halves(model)
        with self.fused.running(), ExitStack() as stack:
            if layout.line is not None:
                stack.enter_context(in_line(backbone))
            if self.recompute and torch.is_grad_enabled():
                stack.enter_context(recomputed(backbone))
            yield

    def _routing_pass(
        self, batch: Batch, replayed: RowRoutes | None, losses: RouterLosses | None = None
    ) -> RoutingPass:
        return RoutingPass(halves(self.model)[0], self.routers, batch, replayed, losses)
