"""What ranks hold of a model and gather of it, from shapes: each weight once, rows dealt as FSDP2 deals them."""

from __future__ import annotations

import pytest
import torch

from groupwise.models.adapters.lora import with_adapters
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.planning.activations import weight_bytes, without_memory
from groupwise.planning.shard_groups import (
    Weight,
    gathered,
    groups_of,
    held_bytes,
    largest_whole,
    summed,
    trained_part,
)
from tests.planning.made import experts, llama

WIDTH, LAYERS = 64, 3
TIED = without_memory(llama(vocab_size=301, num_key_value_heads=2))
UNTIED = without_memory(llama(vocab_size=301, num_key_value_heads=2, tie_word_embeddings=False))
EXPERTS = without_memory(experts(vocab_size=301, num_key_value_heads=2, num_experts_per_tok=2))


@pytest.mark.parametrize("model", [TIED, UNTIED, EXPERTS], ids=["tied", "untied", "experts"])
def test_alone_a_rank_holds_every_weight_once(model) -> None:
    groups = groups_of(model)
    assert held_bytes(groups.every, 1) == trained_part(groups.every, 1) == weight_bytes(model)
    assert len(groups.layers) == LAYERS
    assert len(groups.every) == len(list(model.parameters()))


def test_norms_and_what_lies_around_the_layers_are_one_group() -> None:
    vectors = [weight for weight in groups_of(TIED).outer if weight.row == 1]
    assert len(vectors) == 2 * LAYERS + 1
    assert [weight.rows for weight in groups_of(TIED).outer if weight.row > 1] == [301]
    assert [weight.rows for weight in groups_of(UNTIED).outer if weight.row > 1] == [301, 301]
    assert all(weight.row > 1 for layer in groups_of(TIED).layers for weight in layer)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 64, 1000])
@pytest.mark.parametrize("rows", [1, 2, 15, 64, 65])
def test_rows_are_dealt_as_torch_cuts_them(rows: int, ranks: int) -> None:
    weight = Weight(rows, row=3)
    cut = [len(part) * 3 for part in torch.zeros(rows, 3).chunk(ranks)]
    own = [weight.part(ranks, rank) for rank in range(ranks)]
    assert own == cut + [0] * (ranks - len(cut))
    assert sum(own) == 3 * rows
    assert max(own) == own[0] == weight.part(ranks)


def test_layers_pass_in_bfloat16_and_their_gradients_in_float32() -> None:
    plain, half = groups_of(TIED), groups_of(TIED, bf16=True)
    for layer, other in zip(plain.layers, half.layers, strict=True):
        assert gathered(layer, 2) == 2 * gathered(other, 2)
        assert summed(layer, 2) == summed(other, 2)
    assert gathered(plain.outer, 2) == gathered(half.outer, 2)
    assert held_bytes(plain.every, 2) == held_bytes(half.every, 2), "masters are float32"


def test_a_frozen_copy_in_bfloat16_is_half_as_large() -> None:
    assert held_bytes(groups_of(TIED, held=2).every, 4) * 2 == held_bytes(groups_of(TIED).every, 4)
    assert gathered(groups_of(TIED, held=2).outer, 4) * 2 == gathered(groups_of(TIED).outer, 4)


def test_of_adapters_alone_there_are_gradients() -> None:
    model = with_adapters(TIED, AdapterSettings(rank=4, targets=("layers.2.mlp.down_proj",)))
    groups = groups_of(model)
    assert trained_part(groups.every, 1) == 4 * 4 * (160 + WIDTH)
    assert summed(groups.outer, 2) == 0


def test_the_largest_weight_is_gathered_with_the_rows_that_fill_it_up() -> None:
    assert largest_whole(groups_of(TIED), 2) == 302 * WIDTH * 4
    assert largest_whole(groups_of(TIED), 1) == 301 * WIDTH * 4
