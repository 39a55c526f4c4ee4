"""The progress of a run: misleading and mute rewards; learning, level, falling, solved; held out against training.

A run that has no pass rate goes by the mean of what it is measured by, with standard errors alone: a reward's scale is
not known.
"""

import math
from statistics import fmean, stdev
from typing import NamedTuple

from groupwise.health.symptoms.base import (
    BAD,
    GOOD,
    NEUTRAL,
    RECENT,
    SOLVED,
    History,
    Row,
    Seen,
    numbers,
    short,
    symptom,
)
from groupwise.health.symptoms.signal import windows

# Thresholds; each symptom says why it stands where it does.
FALLEN = 0.1
RISING = 0.01
ENOUGH = 20
APART, NEAR, LEAST = 0.1, 5, 3
#: The keys that sampling and evaluation both have.
SAMPLED_BY = ("temperature", "top_p", "top_k", "min_p", "logit_bias", "repetition_penalty")
SAMPLED_BY += ("min_new_tokens", "stop", "stop_ids")
SURE = 3.0
FALL = 0.05
#: Reward units: no spread at all, rounding aside.
FLAT = 1e-9


@symptom(
    name="over-optimisation",
    limit=f"pass_rate more than {FALL:g} below its best ten steps while learned_mean is higher than in those steps",
)
def over_optimised(h: History) -> Seen | None:
    parts = [(numbers("pass_rate", part), numbers("learned_mean", part)) for part in windows(h.rows)]
    means = [(fmean(rates), fmean(scores)) for rates, scores in parts if rates and scores]
    if len(means) < 2:
        return None
    best, at_best = max(means)
    rate, learned = means[-1]
    if rate >= best - FALL or learned <= at_best:
        return None
    return Seen(
        f"The reward model's score rose from {short(at_best)} to {short(learned)} while the pass rate fell from "
        f"{short(best)} to {short(rate)}: the policy has learned to please the reward model, not to be right.",
        f"Take an earlier checkpoint; a larger algorithm.kl.beta (it is {h.setting('algorithm.kl.beta', 0):g}), more "
        "or better pairs, or the task's own score as a second reward",
        tone=BAD,
    )


@symptom(
    limit="learned_right_mean not above learned_wrong_mean",
)
def reward_model_cannot_tell(h: History) -> Seen | None:
    right, wrong = h.mean("learned_right_mean"), h.mean("learned_wrong_mean")
    if right is None or wrong is None or right > wrong:
        return None
    return Seen(
        f"The reward model scores right completions {short(right)} and wrong ones {short(wrong)} over {h.over}: it "
        "can no longer tell them apart.",
        "More pairs of what the policy writes now: preference.pairs, preference.noise; or stop here",
    )


@symptom(
    limit="rewards.NAME.spread_within_groups 0 in all of the last ten steps, unless solved",
)
def reward_without_spread(h: History) -> Seen | None:
    columns = [name for name in h.names("rewards.") if name.endswith(".spread_within_groups")]
    spreads = {name.removeprefix("rewards.").removesuffix(".spread_within_groups"): h.mean(name) for name in columns}
    spreads.pop("task", None)  # the groups' own finding says that
    flat = [name for name, spread in spreads.items() if name in h.rewards and spread is not None and spread <= FLAT]
    if not flat or h.solved or h.compares_within_group is False:
        return None
    names = ", ".join(flat)
    return Seen(
        f"Reward {names} gave every completion of a group the same score over {h.over}: it trains nothing.",
        "A finer score than all or nothing" + (f", or leave [rewards.{flat[0]}] out" if may_go(h, flat[0]) else ""),
    )


@symptom(
    limit=f"pass_rate of {SOLVED:g} or more over the last ten steps, without a rising curriculum",
    live=False,
)
def solved(h: History) -> Seen | None:
    rate = h.mean("pass_rate")
    if rate is None or not h.solved or h.moving:
        return None
    return Seen(
        f"The pass rate over {h.over} was {short(rate)}: little is left to learn here.",
        "Harder problems, or stop here",
        tone=GOOD,
    )


@symptom(
    limit=f"at the end: the last quarter's pass_rate exceeds the one before by {RISING:g} and two standard errors",
    live=False,
)
def still_rising(h: History) -> Seen | None:
    then, now = quarters(h)
    steps = h.setting("steps", math.inf)
    if not then or h.step < steps or h.solved or not risen(h, then, now):
        return None
    return Seen(
        f"The {h.measured.words} was still rising at the end: {short(fmean(then))} in the third quarter of the run, "
        f"{short(fmean(now))} in the last.",
        f"steps = {2 * steps}",
        tone=NEUTRAL,
    )


@symptom(
    limit=f"from {ENOUGH} steps on: the last quarter's pass_rate is not above the one before; a warning if it is not "
    "above the first ten steps either",
    live=False,
)
def levelled_off(h: History) -> Seen | None:
    then, now = quarters(h)
    if not then or len(h.rows) < ENOUGH or h.solved or h.moving or risen(h, then, now):
        return None
    start, end = h.measure(h.rows[:RECENT]), h.measure()
    if not start or not end:
        return None
    if risen(h, start, end):
        return Seen(
            f"The {h.measured.words} has levelled off at {short(fmean(now))}; it began at {short(fmean(start))}.",
            f'{h.more_samples}, a schedule that lowers learner.learning_rate (schedule = "cosine"), or more problems '
            "of those that fail",
            tone=NEUTRAL,
        )
    if fallen(h, start, end):
        return None  # "falling" says it
    rate = h.setting("learner.learning_rate", 0)
    faster = f"learner.learning_rate = {3 * rate:.0e} (it is {rate:g})" if rate else "Another learner.learning_rate"
    return Seen(
        f"The {h.measured.words} is where it began: {short(fmean(start))} in the first {len(start)} steps, "
        f"{short(fmean(end))} over {h.over}.",
        f"{faster}, {h.more_samples}, or easier problems first",
    )


@symptom(
    limit=f"pass_rate {FALLEN:g} and {SURE:g} standard errors below the best ten steps, without a rising curriculum",
)
def falling(h: History) -> Seen | None:
    parts = [(h.measure(part), part[-1].get("step")) for part in windows(h.rows)]
    means = [(fmean(rates), error_of(rates), step) for rates, step in parts if len(rates) >= RECENT // 2]
    if len(means) < 2 or h.moving:
        return None
    (best, error, step), (now, error_now, _) = max(means), means[-1]
    if now >= best - max(FALLEN if h.has_scale else 0.0, SURE * math.hypot(error, error_now)):
        return None
    return Seen(
        f"The {h.measured.words} fell from {short(best)} (ten steps up to step {step}) to {short(now)} over {h.over}.",
        f"A checkpoint from around step {step}; a lower learner.learning_rate, or a larger algorithm.kl.beta",
    )


@symptom(
    limit=f"avg_at_k of the newest evaluation after step 0 and the training pass_rate around it ({LEAST} to {NEAR} "
    f"steps on each side) differ by {APART:g} and {SURE:g} standard errors",
    live=False,
)
def held_out_apart(h: History) -> Seen | None:
    column = h.measured.column
    evaluated = [row for row in h.evaluated if row.get("step", 0) > 0]
    comparable = [(row, sides) for row in evaluated if (sides := _sides(h, row.get("step", 0)))]
    if not comparable or h.moving:
        return None
    row, sides = comparable[-1]
    step, evaluation = row.get("step", 0), row["evaluation"]
    held, train = evaluation[column], fmean(side.mean for side in sides if side.measured)
    error = _error_held_out(h, evaluation, train)
    # The nearer side: training above on one side and below on the other is a policy on its way.
    above = min(_beyond(h, side.mean - held, error, side.error) for side in sides)
    below = min(_beyond(h, held - side.mean, error, side.error) for side in sides)
    if max(above, below) <= 0:
        return None
    words = (
        f"After step {step} the held-out {h.measured.words} was {short(held)}, and {short(train)} on the "
        "training problems around that step"
    )
    same = all(h.setting(f"evaluation.{k}") == h.setting(f"sampling.{k}") for k in SAMPLED_BY)
    if not same:
        return Seen(f"{words}: but evaluation samples in another way than training.", tone=NEUTRAL)
    if below > 0:
        return Seen(f"{words}: the held-out problems are easier.", "A held-out split of the same kind", NEUTRAL)
    return Seen(
        f"{words}: it learns the training problems rather than the task, or the held-out ones are of another kind.",
        "More training problems, fewer steps, or a larger algorithm.kl.beta",
    )


class _Side(NamedTuple):
    """The training rate of the weights on one side of an evaluation's; not measured if it is a continuation."""

    mean: float
    error: float
    measured: bool = True


def _sides(h: History, step: int) -> list[_Side]:
    """Gather the rates of the weights before an evaluation's and of those from it on; empty if too few are known.

    Step s + 1 trains on samples of the weights that the evaluation after step s has. If the steps after it are not
    known, the rates of those before, reflected about the last of them, stand for them: in a run whose rate rises or
    falls fast, every training sample that is known comes from weights that were worse, or better, than the evaluated.
    If the last of them are older than the weights of the step before, nothing is near enough to be compared.
    """
    nearest = [row for row in h.rows if step - NEAR <= _weights(row) < step + NEAR]
    before = h.measure([row for row in nearest if _weights(row) < step])
    after = h.measure([row for row in nearest if _weights(row) >= step])
    if len(before) < LEAST:
        return []
    first = _Side(fmean(before), error_of(before))
    if len(after) >= LEAST:
        return [first, _Side(fmean(after), error_of(after))]
    if _weights(nearest[-1]) < step - 1:
        return []
    return [first, _Side(2 * before[-1] - first.mean, 2 * stdev(before), measured=False)]


def _weights(row: Row) -> float:
    """Find the step after which the weights that sampled a step's tokens were made; the mean over the tokens."""
    return row.get("step", 0) - 1 - sum(numbers("token_age_mean", [row]))


def _error_held_out(h: History, evaluation: Row, train: float) -> float:
    """Estimate the standard error of what was measured held out; infinite if it is not known.

    Of a share at least what it can be for problems that pass as those of training do: of eight problems that are all
    wrong the error seems to be 0.
    """
    problems = sum(numbers("problems", [evaluation]))
    error = sum(numbers("standard_error", [evaluation]))
    if problems > 0 and h.has_scale:
        return max(error, math.sqrt(max(0.0, train * (1 - train)) / problems))
    return error if problems > 0 and error > 0 else math.inf


def _beyond(h: History, apart: float, *errors: float) -> float:
    """Compute how far a difference lies beyond what is let pass, from the standard errors of both sides."""
    return apart - max(APART if h.has_scale else 0.0, SURE * math.hypot(*errors))


@symptom(
    limit="a metric that is null in every row",
    live=False,
)
def never_measured(h: History) -> Seen | None:
    names = dict.fromkeys(name for row in h.rows for name, value in row.items() if value is None)
    empty = [name for name in names if not numbers(name, h.rows) and name not in _explained(h)]
    if not empty:
        return None
    return Seen(
        f"Never measured, in any of {len(h.rows)} steps: {', '.join(empty)}.",
        "docs/reference/metrics.md says what each is measured on",
        tone=NEUTRAL,
    )


def may_go(h: History, reward: str) -> bool:
    """Tell if a recipe without this reward still has one that trains, and names this one nowhere else."""
    named = {h.setting("evaluation.metric"), h.setting("algorithm.filter.metric")}
    return reward not in named and bool(h.rewards.keys() - {reward})


def quarters(h: History) -> tuple[list[float], list[float]]:
    """Gather what was measured in the third and in the last quarter; empty if a quarter has fewer than three."""
    n = len(h.rows) // 4
    if n < 3:
        return [], []
    then, now = h.measure(h.rows[-2 * n : -n]), h.measure(h.rows[-n:])
    return (then, now) if len(then) >= 3 and len(now) >= 3 else ([], [])


def risen(h: History, then: list[float], now: list[float]) -> bool:
    least = RISING if h.has_scale else 0.0
    return fmean(now) - fmean(then) > max(least, 2 * math.hypot(error_of(then), error_of(now)))


def fallen(h: History, then: list[float], now: list[float]) -> bool:
    error = SURE * math.hypot(error_of(then), error_of(now))
    return fmean(now) < fmean(then) - (FALLEN if h.has_scale else error)


def error_of(rates: list[float]) -> float:
    """Compute the standard error of the mean; infinite for a single number: nothing differs from it.

    core.statistics has it too, but health imports nothing of core.
    """
    return stdev(rates) / math.sqrt(len(rates)) if len(rates) > 1 else math.inf


def _explained(h: History) -> set[str]:
    """Name the metrics that are empty for a reason which the page shows anyway."""
    names = {"share_passed_positive", "share_passed_negative"}  # no advantage had that sign
    rates = h.numbers("pass_rate", h.rows)
    if not rates or max(rates) == 0:
        names |= {"length_right_mean", "learned_right_mean"}
    if not rates or min(rates) == 1:
        names |= {"length_wrong_mean", "learned_wrong_mean"}
    if not rates:  # the task has no right and wrong
        names |= {"pass_rate", "score_mean", "score_spread_within_groups", "score_spread_batch"}
    return names
