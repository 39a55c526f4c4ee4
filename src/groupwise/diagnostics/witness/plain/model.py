"""The slow reading of the models: what a plain forward of each says of a step's first minibatch, before its update; and
of policy and critic the gradient of the loss by its definition, by plain autograd.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from groupwise.algorithms.algorithm import Algorithm
from groupwise.core.records import Batch
from groupwise.core.updates import UpdateResult
from groupwise.diagnostics.checks import FLOAT32_LIMIT, MOST_TOKENS, OUTLIER
from groupwise.diagnostics.tolerance import Limits, NumericalNoise, Tolerance
from groupwise.diagnostics.witness.plain.forward import Plain, last_values
from groupwise.diagnostics.witness.plain.slopes import (
    Found,
    ReadCritic,
    ReadLearner,
    read_critic,
    read_policy,
    read_rows,
)
from groupwise.diagnostics.witness.reading import Disagreement, Reading, Said, StepSeen, Unmeasured
from groupwise.health.checks import Invariant
from groupwise.models.forward.heads import halves
from groupwise.models.moe.record import routers
from groupwise.models.on_host import on_device

#: Times the tokens of an update that a reading of the whole minibatch runs at most: its padded rows repeat what packed
#: ones share. More is read where it is little work, tokens times weights, so that the update itself is compared.
WHOLE, MORE, LITTLE = 1.25, 2.5, 1 << 33
#: Part of an update's tokens that is read else; and of the reference, or in a step after one that was read in full.
PART, SMALL_PART = 0.5, 0.25
#: Times a measured rounding that a plain forward may be away: it is another arithmetic once more.
MARGIN = 3.0
#: Of a value or score, in its size and 1: in float32, and where its model computes in 16 bits.
EXACT, ROUNDED = 1e-4, 0.1
#: Completions that the reward model scores again.
SCORED = 8

#: Choice of one of the roundings that a run has measured.
Rounding = Callable[[Tolerance], NumericalNoise | None]


class ModelReading(Reading):
    """Reads what each model says. `policy` and `critic` are what the last slow step found, until the next step.

    whole    the policy as one process computes with it, with today's weights: itself, or a copy of one in shards
    waiting  first steps in which only the critic is trained
    old_from_engine  logp_old is the engine's, and not made by the learner
    reward   the reward model that scores, a sequence classifier, if there is one and it is whole
    apart    why logp_ref is not what the learner's reference says of the batch; "" if it is
    """

    def __init__(
        self,
        subject: Invariant,
        row: Algorithm,
        learner: ReadLearner,
        critic: ReadCritic | None,
        limits: Limits,
        whole: Callable[[], Any],
        waiting: int = 0,
        old_from_engine: bool = False,
        reward: Any = None,
        apart: str = "",
    ) -> None:
        self.subject, self._row, self._learner, self._critic = subject, row, learner, critic
        self._limits, self._whole, self._waiting = limits, whole, waiting
        self._old_from_engine, self._reward, self._apart = old_from_engine, reward, apart
        self.policy: Found | None = None
        self.values: Found | None = None
        self._read, self._full = False, -1

    def restart(self, step: int, rate_factor: float) -> None:
        """Read the next step in full."""
        self._full = -1

    def begin(self, seen: StepSeen) -> Said:
        """Forget the step before."""
        self.policy = self.values = None
        self._read = False
        return self._scored(seen) if seen.slow and self._reward is not None else ()

    def _scored(self, seen: StepSeen) -> Said:
        """Read the reward model's scores of some completions."""
        pairs = [(g.prompt.tokens, c) for g in seen.result.groups for c in g.completions if c.learned is not None]
        apart = max(1, 2 * len(pairs) // SCORED)
        few = [*pairs[::apart], *pairs[::-apart]][:SCORED]  # first and last ones of groups
        with on_device(self._reward, self._learner.device), torch.no_grad():
            ours = [last_values(self._reward, (*prompt, *completion.tokens)) for prompt, completion in few]
        theirs = torch.tensor([float(completion.learned or 0.0) for _, completion in few])
        mask = torch.ones(len(few), dtype=torch.bool)
        limit = EXACT if next(self._reward.parameters()).dtype.itemsize > 2 else ROUNDED
        yield column("the reward model's score", theirs, torch.tensor(ours, dtype=torch.float64), mask, limit)

    def minibatch(self, seen: StepSeen, minibatch: Batch) -> Said:
        """Read the first minibatch of a slow step; in the step after one that was read in full, a part of it, without
        gradient: it shows what the engine sampled with the weights after an update.
        """
        self.policy = self.values = None
        if not seen.slow or self._read:
            return
        self._read, learner = True, self._learner
        full = self._full < 0 or self._full != seen.step - 1
        self._full = seen.step if full else -1
        model = self._whole()
        work = int(minibatch.length.sum()) * sum(p.numel() for p in model.parameters())
        most = MORE if work <= LITTLE else WHOLE
        index = rows_to_read(minibatch, learner.packs, most, PART) if full else self._few(minibatch)
        whole = len(index) == len(minibatch)
        rows = minibatch if whole else minibatch.rows(index)
        plain = Plain(
            model, learner.temperature, learner.adjustment, routers(halves(model)[0]) if learner.routers else ()
        )
        trains = seen.step > self._waiting
        compares = self._row.kl.divergence is not None
        if compares:
            yield Unmeasured("the gradient of a divergence of whole distributions, which a plain forward does not make")
        given = (self._row, learner, trains, full and not compares, self._old_from_engine)
        self.policy = read_policy(plain, rows, whole, *given, of_passes(self._limits.tolerance))
        yield from self._compared(seen, self.policy)
        if full:
            yield from self._reference(plain, minibatch)
        if self._critic is not None:
            yield from self._valued(minibatch)  # whose rows the critic runs padded too

    def _few(self, minibatch: Batch) -> Tensor:
        return rows_to_read(minibatch, self._learner.packs, SMALL_PART, SMALL_PART)

    def _compared(self, seen: StepSeen, found: Found) -> Said:
        rows, ours = found.rows, found.answer.logp
        same = same_routes(found.answer.routes, rows.routes)
        if rows.logp_old is not None and not self._old_from_engine:
            yield self._gap("logp_old", rows.logp_old, ours, rows.mask & same, of_passes)
        newest = seen.step - 1
        fresh = rows.mask & (
            (rows.token_version == newest) if rows.token_version is not None else (rows.version == newest)[:, None]
        )
        fresh &= same_routes(found.answer.routes, rows.routes_engine)
        if fresh.any():
            about = f"logp_engine, of tokens that the weights after step {newest} sampled"
            yield self._gap(about, rows.logp_engine, ours, fresh, of_the_engine)
        else:
            yield Unmeasured("no token of the minibatch was sampled by the weights that the step begins with")

    def _reference(self, plain: Plain, minibatch: Batch) -> Said:
        if minibatch.logp_ref is None:
            return
        learner = self._learner
        rows = minibatch.rows(self._few(minibatch))
        adapters: Any = getattr(learner, "adapters", None)
        if why := self._apart or ("" if learner.mesh.alone else "the reference is in shards"):
            yield Unmeasured(why)
            return
        model = plain.model if learner.reference is None else learner.reference
        with on_device(model, learner.device), adapters.off() if learner.reference is None else nullcontext():
            own = () if not learner.routers else routers(halves(model)[0])
            other = Plain(model, plain.temperature, plain.adjustment, own)
            with torch.no_grad():
                ours = read_rows(other, dropped_routes(rows), learner)
        yield self._gap("logp_ref", rows.need("logp_ref"), ours.logp, rows.mask, lambda tolerance: tolerance.reference)

    def _valued(self, rows: Batch) -> Said:
        critic = self._critic
        assert critic is not None
        if not critic.mesh.alone:
            yield Unmeasured("the critic is in shards")
            return
        self.values = read_critic(critic, rows, self._learner.tokens_per_microbatch)
        ours, theirs = self.values.answer.logp, rows.need("value")
        yield column("value, the critic's", theirs, ours, rows.mask, ROUNDED if critic.bf16 else EXACT)

    def updated(self, seen: StepSeen, minibatch: Batch, update: UpdateResult) -> Said:
        """Read what the first update after the reading saw of the same rows."""
        found = self.policy
        if found is None or update.seen is None or not found.whole or len(found.rows) != len(minibatch):
            return
        rows, used = found.rows, None if update.seen.routing is None else update.seen.routing.used
        same = same_routes(found.answer.routes, used)
        if found.gradients and used is not None and not bool(same.expand(rows.mask.shape)[rows.mask].all()):
            found.gradients.clear()
            yield Unmeasured("the update ran tokens on other experts than a plain forward chose: two were equal")
        ran = rows.mask & same & (update.seen.logp_live != 0)  # rows without a gradient may not have been run
        live = update.seen.logp_live
        yield self._gap("logp_live of the first update", live, found.answer.logp, ran, of_passes)

    def _gap(self, about: str, theirs: Tensor, ours: Tensor, mask: Tensor, rounding: Rounding) -> Disagreement:
        return gap(about, theirs, ours, mask, lambda: rounding(self._limits.tolerance))


def of_passes(tolerance: Tolerance) -> NumericalNoise | None:
    """Return the rounding of two passes of the learner."""
    return tolerance.passes


def of_the_engine(tolerance: Tolerance) -> NumericalNoise | None:
    """Return the rounding between engine and learner, which a plain forward in float32 may be away from both."""
    return tolerance.engine.widened(tolerance.passes) if tolerance.engine else tolerance.passes


def rows_to_read(minibatch: Batch, packs: bool, most: float, part: float) -> Tensor:
    """Choose the rows of whole groups: all, if their padded tokens are at most `most` times those that an update runs;
    else groups with `part` of an update's tokens, or one, first those that train something.
    """
    every = torch.arange(len(minibatch))
    prompt = minibatch.mask.int().argmax(1)
    names, dense = torch.unique(minibatch.group, return_inverse=True)
    length, longest = int(minibatch.length.sum()), int(prompt.max())
    shared = torch.full((len(names),), longest, dtype=torch.long).scatter_reduce(0, dense, prompt.long(), "amin")
    run = int((minibatch.length - prompt).sum() + shared.sum()) if packs else length
    if length <= most * run:
        return every
    trains = (minibatch.mask & (minibatch.need("weight") != 0) & (minibatch.need("advantage") != 0)).any(1)
    order = sorted(range(len(names)), key=lambda g: not bool(trains[dense == g].any()))
    chosen, tokens = [], 0
    for group in order:
        own = every[dense == group]
        tokens += int(minibatch.length[own].sum())
        if chosen and tokens > part * run:
            break
        chosen.append(own)
    return torch.cat(chosen).sort().values


def same_routes(ours: tuple[Tensor, ...], theirs: Any) -> Tensor:
    """Find rows [N,1] whose tokens all ran on the same experts; all, where one side is not known."""
    if not ours or theirs is None:
        return torch.ones(max(1, len(ours)), 1, dtype=torch.bool)
    pairs = zip(ours, theirs, strict=True)
    same = [b is None or torch.equal(a.sort(-1).values.long(), b.sort(-1).values.long()) for a, b in pairs]
    return torch.tensor(same)[:, None]


def dropped_routes(rows: Batch) -> Batch:
    """Return the rows without routes: another policy chooses its own experts."""
    return replace(rows, routes=None)


def gap(
    about: str, theirs: Tensor, ours: Tensor, mask: Tensor, rounding: Callable[[], NumericalNoise | None]
) -> Disagreement:
    """Compare log-probabilities as a run's other checks do: most tokens, or the worst by a tenth; or their mean, if
    rounding was measured, with the limit of what is measured when the step is judged.
    """
    size = (theirs.double() - ours)[mask].abs().nan_to_num(nan=torch.inf)
    if not len(size):
        return Disagreement("", "", 0.0, FLOAT32_LIMIT)
    count, wider = len(size), None if rounding() is None else partial(_widest, rounding, len(size))
    if wider is not None:
        value, limit = float(size.mean()), wider()
    else:
        most = size.kthvalue(max(1, round(MOST_TOKENS * count))).values
        value, limit = float(torch.maximum(most, size.max() / OUTLIER)), FLOAT32_LIMIT
    words = f"{len(size)} tokens are {float(size.mean()):.3g} nats in the mean, {float(size.max()):.3g} at most, from "
    return Disagreement(about, f"{words}a plain forward of its model", value, limit, wider)


def _widest(rounding: Callable[[], NumericalNoise | None], tokens: int) -> float:
    measured = rounding()
    return MARGIN * measured.limit(tokens) if measured else 0.0


def column(about: str, theirs: Tensor, ours: Tensor, mask: Tensor, limit: float) -> Disagreement:
    """Compare numbers of a column at the tokens in the mask, in their size and 1."""
    distance = ((theirs.double() - ours).abs() / (1 + ours.abs()))[mask].nan_to_num(nan=torch.inf)
    value = float(distance.max()) if len(distance) else 0.0
    return Disagreement(about, f"up to {value:.3g} from a plain forward of its model", value, limit)
