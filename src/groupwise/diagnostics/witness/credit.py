"""Rewards, advantages and returns against their equations, made again from the scores of the records."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.parts.kl import K1, K2, K3, K3Ratio
from groupwise.algorithms.parts.shaping import NoReward, OutcomeReward, Steps
from groupwise.diagnostics.witness.advantages import DEFINITIONS, Columns, CreditGiven, whitened
from groupwise.diagnostics.witness.again import asked_again
from groupwise.diagnostics.witness.reading import Disagreement, Reading, Said, StepSeen, Unmeasured, apart, differs
from groupwise.health.checks import CREDIT_BY_DEFINITION

#: Of rewards and advantages, relative above 1: columns may be float32, and are whitened over a batch.
CLOSE = 1e-4
#: Nats beyond which a log-ratio is held back.
LARGEST = 60.0
#: KL of each estimator from x = log pi_ref - log pi_old; the ratio of the old policy to itself is 1.
KL_BY_RATIO: Mapping[type, Callable[[Tensor], Tensor]] = {
    K1: lambda x: -x,
    K2: lambda x: x.square() / 2,
    K3: lambda x: x.exp() - x - 1,
    K3Ratio: lambda x: x.exp() - x - 1,
}


class CreditReading(Reading):
    """Rewards by the shaping's equation, less the KL penalty where it is in the reward; then advantages and returns."""

    subject = CREDIT_BY_DEFINITION
    rests = True

    def __init__(self, algorithm: Algorithm) -> None:
        self._row = algorithm

    def begin(self, seen: StepSeen) -> Said:
        """Compare the columns reward, advantage and returns with their definitions."""
        batch, rows, mask = seen.batch, seen.rows, seen.rows.mask
        if batch.mask.shape != mask.shape:
            return
        score = torch.tensor(rows.score, dtype=torch.float64)
        reward = self._reward(seen, score)
        if isinstance(reward, Unmeasured):
            yield reward
        elif batch.reward is not None:
            penalty = self._penalty(seen)
            yield (
                penalty
                if isinstance(penalty, Unmeasured)
                else self._compare(seen, "reward", batch.reward, reward - penalty)
            )
        if batch.reward is None or batch.advantage is None or batch.returns is None:
            return
        # From the reward that trained, which is judged above: what rounds there would be blown up by a small deviation.
        made = self._combined(seen) if seen.rules.each else self._advantage(seen, batch.reward.double())
        if isinstance(made, Unmeasured):
            yield made
            return
        for name, theirs, ours in zip(("advantage", "returns"), (batch.advantage, batch.returns), made, strict=True):
            yield self._compare(seen, name, theirs, ours)

    def _compare(self, seen: StepSeen, name: str, theirs: Tensor, ours: Tensor) -> Disagreement:
        rows, at = seen.rows, seen.rows.trained
        if theirs.shape != ours.shape:
            return differs("the batch", f"its column {name} has the shape {tuple(theirs.shape)}")
        part = self._row.shaping if name == "reward" else self._row.advantage
        look = f"of the column {name} ({part.equation}); look at {type(part).__name__} and at what it is given"
        width = ours.shape[1]

        def place(index: tuple[int, ...]) -> str:
            return rows.place(divmod(int(at[index[0]]), width))

        return apart(place, theirs.flatten()[at], ours.flatten()[at], CLOSE, look)

    def _reward(self, seen: StepSeen, score: Tensor) -> Tensor | Unmeasured:
        """Shape a score [N] -> reward [N,T]."""
        part, mask = self._row.shaping, seen.rows.mask
        if type(part) is OutcomeReward:
            return self._outcome(seen, part, score)
        if type(part) is NoReward:
            return torch.zeros(mask.shape, dtype=torch.float64)
        if type(part) is Steps:
            return part.scale * step_scores(seen)[0]
        if not seen.slow:
            return Unmeasured(f"{type(part).__name__} is not the catalog's, and is asked again in slow readings")
        before = dataclasses.replace(
            seen.batch, score=score, reward=None, advantage=None, returns=None, correction=None
        )
        again = asked_again(part, lambda own: own(before))
        if again is None:
            return Unmeasured(f"{type(part).__name__} gives another reward when it is asked again")
        return torch.where(mask, again.double(), 0.0)

    def _outcome(self, seen: StepSeen, part: OutcomeReward, score: Tensor) -> Tensor:
        """Give the last trained token scale score + offset + overlong(length), and step ends their share."""
        mask = seen.rows.mask
        lengths = mask.sum(1)
        total = part.scale * score + part.offset
        if part.overlong_cache and part.limit:
            cache = part.overlong_cache * part.limit
            penalty = [min(0.0, max(-1.0, (part.limit - cache - n) / cache)) for n in lengths.tolist()]
            total = total + torch.tensor(penalty, dtype=torch.float64)
        reward = torch.zeros(mask.shape, dtype=torch.float64)
        trained = (lengths > 0).nonzero()[:, 0]
        last = mask.shape[1] - 1 - mask.flip(1).int().argmax(1)
        reward[trained, last[trained]] = total[trained]
        if part.step_scale and seen.batch.step_end is not None:
            reward = reward + part.step_scale * step_scores(seen)[0]
        return reward

    def _penalty(self, seen: StepSeen) -> Tensor | Unmeasured:
        """Make beta KL of each trained token under the policy that sampled it, if the penalty is in the reward."""
        kl, batch, mask = self._row.kl, seen.batch, seen.rows.mask
        nothing = torch.zeros(mask.shape, dtype=torch.float64)
        if not (kl.beta > 0 and kl.place == "reward") or batch.logp_old is None or batch.logp_ref is None:
            return nothing
        old, ref = (torch.where(mask, column.double(), 0.0) for column in (batch.logp_old, batch.logp_ref))
        x = (ref - old).clamp(-LARGEST, LARGEST)
        kind = type(kl.estimator)
        if kind in KL_BY_RATIO:
            return kl.beta * torch.where(mask, KL_BY_RATIO[kind](x), 0.0)
        if not seen.slow:
            return Unmeasured(f"{kind.__name__} is not the catalog's, and is asked again in slow readings")
        again = asked_again(kl.estimator, lambda own: own(old, ref, nothing))
        if again is None:
            return Unmeasured(f"{kind.__name__} gives another KL when it is asked again")
        return kl.beta * torch.where(mask, again.double(), 0.0)

    def _advantage(self, seen: StepSeen, reward: Tensor, **changed: object) -> Columns | Unmeasured:
        part, batch = dataclasses.replace(self._row.advantage, **changed), seen.batch  # type: ignore[type-var]
        ends, state = (None, None) if batch.step_end is None else (step_scores(seen)[1], batch.step_state)
        value = None if batch.value is None else batch.value.double()
        given = CreditGiven(
            torch.where(seen.rows.mask, reward, 0.0), seen.rows.mask, seen.rows.group, value, ends, state
        )
        if (definition := DEFINITIONS.get(type(part))) is not None:
            return definition(part, given)
        if not seen.slow:
            return Unmeasured(f"{type(part).__name__} is not the catalog's, and is asked again in slow readings")
        states = (batch.step_state,) if part.reads_states else ()
        group = torch.tensor(seen.rows.group)
        again = asked_again(part, lambda own: own(reward, batch.value, seen.rows.mask, group, ends, *states))
        if again is None:
            return Unmeasured(f"{type(part).__name__} gives another advantage when it is asked again")
        return tuple(torch.where(seen.rows.mask, column.double(), 0.0) for column in again)  # type: ignore[return-value]

    def _combined(self, seen: StepSeen) -> Columns | Unmeasured:
        """Give credit for each reward by itself, and add up advantages with the recipe's weights."""
        advantage = torch.zeros(seen.rows.mask.shape, dtype=torch.float64)
        returns = advantage.clone()
        whitens = self._row.advantage.by_reward and self._row.advantage.whiten  # type: ignore[attr-defined]
        changed = {"whiten": False} if whitens else {}
        for name, weight in seen.rules.weights.items():
            each = [dict(c.reward_scores).get(name, math.nan) for c in seen.rows.completions]
            reward = self._reward(seen, torch.tensor(each, dtype=torch.float64))
            made = reward if isinstance(reward, Unmeasured) else self._advantage(seen, reward, **changed)
            if isinstance(made, Unmeasured):
                return made
            advantage, returns = advantage + weight * made[0], returns + weight * made[1]
        if whitens:
            signal = (advantage != 0).any(1)[:, None]
            advantage = torch.where(signal, whitened(advantage, seen.rows.mask), 0.0)
        return advantage, returns


def step_scores(seen: StepSeen) -> tuple[Tensor, Tensor]:
    """Put the scores of steps, as the records have them, at their ends -> [N,T] of trained ends, and [N,T] bool."""
    rows = seen.rows
    score, ends = torch.zeros(rows.mask.shape, dtype=torch.float64), torch.zeros_like(rows.mask)
    for i, at, value in _steps(seen):
        score[i, at] += value
        ends[i, at] = True
    return torch.where(rows.mask, score, 0.0), ends


def _steps(seen: StepSeen) -> Iterator[tuple[int, int, float]]:
    for i, (prompt, completion) in enumerate(zip(seen.rows.prompts, seen.rows.completions, strict=True)):
        for index, value in completion.steps:
            yield i, len(prompt) + index, value
