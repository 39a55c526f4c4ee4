"""A run's Tolerance, measured before its first step: how far its arithmetics lie apart on its own model and prompts.

Some prompts are answered by the engine, and the learner's own forward gives the log-probabilities of those tokens three
times: as the learner computes, as the engine does (weights cast, no autocast), and in float32. What the engine says of
them is not read: a fault in it must not widen the limits that are to find it.

FSDP2 gathers a model in one type alone, so rank 0 measures a sharded policy on an unsharded copy.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from groupwise.core.engine import Engine, Request, Sampling
from groupwise.core.numbers.precision import Precision
from groupwise.core.numbers.seeds import derive
from groupwise.core.records import Completion, Group, Prompt
from groupwise.diagnostics.tolerance import FACTOR, FLOAT32, LEAST_TILT, NumericalNoise, Tolerance, tilt
from groupwise.models.adapters.packed import unpack
from groupwise.models.causal import CausalLM
from groupwise.models.forward.heads import halves
from groupwise.models.load import Policy, description, model_like
from groupwise.models.moe.settings import routers_to_record
from groupwise.models.precision import cast_weights
from groupwise.training.learner import Learner
from groupwise.training.learner_settings import LearnerPrecision, LearnerSettings

#: What is measured on: prompts, completions of each, tokens of each at most.
PROMPTS, SAMPLES, TOKENS = 8, 2, 32


@dataclass(frozen=True)
class Precisions:
    """Precision of each side of a comparison; the reference's is that of its weights, None if there is none."""

    learner: LearnerPrecision
    engine: Precision
    reference: Precision | None = None

    @property
    def exact(self) -> bool:
        """True if every side is float32."""
        return self.learner == "fp32" and not self.shorter

    @property
    def shorter(self) -> tuple[Precision, ...]:
        """The precisions, each once, to which weights of the engine or the reference are rounded."""
        both = dict.fromkeys((self.engine, self.reference))
        return tuple(precision for precision in both if precision not in ("fp32", None))


@dataclass(frozen=True)
class Passes:
    """Log-probabilities of the same tokens [M] by four arithmetics over the same weights, nats.

    live       as the learner computes
    exact      in float32
    engine     as the engine computes
    reference  as the learner computes over the reference's weights
    """

    live: Tensor
    exact: Tensor
    engine: Tensor
    reference: Tensor


def sampled_completions(
    engine: Engine, prompts: Sequence[Prompt], sampling: Sampling, seed: int
) -> list[tuple[Completion, ...]]:
    """Sample some short completions of each prompt, under random numbers that nothing else in a run draws."""
    tokens = min(TOKENS, sampling.max_new_tokens)
    requests = [Request(p.tokens, SAMPLES, derive(seed, "rounding", i), tokens) for i, p in enumerate(prompts)]
    return engine.generate(requests, sampling)


def measured_tolerance(
    policy: Policy,
    learner: Learner,
    precisions: Precisions,
    prompts: Sequence[Prompt],
    completions: Sequence[tuple[Completion, ...]],
) -> Tolerance:
    """Measure the tolerance of these precisions on these completions; nothing is run if every side is float32."""
    if precisions.exact:
        return FLOAT32
    logprobs = partial(_logprobs, prompts=prompts, pad=policy.pad, completions=completions)
    whole = UnshardedPolicy(learner)
    live, exact = logprobs(learner), logprobs(_with_model(learner, whole.model, "fp32"))
    engine, reference = exact, live
    for number, precision in enumerate(precisions.shorter):
        cast = cast_weights(whole.model if whole.gathered else unpack(copy.deepcopy(whole.model)), precision)
        if number:
            whole.gather()  # a copy that was rounded for the precision before
        if precisions.engine == precision:
            engine = logprobs(_with_model(learner, cast, "fp32"))
        if precisions.reference == precision:
            reference = logprobs(_with_model(learner, cast, precisions.learner))
    return tolerance_of(Passes(live=live, exact=exact, engine=engine, reference=reference), precisions)


def tolerance_of(passes: Passes, precisions: Precisions) -> Tolerance:
    """Return what the passes allow each comparison whose sides are not both float32."""
    learner, engine, reference = (
        precision not in ("fp32", None) for precision in (precisions.learner, precisions.engine, precisions.reference)
    )
    # Two passes that round each for itself are sqrt(2) times as far apart as either is from what is exact.
    again = _rounding(passes.live - passes.exact).scaled(2**0.5) if learner else None
    gap = passes.live - passes.engine
    lean = tilt(gap, passes.engine)
    return Tolerance(
        passes=again,
        engine=_rounding(gap) if learner or engine else None,
        probe=_rounding(gap) if engine else None,
        reference=_rounding(passes.live - passes.reference).widened(again) if learner or reference else None,
        tilt=LEAST_TILT + (FACTOR * abs(lean.value) if lean.points > 0 else 0.0),
    )


class UnshardedPolicy:
    """A learner's policy as one process computes with it: the learner's own model, or, of one in shards, a copy of it.

    gathered  whether it is a copy, which has the weights that the learner had when it was last gathered
    """

    def __init__(self, learner: Learner) -> None:
        self._learner, self.gathered = learner, not learner.mesh.alone
        own = learner.model
        self.model = model_like(CausalLM, description(own)).to(learner.device) if self.gathered else own
        self.gather()

    @torch.no_grad()
    def gather(self) -> None:
        """Take the weights as they are now, one after another; nothing if it is the learner's own model."""
        if not self.gathered:
            return
        own, buffers = dict(self.model.named_parameters()), dict(self._learner.model.named_buffers())
        for name, weight in self._learner.weights():
            own[name].copy_(weight)
        for name, buffer in self.model.named_buffers():
            buffer.copy_(buffers.get(name, buffer))


def float32_logprobs(learner: Learner) -> Callable[[Sequence[Group], int], list[Tensor]]:
    """Return `learner.completion_logprobs` in float32, under the weights as they are whenever it is called."""
    whole = UnshardedPolicy(learner)
    exact = _with_model(learner, whole.model, "fp32")

    def logprobs(groups: Sequence[Group], pad: int) -> list[Tensor]:
        whole.gather()
        return exact.completion_logprobs(groups, pad)

    return logprobs


def _with_model(learner: Learner, model: torch.nn.Module, precision: LearnerPrecision) -> Learner:
    routers = routers_to_record(halves(model)[0], learner.routing) if learner.routers else ()
    settings = LearnerSettings(precision=precision, shared_prefixes=learner.packs, attention="blocks")
    how = {"adjustment": learner.adjustment, "deterministic": learner.deterministic}
    return Learner(model, None, settings, learner.temperature, 1, learner.routing, routers, **how)


def _logprobs(
    learner: Learner, prompts: Sequence[Prompt], pad: int, completions: Sequence[tuple[Completion, ...]]
) -> Tensor:
    groups = [Group(prompt, own) for prompt, own in zip(prompts, completions, strict=True)]
    return torch.cat([logp for group in groups for logp in learner.completion_logprobs([group], pad)])


def _rounding(difference: Tensor) -> NumericalNoise:
    size = difference.double().abs()
    return NumericalNoise(mean=float(size.mean()), spread=float(size.std(correction=0)))
