"""The policy and its sampler: ratio tails, entropy, the gap between sampler and learner, the engine's process."""

import math
from collections.abc import Mapping
from statistics import fmean, median
from typing import NamedTuple

from groupwise.health.checks import LEARNER_IS_ENGINE
from groupwise.health.symptoms.base import (
    BAD,
    History,
    Seen,
    averages_tokens,
    is_number,
    many,
    numbers,
    percent,
    short,
    smaller_updates,
    symptom,
)

# Thresholds; each symptom says why it stands where it does.
RATIO_HIGH, RATIO_LOW, AGAIN = 1.25, 0.8, 2
SAMPLES_LOW = 0.8
ENGINE_ERROR = 1.05
CLIFF, CLIFF_FROM, GAIN = 0.2, 0.05, 0.02
RISE, RISE_BY = 2.0, 0.3
ENTROPY_LOW = 0.01
#: Times the gap of the first tokens, or of the first turn, that a later one is when it has grown.
GROWN = 2.0
#: Where the first range of tokens, and of turns, begins.
FIRST = {"token": "0", "turn": "1"}
#: Of a step's time that is waiting: then sampling beside training saves less than a tenth.
MOSTLY_WAITING = 0.9
#: Steps that are looked at, at least: the first wait is for a batch that nothing ran beside.
LEAST_STEPS = 5


@symptom(
    limit=f"in {AGAIN} of the last ten steps ratio_token_p99 above {RATIO_HIGH:g} or ratio_token_p01 below "
    f"{RATIO_LOW:g}",
    early=True,
)
def ratio_tails(h: History) -> Seen | None:
    rows = [(row, numbers("ratio_token_p99", [row]), numbers("ratio_token_p01", [row])) for row in h.recent]
    tails = [row for row, high, low in rows if high and low and (high[0] > RATIO_HIGH or low[0] < RATIO_LOW)]
    if len(tails) < AGAIN:
        return None
    high, low = max(h.numbers("ratio_token_p99", tails)), min(h.numbers("ratio_token_p01", tails))
    return Seen(
        f"In {len(tails)} of {h.over}, ratios had tails: 1 % of the tokens ended a batch at up to {short(high)} times "
        f"their old probability or more, or at down to {short(low)} times or less. The updates carry the policy far "
        "from what was sampled.",
        smaller_updates(h),
    )


@symptom(
    limit=f"median of effective_sample_share below {SAMPLES_LOW:g}",
    early=True,
)
def few_effective_samples(h: History) -> Seen | None:
    share = h.median("effective_sample_share")
    if share is None or share >= SAMPLES_LOW:
        return None
    return Seen(
        f"Over {h.over}, the ratios vary so much that the trained tokens count for {percent(share)} of their number: "
        "a few of them decide the update. Reward often falls some steps after this.",
        smaller_updates(h),
    )


@symptom(
    name="log-ratios clamped",
    limit="log_ratio_clamped_tokens above 0 in any step",
    early=True,
)
def clamped(h: History) -> Seen | None:
    count = h.total("log_ratio_clamped_tokens")
    if not count:
        return None
    return Seen(
        f"{many(count, 'token')} had a log-ratio beyond 60 nats and got no gradient: old and live policy no "
        "longer speak of the same text.",
        smaller_updates(h),
        tone=BAD,
    )


@symptom(
    limit=f"entropy_mean falls to less than {CLIFF:g} times its value within ten steps, from {CLIFF_FROM:g} nats or "
    f"more, while pass_rate gains at most {GAIN:g}",
)
def entropy_cliff(h: History) -> Seen | None:
    first, last = ends(h, "entropy_mean")
    before, now = ends(h, h.measured.training_column)
    if first is None or last is None or first < CLIFF_FROM or last > CLIFF * first:
        return None
    if before is not None and now is not None and now > before + (GAIN if h.has_scale else 0.0):
        return None
    return Seen(
        f"Entropy fell from {short(first)} to {short(last)} nats per token within {h.over}, and the "
        f"{h.measured.words} {from_to(before, now)}: the policy stops exploring without having learned.",
        f"{more_entropy(h)}, {smaller_updates(h, lead='or ')}",
    )


@symptom(
    limit=f"entropy_mean grows {RISE:g}-fold and by {RISE_BY:g} nats within ten steps while pass_rate falls",
)
def entropy_explosion(h: History) -> Seen | None:
    first, last = ends(h, "entropy_mean")
    before, now = ends(h, h.measured.training_column)
    if first is None or last is None or before is None or now is None:
        return None
    if last < RISE * first or last < first + RISE_BY or now >= before:
        return None
    return Seen(
        f"Entropy rose from {short(first)} to {short(last)} nats per token within {h.over} while the "
        f"{h.measured.words} {from_to(before, now)}: the policy is falling apart.",
        smaller_updates(h),
    )


@symptom(
    limit=f"median of entropy_mean below {ENTROPY_LOW:g} nats while pass_rate is below 0.9",
)
def no_entropy_left(h: History) -> Seen | None:
    entropy, rate = h.median("entropy_mean"), h.mean(h.measured.training_column)
    if entropy is None or entropy >= ENTROPY_LOW or h.solved:
        return None
    at = "" if rate is None else f" at a {h.measured.words} of {short(rate)}"
    alike = "the completions of a group are nearly one text, so there is nothing to compare"
    if h.compares_within_group is False:
        alike = "the completions of a prompt are nearly one text"
    return Seen(
        f"Entropy was {short(entropy)} nats per token over {h.over}{at}: {alike}.",
        f"{more_entropy(h)}, or start again with a lower learner.learning_rate",
    )


@symptom(
    limit=f"engine_probability_error, or exp(engine_gap_mean) if missing, above {ENGINE_ERROR:g} and above exp(L); L "
    "is the limit of the check 'learner = engine'",
    early=True,
)
def engine_gap(h: History) -> Seen | None:
    error, gap = h.mean("engine_probability_error"), h.mean("engine_gap_mean")
    if error is None and gap is not None:
        error = math.exp(min(gap, 60.0))  # an older run: the factor that the mean gap stands for
    if error is None or error <= max(ENGINE_ERROR, math.exp(min(_engine_limit(h), 60.0))):
        return None
    return Seen(
        f"Over {h.over}, the sampler's probability of a token and the learner's differ by a factor of {short(error)} "
        "on average: what is trained is not what was sampled.",
        "Compare sampling.temperature, top_p, top_k and the prompt template on both sides; learner.precision = "
        '"fp32"; algorithm.mismatch.kind = "tis" corrects what remains',
        tone=BAD,
    )


@symptom(
    limit=f"in {AGAIN} of the last ten steps a later range of tokens or turns has engine_gap_of_limit above 1, and "
    f"{GROWN:g} times the engine_gap_from of the first range",
)
def engine_gap_grows(h: History) -> Seen | None:
    grown = [later for kind in FIRST for later in _grown(h, kind) if len(later.gaps) >= AGAIN]
    if not grown:
        return None
    worst = max(grown, key=lambda later: fmean(later.of_limit))
    token = worst.kind == "token"
    where = f"from {worst.kind} {worst.begin} of {'a completion' if token else 'an episode'} on"
    gap, times, first = (short(fmean(values)) for values in (worst.gaps, worst.of_limit, worst.first))
    return Seen(
        f"In {len(worst.gaps)} of {h.over}, learner and engine were {gap} nats a token apart {where}, {times} times "
        f"what precision allows for so many tokens, and {first} in the first {'tokens' if token else 'turn'}. The gap "
        "grows, and a mean over all tokens hides it.",
        "Compare what depends on the place on both sides: rotary positions and their scaling, a sliding window, the "
        "length of a cache, the ids of earlier turns",
        tone=BAD,
    )


@symptom(
    limit=f"median of engine_effective_sample_share below {SAMPLES_LOW:g}",
    early=True,
)
def few_engine_samples(h: History) -> Seen | None:
    share = h.median("engine_effective_sample_share")
    if share is None or share >= SAMPLES_LOW:
        return None
    return Seen(
        f"Over {h.over}, the mismatch between sampler and learner leaves {percent(share)} of the trained tokens' "
        "worth: single tokens are far apart.",
        'algorithm.mismatch.kind = "tis", or learner.precision = "fp32"',
    )


@symptom(
    limit=f"median of seconds.wait above {MOSTLY_WAITING:g} of a step's seconds, over {LEAST_STEPS} steps or more",
)
def sampling_ahead_gains_little(h: History) -> Seen | None:
    seconds = [row.get("seconds") for row in h.recent]
    rows = [row for row in seconds if isinstance(row, Mapping) and is_number(row.get("wait"))]
    if len(rows) < LEAST_STEPS:
        return None
    waits = [float(row["wait"]) for row in rows]
    totals = [sum(float(value) for value in row.values() if is_number(value)) for row in rows]
    share = median(wait / total if total else 0.0 for wait, total in zip(waits, totals, strict=True))
    if share <= MOSTLY_WAITING:
        return None
    return Seen(
        f"Over {h.over} a step waited {short(median(waits))} s of {short(median(totals))} s for the batch that is "
        f"sampled ahead: training takes so little that sampling beside it saves at most {percent(1 - share)}, and the "
        "completions are one version older.",
        "rollout.ahead = 0, or more of what trains: prompts_per_step, passes_per_batch",
    )


@symptom(
    limit="engine_restarts of machine.jsonl above 0",
    live=False,
)
def engine_restarted(h: History) -> Seen | None:
    restarts = max(numbers("engine_restarts", h.machine), default=0)
    if not restarts:
        return None
    return Seen(
        f"The engine's process was started again {many(restarts, 'time')}: it ended or gave no sign. What was lost was "
        "sampled again, with the same completions; log.txt has the cause of each.",
        "engine.deadline, if it only was slow; more memory or a smaller engine.max_rows, if it was killed",
    )


class _Later(NamedTuple):
    """A later range of tokens or turns: its gap, as times of its limit too, and the first range's, step by step."""

    kind: str
    begin: str
    gaps: list[float]
    of_limit: list[float]
    first: list[float]


def _grown(h: History, kind: str) -> list[_Later]:
    """Gather for each later range the recent steps in which its gap is beyond its limit and has grown."""
    gap, of_limit = f"engine_gap_from_{kind}.", f"engine_gap_of_limit_from_{kind}."
    found = []
    for begin in (name.removeprefix(of_limit) for name in h.names(of_limit)):
        columns = (gap + begin, of_limit + begin, gap + FIRST[kind])
        steps = [values for row in h.recent if len(values := [x for c in columns for x in numbers(c, [row])]) == 3]
        beyond = [values for values in steps if values[1] > 1 and values[0] > GROWN * values[2]]
        found += [_Later(kind, begin, *map(list, zip(*beyond, strict=True)))] if beyond else []
    return found


def _engine_limit(h: History) -> float:
    """Find the nats that the check 'learner = engine' allows in the recent steps; 0 if it was not measured."""
    tables = (row.get("checks") for row in h.recent)
    checks = (table.get(LEARNER_IS_ENGINE.name) for table in tables if isinstance(table, Mapping))
    return max(numbers("limit", (check for check in checks if isinstance(check, Mapping))), default=0.0)


def ends(h: History, name: str) -> tuple[float | None, float | None]:
    """Take the means of the first and the last three of the recent steps; None if there are not six."""
    values = h.numbers(name)
    return (fmean(values[:3]), fmean(values[-3:])) if len(values) >= 6 else (None, None)


def from_to(before: float | None, now: float | None) -> str:
    if before is None or now is None:
        return "is not known"
    return f"went from {short(before)} to {short(now)}"


def more_entropy(h: History) -> str:
    if h.setting("algorithm.trust.kind") == "clip" and not averages_tokens(h):
        return "algorithm.trust.epsilon_high = 0.28, algorithm.entropy_coefficient = 0.001"
    return "algorithm.entropy_coefficient = 0.001"
