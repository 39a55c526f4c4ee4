"""An algorithm: one of each part, and the two things it does with a batch, credit and loss."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from groupwise.algorithms.calls import call
from groupwise.algorithms.dialect import Dialect
from groupwise.algorithms.parts import Part
from groupwise.algorithms.parts.advantage import Advantage, require_binary, unwhitened
from groupwise.algorithms.parts.aggregate import Aggregate, count, over_tokens
from groupwise.algorithms.parts.filters import Filter, KeepAll
from groupwise.algorithms.parts.kl import KL
from groupwise.algorithms.parts.mismatch import Mismatch, NoMismatch
from groupwise.algorithms.parts.ratio import Ratio, TokenRatio, bounded
from groupwise.algorithms.parts.rejection import NoRejection, Rejection
from groupwise.algorithms.parts.shaping import NoReward, OutcomeReward, Shaping, at_last_token, sampled_kl
from groupwise.algorithms.parts.trust import Trust, require_turns_apart
from groupwise.core.masked import keep, real, whiten
from groupwise.core.numbers.inputs import (
    LARGEST,
    Column,
    mask_of,
    numbers,
    per_token,
    require_finite,
    require_mask_shape,
    require_shape,
    whole_numbers,
)
from groupwise.core.records import Batch

#: The fields of a row that are no parts, each the weight of a term.
COEFFICIENTS = ("entropy_coefficient", "likelihood_coefficient")


class LossOut(NamedTuple):
    """The answer of a loss.

    value      scalar: what an optimizer minimises; differentiable in logp_live
    share      [N,T] fraction of gradient the trust region passes, 0 where masked
    log_ratio  [N,T] nats, 0 where masked
    kl         [N,T] nats, 0 where masked, or None without a KL term in the loss
    centre     [N,T] nats, 0 where masked, or None where nothing is centered
    """

    value: Tensor
    share: Tensor
    log_ratio: Tensor
    kl: Tensor | None
    centre: Tensor | None = None


@dataclass(frozen=True)
class Algorithm:
    """A row of parts. loss = -(weight * (correction * surrogate - beta * kl + c * entropy)).sum()

    With a likelihood coefficient mu it has - mu * logp_live besides, mean over the tokens of right completions (VAPO,
    2504.05118); right are those whose score is above 0.

    reinforced  factor on the surrogate, of `mixed`
    paper    where the row comes from
    summary  what it does, in one sentence
    watch    what to look at while it trains, and what good looks like
    passes   passes over a batch unless the recipe says otherwise
    dialects the same algorithm with the constants of others

    Raises ValueError if a correction per token, or an advantage per turn, meets a ratio or trust region that is one
    number per completion.
    """

    name: str
    paper: str
    advantage: Advantage
    ratio: Ratio
    trust: Trust
    aggregate: Aggregate
    kl: KL = KL()
    shaping: Shaping = OutcomeReward()
    filter: Filter = KeepAll()
    mismatch: Mismatch = NoMismatch()
    rejection: Rejection = NoRejection()
    entropy_coefficient: float = 0.0
    likelihood_coefficient: float = 0.0
    reinforced: float = 1.0
    passes: int = 1
    summary: str = ""
    watch: str = ""
    dialects: tuple[Dialect, ...] = ()

    def __post_init__(self) -> None:
        if self.trust.reads_tokens and not isinstance(self.ratio, TokenRatio):
            raise ValueError(
                f"trust.kind ({self.trust}) reads the probability of each token, but ratio.level ({self.ratio}) is not "
                'the ratio of one; take ratio.level = "token"'
            )
        varying = [slot for slot, part in self.corrections if part.varies]
        if varying and self.trust.sampler_top:
            raise ValueError(
                f"{varying[0]}.kind ({getattr(self, varying[0])}) weighs each token for itself, after trust.kind "
                f'({self.trust}) has centered it; take it out, or trust.kind = "centered-tis" or "centered-mis"'
            )
        if varying and (self.ratio.per_completion or self.ratio.per_turn or self.trust.per_completion):
            shared = f"trust.kind ({self.trust})" if self.trust.per_completion else f"ratio.level ({self.ratio})"
            unit = "turn" if self.ratio.per_turn and not self.trust.per_completion else "completion"
            remedy = {"mismatch": 'mismatch.kind = "sequence-mis"', "rejection": 'rejection.kind = "sequence"'}
            raise ValueError(
                f"{varying[0]}.kind ({getattr(self, varying[0])}) corrects each token for itself, but {shared} is one "
                f"number per {unit}, gradient included; take {remedy[varying[0]]}, or "
                'ratio.level = "sequence-token" with a trust region per token'
            )
        if self.advantage.by_turn:
            require_turns_apart(self.advantage, self.ratio, self.trust)
        if isinstance(self.shaping, NoReward) and not (self.kl.in_reward or self.kl.divergence):
            raise ValueError(
                f"kl.place ({self.kl.place}, beta {self.kl.beta:g}) leaves nothing that trains, since shaping.kind "
                '("none") gives no reward; take kl.place = "reward" with a beta above 0, or kl.estimator = "full"'
            )
        if self.advantage.reads_steps and not self.advantage.by_turn and self.kl.in_reward:
            raise ValueError(
                f"kl.place ({self.kl.place}) puts a penalty on every token; advantage.kind ({self.advantage}) "
                'reads rewards at step ends only; take kl.place = "loss"'
            )

    @property
    def needs_reference(self) -> bool:
        """True if logp_ref is read."""
        return self.kl.reads_reference

    @property
    def needs_old(self) -> bool:
        """True if `credit` reads logp_old; several updates on a batch need it all the same."""
        return self.kl.in_reward or self.corrects

    @property
    def corrections(self) -> tuple[tuple[str, Mismatch], ...]:
        """(slot, part) of those whose product is the correction for an engine that is not the learner."""
        return (("mismatch", self.mismatch), ("rejection", self.rejection))

    @property
    def corrects(self) -> bool:
        """True if anything corrects for the engine."""
        return any(part.reads_engine for _, part in self.corrections)

    @property
    def reads_steps(self) -> bool:
        """True if scores of the steps inside a completion are read."""
        return self.shaping.reads_steps or self.advantage.reads_steps

    @property
    def needs_steps(self) -> bool:
        """True if nothing can be trained without scores of steps."""
        return self.shaping.needs_steps or self.advantage.reads_steps

    @property
    def parts(self) -> dict[str, Part]:
        """The row, slot by slot, in the order data passes them."""
        slots = ("shaping", "filter", "advantage", "ratio", "trust", "mismatch", "rejection", "kl", "aggregate")
        return {slot: getattr(self, slot) for slot in slots}

    def credit(self, batch: Batch, weights: Sequence[float] | None = None) -> Batch:
        """Add `reward`, `advantage`, `returns` and, if a mismatch is corrected, `correction`, each [N,T].

        With `weights` [K] the rewards in `reward_scores` are credited one by one, so that one of small spread weighs as
        much as one of large spread: advantage = sum_k weight_k advantage(reward_k).
        """
        reward = call("shaping", self.shaping, batch)
        if self.kl.in_reward:
            reward = reward - self.kl.beta * sampled_kl(batch, self.kl)
        given = {name: getattr(batch, name) for name in ("value", "mask", "group", "step_end", "step_state")}
        if weights is None:
            advantage, returns = self._advantage(reward, **given)
        else:
            scored = [dataclasses.replace(batch, score=score) for score in batch.need("reward_scores").unbind(1)]
            alone = dataclasses.replace(self, advantage=unwhitened(self.advantage))
            each = [alone._advantage(call("shaping", self.shaping, one), **given) for one in scored]
            advantage, returns = (
                torch.stack([w * column for w, column in zip(weights, columns, strict=True)]).sum(0)
                for columns in zip(*each, strict=True)
            )
            if alone.advantage != self.advantage:
                advantage = keep(whiten(advantage, batch.mask), (advantage != 0).any(1)[:, None])
        correction = self._correction(batch.logp_old, batch.logp_engine, batch.mask)
        return batch.add(reward=reward, advantage=advantage, returns=returns, correction=correction)

    def _advantage(
        self,
        reward: Tensor,
        value: Tensor | None,
        mask: Tensor,
        group: Tensor,
        step_end: Tensor | None,
        step_state: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        if self.advantage.binary:
            require_binary(reward, mask, describe=str(self.advantage))
        states = (step_state,) if self.advantage.reads_states else ()
        return call("advantage", self.advantage, reward, value, mask, group, step_end, *states)

    def mixed(self, reinforced: float, penalty: float) -> "Algorithm":
        """Multiply surrogate, entropy bonus and likelihood term by `reinforced`, the KL term by `penalty`."""
        if reinforced == penalty == 1:
            return self
        scaled = {name: reinforced * getattr(self, name) for name in COEFFICIENTS}
        kl = dataclasses.replace(self.kl, beta=penalty * self.kl.beta)
        return dataclasses.replace(self, reinforced=reinforced, kl=kl, **scaled)

    def weigh(self, minibatch: Batch) -> Batch:
        """Add `weight` and, if it is read, `likelihood`, each [N,T] and made once for the optimizer batch."""
        likelihood = over_tokens(minibatch.score > 0, minibatch.mask) if self.likelihood_coefficient else None
        return minibatch.add(weight=self._weight(minibatch.mask), likelihood=likelihood)

    def _weight(self, mask: Tensor) -> Tensor:
        return call("aggregate", self.aggregate, mask, count(mask))

    def trained_rows(self, minibatch: Batch) -> Tensor:
        """Find the rows [N] of a weighted minibatch whose loss can have a gradient.

        Every surrogate is proportional to the advantage: a row whose advantages are 0, as where all scores of its group
        are equal, trains nothing but a KL term or an entropy bonus.
        """
        weighted = minibatch.mask & (minibatch.need("weight") != 0)
        if self.kl.in_loss or self.entropy_coefficient:
            return weighted.any(1)
        trained = weighted & (minibatch.need("advantage") != 0)
        return (trained if minibatch.likelihood is None else trained | (minibatch.likelihood != 0)).any(1)

    def advantages(
        self,
        rewards: Column,
        groups: Column,
        mask: Column | None = None,
        step_end: Column | None = None,
        step_state: Column | None = None,
    ) -> Tensor:
        """Rewards [N] (or per token [N,T]) and integer group ids [N] -> advantages of the rewards' shape.

        A NaN reward does not vote and gets 0; so does a row whose mask [N,T] is all False. Rewards [N] are given at the
        last trained token. Columns are tensors, arrays or lists of any type of numbers, masks bool or 0 and 1; the
        advantages are float32, or float64 if the rewards are. Raises ValueError if shapes differ, a reward is
        infinite, or the advantage reads a critic's values: groupwise.gae takes them.

        >>> import groupwise
        >>> groupwise.algorithm("grpo").advantages(torch.tensor([1.0, 0.0, 1.0, 1.0]), torch.tensor([7, 7, 3, 3]))
        tensor([ 0.7071, -0.7071,  0.0000,  0.0000])
        """
        if self.advantage.reads_value:
            raise ValueError(f"{self.name}: its advantages need a critic's values; groupwise.gae takes them")
        rewards = numbers("rewards", rewards)
        groups = whole_numbers("groups", groups, rewards)
        if rewards.dim() not in (1, 2):
            raise ValueError(f"rewards has shape {tuple(rewards.shape)}; [N], or [N,T] per token, is due")
        require_shape("groups", groups, rewards.shape[:1], "an id for each reward [N]:")
        each = rewards if rewards.dim() == 2 else rewards[:, None]
        inside = torch.ones_like(each, dtype=torch.bool) if mask is None else mask_of("mask", mask, rewards)
        due = rewards.shape if rewards.dim() == 2 else (*rewards.shape, *inside.shape[-1:])
        require_shape("mask", inside, torch.Size(due), "[N,T] of the rewards:")
        voting = (inside if rewards.dim() == 2 else inside.any(-1)) & ~rewards.isnan()
        require_finite("rewards", rewards, voting, "finite numbers are due, or NaN where there is no reward", LARGEST)
        if rewards.dim() == 1:
            each = at_last_token(rewards, inside)
        if self.advantage.reads_steps and step_end is None:
            raise ValueError(f"{self.name}: its advantages read where steps end; give step_end [N,T], True there")
        ends = None if step_end is None else mask_of("step_end", step_end, rewards)
        states = None if step_state is None else whole_numbers("step_state", step_state, rewards)
        for name, column in (("step_end", ends), ("step_state", states)):
            if column is not None:
                require_shape(name, column, inside.shape, "[N,T] of the mask:")
        advantage, _ = self._advantage(each, None, inside, groups, ends, states)
        if rewards.dim() == 2:
            return advantage
        return at_last_token(advantage.new_ones(len(advantage)), inside).mul(advantage).sum(-1)

    def loss(
        self,
        logp_live: Column,
        logp_old: Column,
        advantage: Column,
        mask: Column,
        logp_ref: Column | None = None,
        logp_engine: Column | None = None,
        entropy: Column | None = None,
        right: Column | None = None,
        divergence: Column | None = None,
        centre: Column | None = None,
    ) -> LossOut:
        """Compute an optimizer batch's loss. Log-probabilities [N,T] nats, advantage [N] or [N,T], mask [N,T] bool.

        right       [N] bool, the right completions, for a likelihood term
        divergence  [N,T] nats, of kl.estimator "full" or "top-k", which need whole distributions
        centre      [N,T] nats, trust.centre(log p, log q) of trust.kind "centered" and its like, with its gradient

        Masked positions may hold anything; an all-masked batch gives value 0 and gradient 0. Columns are of any type of
        numbers, the mask bool or 0 and 1: what is returned is made in float32, or float64 if log-probabilities are,
        and the gradient arrives in logp_live's own type.
        Raises ValueError if a KL term, a mismatch correction, an entropy bonus or a likelihood term lacks its column,
        shapes differ, or a trained token has a number that is not finite.
        """
        live = numbers("logp_live", logp_live)
        inside = mask_of("mask", mask, live)
        if inside.dim() != 2:
            raise ValueError(f"mask has shape {tuple(inside.shape)}; [N,T] is due")
        old = numbers("logp_old", logp_old, live)
        advantage = per_token(numbers("advantage", advantage, live), inside)
        given = {"logp_ref": logp_ref, "logp_engine": logp_engine, "entropy": entropy, "centre": centre}
        given["divergence"] = divergence
        more = {name: None if one is None else numbers(name, one, live) for name, one in given.items()}
        columns = {"logp_live": live, "logp_old": old, "advantage": advantage, **more}
        require_mask_shape(inside, **columns)
        whole = self.kl.divergence is not None
        reads_ref = self.kl.in_loss and self.kl.reads_reference and not whole
        reads_engine = self.corrects or self.trust.sampler_top > 0
        read = {"logp_ref": reads_ref, "divergence": whole, "logp_engine": reads_engine}
        read["entropy"] = bool(self.entropy_coefficient)
        for name, column in columns.items():
            if column is not None and read.get(name, True):
                require_finite(name, column, inside, "finite numbers are due at every trained token", LARGEST)
        more["correction"] = self._correction(old, more["logp_engine"], inside)
        if right is not None:
            require_shape("right", one := mask_of("right", right, live), inside.shape[:1], "[N] of the mask:")
            more["likelihood"] = over_tokens(one, inside)
        return self.objective(self._weight(inside), live, old, advantage, inside, **more)

    def objective(
        self,
        weight: Tensor,
        logp_live: Tensor,
        logp_old: Tensor,
        advantage: Tensor,
        mask: Tensor,
        logp_ref: Tensor | None = None,
        correction: Tensor | None = None,
        entropy: Tensor | None = None,
        likelihood: Tensor | None = None,
        divergence: Tensor | None = None,
        logp_engine: Tensor | None = None,
        centre: Tensor | None = None,
    ) -> LossOut:
        """Compute the loss under weights [N,T] made beforehand, so that parts of an optimizer batch add up to it."""
        require_mask_shape(mask, logp_live=logp_live, logp_old=logp_old, logp_ref=logp_ref, entropy=entropy)
        require_mask_shape(mask, weight=weight, correction=correction, likelihood=likelihood, divergence=divergence)
        require_mask_shape(mask, logp_engine=logp_engine, centre=centre)
        live, old = keep(real(logp_live), mask), keep(real(logp_old), mask)
        advantage = keep(per_token(advantage, mask).to(live.dtype), mask)
        log_ratio = call("ratio", self.ratio, live, old, mask)
        far, centre = log_ratio, centre if self.trust.sampler_top else None
        if self.trust.sampler_top:
            if logp_engine is None or centre is None:
                raise ValueError(f"{self.name} centers tokens ({self.trust}) and needs logp_engine and centre [N,T]")
            far, centre = live - keep(real(logp_engine), mask).to(live.dtype), keep(real(centre), mask)
        surrogate, share = call("trust", self.trust, far, advantage, live, mask)
        total = surrogate if centre is None else surrogate - advantage * centre.to(live.dtype)
        total = total if correction is None else total * keep(correction.to(live.dtype), mask)
        if self.reinforced != 1:
            total = self.reinforced * total
        kl = self._kl(live, old, logp_ref, divergence, mask)
        if kl is not None:
            total = total - self.kl.beta * kl
        if self.entropy_coefficient:
            if entropy is None:
                raise ValueError("an entropy coefficient is set and needs the entropy column [N,T]")
            total = total + self.entropy_coefficient * keep(real(entropy), mask)
        value = -(weight.to(live.dtype) * total).sum()
        if self.likelihood_coefficient:
            if likelihood is None:
                raise ValueError("a likelihood coefficient is set and needs which completions are right [N]")
            value = value - self.likelihood_coefficient * (likelihood.to(live.dtype) * live).sum()
        kl, centre = (None if x is None else x.detach() for x in (kl, centre))
        return LossOut(value, share.detach(), log_ratio.detach(), kl, centre)

    def _correction(self, logp_old: Tensor | None, logp_engine: Tensor | None, mask: Tensor) -> Tensor | None:
        parts = [(slot, part) for slot, part in self.corrections if part.reads_engine]
        if not parts:
            return None
        if logp_old is None or logp_engine is None:
            words = ", ".join(str(part) for _, part in parts)
            raise ValueError(f"{self.name} corrects for the engine ({words}): needs logp_old and logp_engine")
        first, *others = (call(slot, part, logp_old, logp_engine, mask) for slot, part in parts)
        return first if not others else first * others[0]

    def _kl(
        self, live: Tensor, old: Tensor, logp_ref: Tensor | None, divergence: Tensor | None, mask: Tensor
    ) -> Tensor | None:
        if not self.kl.in_loss:
            return None
        if self.kl.divergence is not None:
            if divergence is None:
                raise ValueError(f"{self.name} has {self.kl.estimator} in its loss and needs divergence [N,T]")
            return keep(real(divergence), mask)
        if self.kl.against == "old":
            return self.kl(live, old, bounded(live - old))
        if logp_ref is None:
            raise ValueError(f"{self.name} has a KL term in its loss (beta {self.kl.beta}) and needs logp_ref")
        return self.kl(live, keep(real(logp_ref), mask), bounded(live - old))
