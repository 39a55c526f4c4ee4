"""What rank 0 tells the others arrives as it was, and one that cannot follow is named before anything is trained."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.distributed as dist
from transformers import OpenAIGPTConfig, OpenAIGPTLMHeadModel

from groupwise.core.errors import UsageError
from groupwise.core.records import Batch, Support
from groupwise.training.mesh import batch_of, columns_of
from groupwise.training.ranks.followers import lead
from groupwise.training.ranks.sharded import require_decoder_layers
from tests.laws.test_split import make_batch


def whole_batch() -> Batch:
    """Every column, those of rows with and without entries."""
    few = make_batch().rows(torch.arange(3))
    column = torch.arange(few.tokens.numel(), dtype=torch.float64).view(few.tokens.shape)
    support = Support(torch.tensor([3, 5, 8], dtype=torch.int32), torch.tensor([0, 1, 3]))
    routes = tuple(torch.full((n, 2, 1), n, dtype=torch.uint8) for n in (4, 1, 6))
    by_token = ("step_score", "value", "reward", "advantage", "returns", "correction", "weight", "likelihood")
    return dataclasses.replace(
        few,
        **dict.fromkeys(by_token, column),
        token_version=few.tokens,
        read_from=few.tokens,
        step_state=few.tokens,
        step_end=few.mask,
        ref_ids=few.tokens[..., None].int(),
        ref_top=column[..., None],
        engine_ids=few.tokens[..., None].int(),
        engine_top=column[..., None],
        row=torch.arange(3),
        reward_scores=torch.tensor([[1.0], [float("nan")], [-0.0]]),
        support=(support, None, support),
        routes_engine=(routes[0], None, routes[2]),
        routes=routes,
        routes_own=routes,
    )


def same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        bits = [x.contiguous().view(-1).view(torch.uint8) for x in (one, other)]
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bits)
    if isinstance(one, Support) and isinstance(other, Support):
        return same(one.ids, other.ids) and same(one.start, other.start)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one is other is None


def test_a_batch_comes_out_of_its_columns_to_the_bit():
    batch = whole_batch()
    fields = [field.name for field in dataclasses.fields(batch)]
    assert all(getattr(batch, name) is not None for name in fields), "a new column is to be here too"
    again = batch_of(*columns_of(batch))
    assert [name for name in fields if not same(getattr(batch, name), getattr(again, name))] == []


def test_columns_that_are_not_there_stay_so():
    bare = make_batch()
    again = batch_of(*columns_of(bare))
    assert all(same(getattr(bare, f.name), getattr(again, f.name)) for f in dataclasses.fields(bare))


def test_a_rank_that_cannot_start_is_named_with_its_last_words():
    with pytest.raises(UsageError) as refused:
        lead("groupwise.training.nowhere", {}, ["cpu", "cpu"], seconds=5, go_on="")
    assert str(refused.value) == (
        "learner.ranks: rank 1 did not start: it ended: exit code 1 "
        "(ModuleNotFoundError: No module named 'groupwise.training.nowhere')"
    )
    assert not dist.is_initialized()


def test_a_model_whose_layers_are_not_known_is_refused_by_its_name():
    config = OpenAIGPTConfig(vocab_size=9, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    with pytest.raises(UsageError) as refused:
        require_decoder_layers(OpenAIGPTLMHeadModel(config), ranks=3)
    assert str(refused.value) == (
        "learner.ranks = 3: OpenAIGPTLMHeadModel has no decoder layers that could be sharded; set it to 1"
    )
