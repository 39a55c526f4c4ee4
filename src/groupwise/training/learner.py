"""The learner: frozen log-probabilities for a batch, and one optimizer update on a minibatch; and that of adapters."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.parts.kl import KL
from groupwise.core.collate import collate, microbatches
from groupwise.core.engine import WeightStream
from groupwise.core.numbers.reproducible import reproducible
from groupwise.core.prefixes import prefix_microbatches
from groupwise.core.records import Batch, Group
from groupwise.core.updates import Supervised, UpdateRecord, UpdateResult
from groupwise.models.adapters.lora import Adapters, read_adapters, write_adapters
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.models.forward.adjustment import UNADJUSTED, Adjustment
from groupwise.models.forward.chunks import Top
from groupwise.models.forward.forwards import CompiledLayers, recomputed
from groupwise.models.forward.fused_layers import FusedLayers
from groupwise.models.forward.heads import backward, halves
from groupwise.models.forward.logprobs import CHUNK_ELEMENTS, HELD_ELEMENTS, Scored, Teacher, layout_logprobs
from groupwise.models.forward.packed_attention import attend_packed, hidden_states, runs_packed, windows_as_one
from groupwise.models.moe.record import Router, RowRoutes
from groupwise.models.moe.settings import ReplayFrom, RoutingSettings
from groupwise.models.on_host import on_device
from groupwise.models.shards import unsharded
from groupwise.training import checkpoint
from groupwise.training.learner_settings import LearnerSettings
from groupwise.training.mesh import ALONE, Mesh, Verb
from groupwise.training.microbatch import Microbatch, Pass
from groupwise.training.optimizer import AUTO, Collected, Columns, TrainedModel
from groupwise.training.reference import renew

#: The columns of an UpdateRecord that are made inside the loss, beside logp_live.
OTHERS = ("log_ratio", "share", "entropy", "kl", "centre")


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

    def annotate(self, batch: Batch, old: bool, ref: bool, top: int = 0, routed: bool = True) -> Batch:
        """Add `logp_old` and `logp_ref` [N,T] without gradient, each only if it is read; and the reference's `top` most
        likely ids in each place.

        With experts also `routes`, if `routed`: of the pass that makes logp_old, or of one made for them if only they
        are read. With the engine's replayed there, `routes_own` says what the routers would have chosen.
        """
        with self.mesh.together(Verb.ANNOTATE, batch, old=old, ref=ref, top=top, routed=routed), torch.no_grad():
            logp_old, routes = self._under_old_policy(batch, old) if old or routed else (None, {})
            of_reference = self._under_reference(batch, top) if ref else {}
        return batch.add(logp_old=logp_old, **of_reference, **routes)

    def _under_old_policy(self, batch: Batch, old: bool) -> tuple[Tensor | None, dict[str, RowRoutes]]:
        from_engine = self.routing.replay is ReplayFrom.ENGINE
        if not old and not self.routing.reads_routes:
            return None, {}
        run = Pass(self.model, batch, self.routers, replayed="routes_engine" if from_engine else None)
        if not old and run.replayed is not None:
            return None, {"routes": run.replayed}
        logp, seen = self._scored(run)["logp"], run.record(self.mesh)
        own = {"routes_own": seen.own} if seen and from_engine else {}
        return logp if old else None, {"routes": seen.used, **own} if seen else {}

    def reference_logprobs(self, batch: Batch) -> Tensor | None:
        """Compute [N,T] nats under the reference; None if there is none."""
        return self._under_reference(batch).get("logp_ref")

    def _under_reference(self, batch: Batch, top: int = 0) -> dict[str, Tensor]:
        with self._referring() as model:
            found = {} if model is None else self._scored(Pass(model, batch), top)
        names = {"logp": "logp_ref", "ids": "ref_ids", "among": "ref_top"}
        return {names[name]: x for name, x in found.items() if x.numel() or name == "logp"}

    @contextmanager
    def _referring(self) -> Iterator[nn.Module | None]:
        """Have the reference inside, on the device; None if there is none."""
        with nullcontext() if self.reference is None else on_device(self.reference, self.device):
            yield self.reference

    def logprobs(self, model: nn.Module, batch: Batch) -> Tensor:
        """Compute [N,T] nats on the CPU, 0 where masked."""
        return self._scored(Pass(model, batch))["logp"]

    def _scored(self, run: Pass, top: int = 0) -> dict[str, Tensor]:
        """Compute `logp` [N,T] nats, and of the `top` most likely ids there `ids` and `among` [N,T,K]."""
        shape, ids = run.batch.tokens.shape, halves(self.model)[1].out_features
        found, most = Collected(shape, {"logp": self.precision}), Top(min(top, ids), ids)
        among = Collected(torch.Size((*shape, most.k)), {"ids": torch.int32, "among": self.precision})
        # Rows without a token that is read are run for their routes alone.
        for micro in self._microbatches(run, run.batch.mask.any(1) | bool(self.routers)):
            with self._forward(micro, among=most if top else None) as out:
                found.add(micro.index, {"logp": out.logp})
                among.add(micro.index, {"ids": micro.read.spread(out.ids), "among": micro.read.spread(out.among)})
        return {name: self.mesh.joined(table) for name, table in {**found.tables(), **among.tables()}.items()}

    def _microbatches(self, run: Pass, rows: Tensor) -> Iterator[Microbatch]:
        """Yield this rank's microbatches of rows [N] bool of a pass; on every rank as many, the last of some idle."""
        index, most = rows.nonzero()[:, 0], self.tokens_per_microbatch
        length = run.batch.length[index]
        parts = prefix_microbatches(run.keys[index], length, most) if self.packs else microbatches(length, most)
        for own, columns in self.dealt(run.batch, [index[part] for part in parts]):
            adjustment = self.adjustment if run.sampled else UNADJUSTED
            yield Microbatch(run, own, columns, self.packs, self.windows, adjustment)

    def completion_logprobs(self, groups: Sequence[Group], pad: int) -> list[Tensor]:
        """Compute [tokens] nats of each completion in order, under the weights as they are.

        They are on the engine's experts where these are known: this compares weights, and a choice between two equal
        experts may fall either way.
        """
        scored = [[dataclasses.replace(c, score=0.0) for c in group.completions] for group in groups]
        batch = collate([Group(one.prompt, tuple(own)) for one, own in zip(groups, scored, strict=True)], pad)
        return [row[inside] for row, inside in zip(self.logprobs_now(batch), batch.mask, strict=True)]

    def logprobs_now(self, batch: Batch, sampled: bool = True) -> Tensor:
        """Compute [N,T] nats under today's weights, on the engine's experts if known; `sampled` is as for a Pass."""
        known = self.routers and batch.routes_engine
        run = Pass(self.model, batch, self.routers, "routes_engine" if known else None, sampled=sampled)
        with self.mesh.together(Verb.LOGPROBS, batch, sampled=sampled), torch.no_grad():
            return self._scored(run)["logp"]

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
        teacher = self._teacher(minibatch, algorithm)
        run = Pass(self.model, minibatch, self.routers, replayed, losses, teacher=teacher)
        # Rows with a gradient, or the shortest one; then those that are run for the record alone.
        with_gradient = torch.arange(len(trained)) == minibatch.length.argmin() if nothing else trained
        without = torch.zeros_like(trained) if nothing else (minibatch.mask.any(1) | bool(self.routers)) & ~trained
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
        kl, centre, routed = seen.pop("kl"), seen.pop("centre"), run.record(self.mesh)
        kl, centre = kl if algorithm.kl.in_loss else None, centre if algorithm.trust.sampler_top else None
        return loss, UpdateRecord(**seen, kl=kl, routing=routed, centre=centre)

    def run_microbatch(self, micro: Microbatch, algorithm: Algorithm, trains: bool) -> tuple[Tensor, Columns]:
        """Run a microbatch, backward too if it trains -> its loss and what it saw, on the device, not waited for."""
        bonus = algorithm.entropy_coefficient != 0
        teacher = self._taught(micro, algorithm.kl)
        with torch.set_grad_enabled(trains), self._forward(micro, bonus, micro.asked, teacher) as scored:
            out = micro.objective(algorithm, scored)
            value = micro.with_router_losses(out.value)
            if trains:
                backward(value, micro.run.model)
        others = dict(zip(OTHERS, (out.log_ratio, out.share, scored.entropy, out.kl, out.centre), strict=True))
        return value.detach(), {"logp_live": scored.logp, **others}

    def _teacher(self, minibatch: Batch, algorithm: Algorithm) -> Pass | None:
        """Make the pass of the reference beside an update whose loss compares distributions over the vocabulary."""
        if algorithm.kl.divergence is None or algorithm.kl.divergence.k:
            return None
        with self._referring() as model:
            if model is None:
                raise ValueError(f"{algorithm.name} compares the policy with a reference, and there is none")
            return Pass(model, minibatch)

    def _taught(self, micro: Microbatch, kl: KL) -> Teacher | None:
        run = micro.run.teacher
        if run is None or kl.divergence is None:
            return None
        weight, bias = run.whole_head
        with torch.no_grad(), self._referring(), self._running(run, micro):
            states = self.run(run.model, lambda: hidden_states(run.backbone, micro.layout)[micro.read.places])
        return Teacher(states, weight, bias, run.change, kl.divergence)

    def supervise(self, rows: Batch) -> Supervised:
        """Add the gradient of -(weight * logp_live).sum() over weighted rows that nothing sampled."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for micro in self._microbatches(Pass(self.model, rows, sampled=False), rows.mask.any(1)):
            with self._forward(micro) as scored:
                loss = -(micro.rows.need("weight").to(scored.logp.dtype) * scored.logp).sum()
                backward(loss, self.model)
            total += loss.detach()
        (value,) = self.mesh.sums([float(total)])
        return Supervised(value, value / float(rows.need("weight").sum()), int(rows.mask.sum()))

    def update(self, minibatch: Batch | None, algorithm: Algorithm, supervised: Batch | None = None) -> UpdateResult:
        """Make one update on the sum of the losses of weighted rows, sampled and supervised; skipped if not finite."""
        with self.mesh.together(Verb.UPDATE, minibatch, supervised, factor=self.optimizer.factor):
            rate = self.optimizer.begin()
            loss, seen = (0.0, None) if minibatch is None else self.gradients(minibatch, algorithm)
            if seen is None and supervised is not None:  # a gradient of 0 lies in memory that parameters share
                self.optimizer.adamw.zero_grad(set_to_none=True)
            taught = None if supervised is None else self.supervise(supervised)
            outcome = self.optimizer.finish(loss + (taught.value if taught else 0.0))
        return UpdateResult(loss, outcome.gradient_norm, rate, outcome.applied, seen, taught)

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
            assert self.reference is not None
            renew(self.reference, self.unsharded_weights)

    def save_reference(self, folder: Path, name: str) -> dict[str, str]:
        """Save the reference's weights into a checkpoint's folder -> the hashes of the files that ranks wrote."""
        with self.mesh.together(Verb.SAVE_REFERENCE, folder=folder, name=name):
            assert self.reference is not None
            return checkpoint.write_parameters(folder, self.reference, name, self.mesh)

    def restore_reference(self, folder: Path, name: str) -> None:
        """Put the reference back as a checkpoint has it, bit for bit. Raises ValueError if it does not fit."""
        with self.mesh.together(Verb.RESTORE_REFERENCE, folder=folder, name=name):
            assert self.reference is not None
            checkpoint.read_parameters(folder, self.reference, name)

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
        checkpoint.write_policy(folder, self.model, tokenizer, self.mesh)

    def _read_policy(self, folder: Path) -> None:
        checkpoint.read_policy(folder, self.model, self.mesh)

    @contextmanager
    def _forward(
        self,
        micro: Microbatch,
        entropy_gradient: bool = False,
        among: Tensor | Top | None = None,
        teacher: Teacher | None = None,
    ) -> Iterator[Scored]:
        """Run a microbatch, and its backward inside; yields its log-probabilities and entropies [n,T]."""
        run = micro.run
        logprobs = partial(
            layout_logprobs,
            *(run.backbone, run.head, micro.layout, micro.read, self.temperature if run.sampled else 1.0),
            entropy_gradient,
            chunk_elements=self.chunk_logits,
            held_elements=self.held_logits,
            added=self.added if run.sampled else None,
            change=run.change,
            among=among,
            teacher=teacher,
        )
        with self._running(run, micro):
            yield self.run(run.model, logprobs)

    @contextmanager
    def _running(self, run: Pass, micro: Microbatch) -> Iterator[None]:
        """Let a pass's model run the layout of a microbatch inside, and its backward."""
        with reproducible(self.device, self.deterministic), self.fused.running(), ExitStack() as stack:
            if micro.layout.line is not None:
                stack.enter_context(attend_packed(run.backbone, micro.layout.line))
            if self.recompute and torch.is_grad_enabled():
                stack.enter_context(recomputed(run.backbone))
            if run.routers:
                stack.enter_context(micro.routed())
            yield


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

    @contextmanager
    def _referring(self) -> Iterator[nn.Module | None]:
        """Have the reference inside: a model of its own, or this one with its adapters off."""
        with super()._referring() as model, self.adapters.off() if model is None else nullcontext():
            yield self.model if model is None else model

    @property
    def engine_parameters(self) -> Mapping[str, Tensor]:
        """Parameters of the model without its adapters."""
        return self.adapters.like

    def unsharded_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every weight as an engine takes it, the adapters merged into it."""
        return self.adapters.merged()

    def _write_policy(self, folder: Path, tokenizer: Any) -> None:
        write_adapters(folder, self.adapters, self.model.name_or_path, self.mesh.leads)  # the base stays as it is

    def _read_policy(self, folder: Path) -> None:
        read_adapters(folder, self.adapters)
