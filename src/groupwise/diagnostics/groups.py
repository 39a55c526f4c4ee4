"""Of the groups that a step generated: scores, lengths, endings, signal; and what the rollout did to get them."""

import math
from collections.abc import Sequence

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.parts.filters import Signal, of_passes, signal
from groupwise.core.numbers.measure import REWARD, Logged, Measure, differ, logged_of, values_of
from groupwise.core.numbers.metrics import Last, Max, Mean, Metrics, Sum, Value, mean_of
from groupwise.core.records import Batch, Completion, Group
from groupwise.core.stream import RolloutResult, Sampled
from groupwise.diagnostics.episodes import episode_metrics
from groupwise.diagnostics.updates import preferred


def group_metrics(groups: Sequence[Group], measure: Measure = Measure(), tools: Sequence[str] = ()) -> dict[str, Value]:
    """Of the groups that a step generated, before any was dropped: scores, lengths, endings, signal, calls of tools."""
    completions = [c for g in groups for c in g.completions]
    scores = [c.score for c in completions if not math.isnan(c.score)]
    return {
        **_measured_metrics(groups, measure),
        **_part_metrics(groups),
        **_source_metrics(groups, measure),
        **_fault_metrics(completions),
        **episode_metrics(completions, measure, tools),
        "score_mean": mean_of(scores),
        "length_mean": mean_of([c.length for c in completions]),
        "length_max": Max(max((c.length for c in completions), default=0)),
        "truncated_share": Mean(sum(c.finish == "length" for c in completions), len(completions)),
        "unscored_completions": Sum(sum(math.isnan(c.trains_on) for c in completions)),
        "score_spread_batch": Mean(_deviation(scores), 1.0 if len(scores) > 1 else 0.0),
        "score_spread_within_groups": mean_of([_deviation(g.scores) for g in groups]),
        "groups_signal_share": mean_of([differ(values_of(g, REWARD)) for g in groups]),
        "generated_completions": Sum(len(completions)),
        "generated_tokens": Sum(sum(c.length for c in completions)),
    }


def _measured_metrics(groups: Sequence[Group], measure: Measure) -> dict[str, Value]:
    """What the run is measured by: its mean and, where there is a pass mark, what passes and what does not."""
    completions = [c for g in groups for c in g.completions if not math.isnan(measure.value(c))]
    mean = {"measured_mean": mean_of([measure.value(c) for c in completions])}
    if measure.pass_at is None:
        return {**mean, **_learned_metrics(groups, [], [])}
    right = [c for c in completions if measure.passes(c)]
    wrong = [c for c in completions if not measure.passes(c)]
    signals = [_passing(g, measure) for g in groups]
    return {
        **mean,
        **_learned_metrics(groups, right, wrong),
        "pass_rate": Mean(len(right), len(completions)),
        "length_right_mean": mean_of([c.length for c in right]),
        "length_wrong_mean": mean_of([c.length for c in wrong]),
        "groups_mixed_share": Mean(signals.count(Signal.MIXED), len(groups)),
        "groups_all_right_share": Mean(signals.count(Signal.ALL_RIGHT), len(groups)),
        "groups_all_wrong_share": Mean(signals.count(Signal.ALL_WRONG), len(groups)),
    }


def _passing(group: Group, measure: Measure) -> Signal:
    """Whether its completions that have a value pass."""
    return of_passes([measure.passes(c) for c in group.completions if not math.isnan(measure.value(c))])


def generation_metrics(sampled: Sampled, measure: Measure = Measure(), tools: Sequence[str] = ()) -> Metrics:
    """Of all that a step generated, and where each source of a task with levels stands after it."""
    result = sampled.result
    completions = [c for group in result.generated for c in group.completions]
    by_calls = Logged(
        {name: Mean(total, count) for name, total, count in sampled.logged},
        {name: Sum(total) for name, total in sampled.logged_totals},
    )
    logged = logged_of(completions).merged(by_calls)
    seconds = sampled.scoring_seconds
    return {
        **group_metrics(result.generated, measure, tools),
        **rollout_metrics(result),
        **{f"sources.{source}.level": Last(level) for source, level in sampled.levels.items()},
        **{f"logged.{name}": value for name, value in logged.means.items()},
        **{f"logged_total.{name}": value for name, value in logged.totals.items()},
        **({} if seconds is None else {"scoring_seconds": Sum(seconds)}),
    }


def rollout_metrics(result: RolloutResult) -> Metrics:
    """What generation cost: rounds, groups dropped and waiting, tokens that never train."""
    used = {id(g) for g in (*result.groups, *result.surplus)}
    wasted = [c for g in result.generated if id(g) not in used for c in g.completions]
    return {
        "rounds": Sum(result.rounds),
        "groups_generated": Sum(len(result.generated)),
        "groups_dropped": Sum(result.dropped),
        "groups_fallback": Sum(result.fallback),
        "groups_surplus": Last(len(result.surplus)),
        "completions_going_on": Last(result.going_on),
        "generated_tokens_dropped": Sum(sum(c.length for c in wasted)),
    }


def in_words(groups: Sequence[Group], by_score: bool, batch: Batch, algorithm: Algorithm) -> str:
    """Why a step has nothing to prefer, and what trains all the same; empty where a trained row has an advantage.

    groups    that the step generated
    by_score  whether the task's own score is all that trains, so that a group without signal is right or wrong
    """
    if preferred(batch).any():
        return ""
    rewards = [values_of(g, REWARD) for g in groups]
    if not batch.mask.any():
        why = "every completion that has a score was cut off" if any(rewards) else "no completion has a score"
        return f"{why}: nothing trains"
    left = ["the KL term"] * algorithm.kl.in_loss + ["the entropy bonus"] * bool(algorithm.entropy_coefficient)
    trains = f"only {' and '.join(left)} train{'s' * (len(left) == 1)}" if left else "nothing trains"
    return f"{_alike(groups, rewards, by_score)}: advantages are 0, {trains}"


def _alike(groups: Sequence[Group], rewards: Sequence[Sequence[float]], by_score: bool) -> str:
    """What all of the groups have in common."""
    if any(map(differ, rewards)):
        return "no completion is preferred to another"
    if not by_score:
        return "the completions of every group have the same reward"
    signals = {signal(g) for g in groups} - {Signal.UNSCORED}
    if signals == {Signal.ALL_RIGHT}:
        return "every completion is right, nothing is left to learn here"
    if signals == {Signal.ALL_WRONG}:
        return "every completion is wrong, there is no right one to prefer"
    return "no group mixes right and wrong completions"


def _learned_metrics(
    groups: Sequence[Group], right: Sequence[Completion], wrong: Sequence[Completion]
) -> dict[str, Value]:
    """A reward model's scores beside the truth: right completions that stop scoring higher mean over-optimisation."""
    completions = [c for g in groups for c in g.completions]
    if not any(c.learned is not None for c in completions):
        return {}
    by_name = {"learned_mean": completions, "learned_right_mean": right, "learned_wrong_mean": wrong}
    return {name: mean_of([c.learned for c in some if c.learned is not None]) for name, some in by_name.items()}


def _part_metrics(groups: Sequence[Group]) -> dict[str, Value]:
    """Each reward by itself, where several train: its mean, and its spread within groups, which is its signal."""
    by_group = [[dict(c.reward_scores) for c in g.completions] for g in groups]
    names = dict.fromkeys(name for group in by_group for parts in group for name in parts)
    metrics: dict[str, Value] = {}
    for name in names:
        scores = [[parts.get(name, math.nan) for parts in group] for group in by_group]
        metrics[f"rewards.{name}.mean"] = mean_of([s for group in scores for s in group if not math.isnan(s)])
        metrics[f"rewards.{name}.spread_within_groups"] = mean_of([_deviation(group) for group in scores])
    return metrics


def _source_metrics(groups: Sequence[Group], measure: Measure) -> dict[str, Value]:
    """The mean of what is measured of each source, where a task mixes several, and its pass rate."""
    values: dict[str, list[float]] = {}
    passed: dict[str, list[bool]] = {}
    for group in groups:
        voting = [c for c in group.completions if not math.isnan(measure.value(c))]
        if source := group.prompt.sample.source:
            values.setdefault(source, []).extend(map(measure.value, voting))
            passed.setdefault(source, []).extend(map(measure.passes, voting))
    means = {f"sources.{source}.measured_mean": mean_of(own) for source, own in sorted(values.items())}
    if measure.pass_at is None:
        return {**means}
    rates = {f"sources.{source}.pass_rate": Mean(sum(own), len(own)) for source, own in sorted(passed.items())}
    return {**means, **rates}


def _fault_metrics(completions: Sequence[Completion]) -> dict[str, Value]:
    """How many completions could not be scored, by cause and scorer: "timeout in task"."""
    causes = [c.fault for c in completions if c.fault]
    return {f"faults.{cause}": Sum(causes.count(cause)) for cause in sorted(set(causes))}


def _deviation(scores: Sequence[float]) -> float:
    votes = [s for s in scores if not math.isnan(s)]
    if len(votes) < 2:
        return 0.0
    mean = math.fsum(votes) / len(votes)
    return math.sqrt(math.fsum((s - mean) ** 2 for s in votes) / (len(votes) - 1))
