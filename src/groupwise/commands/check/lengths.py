"""Prompts and gold completions in tokens, against the limits of the recipe and of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from groupwise.commands.build import too_long
from groupwise.commands.check.golds import gold_of
from groupwise.commands.check.remarks import Remark, Row, fault, graded, note, ok
from groupwise.commands.check.scores import Encode
from groupwise.config.plan import Blueprint
from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.models.chat import Chat
from groupwise.rollout.selection import select

#: The largest share of gold completions that may be cut off at the limit.
CUT_LIMIT = 0.05
#: A shown text is cut in its middle beyond this many characters.
SHOWN = 3000


def ending(chat: Chat) -> Encode:
    """(a completion's text) -> its ids with the end id, as a warm start trains them."""
    end = chat.tokenizer.eos_token_id
    return lambda text: (*chat.tokenizer(text, add_special_tokens=False)["input_ids"], *([] if end is None else [end]))


def lengths(plan: Blueprint, chat: Chat, positions: int, samples: Sequence[Sample]) -> tuple[list[Remark], int]:
    """Remarks, and the tokens of the longest prompt that is used."""
    asked = sorted(len(chat.encode(sample)) for sample in samples)
    remarks = [ok(f"prompts: {_spread(asked)}")]
    try:
        found = select(plan.task, chat.encode, plan.max_prompt_tokens, plan.evaluation_problems)
    except UsageError as error:
        return [*remarks, fault(str(error)), *_completions(plan, chat, samples)], asked[-1]
    remarks += [note(told) for told in found.notes]
    wrong = too_long(plan, positions, found.longest)
    fits = f"the longest prompt, {found.longest} tokens, and {plan.sampling.max_new_tokens} new ones fit the model"
    remarks.append(fault(wrong) if wrong else ok(f"{fits}'s {positions} positions"))
    return [*remarks, *_completions(plan, chat, samples)], found.longest


def rows(chat: Chat, samples: Sequence[Sample], gold: Callable[[Sample], str]) -> list[Row]:
    """The samples as the model will see them, each with a completion that should score 1.0."""
    encode = ending(chat)
    made = []
    for sample in samples:
        prompt, trained = chat.encode(sample), encode(gold(sample))
        asked, answered = (_cut(chat.tokenizer.decode(ids, skip_special_tokens=False)) for ids in (prompt, trained))
        made.append(Row(sample.key, asked, answered, len(prompt), len(trained)))
    return made


def _completions(plan: Blueprint, chat: Chat, samples: Sequence[Sample]) -> list[Remark]:
    encode, limit = ending(chat), plan.sampling.max_new_tokens
    golds = [gold for sample in samples if (gold := gold_of(plan.task, sample))]
    if not golds:
        return []
    sizes = sorted(len(encode(gold)) for gold in golds)
    over = sum(size > limit for size in sizes)
    told = f"{over} of {len(sizes)} gold completions are longer than sampling.max_new_tokens = {limit}"
    more = ", such answers would be cut off" if over else ""
    return [ok(f"gold completions: {_spread(sizes)}"), graded(over / len(sizes), CUT_LIMIT, told + more)]


def _spread(sizes: Sequence[int]) -> str:
    """Of sorted sizes.

    >>> _spread([1, 2, 3])
    '1 to 3 tokens, median 2, 95 % at most 3 (3 looked at)'
    """
    middle, most = sizes[len(sizes) // 2], sizes[min(len(sizes) - 1, int(0.95 * len(sizes)))]
    return f"{sizes[0]} to {sizes[-1]} tokens, median {middle}, 95 % at most {most} ({len(sizes):,} looked at)"


def _cut(text: str) -> str:
    if len(text) <= SHOWN:
        return text
    return f"{text[: SHOWN // 2]} [{len(text) - SHOWN:,} characters] {text[-SHOWN // 2 :]}"
