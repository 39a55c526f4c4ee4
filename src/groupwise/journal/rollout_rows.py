"""The rows of rollouts.jsonl, one for each completion that a step generated or trains, and the text of each token."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from groupwise.core.numbers.measure import CORRECTNESS, Measure
from groupwise.core.records import Batch, Completion, Group
from groupwise.core.stream import RolloutResult
from groupwise.journal.per_token import PerToken

#: Ids to the text of each.
Spell = Callable[[Sequence[int]], list[str]]
#: How tokenizers of the sentencepiece kind mark a space in front of a word; decoding one word alone loses it.
SPACE = "▁"


def rollout_rows(
    step: int, result: RolloutResult, batch: Batch, tokens: PerToken, spell: Spell, measure: Measure = Measure()
) -> Iterator[dict[str, Any]]:
    """The completions of the batch, in its order, then those that do not train.

    fate is "trained", "dropped" (by the filter) or "surplus" (trains in a later step); fresh says whether it was
    generated in this step. What is measured stands beside the score where it is another.
    """
    fresh = {id(g) for g in result.generated}
    trained, waiting = {id(g) for g in result.groups}, {id(g) for g in result.surplus}
    credit, by_turn = _credit(batch, tokens), _advantages_of_turns(batch, result.groups)
    for number, group in enumerate([*result.groups, *(g for g in result.generated if id(g) not in trained)]):
        fate = "trained" if id(group) in trained else "surplus" if id(group) in waiting else "dropped"
        for completion in group.completions:
            reward, advantage, by_token = next(credit) if fate == "trained" else (None, None, {})
            of_turns = next(by_turn) if fate == "trained" else []
            yield {
                "step": step,
                "group": number,
                "fate": fate,
                "fresh": id(group) in fresh,
                "reward": reward,
                "advantage": advantage,
                **completion_columns(group, completion, measure),
                **({"turns": turn_columns(completion, of_turns)} if completion.turns else {}),
                **({"pieces": spell(completion.tokens)} if by_token else {}),
                **by_token,
            }


def heldout_rows(step: int, groups: Sequence[Group], measure: Measure) -> Iterator[dict[str, Any]]:
    """The completions of the evaluation after a step, by problem: what a row of rollouts.jsonl says of a completion
    itself, with the fate "heldout".
    """
    for number, group in enumerate(groups):
        for completion in group.completions:
            yield {
                "step": step,
                "group": number,
                "fate": "heldout",
                **completion_columns(group, completion, measure),
                **({"turns": turn_columns(completion)} if completion.turns else {}),
            }


def _credit(batch: Batch, tokens: PerToken) -> Iterator[tuple[float, float, dict[str, Any]]]:
    """Of each row of the batch: its reward, its mean advantage over trained tokens, and what there is per token."""
    reward = (batch.need("reward") * batch.mask).sum(-1).tolist()
    advantage = (batch.need("advantage").double().sum(-1) / batch.mask.sum(-1).clamp(min=1)).tolist()
    by_row = tokens.rows()
    for row, (r, a) in enumerate(zip(reward, advantage, strict=True)):
        yield r, a, by_row.get(row, {})


def _advantages_of_turns(batch: Batch, groups: Sequence[Group]) -> Iterator[list[float]]:
    """Of each row of the batch: the advantage at the last token of each of its turns."""
    rows = [(len(group.prompt.tokens), completion) for group in groups for completion in group.completions]
    advantage = batch.need("advantage")
    for row, (prompt, completion) in enumerate(rows):
        yield [float(advantage[row, prompt + turn.stop - 1]) for turn in completion.turns]


def turn_columns(episode: Completion, advantages: Sequence[float] = ()) -> list[dict[str, Any]]:
    """What a row says of each turn of an episode."""
    return [
        {
            "stop": turn.stop,
            "reward": turn.reward,
            **({"advantage": advantages[i]} if i < len(advantages) else {}),
            **({"state": turn.state} if turn.state else {}),
            **({"fault": turn.fault} if turn.fault else {}),
            **({"calls": [{"tool": c.tool, "failure": c.failure} for c in turn.calls]} if turn.calls else {}),
        }
        for i, turn in enumerate(episode.turns)
    ]


def completion_columns(group: Group, completion: Completion, measure: Measure) -> dict[str, Any]:
    """What a row says of a completion itself, and of its prompt."""
    sample = group.prompt.sample
    return {
        "key": sample.key,
        **({"source": sample.source} if sample.source else {}),
        **({"set": sample.heldout_set} if sample.heldout_set else {}),
        "prompt": sample.prompt,
        "answer": sample.answer,
        "completion": completion.text,
        "tokens": completion.length,
        "finish": completion.finish,
        **({"stop": completion.stop} if completion.stop else {}),
        "score": completion.score,
        **({} if measure.metric == CORRECTNESS else {"measured": measure.value(completion)}),
        **({} if completion.learned is None else {"learned": completion.learned}),
        **({"parts": dict(completion.reward_scores)} if completion.reward_scores else {}),
        **({"logged": dict(completion.logged)} if completion.logged else {}),
        **({"fault": completion.fault} if completion.fault else {}),
        "logp_engine": math.fsum(completion.logp_engine),
        "version": completion.version,
        **({"spans": _span_columns(completion)} if len(completion.spans) > 1 else {}),
        **({"steps": completion.steps} if completion.steps and not completion.turns else {}),
        **({"ended": completion.ended} if completion.ended is not None else {}),
    }


def _span_columns(completion: Completion) -> list[dict[str, Any]]:
    """What a row says of each span; of most, that they are not read anew, nothing."""
    each = [dataclasses.asdict(span) for span in completion.spans]
    return [{name: value for name, value in span.items() if name != "anew" or value} for span in each]


class Spelling:
    """Ids to the text of each, special ones as they are written. An id is decoded once."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def __call__(self, tokens: Sequence[int]) -> list[str]:
        for token in set(tokens) - self._known.keys():
            self._known[token] = self._spell(token)
        return [self._known[token] for token in tokens]

    def _spell(self, token: int) -> str:
        """A token of no text, such as an id beyond the vocabulary, is shown as its number."""
        text = self._tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if not text:
            return f"<{token}>"
        name = self._tokenizer.convert_ids_to_tokens(token)
        spaced = isinstance(name, str) and name.startswith(SPACE) and not text.startswith(" ")
        return f" {text}" if spaced else text
