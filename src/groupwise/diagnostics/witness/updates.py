"""Updates against the recipe: the learning rate that AdamW has, and the norm of the gradient that it gets."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from groupwise.core.records import Batch
from groupwise.core.updates import UpdateResult
from groupwise.diagnostics.witness.reading import Disagreement, Reading, Said, StepSeen, differs
from groupwise.diagnostics.witness.rules import UpdateRules
from groupwise.health.checks import UPDATE_AS_ASKED

#: Of rates and norms, relative: a norm is a float32 sum, made in another order.
RATE, NORM = 1e-6, 1e-3


class Optimizes(Protocol):
    """An optimizer of torch's and what surrounds it."""

    @property
    def adamw(self) -> torch.optim.Optimizer: ...


class Trained(Protocol):
    """A model that is trained, whole or, over ranks, in shards."""

    @property
    def optimizer(self) -> Optimizes: ...


@dataclass(frozen=True)
class Applied:
    """An update as AdamW makes it: its learning rates, and the norm of the gradient that it is given."""

    rates: tuple[float, ...]
    norm: float


def expected_rate(rules: UpdateRules, update: int) -> float:
    """Compute the learning rate of update number `update`, from 0, by the recipe.

    >>> rules = UpdateRules(rate=1.0, schedule="linear", warmup=2, total=6, clip_norm=1.0)
    >>> [expected_rate(rules, update) for update in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if update < rules.warmup:
        return rules.rate * (update + 1) / rules.warmup
    left = max(0.0, (rules.total - update) / max(1, rules.total - rules.warmup))
    by_schedule = {"constant": 1.0, "linear": left, "cosine": (1 - math.cos(math.pi * left)) / 2}
    return rules.rate * by_schedule[rules.schedule]


def norm_of(optimizer: torch.optim.Optimizer) -> float:
    """Compute the norm of the gradient that an optimizer holds; over ranks, of this one's part."""
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    return float(torch.nn.utils.get_total_norm([_own_part(gradient) for gradient in gradients]))


def moments_of(optimizer: torch.optim.Optimizer) -> int | None:
    """Count the updates that an optimizer's moments are of; None if it does not say."""
    counts = [state["step"] for state in optimizer.state.values() if "step" in state]
    if not counts:
        return None if any(optimizer.state.values()) else 0
    return int(max(float(count) for count in counts))


def _own_part(gradient: Any) -> Tensor:
    return gradient.to_local() if hasattr(gradient, "to_local") else gradient


class UpdatesReading(Reading):
    """Each update has the rate of the schedule, and a gradient of at most the norm that the recipe allows.

    Torch itself tells of each update, just before it is made, so that what is looked at is what moves the weights.
    """

    subject = UPDATE_AS_ASKED

    def __init__(self, policy: Trained, critic: Trained | None, whole: bool) -> None:
        """`whole`: the gradient of the policy is here, and not in parts over ranks."""
        self._factor, self._whole = 1.0, whole
        self._trained = (("learner", policy), ("critic", critic))
        self._policy: list[Applied] = []
        self._critic: list[Applied] = []
        self._updates = 0
        for trained, applied in ((policy, self._policy), (critic, self._critic)):
            if trained is not None:
                _listen(trained.optimizer.adamw, applied)

    def restart(self, step: int, rate_factor: float) -> None:
        """Take what returns from collapses have made of the policy's rate."""
        self._factor = rate_factor

    def begin(self, seen: StepSeen) -> Said:
        """Begin to count the step's updates; in slow readings compare AdamW's own count of updates with the step."""
        self._policy.clear()
        self._critic.clear()
        self._updates = 0
        for section, trained in self._trained if seen.slow else ():
            waited = seen.rules.waiting if section == "learner" else 0
            before = max(0, seen.step - 1 - waited) * seen.rules.parts * seen.rules.passes
            count = None if trained is None else moments_of(trained.optimizer.adamw)
            if count is not None and not before / 2 <= count <= before:  # skipped updates do not count
                words = f"AdamW has the moments of {count} updates, and {before} were made before this step"
                yield differs(f"the optimizer of [{section}]", f"{words}; look at what a checkpoint puts back")

    def updated(self, seen: StepSeen, minibatch: Batch, update: UpdateResult) -> Said:
        """Compare an update of the policy with the recipe, and with what was reported of it."""
        rules, number = seen.rules.learner, self._updates
        before = (seen.step - 1 - seen.rules.waiting) * seen.rules.parts * seen.rules.passes
        self._updates += 1
        applied = list(self._policy)
        self._policy.clear()
        if not update.applied:
            return
        if len(applied) != 1:
            yield Disagreement(f"update {number + 1} of the step", f"AdamW made {len(applied)} updates in it", 1.0, 0.0)
            return
        rate = self._factor * expected_rate(rules, before + number)
        yield _rate(f"update {number + 1} of the step", applied[0].rates, rate, "learner")
        yield _rate(f"update {number + 1} of the step, as reported", (update.learning_rate,), rate, "learner")
        limit = rules.clip_norm or math.inf
        due = min(limit, update.gradient_norm)
        yield from _norm(f"update {number + 1} of the step", applied[0].norm, due, limit, "learner", self._whole)

    def end(self, seen: StepSeen) -> Said:
        """Compare the critic's updates of the step with the recipe."""
        rules = seen.rules.critic
        if rules is None:
            return
        before = (seen.step - 1) * seen.rules.parts * seen.rules.passes
        whole_step = len(self._critic) == seen.rules.parts * seen.rules.passes
        for number, applied in enumerate(self._critic):
            about = f"update {number + 1} of the critic in the step"
            if whole_step:  # one that was skipped leaves open which the others are
                yield _rate(about, applied.rates, expected_rate(rules, before + number), "critic")
            limit = rules.clip_norm or math.inf
            yield from _norm(about, applied.norm, math.nan, limit, "critic", whole=False)


def _listen(optimizer: torch.optim.Optimizer, applied: list[Applied]) -> None:
    def tell(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        rates = tuple(dict.fromkeys(float(group["lr"]) for group in optimizer.param_groups))
        applied.append(Applied(rates, norm_of(optimizer)))

    optimizer.register_step_pre_hook(tell)


def _rate(about: str, rates: Sequence[float], due: float, section: str) -> Disagreement:
    worst = max(rates, key=lambda rate: abs(rate - due))
    value = abs(worst - due) / due if due else abs(worst)
    words = f"its learning rate is {worst:.6g}, and the schedule of [{section}] gives {due:.6g}"
    return Disagreement(about, words, value, RATE)


def _norm(about: str, norm: float, due: float, limit: float, section: str, whole: bool) -> Said:
    """Compare the gradient that an optimizer got with the limit, and with the norm that it was `due` to have."""
    words = f"the gradient that AdamW got has the norm {norm:.6g}"
    over = max(0.0, norm / limit - 1) if limit else 0.0
    yield Disagreement(about, f"{words}, and {section}.clip_norm = {limit:g}", over, NORM)
    if whole and math.isfinite(due):
        apart = abs(norm - due) / max(norm, due, 1e-12)
        yield Disagreement(about, f"{words}, and {due:.6g} was reported, after clipping", apart, NORM)
