"""Episodes whose earlier turns are written anew: each part of a row is computed as if it were a row by itself."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import groupwise
from groupwise.core.collate import collate
from groupwise.core.records import Batch, Completion, Group, Prompt, Span
from groupwise.core.samples import Sample
from groupwise.models.forward.layout import Layout, packed, padded
from groupwise.models.forward.logprobs import sequence_logprobs
from groupwise.models.forward.packed_attention import attend_packed
from tests.laws.test_layout import gradient, make_learner, model_of, require_same

MODELS = ("llama", "mistral, window 5", "gpt2")


def episode(g: torch.Generator, prompt: tuple[int, ...], turns: int, anew: bool = True) -> Completion:
    """Turns of 1 to 5 tokens; each later prompt begins as the first one does, and goes on otherwise."""
    tokens, spans, logp = [], [], []
    for turn in range(turns):
        if turn:
            later = [*prompt[:2], *torch.randint(3, 32, (3 + turn,), generator=g).tolist()]
            spans.append(Span(len(tokens), len(tokens) + len(later), False, 0, anew))
            tokens += later
            logp += [0.0] * len(later)
        own = torch.randint(3, 32, (int(torch.randint(1, 6, (1,), generator=g)),), generator=g).tolist()
        spans.append(Span(len(tokens), len(tokens) + len(own), True, 0))
        tokens += own
        logp += [-1.0] * len(own)
    score = float(torch.rand(1, generator=g).round())
    return Completion(tuple(tokens), tuple(logp), "stop", tuple(spans), score=score)


def batch_of(seed: int = 0, anew: bool = True) -> Batch:
    """Four groups of four episodes, of one to four turns."""
    g = torch.Generator().manual_seed(seed)
    groups = []
    for number in range(4):
        prompt = tuple(torch.randint(3, 32, (3 + number,), generator=g).tolist())
        episodes = tuple(episode(g, prompt, 1 + (number + i) % 4, anew) for i in range(4))
        groups.append(Group(Prompt(Sample(str(number), "", ""), prompt), episodes))
    return collate(groups, pad=0)


def logprobs(model: Any, batch: Batch, layout: Layout | None, temperature: float = 1.0) -> Tensor:
    line = nullcontext() if layout is None or layout.line is None else attend_packed(model.base_model)
    with line:
        logp, _ = sequence_logprobs(
            model.base_model, model.lm_head, batch.tokens, batch.mask, temperature, layout=layout
        )
    return logp


def one_by_one(model: Any, batch: Batch) -> Tensor:
    """Every trained token predicted by a forward over what the model read for it, and nothing else."""
    assert batch.read_from is not None
    out = torch.zeros(batch.tokens.shape, dtype=torch.float64)
    for row, column in batch.mask.nonzero().tolist():
        read = batch.tokens[row, int(batch.read_from[row, column]) : column]
        logits = model(input_ids=read[None]).logits[0, -1]
        out[row, column] = logits.log_softmax(-1)[batch.tokens[row, column]]
    return out


@pytest.mark.parametrize("name", MODELS)
def test_parts_of_a_row_are_computed_as_rows_by_themselves_forward_and_backward(name: str) -> None:
    model, batch = model_of(name), batch_of()
    assert batch.read_from is not None
    assert int((batch.read_from.diff(dim=1) != 0).sum()) >= 16
    weight = torch.rand(batch.tokens.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = {}
    for layout in (
        padded(batch.tokens, batch.length, batch.read_from),
        packed(batch.tokens, batch.length, read_from=batch.read_from),
        None,
    ):
        model.zero_grad(set_to_none=True)
        logp = one_by_one(model, batch) if layout is None else logprobs(model, batch, layout)
        (logp * weight).sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        found[layout is None or layout.line is not None, layout is None] = logp.detach(), gradient
    expected, gradient = found.pop((True, True))
    assert gradient.norm() > 1
    for logp, grad in found.values():
        torch.testing.assert_close(logp, expected, rtol=1e-9, atol=1e-9)
        assert (grad - gradient).norm() / gradient.norm() < 1e-9


def test_the_last_token_of_a_part_is_not_run_and_what_parts_have_in_common_is_run_once() -> None:
    batch = batch_of()
    assert batch.read_from is not None
    line = packed(batch.tokens, batch.length, read_from=batch.read_from)
    rows = padded(batch.tokens, batch.length, batch.read_from)
    begins = (batch.read_from[:, 1:].diff(dim=1) != 0) & (
        torch.arange(2, batch.tokens.shape[1]) < batch.length[:, None]
    )
    assert int(rows.run.sum()) == int((batch.length - 1).sum() - begins.sum())
    assert torch.equal(line.run, rows.run)
    assert torch.equal(line.ids.flatten()[line.place[line.run]], rows.ids.flatten()[rows.place[rows.run]])
    assert torch.equal(line.positions.flatten()[line.place[line.run]], rows.positions.flatten()[rows.place[rows.run]])
    assert line.tokens < int(rows.run.sum()), "later prompts begin as the first"


@pytest.mark.parametrize("algorithm", ["grpo", "dapo"])
def test_a_learner_updates_on_parts_in_any_microbatches_alike(algorithm: str) -> None:
    model, algo = model_of("llama"), groupwise.algorithm(algorithm)
    batch = batch_of(3)
    old = torch.where(batch.mask, -2 * torch.rand(batch.tokens.shape, dtype=torch.float64), 0)
    batch = algo.weigh(algo.credit(dataclasses.replace(batch, logp_old=old, logp_ref=old)))
    plain = gradient(make_learner(model, shared_prefixes=False), algo, batch)
    assert plain[1].norm() > 1e-3
    parts = logprobs(model, batch, padded(batch.tokens, batch.length, batch.read_from), temperature=0.8)
    torch.testing.assert_close(plain[2].logp_live, parts.detach(), rtol=1e-9, atol=1e-9)
    for budget in (10**6, 40, 1):
        require_same(gradient(make_learner(model, budget), algo, batch), plain)
        require_same(gradient(make_learner(model, budget, shared_prefixes=False), algo, batch), plain)


def test_what_stood_before_a_part_changes_nothing_of_it() -> None:
    """Of two batches that differ in a first turn alone, later turns have the same log-probabilities."""
    model, batch = model_of("llama"), batch_of()
    assert batch.read_from is not None
    later = batch.mask & (batch.read_from > 0)
    noise = torch.randint(3, 32, batch.tokens.shape, generator=torch.Generator().manual_seed(5))
    first = batch.mask & (batch.read_from == 0)
    other = dataclasses.replace(batch, tokens=torch.where(first, noise, batch.tokens))
    before, after = (
        logprobs(model, one, packed(one.tokens, one.length, read_from=one.read_from)) for one in (batch, other)
    )
    torch.testing.assert_close(before[later], after[later], rtol=1e-9, atol=1e-9)
    assert not torch.allclose(before[first], after[first])


def test_rows_that_only_grow_have_no_column_and_the_same_layout() -> None:
    batch = batch_of(anew=False)
    assert batch.read_from is None
    zero = torch.zeros_like(batch.tokens)
    for plain, parts in (
        (padded(batch.tokens, batch.length), padded(batch.tokens, batch.length, zero)),
        (packed(batch.tokens, batch.length), packed(batch.tokens, batch.length, read_from=zero)),
    ):
        assert torch.equal(plain.ids, parts.ids)
        assert torch.equal(plain.place, parts.place)
        assert torch.equal(plain.positions, parts.positions)


def test_a_span_that_the_policy_sampled_is_no_prompt() -> None:
    with pytest.raises(ValueError, match="cannot be a prompt"):
        Completion((5,), (-1.0,), "stop", (Span(0, 1, True, 0, anew=True),))
