"""Where a run stands: learning, level, falling, solved; held out against training; what was never measured.

A run that has no pass rate goes by the mean of what it is measured by, with standard errors alone: a reward's scale is
not known.
"""

import math
from statistics import fmean, stdev

from groupwise.health.symptoms.base import (
    GOOD,
    NEUTRAL,
    RECENT,
    SOLVED,
    History,
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
SAMPLED_BY = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "logit_bias",
    "repetition_penalty",
    "min_new_tokens",
    "stop",
    "stop_ids",
)
SURE = 3.0


@symptom(
    limit=f"pass_rate of {SOLVED:g} or more over the last ten steps, without a curriculum that rises",
    why="what is left then is mostly the noise of sampling",
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
    limit=f"at the end: the last quarter's pass_rate above the one before by {RISING:g} and two standard errors",
    why="a run that is still learning was stopped too early",
    live=False,
)
def still_rising(h: History) -> Seen | None:
    then, now = quarters(h)
    if not then or not h.ended or h.solved or not risen(h, then, now):
        return None
    steps = h.setting("steps", h.step)
    return Seen(
        f"The {h.measured.words} was still rising at the end: {short(fmean(then))} in the third quarter of the run, "
        f"{short(fmean(now))} in the last.",
        f"steps = {2 * steps}",
        tone=NEUTRAL,
    )


@symptom(
    limit=f"from {ENOUGH} steps on: the last quarter's pass_rate not above the one before; a warning where it is not "
    "above the first ten steps' either",
    why="two standard errors of a quarter's steps are what chance does",
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
            f"samples_per_prompt = {2 * h.setting('samples_per_prompt', 8)}, a schedule that lowers "
            'learner.learning_rate (schedule = "cosine"), or more problems of those that fail',
            tone=NEUTRAL,
        )
    if fallen(h, start, end):
        return None  # "falling" says it
    return Seen(
        f"The {h.measured.words} is where it began: {short(fmean(start))} in the first {len(start)} steps, "
        f"{short(fmean(end))} over {h.over}.",
        _faster(h),
    )


@symptom(
    limit=f"pass_rate {FALLEN:g} and {SURE:g} standard errors below the best ten steps, without a rising curriculum",
    why="what was learned is being lost; an early checkpoint is better than the last",
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
    limit=f"avg_at_k of an evaluation after step 0, and the training pass_rate on each side of it (the nearest {NEAR} "
    f"steps, {LEAST} or more; of the last steps those before) {APART:g} and {SURE:g} standard errors apart",
    why="with a few hundred problems less than that is chance; a policy that learns passes from one side to the other",
    live=False,
)
def held_out_apart(h: History) -> Seen | None:
    column = h.measured.column
    evaluated = [row for row in h.evaluations if numbers(column, [row["evaluation"]]) and row.get("step", 0) > 0]
    if not evaluated or h.moving:
        return None
    step, evaluation = evaluated[-1].get("step", 0), evaluated[-1]["evaluation"]
    sides = _sides(h, step)
    problems = sum(numbers("problems", [evaluation]))
    if not sides or problems <= 0:
        return None
    held = evaluation[column]
    error = sum(numbers("standard_error", [evaluation]))
    if h.has_scale:
        error = error or math.sqrt(max(0.0, held * (1 - held)) / problems)
    elif not error:
        return None  # of a reward without a standard error nothing can be said
    # The nearer side: training above on one side and below on the other is a policy on its way.
    above = min(_beyond(h, fmean(rates) - held, error, rates) for rates in sides)
    below = min(_beyond(h, held - fmean(rates), error, rates) for rates in sides)
    if max(above, below) <= 0:
        return None
    train = fmean(rate for rates in sides for rate in rates)
    words = (
        f"After step {step} the held-out {h.measured.words} was {short(held)}, and {short(train)} on the "
        "training problems around that step"
    )
    same = all(h.setting(f"evaluation.{k}") == h.setting(f"sampling.{k}") for k in SAMPLED_BY)
    if not same:
        return Seen(f"{words}: but evaluation samples in another way than training.", tone=NEUTRAL)
    if held > train:
        return Seen(f"{words}: the held-out problems are easier.", "A held-out split of the same kind", NEUTRAL)
    return Seen(
        f"{words}: it learns the training problems rather than the task, or the held-out ones are of another kind.",
        "More training problems, fewer steps, or a larger algorithm.kl.beta",
    )


def _sides(h: History, step: int) -> list[list[float]]:
    """What was measured in training in the nearest steps up to an evaluation, and after it where there are enough."""
    before = h.measure([row for row in h.rows if step - NEAR < row.get("step", 0) <= step])
    after = h.measure([row for row in h.rows if step < row.get("step", 0) <= step + NEAR])
    return [side for side in (before, after) if len(side) >= LEAST] if len(before) >= LEAST else []


def _beyond(h: History, apart: float, error: float, rates: list[float]) -> float:
    """How far a difference lies beyond what is let pass."""
    return apart - max(APART if h.has_scale else 0.0, SURE * math.hypot(error, error_of(rates)))


@symptom(
    limit="a metric that is in the rows and has a number in none",
    why="an empty plot should say that it is empty, and not look like 0",
    live=False,
)
def never_measured(h: History) -> Seen | None:
    names = dict.fromkeys(name for row in h.rows for name, value in row.items() if value is None)
    empty = [name for name in names if not numbers(name, h.rows) and name not in _explained(h)]
    if not empty:
        return None
    return Seen(
        f"Never measured, in any of {len(h.rows)} steps: {', '.join(empty)}.",
        "docs/metrics.md says what each is measured on",
        tone=NEUTRAL,
    )


def quarters(h: History) -> tuple[list[float], list[float]]:
    """What was measured in the third and of the last quarter; empty where a quarter has fewer than three."""
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
    """The standard error of their mean; of a single one, whose error is not known, infinite: nothing differs from it.

    core.statistics has it too, but health stands on the ground beside core and imports nothing.
    """
    return stdev(rates) / math.sqrt(len(rates)) if len(rates) > 1 else math.inf


def _explained(h: History) -> set[str]:
    """Metrics that are empty for a reason which the page shows anyway."""
    names = {"share_passed_positive", "share_passed_negative"}  # no advantage had that sign
    rates = h.numbers("pass_rate", h.rows)
    if not rates or max(rates) == 0:
        names |= {"length_right_mean", "learned_right_mean"}
    if not rates or min(rates) == 1:
        names |= {"length_wrong_mean", "learned_wrong_mean"}
    if not rates:  # the task has no right and wrong
        names |= {"pass_rate", "score_mean", "score_spread_within_groups", "score_spread_batch"}
    return names


def _faster(h: History) -> str:
    rate = h.setting("learner.learning_rate", 0)
    other = f"learner.learning_rate = {3 * rate:.0e} (it is {rate:g}), " if rate else "Another learner.learning_rate, "
    return f"{other}samples_per_prompt = {2 * h.setting('samples_per_prompt', 8)}, or easier problems first"
