"""The rows of rollouts.jsonl: one for each completion that a step generated or trains."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from groupwise.core.records import Batch, Completion, Group, RolloutResult
from groupwise.journal.per_token import PerToken

#: Ids to the text of each.
Spell = Callable[[Sequence[int]], list[str]]


def rollout_rows(
    step: int, result: RolloutResult, batch: Batch, tokens: PerToken | None = None, spell: Spell | None = None
) -> Iterator[dict[str, Any]]:
    """The completions of the batch, in its order, then those that do not train.

    fate is "trained", "dropped" (by the filter) or "surplus" (trains in a later step); fresh says whether it was
    generated in this step.
    """
    fresh = {id(g) for g in result.generated}
    trained, waiting = {id(g) for g in result.groups}, {id(g) for g in result.surplus}
    credit = _credit(batch, tokens)
    for number, group in enumerate([*result.groups, *(g for g in result.generated if id(g) not in trained)]):
        fate = "trained" if id(group) in trained else "surplus" if id(group) in waiting else "dropped"
        for completion in group.completions:
            reward, advantage, by_token = next(credit) if fate == "trained" else (None, None, {})
            spelled = {"pieces": spell(completion.tokens)} if by_token and spell else {}
            yield {
                "step": step,
                "group": number,
                "fate": fate,
                "fresh": id(group) in fresh,
                "reward": reward,
                "advantage": advantage,
                **_columns(group, completion),
                **spelled,
                **by_token,
            }


def _credit(batch: Batch, tokens: PerToken | None) -> Iterator[tuple[float, float, dict[str, Any]]]:
    """Of each row of the batch: its reward, its mean advantage over trained tokens, and what there is per token."""
    reward = (batch.need("reward") * batch.mask).sum(-1).tolist()
    advantage = (batch.need("advantage").double().sum(-1) / batch.mask.sum(-1).clamp(min=1)).tolist()
    by_row = tokens.rows() if tokens else {}
    for row, (r, a) in enumerate(zip(reward, advantage, strict=True)):
        yield r, a, by_row.get(row, {})


def _columns(group: Group, completion: Completion) -> dict[str, Any]:
    sample = group.prompt.sample
    return {
        "key": sample.key,
        **({"source": sample.source} if sample.source else {}),
        "prompt": sample.prompt,
        "answer": sample.answer,
        "completion": completion.text,
        "tokens": completion.length,
        "finish": completion.finish,
        "score": completion.score,
        **({} if completion.learned is None else {"learned": completion.learned}),
        **({"parts": dict(completion.reward_scores)} if completion.reward_scores else {}),
        **({"fault": completion.fault} if completion.fault else {}),
        "logp_engine": math.fsum(completion.logp_engine),
        "version": completion.version,
        **({"steps": completion.steps} if completion.steps else {}),
    }
