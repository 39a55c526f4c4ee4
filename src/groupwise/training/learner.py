"""The learner: frozen log-probabilities for a batch, and one optimizer update on a minibatch; and that of adapters."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from groupwise.algorithms.algorithm import Algorithm, LossOut
from groupwise.core.collate import collate, microbatches
from groupwise.core.engine import WeightStream
from groupwise.core.numbers.reproducible import reproducible
from groupwise.core.prefixes import prefix_microbatches
from groupwise.core.records import Batch, Group, UpdateRecord, UpdateResult
from groupwise.core.settings import Changeable
from groupwise.models.adapters.lora import Adapters, read_adapters, write_adapters
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.models.forward.adjustment import UNADJUSTED, Adjustment
from groupwise.models.forward.forwards import CompiledLayers, recomputed
from groupwise.models.forward.fused_layers import FusedLayers
from groupwise.models.forward.heads import halves
from groupwise.models.forward.logprobs import CHUNK_ELEMENTS, HELD_ELEMENTS, layout_logprobs
from groupwise.models.forward.packed_attention import attend_packed, runs_packed, windows_as_one
from groupwise.models.load import load_policy, save_policy
from groupwise.models.moe.record import Router, RowRoutes
from groupwise.models.moe.settings import ReplayFrom, RoutingSettings
from groupwise.models.on_host import on_device
from groupwise.models.shards import set_unsharded_state, unsharded, unsharded_state
from groupwise.training import checkpoint
from groupwise.training.mesh import ALONE, DEADLINE, Mesh, Verb
from groupwise.training.microbatch import Microbatch, Pass
from groupwise.training.optimizer import AUTO, Collected, Columns, Count, OptimizerSettings, TrainedModel
from groupwise.training.ranks.arrival import read_own_rows
from groupwise.training.reference import renew

#: The columns of an UpdateRecord that are made inside the loss, beside logp_live.
OTHERS = ("log_ratio", "share", "entropy", "kl")
#: The precision that a policy can be trained in.
LearnerPrecision = Literal["fp32", "bf16"]


class LearnerSettings(OptimizerSettings):
    """Training of the policy: optimizer, memory and ranks.

    precision        "bf16": compute in bfloat16 over float32 master weights
    shared_prefixes  compute shared prefixes, such as prompts, once, and no padding
    attention        attention over shared prefixes: torch's "flex" (GPU) or "blocks" of sequences; "auto": flex for a
                     large policy if both agree
    recompute        recompute activations in the backward pass: less memory, a third more time
    compile          compile the layers with torch.compile: fewer kernels, minutes at the start
    chunk_logits     logits computed at once; "auto": as many as fit in memory
    held_logits      log-probabilities kept for the backward pass; more are recomputed
    ranks            processes on this machine that share weights, gradients, optimizer and microbatches; results are
                     equal up to rounding
    rank_deadline    seconds a rank may keep the others waiting before the run ends and names it
    """

    precision: LearnerPrecision = "fp32"
    shared_prefixes: Changeable[bool] = True
    attention: Changeable[Literal["auto", "flex", "blocks"]] = "auto"
    recompute: Changeable[bool] = False
    compile: Changeable[bool] = False
    chunk_logits: Changeable[Count] = AUTO
    held_logits: Changeable[Literal["auto"] | Annotated[int, Field(ge=0)]] = AUTO
    ranks: Changeable[int] = Field(default=1, ge=1, le=1024)
    rank_deadline: Changeable[float] = Field(default=DEADLINE, gt=0, le=10**6)

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
        mesh: Mesh = ALONE,
        deterministic: bool = True,
        teachers: Sequence[nn.Module] = (),
    ) -> None:
        """`routers` are those of a mixture of experts whose routes are recorded; none, and there are no routes.

        adjustment     what sampling does to logits before it divides them by the temperature
        mesh           the ranks over which policy and reference are put in shards; every one of them makes this
                       learner, with the same weights, and calls the same methods with the same batches
        deterministic  whether a GPU adds gradients up in one order (core/numbers/reproducible.py)
        teachers       further models whose log-probabilities are asked for, of one process
        """
        frozen = [other.eval().requires_grad_(False) for other in (reference, *teachers) if other is not None]
        models = [model.eval(), *frozen]
        # Rank 0 alone may have weights to try it with; the others get theirs where the models are sharded.
        self.packs = mesh.plain(
            mesh.leads and settings.shared_prefixes and all(runs_packed(halves(m)[0]) for m in models)
        )
        dtype = torch.bfloat16 if settings.bf16 else next(model.parameters()).dtype
        backbones = [halves(m)[0] for m in models] if self.packs else []
        self.deterministic = deterministic
        with reproducible(next(model.parameters()).device, deterministic):
            # Models of ranks come to their GPUs in shards, so that nothing could try it there before.
            attention = settings.attention if mesh.alone else "blocks"
            self.windows = windows_as_one(backbones, attention, dtype)
        fused = CompiledLayers(*models, bf16=settings.bf16) if settings.compile else FusedLayers(*models)
        super().__init__(model, settings, total_updates, settings.bf16, mesh)
        self.routing, self.routers, self.reference, self.fused = routing, routers, reference, fused
        if reference is not None:
            self.shard(reference)
        self.temperature, self.adjustment, self.recompute = temperature, adjustment, settings.recompute
        self.added = None if adjustment.bias is None else adjustment.bias.to(self.device)
        self.chunk_logits = CHUNK_ELEMENTS if settings.chunk_logits == AUTO else settings.chunk_logits
        self.held_logits = HELD_ELEMENTS if settings.held_logits == AUTO else settings.held_logits

    def annotate(self, batch: Batch, old: bool, ref: bool, routed: bool = True) -> Batch:
        """Add `logp_old` and `logp_ref` [N,T] without gradient, each only if it is read.

        With experts also `routes`, if `routed`: of the pass that makes logp_old, or of one made for them if only they
        are read. With the engine's replayed there, `routes_own` says what the routers would have chosen.
        """
        with self.mesh.together(Verb.ANNOTATE, batch, old=old, ref=ref, routed=routed), torch.no_grad():
            logp_old, routes = self._under_old_policy(batch, old) if old or routed else (None, {})
            logp_ref = self.reference_logprobs(batch) if ref else None
        return batch.add(logp_old=logp_old, logp_ref=logp_ref, **routes)

    def _under_old_policy(self, batch: Batch, old: bool) -> tuple[Tensor | None, dict[str, RowRoutes]]:
        from_engine = self.routing.replay is ReplayFrom.ENGINE
        if not old and not self.routing.reads_routes:
            return None, {}
        run = Pass(self.model, batch, self.routers, replayed="routes_engine" if from_engine else None)
        if not old and run.replayed is not None:
            return None, {"routes": run.replayed}
        logp, seen = self._logprobs(run), run.record(self.mesh)
        own = {"routes_own": seen.own} if seen and from_engine else {}
        return logp if old else None, {"routes": seen.used, **own} if seen else {}

    def reference_logprobs(self, batch: Batch) -> Tensor | None:
        """Compute [N,T] nats under the reference; None if there is none."""
        if self.reference is None:
            return None
        with on_device(self.reference, self.device):
            return self.logprobs(self.reference, batch)

    def logprobs(self, model: nn.Module, batch: Batch) -> Tensor:
        """Compute [N,T] nats on the CPU, 0 where masked."""
        return self._logprobs(Pass(model, batch))

    def _logprobs(self, run: Pass) -> Tensor:
        found = Collected(run.batch.tokens.shape, {"logp": self.precision})
        for micro in self._microbatches(run, self._read(run.batch)):
            with self._forward(micro) as (logp, _):
                found.add(micro.index, {"logp": logp})
        return self.mesh.joined(found.tables()["logp"])

    def _read(self, batch: Batch) -> Tensor:
        """Find the rows [N] with a token whose log-probability is read; all if routes are recorded."""
        return batch.mask.any(1) | bool(self.routers)

    def _microbatches(self, run: Pass, rows: Tensor) -> Iterator[Microbatch]:
        """Yield this rank's microbatches of rows [N] bool of a pass; on every rank as many, the last of some idle."""
        index, most = rows.nonzero()[:, 0], self.tokens_per_microbatch
        length = run.batch.length[index]
        parts = prefix_microbatches(run.keys[index], length, most) if self.packs else microbatches(length, most)
        for own, columns in self.dealt(run.batch, [index[part] for part in parts]):
            yield Microbatch(run, own, columns, self.packs, self.windows, self.adjustment)

    def completion_logprobs(self, groups: Sequence[Group], pad: int) -> list[Tensor]:
        """Compute [tokens] nats of each completion in order, under the weights as they are.

        They are on the engine's experts where these are known: this compares weights, and a choice between two equal
        experts may fall either way.
        """
        scored = [
            Group(group.prompt, tuple(dataclasses.replace(c, score=0.0) for c in group.completions)) for group in groups
        ]
        batch = collate(scored, pad)
        return [row[inside] for row, inside in zip(self.logprobs_now(batch), batch.mask, strict=True)]

    def logprobs_now(self, batch: Batch) -> Tensor:
        """Compute [N,T] nats under the weights as they are, on the engine's experts where they are known."""
        known = self.routers and batch.routes_engine
        run = Pass(self.model, batch, self.routers, replayed="routes_engine" if known else None)
        with self.mesh.together(Verb.LOGPROBS, batch), torch.no_grad():
            return self._logprobs(run)

    def gradients(self, minibatch: Batch, algorithm: Algorithm) -> tuple[float, UpdateRecord | None]:
        """Add the minibatch's gradient to the parameters; any split adds up to the same. -> the loss, what it saw.

        If no row has a gradient that gradient is 0, on which an optimizer with momentum moves on. Nothing is run for
        it, but one row in the first update: which parameters have a gradient is not known before.
        """
        losses = self.routing.losses
        trained = algorithm.trained_rows(minibatch) | bool(losses)
        nothing = not trained.any()
        if nothing and self.optimizer.set_gradient_to_zero():
            return 0.0, None
        replayed = None if self.routing.replay is ReplayFrom.NONE else "routes"
        run = Pass(self.model, minibatch, self.routers, replayed, losses)
        # Rows with a gradient, or the shortest one; then those that are run for the record alone.
        with_gradient = torch.arange(len(trained)) == minibatch.length.argmin() if nothing else trained
        without = torch.zeros_like(trained) if nothing else self._read(minibatch) & ~trained
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        found = Collected(minibatch.tokens.shape, {"logp_live": self.precision, **dict.fromkeys(OTHERS)})
        for trains, rows in ((True, with_gradient), (False, without)):
            for micro in self._microbatches(run, rows):
                value, columns = self.run_microbatch(micro, algorithm, trains)
                total += value
                found.add(micro.index, columns)
        (loss,) = self.mesh.sums([float(total)])  # the device is waited for here, once
        if nothing:
            return loss, None
        seen = {name: self.mesh.joined(column) for name, column in found.tables().items()}
        kl, routed = seen.pop("kl"), run.record(self.mesh)
        return loss, UpdateRecord(**seen, kl=kl if algorithm.kl.in_loss else None, routing=routed)

    def run_microbatch(self, micro: Microbatch, algorithm: Algorithm, trains: bool) -> tuple[Tensor, Columns]:
        """Run a microbatch, backward too if it trains -> its loss and what it saw, on the device, which is not waited
        for.
        """
        bonus = algorithm.entropy_coefficient != 0
        with torch.set_grad_enabled(trains), self._forward(micro, bonus) as (live, entropy):
            out = self._objective(algorithm, micro.rows, live, entropy)
            value = micro.with_router_losses(out.value)
            if trains:
                value.backward()
        others = dict(zip(OTHERS, (out.log_ratio, out.share, entropy, out.kl), strict=True))
        return value.detach(), {"logp_live": live, **others}

    def update(self, minibatch: Batch, algorithm: Algorithm) -> UpdateResult:
        """Make one optimizer update on a weighted minibatch; skipped where loss or gradient is not finite."""
        with self.mesh.together(Verb.UPDATE, minibatch, factor=self.optimizer.factor):
            rate = self.optimizer.begin()
            loss, seen = self.gradients(minibatch, algorithm)
            outcome = self.optimizer.finish(loss)
        return UpdateResult(loss, outcome.gradient_norm, learning_rate=rate, applied=outcome.applied, seen=seen)

    def weights(self) -> WeightStream:
        """Return every parameter by its name, as an engine takes them, gathered one at a time if they are in shards."""

        def whole() -> Iterator[tuple[str, Tensor]]:
            with self.mesh.together(Verb.WEIGHTS):
                yield from self.unsharded_weights()

        return WeightStream(self.engine_parameters, whole)

    @property
    def engine_parameters(self) -> Mapping[str, Tensor]:
        """Parameters of the model as an engine names them, of which this rank may hold a part."""
        return dict(self.model.named_parameters())

    def unsharded_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every parameter whole; all ranks call this at the same point of their work."""
        return ((name, unsharded(parameter)) for name, parameter in self.model.named_parameters())

    def renew_reference(self) -> None:
        """Give the reference, a model of its own, the policy's weights of now. Raises RunError as `renew` does."""
        with self.mesh.together(Verb.RENEW_REFERENCE):
            renew(self._own_reference, self.unsharded_weights)

    def save_reference(self, folder: Path, name: str) -> dict[str, str]:
        """Save the reference's weights into a checkpoint's folder -> the hashes of the files that ranks wrote."""
        with self.mesh.together(Verb.SAVE_REFERENCE, folder=folder, name=name):
            return checkpoint.write_parameters(folder, self._own_reference, name, self.mesh)

    def restore_reference(self, folder: Path, name: str) -> None:
        """Put the reference back as a checkpoint has it, bit for bit. Raises ValueError if it does not fit."""
        with self.mesh.together(Verb.RESTORE_REFERENCE, folder=folder, name=name):
            checkpoint.read_parameters(folder, self._own_reference, name)

    @property
    def _own_reference(self) -> nn.Module:
        assert self.reference is not None
        return self.reference

    def save(self, folder: Path, tokenizer: Any) -> dict[str, str]:
        """Save the policy and its optimizer into a checkpoint's folder -> the hashes of the files that ranks wrote.

        Rank 0 writes the policy, as `from_pretrained` loads it; of adapters these alone.
        """
        with self.mesh.together(Verb.SAVE, folder=folder):
            self._write_policy(folder / checkpoint.POLICY, tokenizer)
            return checkpoint.write_optimizer(folder, self.model, self.optimizer.adamw, mesh=self.mesh)

    def restore(self, folder: Path, updates: int) -> None:
        """Put policy and optimizer back as a checkpoint has them, bit for bit, after `updates` updates."""
        with self.mesh.together(Verb.RESTORE, folder=folder, updates=updates):
            self._read_policy(folder / checkpoint.POLICY)
            checkpoint.read_optimizer(folder, self.model, self.optimizer.adamw)
            self.optimizer.updates = updates

    def _write_policy(self, folder: Path, tokenizer: Any) -> None:
        weights = None if self.mesh.alone else unsharded_state(self.model, holds=self.mesh.leads)
        if self.mesh.leads:
            save_policy(self.model, tokenizer, folder, weights)

    def _read_policy(self, folder: Path) -> None:
        # As a model: the files of some name weights otherwise, such as each expert by itself that the model has as one.
        if self.mesh.alone:
            self.model.load_state_dict(load_policy(folder).model.state_dict())
        elif not read_own_rows(self.model, folder, self.mesh):
            saved = load_policy(folder).model.state_dict() if self.mesh.leads else {}
            set_unsharded_state(self.model, saved, self.mesh.tensors)

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

    @contextmanager
    def _forward(self, micro: Microbatch, entropy_gradient: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
        """Run a microbatch, and its backward inside; yields its log-probabilities and entropies [n,T]."""
        run = micro.run
        logprobs = partial(
            layout_logprobs,
            *(run.backbone, run.head, micro.layout, micro.read, self.temperature, entropy_gradient),
            chunk_elements=self.chunk_logits,
            held_elements=self.held_logits,
            added=self.added,
            change=run.change,
        )
        with reproducible(self.device, self.deterministic), self.fused.running(), ExitStack() as stack:
            if micro.layout.line is not None:
                stack.enter_context(attend_packed(run.backbone, micro.layout.line))
            if self.recompute and torch.is_grad_enabled():
                stack.enter_context(recomputed(run.backbone))
            if run.routers:
                stack.enter_context(micro.routed())
            yield self.run(run.model, logprobs)


class AdaptedLearner(Learner):
    """Trains A and B of W + alpha/r B A alone, at rate_factor times the learning rate.

    The policy is frozen, and with its adapters off it is the reference: there is no second copy of it.
    """

    def __init__(
        self,
        model: Any,
        adapter: AdapterSettings,
        seed: int,
        settings: LearnerSettings,
        temperature: float,
        total_updates: int,
        reference: nn.Module | None = None,
        mesh: Mesh = ALONE,
        **others: Any,
    ) -> None:
        """Inject adapters into the model; `seed` is the run's, of which their random numbers are a function.

        reference  another one than the model with its adapters off
        others     as `Learner` takes them
        """
        self.adapters = Adapters(model, adapter, seed, packs=True)
        self.adapters.base_digest = mesh.plain(self.adapters.base_digest)
        faster = settings.replace(learning_rate=settings.learning_rate * adapter.rate_factor)
        super().__init__(model, reference, faster, temperature, total_updates, mesh=mesh, **others)

    def reference_logprobs(self, batch: Batch) -> Tensor | None:
        """Compute [N,T] nats under the reference: a model of its own, or this one with its adapters off."""
        if self.reference is not None:
            return super().reference_logprobs(batch)
        with self.adapters.off():
            return self.logprobs(self.model, batch)

    @property
    def engine_parameters(self) -> Mapping[str, Tensor]:
        """Parameters of the model without its adapters."""
        return self.adapters.like

    def unsharded_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every weight as an engine takes it, the adapters merged into it."""
        return self.adapters.merged()

    def _write_policy(self, folder: Path, tokenizer: Any) -> None:
        # The base stays where it came from.
        write_adapters(folder, self.adapters, self.model.name_or_path, self.mesh.leads)

    def _read_policy(self, folder: Path) -> None:
        read_adapters(folder, self.adapters)
