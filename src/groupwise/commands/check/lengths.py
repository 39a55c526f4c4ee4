"""Prompts and gold completions in tokens, against the limits of the recipe and of the model."""

from collections.abc import Sequence
from typing import Any

from groupwise.commands.build.rollout import selected, too_long
from groupwise.commands.check.findings import Remark, ShownProblem, fault, graded, note, ok
from groupwise.commands.check.trials import Encode, gold_of
from groupwise.config.recipe import Recipe
from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.core.task import Task
from groupwise.models.chat.prompts import Chat
from groupwise.models.context import positions_in_words
from groupwise.models.load import text_ids

#: The largest share of gold completions that may be cut off at the limit.
CUT_LIMIT = 0.05
#: A shown text is cut in its middle beyond this many characters.
SHOWN = 3000


def completion_encoder(chat: Chat) -> Encode:
    """Make what turns a completion's text into its ids and the end id, as a warm start trains them.

    It raises UsageError if the tokenizer cannot read the text.
    """
    tokenizer, end = chat.tokenizer, chat.tokenizer.eos_token_id
    return lambda text: (*text_ids(tokenizer, [text], f"completion {text!r:.60}: ")[0], *([] if end is None else [end]))


def lengths(recipe: Recipe, task: Task, chat: Chat, config: Any, samples: Sequence[Sample]) -> tuple[list[Remark], int]:
    """Compare lengths with limits; findings, and the tokens of the longest prompt used, 0 if none can be encoded."""
    try:
        prompts = sorted(len(chat.encode(sample)) for sample in samples)
    except UsageError as error:
        return [fault(str(error))], 0
    spread, golds = (
        ok(f"prompts: {_spread(prompts)}"),
        _gold_lengths(recipe.sampling.max_new_tokens, task, chat, samples),
    )
    try:
        selection = selected(recipe, task, chat)
    except UsageError as error:
        return [spread, fault(str(error)), *golds], prompts[-1]
    longest = selection.longest
    wrong = too_long(recipe, config, longest)
    both = f"the longest prompt, {longest} tokens, and {recipe.sampling.max_new_tokens} new ones"
    room = fault(wrong) if wrong else ok(f"{both} fit {positions_in_words(config)}")
    return [spread, *map(note, selection.notes), room, *golds], longest


def shown_problems(chat: Chat, task: Task, samples: Sequence[Sample]) -> list[ShownProblem]:
    """Show samples as the model will see them, each with a completion that should score 1.0, if one is known."""

    def text(ids: Sequence[int]) -> str:
        return _cut(chat.tokenizer.decode(ids, skip_special_tokens=False))

    encode = completion_encoder(chat)
    golds = [gold_of(task, sample) for sample in samples]
    pairs = [(s.key, chat.encode(s), encode(gold) if gold else ()) for s, gold in zip(samples, golds, strict=True)]
    return [ShownProblem(key, text(prompt), text(gold), len(prompt), len(gold)) for key, prompt, gold in pairs]


def _gold_lengths(limit: int, task: Task, chat: Chat, samples: Sequence[Sample]) -> list[Remark]:
    encode = completion_encoder(chat)
    try:
        sizes = sorted(len(encode(gold)) for sample in samples if (gold := gold_of(task, sample)))
    except UsageError as error:
        return [fault(str(error))]
    if not sizes:
        return []
    over = sum(size > limit for size in sizes)
    what = f"{over} of {len(sizes)} gold completions are longer than sampling.max_new_tokens = {limit}"
    cut = ", such answers would be cut off" if over else ""
    return [ok(f"gold completions: {_spread(sizes)}"), graded(over / len(sizes), CUT_LIMIT, what + cut)]


def _spread(sizes: Sequence[int]) -> str:
    """Say how sorted sizes spread.

    >>> _spread([1, 2, 3])
    '1 to 3 tokens, median 2, 95 % at most 3 (3 looked at)'
    """
    middle, most = sizes[len(sizes) // 2], sizes[min(len(sizes) - 1, int(0.95 * len(sizes)))]
    return f"{sizes[0]} to {sizes[-1]} tokens, median {middle}, 95 % at most {most} ({len(sizes):,} looked at)"


def _cut(text: str) -> str:
    if len(text) <= SHOWN:
        return text
    return f"{text[: SHOWN // 2]} [{len(text) - SHOWN:,} characters] {text[-SHOWN // 2 :]}"
