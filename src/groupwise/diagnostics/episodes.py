"""Of the episodes that a step generated, turn by turn: how many came so far, what they said, heard and earned."""

import math
from collections import Counter
from collections.abc import Sequence

from groupwise.core.environment import Ended
from groupwise.core.numbers.measure import Measure
from groupwise.core.numbers.metrics import Max, Mean, Sum, Value, mean_of
from groupwise.core.records import Completion


def episode_metrics(completions: Sequence[Completion], measure: Measure, tools: Sequence[str] = ()) -> dict[str, Value]:
    """Nothing where no completion is an episode; `tools` are those that the policy may call."""
    episodes = [c for c in completions if c.ended is not None]
    if not episodes:
        return {}
    longest = max(len(episode.turns) for episode in episodes)
    return {
        "turns_mean": mean_of([len(episode.turns) for episode in episodes]),
        "turns_max": Max(longest),
        "answer_tokens_mean": mean_of([len(episode.tokens) - episode.length for episode in episodes]),
        **{f"ended.{why}": Sum(sum(episode.ended is why for episode in episodes)) for why in Ended},
        **_fault_metrics(episodes),
        **_tool_metrics(episodes, tools),
        **{name: value for turn in range(longest) for name, value in _turn_metrics(episodes, turn, measure).items()},
    }


def _fault_metrics(episodes: Sequence[Completion]) -> dict[str, Value]:
    """How many turns an environment gave no answer to, by cause."""
    causes = [turn.fault for episode in episodes for turn in episode.turns if turn.fault]
    return {f"turn_faults.{cause}": Sum(causes.count(cause)) for cause in sorted(set(causes))}


def _tool_metrics(episodes: Sequence[Completion], tools: Sequence[str]) -> dict[str, Value]:
    """Of each tool its calls, those that failed by kind, their seconds, and the share of episodes that call it; and
    calls that are of no tool, by kind.
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
    """Of one turn, counted from 0, named from 1; the pass rate is that of the episodes that ended with it."""
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
    """What the policy sampled in a turn, counted from 0: own spans after the turn before, up to this turn's end."""
    begin = episode.turns[turn - 1].stop if turn else 0
    own = (span for span in episode.spans if span.own)
    return sum(span.stop - span.start for span in own if begin <= span.start and span.stop <= episode.turns[turn].stop)
