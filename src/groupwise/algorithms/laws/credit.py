"""Laws of what makes the credit of a batch: reward shaping, filters and advantages."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from groupwise.algorithms.laws.draws import Draw, like
from groupwise.algorithms.laws.law import EVERY, Columns, Trial, differs, first_of, law, not_finite
from groupwise.algorithms.parts.filters import Signal, Verdict
from groupwise.core.records import Batch, Completion, Group, Prompt
from groupwise.core.samples import Sample


def _step_ends(batch: Draw, numbers: torch.Generator) -> Tensor:
    """Draw from no to several step ends a completion, [N,T] bool."""
    return torch.rand(batch.mask.shape, generator=numbers) < 0.4


def _of_shaping(batch: Draw) -> dict[str, Tensor]:
    ends = _step_ends(batch, torch.Generator().manual_seed(8))
    scores = {"score": batch.advantage, "step_score": like(batch, seed=6), "step_end": ends}
    return {"mask": batch.mask, "group": batch.group, "old": batch.old, **scores}


def _batch(given: Columns, steps: bool = True) -> Batch:
    rows, width = given["mask"].shape
    return Batch(
        tokens=torch.zeros(rows, width, dtype=torch.long),
        mask=given["mask"],
        length=torch.full((rows,), width),
        group=given["group"],
        score=given["score"],
        version=torch.zeros(rows, dtype=torch.long),
        logp_engine=given["old"],
        logp_old=given["old"],
        step_score=given["step_score"] if steps else None,
        step_end=given["step_end"] if steps else None,
    )


SHAPING = Trial(_of_shaping, lambda part, given: part(_batch(given)), ("reward",))


@law(
    "it needs scores of steps only where it declares so",
    "Ask whether batch.step_end is None, or set needs_steps = True as a line of the class.",
)
def lives_without_steps(part: Any, batch: Draw) -> str:
    if part.needs_steps:
        return ""
    return not_finite("reward without scores of steps", part(_batch(SHAPING.given(batch), steps=False)))


@law(
    "a row that could not be scored spoils no other",
    "Its score is NaN and none of its tokens is trained: place scores by at_last_token(score, batch.mask) of "
    "groupwise.algorithms.parts.shaping, and take no mean over batch.score with NaN in it.",
)
def a_row_without_tokens_may_have_no_score(part: Any, batch: Draw) -> str:
    unscored = {**SHAPING.given(batch), "score": torch.where(batch.mask.any(1), batch.advantage, torch.nan)}
    return not_finite("reward at trained tokens", SHAPING.call(part, unscored)[batch.mask])


SHAPING_LAWS = (*SHAPING.laws(), lives_without_steps, a_row_without_tokens_may_have_no_score)


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


@law(
    "it says keep or drop, with a reason, of every group",
    "Return groupwise.Verdict(keep, signal(group)), keep a bool; signal, of groupwise.algorithms.parts.filters, knows "
    "groups without a score.",
)
def answers_with_a_verdict(part: Any, batch: Draw) -> str:
    for scores in SCORES:
        verdict = part(group_of(scores))
        good = isinstance(verdict, Verdict) and isinstance(verdict.keep, bool) and isinstance(verdict.reason, Signal)
        if not good:
            return f"of scores {list(scores)} it says {verdict!r}; a groupwise.Verdict(bool, Signal) is due"
    return ""


@law(
    "the order of completions changes nothing, and it says the same again",
    "Go by all of group.completions, not by the first or last; keep nothing between calls.",
)
def ignores_the_order_of_completions(part: Any, batch: Draw) -> str:
    for scores in SCORES:
        plain, again = part(group_of(scores)), part(group_of(scores))
        moved = part(group_of(scores, order=range(len(scores))[::-1]))
        if not plain == again == moved:
            return f"of scores {list(scores)} it says {plain}, then {again}, and {moved} in another order"
    return ""


@law("it keeps groups of some kind", "Keep at least groups whose scores differ.")
def can_keep_something(part: Any, batch: Draw) -> str:
    any_keeps = any(part(group_of(scores)).keep for scores in SCORES)
    return "" if any_keeps else "it drops groups of every kind: nothing would train"


@law("max_rounds is at least 1", "Give it the field max_rounds: int = 10, and check it.")
def has_rounds(part: Any, batch: Draw) -> str:
    good = isinstance(part.max_rounds, int) and part.max_rounds >= 1
    return "" if good else f"max_rounds is {part.max_rounds!r}; a whole number from 1 on is due"


FILTER_LAWS = (*EVERY, answers_with_a_verdict, ignores_the_order_of_completions, can_keep_something, has_rounds)


def _of_advantage(batch: Draw) -> dict[str, Tensor]:
    numbers = torch.Generator().manual_seed(8)
    ends = _step_ends(batch, numbers)
    state = torch.randint(0, 3, batch.mask.shape, generator=numbers)
    columns = {"reward": like(batch, seed=6), "value": like(batch, seed=7), "mask": batch.mask}
    return {**columns, "group": batch.group, "step_end": ends, "step_state": state}


def _advantage(part: Any, given: Columns) -> Any:
    value = given["value"] if part.reads_value else None
    states = (given["step_state"],) if part.reads_states else ()
    return part(given["reward"], value, given["mask"], given["group"], given["step_end"], *states)


ADVANTAGE = Trial(_of_advantage, _advantage, ("advantage", "returns"))
WITHIN = (
    "Subclass WithinGroup of groupwise.algorithms.parts.advantage and write scaled(), or call its centre(), which give "
    "these 0; or "
)


def _zero(part: Any, reward: Sequence[float], group: Sequence[int], words: str) -> str:
    if not part.compares_within_group:
        return ""
    column = torch.tensor(reward, dtype=torch.float64)[:, None]
    mask = torch.ones_like(column, dtype=torch.bool)
    given = {"reward": column, "value": column, "mask": mask, "group": torch.tensor(group), "step_end": mask}
    answer, _ = _advantage(part, {**given, "step_state": mask.long()})
    return differs(f"the advantage {words}", answer, torch.zeros_like(column), 0)


@law(
    "where it compares within a group, ties are exactly 0",
    f"{WITHIN}answer 0 where the rewards of a group lie within 1e-6.",
)
def ties_are_zero(part: Any, batch: Draw) -> str:
    """Try equal rewards up to the rounding of float32: no epsilon may blow that up."""
    return _zero(part, [0.3] * 7 + [float(torch.tensor(0.3, dtype=torch.float32))], [0] * 8, "of equal rewards")


@law(
    "where it compares within a group, a lone completion is exactly 0",
    f"{WITHIN}answer 0 where fewer than two completions of a group have a reward.",
)
def alone_is_zero(part: Any, batch: Draw) -> str:
    return _zero(part, [1.0, math.nan, math.nan, 0.5], [0, 0, 0, 1], "of a completion alone in its group")


@law(
    "a reward that is NaN takes its completion out and no other",
    "Treat it as if its row had no trained token: mask = mask & ~row_sum(reward, mask).isnan()[:, None], before "
    "anything else; of what reads step ends alone, the sum over these.",
)
def a_missing_reward_does_not_vote(part: Any, batch: Draw) -> str:
    plain = ADVANTAGE.given(batch)
    row = int((batch.mask & plain["step_end"]).any(-1).nonzero()[1])
    mask, reward = batch.mask.clone(), plain["reward"].clone()
    mask[row] = False
    reward[row, int((batch.mask & plain["step_end"])[row].nonzero()[0])] = math.nan
    without, answer = (_advantage(part, {**plain, **other}) for other in ({"mask": mask}, {"reward": reward}))
    return first_of(*map(differs, ADVANTAGE.answers, answer, without))


@law("rewards may be whole numbers", "Begin with reward = real(reward) of groupwise.core.masked.")
def takes_whole_numbers(part: Any, batch: Draw) -> str:
    plain = ADVANTAGE.given(batch)
    whole = (2 * plain["reward"]).long()
    answer, expected = (_advantage(part, {**plain, "reward": reward})[0] for reward in (whole, whole.float()))
    return differs("advantage", answer.double(), expected.double(), 1e-6)


ADVANTAGE_LAWS = (
    *ADVANTAGE.laws(),
    ties_are_zero,
    alone_is_zero,
    a_missing_reward_does_not_vote,
    takes_whole_numbers,
)
