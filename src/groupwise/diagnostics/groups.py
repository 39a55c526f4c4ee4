"""Of the groups that a step generated: scores, lengths, endings, signal; and what the rollout did to get them."""

import math
from collections.abc import Sequence

from groupwise.algorithms.parts.filters import RIGHT, Signal, signal
from groupwise.core.metrics import Last, Max, Mean, Metrics, Sum, Value, mean_of
from groupwise.core.records import Completion, Group, RolloutResult, StreamState


def group_metrics(groups: Sequence[Group]) -> dict[str, Value]:
    """Of the groups that a step generated, before any was dropped: scores, lengths, endings, signal."""
    completions = [c for g in groups for c in g.completions]
    scored = [c for c in completions if not math.isnan(c.score)]
    right = [c for c in scored if c.score >= RIGHT]
    wrong = [c for c in scored if c.score < RIGHT]
    signals = [signal(g) for g in groups]
    n = len(groups)
    return {
        **_learned_metrics(completions, right, wrong),
        **_part_metrics(groups),
        **_source_metrics(groups),
        **_fault_metrics(completions),
        "score_mean": mean_of([c.score for c in scored]),
        "pass_rate": Mean(len(right), len(scored)),
        "length_mean": mean_of([c.length for c in completions]),
        "length_max": Max(max((c.length for c in completions), default=0)),
        "length_right_mean": mean_of([c.length for c in right]),
        "length_wrong_mean": mean_of([c.length for c in wrong]),
        "truncated_share": Mean(sum(c.finish == "length" for c in completions), len(completions)),
        "unscored_completions": Sum(len(completions) - len(scored)),
        "score_spread_batch": Mean(_deviation([c.score for c in completions]), 1.0 if len(scored) > 1 else 0.0),
        "score_spread_within_groups": mean_of([_deviation(g.scores) for g in groups]),
        "groups_mixed_share": Mean(signals.count(Signal.MIXED), n),
        "groups_all_right_share": Mean(signals.count(Signal.ALL_RIGHT), n),
        "groups_all_wrong_share": Mean(signals.count(Signal.ALL_WRONG), n),
        "generated_completions": Sum(len(completions)),
        "generated_tokens": Sum(sum(c.length for c in completions)),
    }


def generation_metrics(result: RolloutResult, state: StreamState, scoring_seconds: float | None) -> Metrics:
    """Of all that a step generated, and where each source of a task with levels stands after it.

    scoring_seconds  spent by processes that score; None where there are none
    """
    levels = {f"sources.{source}.level": Last(level) for source, level in state.levels.items()}
    seconds = {} if scoring_seconds is None else {"scoring_seconds": Sum(scoring_seconds)}
    return {**group_metrics(result.generated), **rollout_metrics(result), **levels, **seconds}


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
        "generated_tokens_dropped": Sum(sum(c.length for c in wasted)),
    }


def in_words(groups: Sequence[Group]) -> str:
    """What the groups' correctness means for this step, as a sentence; empty where there is signal."""
    signals = [signal(g) for g in groups]
    if not signals or Signal.MIXED in signals:
        return ""
    if all(s is Signal.ALL_RIGHT for s in signals):
        return "every group is all right: nothing left to learn here, advantages are 0"
    if all(s is Signal.ALL_WRONG for s in signals):
        return "every group is all wrong: no group has a right completion to prefer, advantages are 0"
    if all(s is Signal.UNSCORED for s in signals):
        trained = any(not math.isnan(c.trains_on) for g in groups for c in g.completions)
        # Where a reward model scores, the right answers are unknown.
        return "" if trained else "no completion has a score: nothing trains"
    return "no group mixes right and wrong completions: advantages are 0"


def _learned_metrics(
    completions: Sequence[Completion], right: Sequence[Completion], wrong: Sequence[Completion]
) -> dict[str, Value]:
    """A reward model's scores beside the truth: right completions that stop scoring higher mean over-optimisation."""
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


def _source_metrics(groups: Sequence[Group]) -> dict[str, Value]:
    """The pass rate of each source, where a task mixes several."""
    votes: dict[str, list[bool]] = {}
    for group in groups:
        right = [c.score >= RIGHT for c in group.completions if not math.isnan(c.score)]
        if group.prompt.sample.source:
            votes.setdefault(group.prompt.sample.source, []).extend(right)
    return {f"sources.{source}.pass_rate": Mean(sum(right), len(right)) for source, right in sorted(votes.items())}


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
