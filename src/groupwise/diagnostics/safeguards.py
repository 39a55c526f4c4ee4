"""What stops a run: completions that cannot be scored, a step without signal, updates that are never finite."""

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from groupwise.algorithms.parts.filters import Signal, signal
from groupwise.core.errors import RunError
from groupwise.core.numbers.measure import CORRECTNESS
from groupwise.core.stream import RolloutResult
from groupwise.health.symptoms.base import Finding, many
from groupwise.health.symptoms.signal import remedy

#: This many optimizer updates in a row with a loss or gradient that is not finite stop the run.
MOST_SKIPPED = 3


def require_scores(step: int, result: RolloutResult, limit: float, log: Path, kept: Callable[[], str]) -> None:
    """Raises RunError where a larger share of the step's completions than `limit` has no score; `log` says why, and
    `kept` what of the run is kept.
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
    """Raises RunError where a filter that goes by `metric` kept no group within its budget, unless that is because all
    is solved; `kept` says what of the run is kept.
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
    """The error that ends a run at early warnings of collapse, after it was `saved` and had gone back so often.

    before  the checkpoint from before the steps that the warnings speak of; None where none is kept
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
    """The error that ends a run whose updates were skipped MOST_SKIPPED times in a row."""
    rates = "learner.learning_rate or critic.learning_rate" if has_critic else "learner.learning_rate"
    return RunError(
        f"step {step}: {MOST_SKIPPED} updates in a row had a loss or gradient that is not finite; each was "
        f"skipped, so the weights are sound. Saved for another try of this step: {saved}. If it happens again, "
        f"start a run with a lower {rates}"
    )
