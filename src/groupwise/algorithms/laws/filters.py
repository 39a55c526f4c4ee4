"""Laws of the filters, which see one group at a time."""

import math
from collections.abc import Sequence
from typing import Any

from groupwise.algorithms.laws import every
from groupwise.algorithms.laws.draws import Draw
from groupwise.algorithms.laws.law import Law
from groupwise.algorithms.parts.filters import Signal, Verdict
from groupwise.core.records import Completion, Group, Prompt
from groupwise.core.samples import Sample

#: Scores of groups: mixed, all right, all wrong, partly and wholly unscored, one alone, and some beside 0 and 1.
SCORES = (
    (1.0, 0.0, 1.0, 0.0),
    (1.0, 1.0, 1.0, 1.0),
    (0.0, 0.0, 0.0, 0.0),
    (1.0, math.nan, 0.0, math.nan),
    (math.nan, math.nan),
    (1.0,),
    (0.25, -3.0, 7.5, 0.5),
)


def group_of(scores: Sequence[float], order: Sequence[int] | None = None) -> Group:
    """Make a group whose completions have these scores and lengths 1, 2, 3, ..., every other one cut off."""
    prompt = Prompt(Sample("key", "prompt", "answer"), (5, 6, 7))
    completions = [
        Completion.of_one_turn(
            tuple(range(i + 1)), (-0.5,) * (i + 1), "length" if i % 2 else "stop", 0, text="a" * i, score=score
        )
        for i, score in enumerate(scores)
    ]
    return Group(prompt, tuple(completions[i] for i in order or range(len(completions))))


def answers_with_a_verdict(part: Any, batch: Draw) -> str:
    """Keep or drop, and a reason that can be counted, for every group there can be."""
    for scores in SCORES:
        verdict = part(group_of(scores))
        good = isinstance(verdict, Verdict) and isinstance(verdict.keep, bool) and isinstance(verdict.reason, Signal)
        if not good:
            return f"of scores {list(scores)} it says {verdict!r}; a groupwise.Verdict(bool, Signal) is due"
    return ""


def ignores_the_order_of_completions(part: Any, batch: Draw) -> str:
    """And says the same again."""
    for scores in SCORES:
        plain, again = part(group_of(scores)), part(group_of(scores))
        moved = part(group_of(scores, order=range(len(scores))[::-1]))
        if not plain == again == moved:
            return f"of scores {list(scores)} it says {plain}, then {again}, and {moved} in another order"
    return ""


def can_keep_something(part: Any, batch: Draw) -> str:
    """Demand that at least one of the groups trains."""
    any_keeps = any(part(group_of(scores)).keep for scores in SCORES)
    return "" if any_keeps else "it drops groups of every kind: nothing would train"


def has_rounds(part: Any, batch: Draw) -> str:
    """Demand that a step generates at least once."""
    good = isinstance(part.max_rounds, int) and part.max_rounds >= 1
    return "" if good else f"max_rounds is {part.max_rounds!r}; a whole number from 1 on is due"


SAYS = (
    "Return groupwise.Verdict(keep, signal(group)), keep a bool; signal, of groupwise.algorithms.parts.filters, knows "
    "groups without a score."
)
SAME = "Go by all of group.completions, not by the first or last; keep nothing between calls."

LAWS = (
    *every.LAWS,
    Law("it says keep or drop, with a reason, of every group", answers_with_a_verdict, SAYS),
    Law("the order of completions changes nothing, and it says the same again", ignores_the_order_of_completions, SAME),
    Law("it keeps groups of some kind", can_keep_something, "Keep at least groups whose scores differ."),
    Law("max_rounds is at least 1", has_rounds, "Give it the field max_rounds: int = 10, and check it."),
)
