"""The invariants a run checks about itself, each with a name, a limit and a cause in plain words; and the errors that
stop it: a failed check, completions that cannot be scored, a step without signal, updates that are never finite.
"""

import dataclasses
import math
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor

from groupwise.algorithms.parts.aggregate import Aggregate, count
from groupwise.algorithms.parts.filters import Signal, signal
from groupwise.core.engine import Engine, Request, Sampling
from groupwise.core.errors import CheckFailed, RunError
from groupwise.core.numbers.measure import CORRECTNESS
from groupwise.core.numbers.seeds import derive
from groupwise.core.records import Group, Prompt
from groupwise.core.settings import Changeable, Settings
from groupwise.core.stream import RolloutResult
from groupwise.diagnostics.tolerance import SIGMAS, Estimate, Limits, NumericalNoise, Tolerance, ratio_excess, tilt
from groupwise.health.checks import (
    AGE_IS_BOUNDED,
    ENGINE_IS_LOADED,
    GAP_IS_LEVEL,
    LEARNER_IS_ENGINE,
    LIVE_IS_OLD,
    RATIOS_AVERAGE_ONE,
    REFERENCE_IS_START,
    REPLAYED_ARE_USED,
    WEIGHTS_REACH_TOTAL,
    Invariant,
)
from groupwise.health.symptoms.base import Finding, many
from groupwise.health.symptoms.signal import remedy

#: Nats, of all but one token in a hundred, and ten times that of any: a chat model's float32 is 2.5e-5 from float64 at
#: the 99th percentile, and single tokens are further (docs/concepts/checks.md), while a fault moves most of them, or
#: one by far.
FLOAT32_LIMIT = 1e-4
MOST_TOKENS, OUTLIER = 0.99, 10
WEIGHT_LIMIT = 1e-9
#: Tokens that a bias rests on at least: with fewer, chance goes beyond SIGMAS.
FEWEST_POINTS = 30
#: Steps after which the probe is asked in any case: what is wrong with the loading of weights is so from the first on.
ALWAYS_ASKED = 4
#: Nats in the mean by which the learner's answers move when its weights surely changed in bfloat16 too.
MOVED_BF16 = 1e-3
#: This many optimizer updates in a row with a loss or gradient that is not finite stop the run.
MOST_SKIPPED = 3


class CheckVerdict(Enum):
    PASS = "pass"
    FAIL = "fail"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Check:
    """One invariant, measured once.

    value    what was measured, in the check's unit; NaN if it was not
    cause    if it failed: what that means and where to look
    stops    whether the run ends if it failed; else it is a warning
    """

    invariant: Invariant
    verdict: CheckVerdict
    value: float
    limit: float
    cause: str = ""
    stops: bool = True

    @property
    def name(self) -> str:
        return self.invariant.name

    @property
    def failed(self) -> bool:
        return self.verdict is CheckVerdict.FAIL

    def __str__(self) -> str:
        if self.verdict is CheckVerdict.NOT_MEASURED:
            return f"{self.name}: not measured ({self.cause})"
        return f"{self.name}: {self.verdict.value} ({self.value:.2g}, limit {self.limit:.3g})"


def require_passed(checks: Sequence[Check], step: int) -> None:
    """Raise CheckFailed, if a check failed that stops the run, with every such one and its cause."""
    failed = [c for c in checks if c.failed and c.stops]
    if failed:
        causes = "; ".join(f"'{c.name}' is {c.value:.3g}, limit {c.limit:.3g}: {c.cause}" for c in failed)
        raise CheckFailed(f"step {step}: a check failed, and training on would be silently wrong. {causes}")


def worst(checks: Sequence[Check]) -> list[Check]:
    """Choose one check per name: a failed one before any other, then the one with the largest value."""
    by_name: dict[str, Check] = {}
    for check in checks:
        before = by_name.setdefault(check.name, check)
        ranks = [(one.failed, -math.inf if math.isnan(one.value) else one.value) for one in (before, check)]
        by_name[check.name] = check if ranks[1] > ranks[0] else before
    return list(by_name.values())


def live_equals_old(logp_live: Tensor, logp_old: Tensor | None, mask: Tensor, rounding: NumericalNoise | None) -> Check:
    """Check that live and old log-probabilities are one on a batch's first update: every ratio is 1."""
    if logp_old is None:
        return _unmeasured(LIVE_IS_OLD, LIVE_IS_OLD.unmeasured)
    return _gap(LIVE_IS_OLD, (logp_live - logp_old)[mask], rounding)


def learner_equals_engine(logp: Tensor, logp_engine: Tensor, fresh: Tensor, tolerance: Tolerance) -> list[Check]:
    """Check that learner and engine give one log-probability for each token that the current weights sampled, `fresh`.

    If numerical noise is too large for a limit on single tokens, the gap's systematic part is checked as well.
    """
    if not fresh.any():
        return [_unmeasured(LEARNER_IS_ENGINE, "no row of this batch was sampled by the current weights")]
    gap, rounding = (logp - logp_engine)[fresh], tolerance.engine
    size = _gap(LEARNER_IS_ENGINE, gap, rounding)
    if rounding is None:
        return [size]
    excess = _bias(RATIOS_AVERAGE_ONE, ratio_excess(gap), rounding.divergence)
    return [size, excess, _bias(GAP_IS_LEVEL, tilt(gap, logp_engine[fresh]), tolerance.tilt)]


def weights_reach_total(weight: Tensor, mask: Tensor, aggregate: Aggregate) -> Check:
    """Check that the loss weights of an optimizer batch add up to what their aggregate declares."""
    declared = aggregate.declared(count(mask))
    gap = abs(float(weight.sum()) - declared) / max(1.0, declared)
    return _check(WEIGHTS_REACH_TOTAL, gap, WEIGHT_LIMIT)


def reference_is_start(
    logp_ref: Tensor | None, logp_start: Tensor | None, mask: Tensor, rounding: NumericalNoise | None, other: str = ""
) -> Check:
    """Check that before the first update the policy is the reference: their log-probabilities are one, the KL is 0.

    other  why the reference is another policy on purpose; "" if it is not
    """
    if other:
        return _unmeasured(REFERENCE_IS_START, other)
    if logp_ref is None or logp_start is None:
        return _unmeasured(REFERENCE_IS_START, "no reference is read, or the start is not measured")
    return _gap(REFERENCE_IS_START, (logp_start - logp_ref)[mask], rounding)


def replayed_are_used(share: float) -> Check:
    """Check that the experts that computed are those that were replayed; `share` of them are not."""
    return _check(REPLAYED_ARE_USED, share, 0.0)


def no_older(groups: Sequence[Group], newest: int, most: int) -> Check:
    """Check that no token sampled for a step is more than `most` versions older than the newest weights."""
    versions = [completion.version for group in groups for completion in group.completions]
    if not versions:
        return _unmeasured(AGE_IS_BOUNDED, AGE_IS_BOUNDED.unmeasured)
    return _check(AGE_IS_BOUNDED, float(newest - min(versions)), float(most))


def nothing_ran(invariant: Invariant) -> Check:
    """Leave a check of an update in which no row had a gradient, so that none was run, unmeasured."""
    return _unmeasured(invariant, "no row of the update had a gradient, so that none was run")


def read_twice(invariant: Invariant, value: float, limit: float, cause: str, stops: bool) -> Check:
    """Check that two readings of one thing, `value` apart, are one; `stops` if the run ends where they are not."""
    return dataclasses.replace(_check(invariant, value, limit, cause), stops=stops)


def unread(invariant: Invariant, why: str) -> Check:
    """Leave a check unmeasured that a reading could not make."""
    return _unmeasured(invariant, why)


def not_asked(every: int) -> Check:
    """Leave the check of a weight load after which the probe was not asked unmeasured."""
    return _unmeasured(ENGINE_IS_LOADED, f"the probe is asked after every {every} steps")


class WitnessAction(StrEnum):
    """Action of a run when its witness disagrees with a step."""

    STOP = "stop"
    WARN = "warn"
    OFF = "off"


class CheckSettings(Settings):
    """Self-checks of a run.

    probe_every    steps between probes, which compare answers of engine and learner; the first four steps always have
                   one
    witness        action if an independent recomputation of the step disagrees (docs/concepts/checks.md); "off": no
                   recomputation
    witness_every  steps between slow checks by recomputation; a run or resume always begins with one
    """

    probe_every: Changeable[int] = Field(default=4, ge=1, le=10**9)
    witness: Changeable[WitnessAction] = Field(default=WitnessAction.STOP, strict=False)
    witness_every: Changeable[int] = Field(default=100, ge=1, le=10**9)

    def asks(self, step: int) -> bool:
        """Tell whether the probe is asked after the weight load of a step.

        >>> [step for step in range(1, 13) if CheckSettings(probe_every=5).asks(step)]
        [1, 2, 3, 4, 5, 10]
        """
        return step <= ALWAYS_ASKED or step % self.probe_every == 0


@dataclass
class Probe:
    """Fixed questions to engine and learner after each weight load: do they hold the same weights?

    logprobs  groups -> the learner's [tokens] nats of each completion, in their order
    prompts   what is asked, `samples` completions of `tokens` tokens at most of each
    limits    the numerical noise between them, as it is known when they are compared
    """

    engine: Engine
    logprobs: Callable[[Sequence[Group]], Sequence[Tensor]]
    prompts: Sequence[Prompt]
    samples: int
    tokens: int
    seed: int
    sampling: Sampling
    limits: Limits

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Take today's answers as what the next load must change."""
        requests = [
            Request(prompt.tokens, self.samples, derive(self.seed, "probe", i), self.tokens)
            for i, prompt in enumerate(self.prompts)
        ]
        answers = self.engine.generate(requests, self.sampling)
        self.groups = [Group(prompt, each) for prompt, each in zip(self.prompts, answers, strict=True)]
        self._learner = self.logprobs(self.groups)
        self._old = False

    def ask(self) -> None:
        """Take new answers. An engine that gives the very bits of before, while the learner moved, has old weights."""
        bits, learner = self._bits(), self._learner
        self.restart()
        if bits != self._bits():
            return
        # The same bits are of the same completions, so that the learner's log-probabilities of both compare.
        shift = float((torch.cat(list(self._learner)) - torch.cat(list(learner))).abs().mean())
        self._old = shift > (0.0 if self.limits.tolerance.probe is None else MOVED_BF16)

    def judge(self) -> Check:
        """Judge the last answers."""
        rounding = self.limits.tolerance.probe
        gap = torch.cat(list(self._learner)) - torch.tensor([x for _, logp in self._bits() for x in logp])
        if rounding is not None:
            gap = mean_by_context(gap.abs(), self.groups)
        cause = (
            "after the load the engine does not give the learner's log-probabilities; the weights did not arrive, or "
            "a cache of the old ones is served"
        )
        check = _gap(ENGINE_IS_LOADED, gap, rounding, cause)
        if self._old:
            cause = "the load changed nothing: the engine still serves the weights of before, bit for bit"
            check = Check(ENGINE_IS_LOADED, CheckVerdict.FAIL, check.value, check.limit, cause)
        return check

    def _bits(self) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        return [(c.tokens, c.logp_engine) for group in self.groups for c in group.completions]


def mean_by_context(values: Tensor, groups: Sequence[Group]) -> Tensor:
    """Average values [M] of tokens over those that follow the same words -> [C], one of each context.

    Completions of one prompt begin alike, and numerical noise is the same for a context in all of them: 8 that begin
    with the same word are one observation and not 8.

    Tokens (5, 6) and (5, 7) of one prompt with values 1, 2, 1, 4: contexts "", "5" -> 1, 3.
    """
    numbers: dict[tuple[int, tuple[int, ...]], int] = {}
    of_token = torch.tensor(
        [
            numbers.setdefault((i, completion.tokens[:t]), len(numbers))
            for i, group in enumerate(groups)
            for completion in group.completions
            for t in range(len(completion.tokens))
        ],
        dtype=torch.long,
    )
    sums = values.new_zeros(len(numbers)).index_add(0, of_token, values)
    return sums / of_token.bincount(minlength=len(numbers))


def _gap(invariant: Invariant, difference: Tensor, rounding: NumericalNoise | None, cause: str = "") -> Check:
    """Check in float32 |difference| of most tokens, or a tenth of the worst; else its mean, which the noise limits."""
    if not len(difference):
        return _unmeasured(invariant, "no token to measure on")
    size = difference.abs()
    if rounding is not None:
        return _check(invariant, float(size.mean()), rounding.limit(len(size)), cause)
    most = size.kthvalue(math.ceil(MOST_TOKENS * len(size))).values
    return _check(invariant, float(torch.maximum(most, size.max() / OUTLIER)), FLOAT32_LIMIT, cause)


def _bias(invariant: Invariant, estimate: Estimate, allowed: float) -> Check:
    if estimate.points < FEWEST_POINTS:
        return _unmeasured(invariant, f"it would rest on {estimate.points:.0f} tokens, of {FEWEST_POINTS} needed")
    return _check(invariant, abs(estimate.value), allowed + SIGMAS * estimate.error)


def _check(invariant: Invariant, value: float, limit: float, cause: str = "") -> Check:
    good = math.isfinite(value) and value <= limit
    return Check(invariant, CheckVerdict.PASS if good else CheckVerdict.FAIL, value, limit, cause or invariant.cause)


def _unmeasured(invariant: Invariant, why: str) -> Check:
    return Check(invariant, CheckVerdict.NOT_MEASURED, math.nan, math.nan, why)


def require_scores(step: int, result: RolloutResult, limit: float, log: Path, kept: Callable[[], str]) -> None:
    """Raise RunError if a larger share of the step's completions than `limit` has no score; `log` says why, and `kept`
    what of the run is kept.
    """
    completions = [c for g in result.generated for c in g.completions]
    faults = Counter(c.fault for c in completions if c.fault)
    if faults.total() > limit * len(completions):
        causes = ", ".join(f"{count} {cause}" for cause, count in faults.most_common())
        raise RunError(
            f"step {step}: {faults.total()} of {len(completions)} completions could not be scored ({causes}), more "
            f"than scoring.fault_limit = {limit:g} allows; {log} has the first of each kind. "
            f"Try: {remedy(faults)}; or a larger scoring.fault_limit. {kept()}"
        )


def require_signal(step: int, result: RolloutResult, metric: str, kept: Callable[[], str]) -> None:
    """Raise RunError if a filter that goes by `metric` kept no group within its budget, unless all is solved; `kept`
    says what of the run is kept.
    """
    signals = Counter(signal(g, metric) for g in result.generated)
    if result.fallback < len(result.groups) or signals.keys() == {Signal.ALL_RIGHT}:
        return
    mixed, differing = "mixes right and wrong completions", f"has completions that differ in {metric}"
    most = signals.most_common(1)[0][0]
    of_each = ", ".join(f"{count} {kind.value}" for kind, count in signals.most_common())
    raise RunError(
        f"step {step}: {many(result.rounds, 'round')} gave {many(len(result.generated), 'group')} and not one that "
        f"{mixed if metric == CORRECTNESS else differing} ({of_each}). {_NO_SIGNAL[most]}, or what scores them is "
        f"wrong. {kept()}"
    )


#: Why no group has signal, by what most of them are.
_NO_SIGNAL = {
    Signal.ALL_RIGHT: "The problems are too easy for this policy",
    Signal.ALL_WRONG: "The problems are too hard for this policy",
    Signal.EQUAL: "Every completion of a prompt earns the same",
    Signal.UNSCORED: "Nothing scores them",
    Signal.MIXED: "A filter of your own dropped them",
}


def collapse_ahead(
    step: int, alarms: Sequence[Finding], saved: Path, before: Path | None, rollbacks: Sequence[object]
) -> RunError:
    """Make the error that ends a run at early warnings of collapse, after it was `saved` and had gone back so often.

    before  the checkpoint from before the steps that the warnings speak of; None if none is kept
    """
    names = ", ".join(alarm.name for alarm in alarms)
    went_back = f", after going back {', then '.join(map(str, rollbacks))}" if rollbacks else ""
    earlier = f"from before the warning there is {before.name}" if before else "none from before the warning is kept"
    return RunError(
        f"an early warning of collapse at step {step}{went_back}: {names}. Saved: {saved}; {earlier}. Try: "
        f"{alarms[0].advice}. Go on, as it is or with --set KEY=VALUE: "
        f"groupwise train --resume {shlex.quote(str(saved.parents[1]))}"
    )


def never_finite(step: int, saved: Path, has_critic: bool) -> RunError:
    """Make the error that ends a run whose updates were skipped MOST_SKIPPED times in a row."""
    rates = "learner.learning_rate or critic.learning_rate" if has_critic else "learner.learning_rate"
    return RunError(
        f"step {step}: {MOST_SKIPPED} updates in a row had a loss or gradient that is not finite; each was "
        f"skipped, so the weights are sound. Saved for another try of this step: {saved}. If it happens again, "
        f"start a run with a lower {rates}"
    )
