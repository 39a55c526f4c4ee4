"""Metrics of what a step generated: scores, lengths, endings, signal, episodes, and the cost of generation."""

import math
from collections import Counter
from collections.abc import Sequence

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.parts.filters import Signal, of_passes, signal
from groupwise.core.environment import Ended
from groupwise.core.numbers.measure import REWARD, Logged, Measure, differ, logged_of, values_of
from groupwise.core.numbers.metrics import Last, Max, Mean, Metrics, Sum, Value, mean_of
from groupwise.core.records import Batch, Completion, Group
from groupwise.core.stream import RolloutResult, Sampled
from groupwise.diagnostics.updates import preferred


def group_metrics(groups: Sequence[Group], measure: Measure = Measure(), tools: Sequence[str] = ()) -> dict[str, Value]:
    """Measure the groups that a step generated, before any was dropped: scores, lengths, endings, signal, tools."""
    completions = [c for g in groups for c in g.completions]
    scores = [c.score for c in completions if not math.isnan(c.score)]
    return {
        **_measured_metrics(groups, measure),
        **_part_metrics(groups),
        **_source_metrics(groups, measure),
        **_counted("faults", [c.fault for c in completions if c.fault]),
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
    """Measure what the run is measured by: its mean and, if there is a pass mark, what passes and what does not."""
    completions = [c for g in groups for c in g.completions if not math.isnan(measure.value(c))]
    mean = {"measured_mean": mean_of([measure.value(c) for c in completions])}
    if measure.pass_at is None:
        return {**mean, **_learned_metrics(groups, [], [])}
    right = [c for c in completions if measure.passes(c)]
    wrong = [c for c in completions if not measure.passes(c)]
    voting = [[c for c in g.completions if not math.isnan(measure.value(c))] for g in groups]
    signals = [of_passes([measure.passes(c) for c in own]) for own in voting]
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


def generation_metrics(sampled: Sampled, measure: Measure = Measure(), tools: Sequence[str] = ()) -> Metrics:
    """Measure all that a step generated, and the level of each source of a task with levels after it."""
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
    """Measure what generation cost: rounds, groups dropped and waiting, tokens that never train."""
    used = {id(g) for g in (*result.groups, *result.surplus)}
    wasted = [c for g in result.generated if id(g) not in used for c in g.completions]
    return {
        "rounds": Sum(result.rounds),
        "groups_generated": Sum(len(result.generated)),
        "groups_dropped": Sum(result.dropped),
        "groups_fallback": Sum(result.fallback),
        "groups_surplus": Last(len(result.surplus)),
        "completions_going_on": Last(result.unfinished),
        "generated_tokens_dropped": Sum(sum(c.length for c in wasted)),
    }


def in_words(groups: Sequence[Group], by_score: bool, batch: Batch, algorithm: Algorithm) -> str:
    """Tell why a step has nothing to prefer, and what trains all the same; empty if a trained row has an advantage.

    groups    that the step generated
    by_score  the task's own score is all that trains, so that a group without signal is right or wrong
    """
    if preferred(batch).any():
        return ""
    rewards = [values_of(g, REWARD) for g in groups]
    if not batch.mask.any():
        why = "every completion that has a score was cut off" if any(rewards) else "no completion has a score"
        return f"{why}: nothing trains"
    left = ["the KL term"] * algorithm.kl.in_loss + ["the entropy bonus"] * bool(algorithm.entropy_coefficient)
    right = bool((batch.mask & (batch.score > 0)[:, None]).any())
    left += ["the likelihood term"] * (right and algorithm.likelihood_coefficient != 0)
    trains = f"only {' and '.join(left)} train{'s' * (len(left) == 1)}" if left else "nothing trains"
    return f"{_alike(groups, rewards, by_score)}: advantages are 0, {trains}"


def _alike(groups: Sequence[Group], rewards: Sequence[Sequence[float]], by_score: bool) -> str:
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
    """Measure a reward model beside the truth: right completions that stop scoring higher mean over-optimisation."""
    completions = [c for g in groups for c in g.completions]
    if not any(c.learned is not None for c in completions):
        return {}
    by_name = {"learned_mean": completions, "learned_right_mean": right, "learned_wrong_mean": wrong}
    return {name: mean_of([c.learned for c in some if c.learned is not None]) for name, some in by_name.items()}


def _part_metrics(groups: Sequence[Group]) -> dict[str, Value]:
    """Measure each reward by itself, if several train: its mean, and its spread within groups, which is its signal."""
    by_group = [[dict(c.reward_scores) for c in g.completions] for g in groups]
    names = dict.fromkeys(name for group in by_group for parts in group for name in parts)
    metrics: dict[str, Value] = {}
    for name in names:
        scores = [[parts.get(name, math.nan) for parts in group] for group in by_group]
        metrics[f"rewards.{name}.mean"] = mean_of([s for group in scores for s in group if not math.isnan(s)])
        metrics[f"rewards.{name}.spread_within_groups"] = mean_of([_deviation(group) for group in scores])
    return metrics


def _source_metrics(groups: Sequence[Group], measure: Measure) -> dict[str, Value]:
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


def _counted(name: str, causes: Sequence[str]) -> dict[str, Value]:
    return {f"{name}.{cause}": Sum(count) for cause, count in sorted(Counter(causes).items())}


def _deviation(scores: Sequence[float]) -> float:
    votes = [s for s in scores if not math.isnan(s)]
    if len(votes) < 2:
        return 0.0
    mean = math.fsum(votes) / len(votes)
    return math.sqrt(math.fsum((s - mean) ** 2 for s in votes) / (len(votes) - 1))


def episode_metrics(completions: Sequence[Completion], measure: Measure, tools: Sequence[str] = ()) -> dict[str, Value]:
    """Measure the episodes, if there are any: turns, endings, faults, tools (those that the policy may call)."""
    episodes = [c for c in completions if c.ended is not None]
    if not episodes:
        return {}
    longest = max(len(episode.turns) for episode in episodes)
    return {
        "turns_mean": mean_of([len(episode.turns) for episode in episodes]),
        "turns_max": Max(longest),
        "rows_mean": mean_of([_rows_of(episode) for episode in episodes]),
        "answer_tokens_mean": mean_of([len(episode.tokens) - episode.length for episode in episodes]),
        **{f"ended.{why}": Sum(sum(episode.ended is why for episode in episodes)) for why in Ended},
        **_counted("turn_faults", [turn.fault for episode in episodes for turn in episode.turns if turn.fault]),
        **_tool_metrics(episodes, tools),
        **{name: value for turn in range(longest) for name, value in _turn_metrics(episodes, turn, measure).items()},
    }


def _rows_of(episode: Completion) -> int:
    """Count the rows that the policy read: one, and one more for each prompt that it read anew behind the first."""
    return 1 + sum(span.anew for span in episode.spans[1:])


def _tool_metrics(episodes: Sequence[Completion], tools: Sequence[str]) -> dict[str, Value]:
    """Measure each tool: calls, failures by kind, seconds, and the share of episodes that call it; and count calls that
    are of no tool, by kind.
    """
    calls = [(i, call) for i, episode in enumerate(episodes) for turn in episode.turns for call in turn.calls]
    metrics: dict[str, Value] = {}
    for tool in tools:
        own = [(i, call) for i, call in calls if call.tool == tool]
        metrics[f"tools.{tool}.calls"] = Sum(len(own))
        for kind, count in sorted(Counter(call.failure for _, call in own if call.failure).items()):
            metrics[f"tools.{tool}.failures.{kind}"] = Sum(count)
        metrics[f"tools.{tool}.seconds"] = Sum(math.fsum(call.seconds for _, call in own))
        metrics[f"tools.{tool}.episodes_share"] = Mean(len({i for i, _ in own}), len(episodes))
    stray = Counter(call.failure for _, call in calls if not call.tool)
    return metrics | {f"calls_of_no_tool.{kind}": Sum(count) for kind, count in sorted(stray.items())}


def _turn_metrics(episodes: Sequence[Completion], turn: int, measure: Measure) -> dict[str, Value]:
    """Measure one turn, counted from 0, named from 1; the pass rate is that of the episodes that ended with it."""
    alive = [episode for episode in episodes if len(episode.turns) > turn]
    last = [episode for episode in alive if len(episode.turns) == turn + 1]
    rewards = [episode.turns[turn].reward for episode in alive if not episode.turns[turn].fault]
    name = f"turns.{turn + 1}"
    values: dict[str, Value] = {
        f"{name}.alive_share": Mean(len(alive), len(episodes)),
        f"{name}.reward_mean": mean_of(rewards),
        f"{name}.tokens_mean": mean_of([tokens_of_turn(episode, turn) for episode in alive]),
    }
    if measure.pass_at is not None:
        values[f"{name}.pass_rate"] = Mean(sum(map(measure.passes, last)), len(last))
    return values


def tokens_of_turn(episode: Completion, turn: int) -> int:
    """Count the tokens that the policy sampled in a turn, counted from 0: own spans after the turn before it."""
    begin = episode.turns[turn - 1].stop if turn else 0
    own = (span for span in episode.spans if span.own)
    return sum(span.stop - span.start for span in own if begin <= span.start and span.stop <= episode.turns[turn].stop)
