"""Groups to one batch, a batch to minibatches of whole groups, a minibatch to microbatches by token budget."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from groupwise.core.errors import RunError
from groupwise.core.records import Batch, Completion, Group, Prompt

T = TypeVar("T")

#: The row indices of a microbatch that has none of a batch's rows.
NO_ROWS = torch.empty(0, dtype=torch.long)


def collate(
    groups: Sequence[Group],
    pad: int,
    mask_truncated: bool = False,
    steps: bool = False,
    states: bool = False,
    reward_names: Sequence[str] = (),
) -> Batch:
    """P groups -> a batch of their N completions, in order; `group` counts 0..P-1.

    Trained are the tokens of a completion's own spans. A completion without a score stays as a row, for the record, but
    none of its tokens is trained; so does one that was cut off at the limit, with `mask_truncated`. The step columns
    are written where a completion has steps, and always with `steps`; that of states where one has turns, and always
    with `states`. `reward_names` are the rewards that get a column each.
    """
    rows = [(g, group.prompt, c) for g, group in enumerate(groups) for c in group.completions]
    width = max(len(prompt.tokens) + len(c.tokens) for _, prompt, c in rows)
    tokens = torch.full((len(rows), width), pad, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    token_version = torch.full((len(rows), width), -1)
    logp = torch.zeros(len(rows), width)
    length = torch.zeros(len(rows), dtype=torch.long)
    for i, (_, prompt, completion) in enumerate(rows):
        length[i] = _fill_row(tokens[i], mask[i], logp[i], token_version[i], prompt, completion)
        mask[i] &= not (mask_truncated and completion.finish == "length")
    engine_ids, engine_top = _likeliest(rows, width) if any(c.top for _, _, c in rows) else (None, None)
    step_score, step_end = _steps(rows, width) if steps or any(c.steps for _, _, c in rows) else (None, None)
    return Batch(
        tokens=tokens,
        mask=mask,
        length=length,
        group=torch.tensor([g for g, _, _ in rows]),
        score=torch.tensor([c.trains_on for _, _, c in rows], dtype=torch.float64),
        version=torch.tensor([c.version for _, _, c in rows]),
        logp_engine=logp,
        token_version=token_version,
        read_from=_read_from(rows, width) if any(s.anew for _, _, c in rows for s in c.spans) else None,
        row=torch.arange(len(rows)),
        reward_scores=_reward_scores(rows, reward_names) if reward_names else None,
        support=_per_row(c.support for _, _, c in rows),
        engine_ids=engine_ids,
        engine_top=engine_top,
        routes_engine=_per_row(c.routes for _, _, c in rows),
        step_score=step_score,
        step_end=step_end,
        step_state=_states(rows, width) if states or any(c.turns for _, _, c in rows) else None,
    )


def _fill_row(
    tokens: Tensor, mask: Tensor, logp: Tensor, version: Tensor, prompt: Prompt, completion: Completion
) -> int:
    """Write a row's columns, [T] each -> its length."""
    start, stop = len(prompt.tokens), len(prompt.tokens) + len(completion.tokens)
    tokens[:start] = torch.tensor(prompt.tokens)
    tokens[start:stop] = torch.tensor(completion.tokens)
    for span in completion.spans:
        at = slice(start + span.start, start + span.stop)
        mask[at] = span.own and not math.isnan(completion.trains_on)
        version[at] = span.version if span.own else -1
    logp[start:stop] = torch.tensor(completion.logp_engine)
    return stop


def _read_from(rows: Sequence[tuple[int, Prompt, Completion]], width: int) -> Tensor:
    """-> read_from [N,T]: the column of the last prompt, up to the token, that the model reads anew."""
    read_from = torch.zeros(len(rows), width, dtype=torch.long)
    for i, (_, prompt, completion) in enumerate(rows):
        for span in completion.spans:
            if span.anew:
                start = len(prompt.tokens) + span.start
                read_from[i, start:] = start
    return read_from


def _per_row(values: Iterable[T | None]) -> tuple[T | None, ...] | None:
    """Return a column of one value a completion; None if no completion has one."""
    column = tuple(values)
    return column if any(value is not None for value in column) else None


def _likeliest(rows: Sequence[tuple[int, Prompt, Completion]], width: int) -> tuple[Tensor, Tensor]:
    """-> engine_ids and engine_top, [N,T,K] each, 0 where nothing was sampled. Raises RunError if a row has none."""
    tops = [c.top for _, _, c in rows if c.top is not None]
    if len(tops) < len(rows):
        raise RunError(
            f"{len(rows) - len(tops)} of {len(rows)} completions came without the sampler's most likely ids "
            "(Completion.top), which the loss reads"
        )
    shape = len(rows), width, tops[0].ids.shape[1]
    ids, logp = torch.zeros(shape, dtype=torch.int32), torch.zeros(shape)
    for i, ((_, prompt, completion), top) in enumerate(zip(rows, tops, strict=True)):
        own = torch.cat([torch.arange(span.start, span.stop) for span in completion.spans if span.own])
        ids[i, own + len(prompt.tokens)], logp[i, own + len(prompt.tokens)] = top.ids, top.logp
    return ids, logp


def _reward_scores(rows: Sequence[tuple[int, Prompt, Completion]], names: Sequence[str]) -> Tensor:
    """-> [N,K] reward units: the score of each named reward, NaN if it does not vote."""
    scores = [dict(c.reward_scores) for _, _, c in rows]
    return torch.tensor([[by_name.get(name, math.nan) for name in names] for by_name in scores], dtype=torch.float64)


def _steps(rows: Sequence[tuple[int, Prompt, Completion]], width: int) -> tuple[Tensor, Tensor]:
    """-> step_score and step_end, [N,T] each. Steps that end in one token are one step with the sum of their scores."""
    step_score = torch.zeros(len(rows), width, dtype=torch.float64)
    step_end = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, (_, prompt, completion) in enumerate(rows):
        for index, score in completion.steps:
            step_score[i, len(prompt.tokens) + index] += score
            step_end[i, len(prompt.tokens) + index] = True
    return step_score, step_end


def _states(rows: Sequence[tuple[int, Prompt, Completion]], width: int) -> Tensor:
    """-> step_state [N,T]: the states of a group by numbers from 1 on, where a turn ends that was spoken in one."""
    step_state = torch.zeros(len(rows), width, dtype=torch.long)
    numbers: dict[tuple[int, str], int] = {}
    for i, (g, prompt, completion) in enumerate(rows):
        for turn in completion.turns:
            if turn.state and turn.stop:
                number = numbers.setdefault((g, turn.state), len(numbers) + 1)
                step_state[i, len(prompt.tokens) + turn.stop - 1] = number
    return step_state


def minibatches(batch: Batch, count: int, generator: torch.Generator) -> Iterator[Batch]:
    """`count` disjoint parts of whole groups, as even as they come, groups in an order drawn from `generator`."""
    names = torch.unique(batch.group)
    order = names[torch.randperm(len(names), generator=generator)]
    for part in torch.tensor_split(order, min(count, len(names))):
        yield batch.rows(torch.isin(batch.group, part).nonzero()[:, 0])


def microbatches(length: Tensor, tokens: int) -> list[Tensor]:
    """Row lengths [N] -> row indices of each microbatch: sorted by length, at most `tokens` padded tokens in each.

    A row longer than the budget is a microbatch of its own.

    >>> [part.tolist() for part in microbatches(torch.tensor([3, 9, 4]), 9)]
    [[1], [2, 0]]
    """
    order = length.argsort(descending=True, stable=True)
    parts: list[Tensor] = []
    start = 0
    while start < len(order):
        rows = max(1, tokens // max(1, int(length[order[start]])))
        parts.append(order[start : start + rows])
        start += rows
    return parts


def idle_rows(batch: Batch) -> Batch:
    """Two tokens of the batch's first row, none of them trained: what runs where there is nothing to do.

    A model in shards runs on every rank as often, and a rank with fewer microbatches than another runs these. They
    have weight 0, no routes and no support.
    """
    row = batch.rows([0], width=2)
    return dataclasses.replace(
        row,
        mask=torch.zeros_like(row.mask),
        length=row.length.clamp(max=2),
        weight=None if row.weight is None else torch.zeros_like(row.weight),
        likelihood=None if row.likelihood is None else torch.zeros_like(row.likelihood),
        read_from=None,
        support=None,
        routes_engine=None,
        routes=None,
        routes_own=None,
    )
