"""The slow reading of an update: the gradient that AdamW got against plain autograd's, and what AdamW made of it."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from groupwise.algorithms.algorithm import Algorithm
from groupwise.core.numbers.metrics import Value
from groupwise.core.records import Batch
from groupwise.core.updates import UpdateRecord, UpdateResult
from groupwise.diagnostics.checks import MOST_SKIPPED
from groupwise.diagnostics.witness.plain.definitions import loss_terms
from groupwise.diagnostics.witness.plain.model import ModelReading
from groupwise.diagnostics.witness.plain.objective import columns_of
from groupwise.diagnostics.witness.plain.slopes import Found, ReadCritic, ReadLearner
from groupwise.diagnostics.witness.reading import Disagreement, Reading, Said, StepSeen, Unmeasured
from groupwise.health.checks import Invariant
from groupwise.models.shards import first_rows, own_part

#: Of a parameter's gradient, in its norm: in float32, and where the learner computes in bfloat16.
EXACT, ROUNDED = 5e-4, 0.5
#: Of the largest norm of the parameters read: a gradient that is smaller is compared in this.
LEAST = 1e-2
#: Times the part of a gradient that is noise, by which it may be elsewhere; from which on nothing is compared.
NOISE, NOTHING = 10.0, 0.5
#: Of a loss, in its size; and what is added to that size.
LOSS, SMALL = 1e-3, 1e-4
#: Of the learning rate, by which a weight may be elsewhere than AdamW's formula says.
MOVED = 1e-2
FLOAT32 = 2.0**-23


class AdamWKeys(Protocol):
    """The recipe's keys of an optimizer, as far as its formula reads them."""

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clip_norm: float


class Watched:
    """Copies of some parameters at a step of an optimizer: gradient, weight and moments before it, weight after it."""

    def __init__(self, adamw: torch.optim.Optimizer, named: Mapping[str, nn.Parameter]) -> None:
        self._adamw, self._named = adamw, named
        self.gradients: dict[str, Tensor] = {}
        self.before: dict[str, Tensor] = {}
        self.after: dict[str, Tensor] = {}
        self.moments: dict[str, tuple[Tensor, Tensor, float]] = {}
        self._handles = [adamw.register_step_pre_hook(self._note), adamw.register_step_post_hook(self._moved)]

    def close(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _note(self, adamw: Any, args: Any, kwargs: Any) -> None:
        for name, p in self._named.items():
            if p.grad is None:
                continue
            self.gradients[name] = copy_of(p.grad)
            self.before[name] = copy_of(p)
            state = self._adamw.state.get(p, {})
            if "exp_avg" in state:
                moments = (copy_of(state[moment]) for moment in ("exp_avg", "exp_avg_sq"))
                self.moments[name] = (*moments, float(state["step"]))  # type: ignore[assignment]

    def _moved(self, adamw: Any, args: Any, kwargs: Any) -> None:
        self.after = {name: copy_of(self._named[name]) for name in self.before}


class GradientReading(Reading):
    """Reads the first update of a slow step, of the policy and of the critic.

    model     what found loss and gradients by plain autograd, and is asked before this
    settings  of the policy's optimizer, and of the critic's
    """

    def __init__(
        self,
        subject: Invariant,
        model: ModelReading,
        row: Algorithm,
        learner: ReadLearner,
        critic: ReadCritic | None,
        settings: tuple[AdamWKeys, AdamWKeys | None],
    ) -> None:
        self.subject, self._model, self._row = subject, model, row
        self._learner, self._critic, self._settings = learner, critic, settings
        self._policy: Watched | None = None
        self._values: Watched | None = None

    def minibatch(self, seen: StepSeen, minibatch: Batch) -> Said:
        """Watch the optimizers of what was read of this minibatch."""
        self._close()
        found, values = self._model.policy, self._model.values
        if found is not None and found.names:
            if found.gradients and not found.whole:
                yield from self._on_subset(found)
            self._policy = watch(self._learner, found)
        if values is not None and self._critic is not None:
            self._values = watch(self._critic, values)

    def _on_subset(self, found: Found) -> Said:
        """Compare the gradient of these rows by the learner's own passes, several of them, before an update."""
        learner, rows = self._learner, found.rows
        if not learner.mesh.alone:
            yield Unmeasured("the gradient of a part of a minibatch, of ranks")
            return
        named, budget = dict(learner.model.named_parameters()), learner.tokens_per_microbatch
        learner.optimizer.adamw.zero_grad(set_to_none=True)
        learner.tokens_per_microbatch = max(int(rows.length.max()), min(budget, int(rows.length.sum()) // 2))
        try:
            loss, _ = learner.gradients(rows, self._row)
            found_there = {n: copy_of(named[n].grad) for n in found.gradients if named[n].grad is not None}
        finally:
            learner.tokens_per_microbatch = budget
            learner.optimizer.adamw.zero_grad(set_to_none=True)
        yield _loss("the loss of some groups of an update", loss, found)
        yield from _worst("the policy's gradient, of some groups of an update", found_there, found, 1.0, learner)

    def updated(self, seen: StepSeen, minibatch: Batch, update: UpdateResult) -> Said:
        """Read the policy's update, if it was watched."""
        watched, found = self._policy, self._model.policy
        self._policy = None
        if watched is None or found is None:
            return
        watched.close()
        if not update.applied or not watched.gradients:
            yield Unmeasured("the update was skipped")
            return
        keys = self._settings[0]
        if found.whole and found.gradients and update.supervised is None:  # whose gradient is added to this one
            if update.seen is not None:
                if self._learner.bf16:
                    found.slack += self._of_rounded(minibatch, update.seen, found)
                yield _loss("the loss of an update", update.loss, found)
            passed = clip_factor(update.gradient_norm, keys.clip_norm)
            yield from _worst("the policy's gradient", watched.gradients, found, passed, self._learner)
            yield from _whole_norm(update.gradient_norm, found, self._learner)
        yield counted(watched, self._learner, "the policy")
        yield from moved(watched, keys, update.learning_rate, "the policy's weights", self._learner)

    def _of_rounded(self, minibatch: Batch, seen: UpdateRecord, found: Found) -> float:
        """Return what the log-probabilities that an update saw make of its loss: in 16 bits a rare token may be far
        off, and where nothing bounds its ratio it is most of a small loss.
        """
        with torch.no_grad(), torch.random.fork_rng(devices=[]):  # a user's own part may draw
            return abs(float(loss_terms(self._row, columns_of(minibatch, seen)).value) - found.loss)

    def critic_updated(self, seen: StepSeen, minibatch: Batch, metrics: Mapping[str, Value]) -> Said:
        """Read the critic's update, if it was watched."""
        watched, found, critic = self._values, self._model.values, self._critic
        self._values = None
        if watched is None or found is None or critic is None:
            return
        watched.close()
        keys = self._settings[1]
        if not watched.gradients or keys is None:
            return
        if critic.bf16:
            yield Unmeasured("the gradient of a critic in bfloat16: values round as much as they err")
        else:
            yield _loss("the loss of the critic's update", metrics["value_loss"].read(), found)
            passed = clip_factor(metrics["critic_gradient_norm"].read(), keys.clip_norm)
            yield from _worst("the critic's gradient", watched.gradients, found, passed, critic)
        yield counted(watched, critic, "the critic")
        rate = critic.optimizer.adamw.param_groups[0]["lr"]
        yield from moved(watched, keys, rate, "the critic's weights", critic)

    def end(self, seen: StepSeen) -> Said:
        """Stop watching what was not updated."""
        self._close()
        return ()

    def _close(self) -> None:
        for watched in (self._policy, self._values):
            if watched is not None:
                watched.close()
        self._policy = self._values = None


def watch(trained: ReadLearner | ReadCritic, found: Found) -> Watched:
    """Watch the parameters whose gradients were found."""
    named = dict(trained.model.named_parameters())
    return Watched(trained.optimizer.adamw, {name: named[name] for name in found.names})


def copy_of(x: Tensor) -> Tensor:
    """Copy what this rank holds of a tensor."""
    return own_part(x.detach()).clone()


def clip_factor(norm: float, limit: float) -> float:
    """Return what a gradient of this norm was multiplied by."""
    return min(1.0, limit / (norm + 1e-6)) if limit else 1.0


def _loss(about: str, theirs: float, found: Found) -> Disagreement:
    # Advantages of both signs cancel in a loss: its terms are as large as its weights, which add up to about 1.
    rows = found.rows
    terms = float((rows.need("weight").double() * rows.need("advantage").double().abs() * rows.mask).sum())
    distance = max(abs(theirs - found.loss) - found.slack, 0.0) / (max(abs(found.loss), terms) + SMALL)
    return Disagreement(about, f"{theirs:.8g}, by a plain forward {found.loss:.8g}", distance, LOSS)


def _worst(
    about: str, theirs: Mapping[str, Tensor], found: Found, passed: float, trained: ReadLearner | ReadCritic
) -> Iterator[Disagreement | Unmeasured]:
    """Compare gradients, parameter by parameter, in the norm -> the worst.

    passed  what clipping multiplied theirs by
    """
    limit = (ROUNDED if trained.bf16 else EXACT) + NOISE * found.noise
    if limit > NOTHING + ROUNDED:
        yield Unmeasured("rounding is as large as what trains, or decides what the trust region passes")
        return
    named = dict(trained.model.named_parameters())
    ours = {name: rank_rows(slope, named[name], trained) for name, slope in found.gradients.items()}
    least = LEAST * max((float(g.double().norm()) for g in ours.values()), default=0.0)
    worst = Disagreement(about, "", 0.0, limit)
    for name, own in ours.items():
        there = theirs[name].to(own.device).double() / passed if name in theirs else torch.zeros_like(own).double()
        norm, other = float(own.double().norm()), float(there.norm())
        size = max(norm, least)
        distance = float((there - own.double()).norm()) / size if size else other
        if not distance <= worst.value:
            words = f"its norm is {other:.6g}, by plain autograd {norm:.6g}; look at what is multiplied before backward"
            worst = Disagreement(f"{about}, of {name}", words, distance, limit)
    yield worst


def _whole_norm(reported: float, found: Found, learner: ReadLearner) -> Iterator[Disagreement]:
    """Compare the norm that was reported, over all ranks, with that of all gradients, where all were read."""
    trained = [name for name, parameter in learner.model.named_parameters() if parameter.requires_grad]
    limit = (ROUNDED if learner.bf16 else EXACT) + NOISE * found.noise
    if set(trained) == set(found.names) and limit <= NOTHING + ROUNDED:
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in found.gradients.values()))
        apart = abs(reported - norm) / norm if norm else reported
        words = f"{reported:.6g} was reported, and by plain autograd it is {norm:.6g}"
        yield Disagreement("the norm of the policy's gradient", words, apart, limit)


def counted(watched: Watched, trained: ReadLearner | ReadCritic, about: str) -> Disagreement:
    """Compare the updates that AdamW's moments have seen with those that were made; skipped ones count."""
    made = trained.optimizer.updates - 1
    most = max((steps for *_, steps in watched.moments.values()), default=0.0)
    wrong = most > made or (most == 0 and made > MOST_SKIPPED)
    exact = isinstance(trained.optimizer.adamw, torch.optim.AdamW)
    words = f"AdamW's moments have seen {most:.0f} updates and {made} were made before; look at how a run is resumed"
    return Disagreement(f"the moments of {about}", words, float(wrong and exact), 0.0)


def rank_rows(whole: Tensor, parameter: Tensor, trained: ReadLearner | ReadCritic) -> Tensor:
    """Return of a whole tensor what this rank holds of its parameter."""
    if not isinstance(parameter, DTensor):
        return whole
    edges, rank = first_rows(parameter), trained.mesh.rank
    return whole[edges[rank] : edges[rank + 1]]


def moved(
    watched: Watched, keys: AdamWKeys, rate: float, about: str, trained: ReadLearner | ReadCritic
) -> Iterator[Disagreement | Unmeasured]:
    """Compare weights after an update with AdamW's formula, of the gradient, moments and weights before it."""
    if not isinstance(trained.optimizer.adamw, torch.optim.AdamW):
        yield Unmeasured("its moments are in 8 bits, which are another formula")
        return
    worst = Disagreement(about, "", 0.0, MOVED)
    for name, slope in watched.gradients.items():
        g, before = slope.double(), watched.before[name].double()
        zero = torch.zeros_like(g)
        mean, square, steps = watched.moments.get(name, (zero, zero, 0.0))
        mean = keys.beta1 * mean.to(g) + (1 - keys.beta1) * g
        square = keys.beta2 * square.to(g) + (1 - keys.beta2) * g * g
        t = steps + 1
        step = (mean / (1 - keys.beta1**t)) / ((square / (1 - keys.beta2**t)).sqrt() + keys.epsilon)
        due = before * (1 - rate * keys.weight_decay) - rate * step
        slack = 2 * FLOAT32 * before.abs() + 1e-30
        distance = ((watched.after[name].double() - due).abs() - slack).clamp(min=0) / (rate * (1 + step.abs()) + 1e-30)
        value = float(distance.max()) if distance.numel() else 0.0
        if not value <= worst.value:
            words = f"up to {value:.3g} learning rates ({rate:.3g}) from where AdamW's formula puts them"
            worst = Disagreement(f"{about}, {name}", words, value if not math.isnan(value) else math.inf, MOVED)
    yield worst
