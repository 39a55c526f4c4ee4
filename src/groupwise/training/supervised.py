"""Supervised rows of a run: their settings, their ids and which of them train, and the rows of each update.

The ids of a chat are those that sampling would have: the template's prompt, then what the assistant says and an end id,
then the glue to its next turn. The loss is on the assistant's turns alone, each with its end:

    loss = -(weight * log pi).sum(),  weight = mix.supervised / supervised tokens of the optimizer batch
"""

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from groupwise.core.environment import Says
from groupwise.core.errors import UsageError
from groupwise.core.numbers.seeds import stream
from groupwise.core.records import Batch
from groupwise.core.samples import Sample
from groupwise.core.settings import Location, Settings
from groupwise.core.task import Demonstrates, Task
from groupwise.models.chat.later_turns import ASKED, Glue, thinking_of
from groupwise.models.chat.prompts import Chat
from groupwise.models.chat.thinking import closed_behind
from groupwise.models.load import prompt_ids, text_ids
from groupwise.tasks.chats import Chats, Imitated

#: Ids, and whether they train.
Part = tuple[Sequence[int], bool]
#: Held-out rows of which the loss is computed at once.
TOGETHER = 256


class SupervisedSettings(Settings):
    """Supervised rows, to imitate: the loss is on the assistant's turns alone, or on all of a `text`.

    path            JSONL or Parquet file, or folder of such files, with rows of `messages`, of `prompt` and
                    `completion`, or of `text`; default: the task's demonstrations
    demonstrations  number of the task's demonstrations, if there is no path
    rows_per_step   rows of a step, split over its updates
    held_out        rows that are not trained on, whose loss is measured with evaluations; below 1: a share of all
    max_tokens      leave out longer rows; 0: those that the model cannot take
    """

    path: Location | None = None
    demonstrations: int = Field(default=10_000, ge=2, le=10**7)
    rows_per_step: int = Field(default=64, ge=1, le=2**20)
    held_out: float = Field(default=0, ge=0)
    max_tokens: int = Field(default=0, ge=0)


class MixSettings(Settings):
    """Weights of the losses that one update adds up, each over its own count of tokens.

    reinforced  of the algorithm's objective; 0: nothing is sampled to train on; default: 1, or 0 for the task chats
    distilled   of the KL term, if that is in the loss and reference.model is a teacher
    supervised  of the rows of [supervised], -log pi, mean over their tokens; default: 1 if there are any
    """

    reinforced: float | None = Field(default=None, ge=0)
    distilled: float = Field(default=1.0, ge=0)
    supervised: float | None = Field(default=None, ge=0)


class ReadsRows(Protocol):
    """Learner, as far as the loss of held-out rows asks it."""

    def logprobs_now(self, batch: Batch, sampled: bool = True) -> Tensor: ...


class Encoded(NamedTuple):
    """A row's ids [T] int32, and which of them train, [T] bool."""

    ids: Tensor
    trained: Tensor


@dataclass(frozen=True)
class SupervisedRows:
    """The supervised rows of a run.

    weight    mix.supervised
    updates   of a step, over which its rows are split
    contents  a hash of all rows: a run that goes on has the same ones
    left_out  number of rows that were too long
    """

    train: Sequence[Encoded]
    heldout: Sequence[Encoded]
    settings: SupervisedSettings
    weight: float
    updates: int
    seed: int
    pad: int
    contents: str
    left_out: int

    def batch(self, update: int) -> Batch | None:
        """Return the weighted rows of optimizer update number `update`, from 0; None if they have no weight.

        Each epoch has an order of its own, a function of the seed, so that the number is all that a checkpoint needs.
        """
        step, part = divmod(update, self.updates)
        each, count = self.settings.rows_per_step, len(self.train)
        places = range(step * each + part * each // self.updates, step * each + (part + 1) * each // self.updates)
        if not self.weight or not places:
            return None
        epochs = {place // count for place in places}
        orders = {e: torch.randperm(count, generator=stream(self.seed, "supervised", e)) for e in epochs}
        rows = [self.train[int(orders[place // count][place % count])] for place in places]
        return batch_of(rows, self.pad, self.weight)

    def loss(self, learner: ReadsRows) -> float | None:
        """Measure the mean loss of the held-out rows under the learner's weights, nats a token; None without any."""
        total = tokens = 0.0
        for first in range(0, len(self.heldout), TOGETHER):
            batch = batch_of(self.heldout[first : first + TOGETHER], self.pad, 1.0)
            total -= float(learner.logprobs_now(batch, sampled=False).double()[batch.mask].sum())
            tokens += float(batch.mask.sum())
        return total / tokens if self.heldout else None

    def describe(self) -> str:
        """Say how many rows there are, and what train of them."""
        tokens = sum(int(row.trained.sum()) for row in self.train)
        held = f", {len(self.heldout):,} held out" if self.heldout else ""
        longer = f"; {self.left_out:,} longer ones are left out" if self.left_out else ""
        each = f"{self.settings.rows_per_step} a step, weight {self.weight:g}"
        return f"{len(self.train):,} rows of {tokens:,} trained tokens{held}, {each}{longer}"


def batch_of(rows: Sequence[Encoded], pad: int, weight: float) -> Batch:
    """Make a batch of supervised rows, whose weights add up to `weight`; nothing sampled them."""
    tokens = pad_sequence([row.ids.long() for row in rows], batch_first=True, padding_value=pad)
    mask = pad_sequence([row.trained for row in rows], batch_first=True)
    none = torch.zeros(len(rows))
    return Batch(
        tokens=tokens,
        mask=mask,
        length=torch.tensor([len(row.ids) for row in rows]),
        group=torch.arange(len(rows)),
        score=none.double(),
        version=none.long() - 1,
        logp_engine=torch.zeros(tokens.shape),
        weight=mask.double() * (weight / int(mask.sum())),
    )


def supervised_rows(
    settings: SupervisedSettings, task: Task, chat: Chat, ends: frozenset[int], pad: int, most: int, seed: int,
    weight: float = 1.0, updates: int = 1,
) -> SupervisedRows:  # fmt: skip
    """Read and encode all rows, and hold some out; a row has at most as many tokens as the model takes (`most`).

    Raises UsageError for a row that cannot be read, or if none is left to train on.
    """
    limit = min(settings.max_tokens or most, most)
    encoded = list(_encoded(_rows(settings, task, seed), chat, ends))
    rows = [row for row in encoded if len(row.ids) <= limit]
    held = round(settings.held_out * (len(rows) if settings.held_out < 1 else 1))
    if held >= len(rows):
        raise UsageError(
            f"supervised.held_out = {settings.held_out:g}: of {len(encoded)} rows {len(rows)} have at most {limit} "
            "tokens, and none is left to train on; hold fewer out, or raise supervised.max_tokens"
        )
    order = torch.randperm(len(rows), generator=stream(seed, "supervised held out")).tolist()
    contents = hashlib.sha256(b"".join(x.numpy().tobytes() for row in rows for x in row)).hexdigest()[:16]
    train, heldout = ([rows[i] for i in sorted(some)] for some in (order[held:], order[:held]))
    return SupervisedRows(train, heldout, settings, weight, updates, seed, pad, contents, len(encoded) - len(rows))


def _rows(settings: SupervisedSettings, task: Task, seed: int) -> Iterator[Imitated]:
    if settings.path is not None:
        yield from Chats(settings.path).rows
        return
    if not isinstance(task, Demonstrates):
        raise UsageError(
            f"supervised.path is missing: {task} has no demonstrations to imitate; set it to a file of rows"
        )
    for number, one in enumerate(task.demonstrations(settings.demonstrations, seed), start=1):
        asked = list(one.messages) or [{"role": "user", "content": one.prompt}]
        turns = [*asked, {"role": "assistant", "content": one.completion}]
        yield Imitated(f"demonstration {number}", turns, len(asked), plain=not one.messages, tools=one.tools)


def _encoded(rows: Iterator[Imitated], chat: Chat, ends: frozenset[int]) -> Iterator[Encoded]:
    """Encode rows; what the template writes around turns is looked for once."""
    glue = Glue(chat, ends) if chat.template is not None else None
    end = _end_of_turn(chat, glue)
    opening = thinking_of(chat)
    for row in rows:
        parts = list(_parts(row, chat, glue, end, opening))
        ids = [i for some, _ in parts for i in some]
        trained = torch.tensor([own for some, own in parts for _ in some])
        trained[0] = False  # nothing stands before it that would predict it
        yield Encoded(torch.tensor(ids, dtype=torch.int32), trained)


def _end_of_turn(chat: Chat, glue: Glue | None) -> int:
    """Return the id that ends a turn of the assistant's: the template's, or the tokenizer's where it writes none."""
    end = chat.tokenizer.eos_token_id
    if glue is not None:
        answered = [*chat.messages(ASKED), {"role": "assistant", "content": "Zq6a"}]
        behind = glue.controls.cut(chat.render(answered, prompt=False).partition("Zq6a")[2]).controls[:1]
        end = next((i for i in behind if i in glue.controls.ends), end)
    if end is None:
        raise UsageError("supervised: the tokenizer has no eos_token, which ends what is imitated; take another model")
    return end


def _parts(
    row: Imitated, chat: Chat, glue: Glue | None, end: int, opening: str
) -> Iterator[tuple[Sequence[int], bool]]:
    """Yield the ids of a row, part by part, each with whether it trains."""
    where, tokenizer = f"{row.where}: ", chat.tokenizer
    if row.text:
        yield [*prompt_ids(tokenizer, [row.text], where)[0], end], True
        return
    if glue is None and not row.plain:
        raise UsageError(
            f"{where}a chat, but there is no chat template to put it into; set chat.template to a Jinja file, or take "
            "a model whose tokenizer has one"
        )
    at = row.begun
    asked = {"prompt": row.messages[0]["content"]} if row.plain else {"prompt": "", "messages": row.messages[:at]}
    sample = Sample(key=row.where, answer="", tools=row.tools, **asked)
    yield chat.encode(sample), False
    begun = opening + (sample.begun if sample.messages or glue is None else "")
    while True:
        turn = [*_said(row, at, chat, glue, begun), end]
        yield turn, True
        onward = next((n for n in range(at + 1, len(row.messages)) if row.messages[n]["role"] == "assistant"), None)
        if onward is None or glue is None:
            return
        between = [Says(one["role"], one["content"]) for one in row.messages[at + 1 : onward]]
        yield glue.glue(turn, between), False
        at, begun = onward, opening


def _said(row: Imitated, at: int, chat: Chat, glue: Glue | None, begun: str) -> Sequence[int]:
    """Return the ids of what the assistant says in a turn, as it would be sampled; calls of tools as the template has
    them.
    """
    turn, where = row.messages[at], f"{row.where}: "
    text = closed_behind(begun, turn["content"])
    if turn.get("tool_calls") and glue is not None:
        prompt = chat.render(row.messages[:at], where, tools=row.tools)
        whole = chat.render(row.messages[: at + 1], where, prompt=False, tools=row.tools)
        if not whole.startswith(prompt):
            raise UsageError(f"{where}the chat template writes a call of a tool otherwise than behind its prompt")
        text = whole.removeprefix(prompt)
        ids = text_ids(chat.tokenizer, [text], where)[0]
        return ids[: next((n for n, i in enumerate(ids) if i in glue.controls.ends), len(ids))]
    return text_ids(chat.tokenizer, [text], where)[0]


def shown(row: Encoded, tokenizer: Any) -> str:
    """Write a row as text, what trains of it in « »."""
    pieces = []
    for own, some in itertools.groupby(
        zip(row.ids.tolist(), row.trained.tolist(), strict=True), key=lambda pair: pair[1]
    ):
        text = tokenizer.decode([i for i, _ in some], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        pieces.append(f"«{text}»" if own else text)
    return "".join(pieces)
