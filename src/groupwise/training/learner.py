"""The learner: frozen log-probabilities for a batch, and one optimizer update on a minibatch."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from groupwise.algorithms.algorithm import Algorithm, LossOut
from groupwise.core.collate import NO_ROWS, collate, idle_rows, microbatches
from groupwise.core.numbers.reproducible import reproducible
from groupwise.core.prefixes import prefix_microbatches
from groupwise.core.records import Batch, Group, RoutingRecord, UpdateRecord, UpdateResult
from groupwise.core.settings import Changeable
from groupwise.models.forward.adjustment import UNADJUSTED, Adjustment
from groupwise.models.forward.compiled import CompiledLayers
from groupwise.models.forward.fused_layers import FusedLayers
from groupwise.models.forward.heads import halves
from groupwise.models.forward.layout import Layout, packed, padded
from groupwise.models.forward.line_attention import in_line, runs_in_line
from groupwise.models.forward.logprobs import CHUNK_ELEMENTS, HELD_ELEMENTS, sequence_logprobs
from groupwise.models.forward.recompute import recomputed
from groupwise.models.load import load_policy, save_policy
from groupwise.models.moe.record import Router, RowRoutes
from groupwise.models.moe.routing_pass import RoutingPass, routes_to_replay
from groupwise.models.moe.settings import ReplayFrom, RouterLosses, RoutingSettings
from groupwise.models.shards import set_whole, set_whole_state, whole, whole_state
from groupwise.training import checkpoint
from groupwise.training.mesh import ALONE, DEADLINE, Mesh, Message, Verb
from groupwise.training.optimizer import AUTO, Count, OptimizerSettings, TrainedModel, place

#: The columns of an UpdateRecord that are made inside the loss.
SEEN = ("logp_live", "log_ratio", "share", "entropy", "kl")


class LearnerSettings(OptimizerSettings):
    """The section [learner]: how the policy is trained.

    precision        "bf16" computes in bfloat16 over float32 master weights
    shared_prefixes  what rows have in common at their start, such as a prompt, is run once, and no padding is run
    recompute        activations are computed again in the backward pass instead of held: less memory, a third more time
    compile          layers are compiled by torch.compile (models/forward/compiled.py): fewer kernels, after minutes
    chunk_logits     logits computed at once; "auto": as many as memory has room for
    held_logits      log-probabilities held for the backward pass, which computes them again where they are more
    ranks            processes of this machine that hold the policy together, each its part of weights, gradients and
                     optimizer, and share the microbatches; 1: the run's own. The numbers are the same up to rounding
    rank_deadline    seconds that one of them may keep the others waiting; then the run ends, and says which
    """

    precision: Literal["fp32", "bf16"] = "fp32"
    shared_prefixes: Changeable[bool] = True
    recompute: Changeable[bool] = False
    compile: Changeable[bool] = False
    chunk_logits: Changeable[Count] = AUTO
    held_logits: Changeable[Literal["auto"] | Annotated[int, Field(ge=0)]] = AUTO
    ranks: Changeable[int] = Field(default=1, ge=1, le=1024)
    rank_deadline: Changeable[float] = Field(default=DEADLINE, gt=0, le=10**6)

    @property
    def bf16(self) -> bool:
        return self.precision == "bf16"


@dataclass(frozen=True)
class Piece:
    """A microbatch as it is run: which rows of a batch, these on the model's device, and where their tokens lie.

    index  [n]; empty where the piece is idle: it runs because another rank runs one, and nothing is read of it
    """

    index: Tensor
    micro: Batch
    layout: Layout


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
        mesh: Mesh = ALONE,
    ) -> None:
        """`routers` are those of a mixture of experts whose routes are recorded; none, and there are no routes.

        adjustment  what sampling does to logits before it divides them by the temperature
        mesh        the ranks over which policy and reference are put in shards; every one of them makes this learner,
                    with the same weights, and calls the same methods with the same batches
        """
        models = [model.eval()] if reference is None else [model.eval(), reference.eval().requires_grad_(False)]
        self.in_line = settings.shared_prefixes and mesh.all_agree(all(runs_in_line(halves(m)[0]) for m in models))
        fused = CompiledLayers(*models, bf16=settings.bf16) if settings.compile else FusedLayers(*models)
        super().__init__(model, settings, total_updates, settings.bf16, mesh)
        self.routing, self.routers, self.reference, self.fused = routing, routers, reference, fused
        if reference is not None:
            self.shard(reference)
        self.temperature, self.adjustment, self.recompute = temperature, adjustment, settings.recompute
        self.chunk_logits = CHUNK_ELEMENTS if settings.chunk_logits == AUTO else settings.chunk_logits
        self.held_logits = HELD_ELEMENTS if settings.held_logits == AUTO else settings.held_logits

    def annotate(self, batch: Batch, old: bool, ref: bool) -> Batch:
        """Adds `logp_old` and `logp_ref` [N,T] without gradient, each only where it is read.

        With experts also `routes`: those of the very pass that makes logp_old, or of one made for them where only they
        are read. With the engine's replayed there, `routes_own` says what the routers would have chosen.
        """
        with self.mesh.together(Message(Verb.ANNOTATE, batch, {"old": old, "ref": ref})), torch.no_grad():
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
        logp, seen = self.logprobs(self.model, batch, routing), self._recorded(routing)
        own = {"routes_own": seen.own} if seen and from_engine else {}
        return logp if old else None, {"routes": seen.used, **own} if seen else {}

    def reference_logprobs(self, batch: Batch) -> Tensor | None:
        """[N,T] nats under the reference; None where there is none."""
        return None if self.reference is None else self.logprobs(self.reference, batch)

    def logprobs(self, model: nn.Module, batch: Batch, routing: RoutingPass | None = None) -> Tensor:
        """[N,T] nats on the CPU, 0 where masked; `routing` gathers the routes of the pass."""
        routing = routing or RoutingPass(model, (), batch)
        out = torch.zeros(batch.tokens.shape, dtype=self.precision)
        for piece in self.pieces(batch, routing, self._read(batch).nonzero()[:, 0]):
            with self._attending(model, piece.layout), routing.microbatch(piece.index, piece.layout):
                logp, _ = self._forward(model, piece, entropy_gradient=False)
            place(out, piece.index, logp)
        return self.mesh.joined(out)

    def _read(self, batch: Batch) -> Tensor:
        """[N] bool: the rows with a token whose log-probability is read; all where routes are recorded."""
        return torch.ones(len(batch), dtype=torch.bool) if self.routers else batch.mask.any(1)

    def pieces(self, batch: Batch, routing: RoutingPass, rows: Tensor) -> Iterator[Piece]:
        """This rank's microbatches of some of a batch's rows; on every rank as many, the last of some idle."""
        length, most = batch.length[rows], self.tokens_per_microbatch
        parts = prefix_microbatches(routing.keys[rows], length, most) if self.in_line else microbatches(length, most)
        for part in self.mesh.dealt(parts):
            index, own = (NO_ROWS, idle_rows(batch)) if part is None else (rows[part], batch.rows(rows[part]))
            micro = self.on_device(own)
            if not self.in_line:
                layout = padded(micro.tokens, micro.length, micro.read_from)
            elif part is None:
                layout = packed(micro.tokens, micro.length)
            else:
                layout = packed(micro.tokens, micro.length, routing.keys[index], micro.read_from)
            yield Piece(index, micro, layout)

    def completion_logprobs(self, groups: Sequence[Group], pad: int) -> list[Tensor]:
        """[tokens] nats of each completion in order, under the weights as they are, and on the engine's experts
        where they are known: this compares weights, and a choice between two equal experts may fall either way.
        """
        scored = [
            Group(group.prompt, tuple(dataclasses.replace(c, score=0.0) for c in group.completions)) for group in groups
        ]
        batch = collate(scored, pad)
        return [row[inside] for row, inside in zip(self.logprobs_now(batch), batch.mask, strict=True)]

    def logprobs_now(self, batch: Batch) -> Tensor:
        """[N,T] nats under the weights as they are, on the engine's experts where they are known."""
        known = self.routers and batch.routes_engine
        replayed = routes_to_replay(batch, "routes_engine", self.routers) if known else None
        with self.mesh.together(Message(Verb.LOGPROBS, batch)), torch.no_grad():
            return self.logprobs(self.model, batch, self._routing_pass(batch, replayed))

    def gradients(self, minibatch: Batch, algorithm: Algorithm) -> tuple[float, UpdateRecord | None]:
        """Adds the minibatch's gradient to the parameters; any split adds up to the same. -> the loss, what it saw.

        Where no row has a gradient that gradient is 0, on which an optimizer with momentum moves on. Nothing is run
        for it, but one row in the first update: which parameters have a gradient is not known before.
        """
        replays = self.routing.replay is not ReplayFrom.NONE
        trained = algorithm.trained_rows(minibatch) | bool(self.routing.losses)
        if not trained.any() and self.optimizer.set_gradient_to_zero():
            return 0.0, None
        exact = {"logp_live": self.precision}
        seen = {name: torch.zeros(minibatch.tokens.shape, dtype=exact.get(name)) for name in SEEN}
        loss = 0.0
        replayed = routes_to_replay(minibatch, "routes", self.routers) if replays else None
        routing = self._routing_pass(minibatch, replayed, self.routing.losses)
        for trains, piece in self._trained_and_others(minibatch, trained, routing):
            bonus = algorithm.entropy_coefficient != 0
            with (
                torch.set_grad_enabled(trains),
                self._attending(self.model, piece.layout),
                routing.microbatch(piece.index, piece.layout) as add_router_losses,
            ):
                live, entropy = self._forward(self.model, piece, entropy_gradient=bonus)
                out = self._objective(algorithm, piece.micro, live, entropy)
                value = add_router_losses(out.value)
                if trains:
                    value.backward()
            loss += value.item()
            for name, column in zip(SEEN, (live, out.log_ratio, out.share, entropy, out.kl), strict=True):
                if column is not None:
                    place(seen[name], piece.index, column)
        (loss,) = self.mesh.sums([loss])
        if not trained.any():
            return loss, None
        seen = {name: self.mesh.joined(column) for name, column in seen.items()}
        kl, routed = seen.pop("kl"), self._recorded(routing)
        return loss, UpdateRecord(**seen, kl=kl if algorithm.kl.in_loss else None, routing=routed)

    def _trained_and_others(
        self, minibatch: Batch, trained: Tensor, routing: RoutingPass
    ) -> Iterator[tuple[bool, Piece]]:
        """Microbatches of the rows that have a gradient, then of those that are run for the record alone: True, False.
        The shortest row alone where none has one.
        """
        for trains in (True, False) if trained.any() else ():
            rows = trained if trains else self._read(minibatch) & ~trained
            for piece in self.pieces(minibatch, routing, rows.nonzero()[:, 0]):
                yield trains, piece
        if not trained.any():
            for piece in self.pieces(minibatch, routing, minibatch.length.argmin()[None]):
                yield True, piece

    def update(self, minibatch: Batch, algorithm: Algorithm) -> UpdateResult:
        """One optimizer update on a weighted minibatch; skipped where loss or gradient is not finite."""
        with self.mesh.together(Message(Verb.UPDATE, minibatch, {"factor": self.optimizer.factor})):
            rate = self.optimizer.begin()
            loss, seen = self.gradients(minibatch, algorithm)
            outcome = self.optimizer.finish(loss)
        return UpdateResult(loss, outcome.gradient_norm, learning_rate=rate, applied=outcome.applied, seen=seen)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter by its name, as an engine takes them, gathered one at a time where they are in shards."""
        with self.mesh.together(Message(Verb.WEIGHTS)):
            yield from self.whole_weights()

    def whole_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The same, where all ranks call it at the same point of their work."""
        return ((name, whole(parameter)) for name, parameter in self.model.named_parameters())

    def renew_reference(self) -> None:
        """The reference, a model of its own, becomes the policy as it is now."""
        own = dict(self._own_reference.named_parameters())
        with self.mesh.together(Message(Verb.RENEW_REFERENCE)):
            for name, weight in self.whole_weights():
                set_whole(own[name], weight)

    def save_reference(self, folder: Path, name: str) -> dict[str, str]:
        """The reference's weights into a checkpoint's folder -> the hashes of the files that ranks wrote."""
        with self.mesh.together(Message(Verb.SAVE_REFERENCE, others={"folder": str(folder), "name": name})):
            return checkpoint.write_parameters(folder, self._own_reference, name, self.mesh)

    def restore_reference(self, folder: Path, name: str) -> None:
        """The reference as a checkpoint has it, bit for bit. Raises ValueError where it does not fit."""
        with self.mesh.together(Message(Verb.RESTORE_REFERENCE, others={"folder": str(folder), "name": name})):
            checkpoint.read_parameters(folder, self._own_reference, name)

    @property
    def _own_reference(self) -> nn.Module:
        assert self.reference is not None
        return self.reference

    def save(self, folder: Path, tokenizer: Any) -> dict[str, str]:
        """The policy, as `from_pretrained` loads it, and its optimizer, into a checkpoint's folder -> the hashes of the
        files that ranks wrote. Rank 0 writes the policy.
        """
        with self.mesh.together(Message(Verb.SAVE, others={"folder": str(folder)})):
            weights = None if self.mesh.alone else whole_state(self.model, holds=self.mesh.leads)
            if self.mesh.leads:
                save_policy(self.model, tokenizer, folder / checkpoint.POLICY, weights)
            return checkpoint.write_optimizer(folder, self.model, self.optimizer.adamw, mesh=self.mesh)

    def restore(self, folder: Path, updates: int) -> None:
        """Policy and optimizer as a checkpoint has them, bit for bit, after `updates` updates.

        The policy is loaded as a model, because the files of some name weights otherwise than the model does, such as
        each expert by itself where the model holds them as one.
        """
        with self.mesh.together(Message(Verb.RESTORE, others={"folder": str(folder), "updates": updates})):
            saved = load_policy(folder / checkpoint.POLICY).model.state_dict()
            if self.mesh.alone:
                self.model.load_state_dict(saved)
            else:
                set_whole_state(self.model, saved)
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

    def _forward(self, model: nn.Module, piece: Piece, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
        def logprobs() -> tuple[Tensor, Tensor]:
            return sequence_logprobs(
                *halves(model),
                piece.micro.tokens,
                piece.micro.mask,
                self.temperature,
                piece.micro.support,
                entropy_gradient,
                piece.layout,
                chunk_elements=self.chunk_logits,
                held_elements=self.held_logits,
                adjustment=self.adjustment,
            )

        with self.autocast():
            return self.run(model, logprobs)

    @contextmanager
    def _attending(self, model: nn.Module, layout: Layout) -> Iterator[None]:
        """Inside, a forward of the model and its backward run as the layout and the settings have it."""
        backbone, _ = halves(model)
        with reproducible(self.device), self.fused.running(), ExitStack() as stack:
            if layout.line is not None:
                stack.enter_context(in_line(backbone))
            if self.recompute and torch.is_grad_enabled():
                stack.enter_context(recomputed(backbone))
            yield

    def _routing_pass(
        self, batch: Batch, replayed: RowRoutes | None, losses: RouterLosses | None = None
    ) -> RoutingPass:
        return RoutingPass(halves(self.model)[0], self.routers, batch, replayed, losses)

    def _recorded(self, routing: RoutingPass) -> RoutingRecord | None:
        """What the routers did on all ranks; None for a dense model."""
        return routing.record(self.mesh.joined, self.mesh.sums)
