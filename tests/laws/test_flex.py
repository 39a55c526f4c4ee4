"""A line as one attention: its mask is what the rows say, its numbers and its gradient are those of blocks.

torch's flex attention is the real one, as it runs uncompiled: on a CPU it has a backward too, behind a check that the
fixture takes away.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import flex_attention as torchs
from torch.nn.attention.flex_attention import create_block_mask
from transformers.modeling_layers import GradientCheckpointingLayer

import groupwise
from groupwise.core.errors import UsageError
from groupwise.models.forward.flex import SIDE, Tree, attend_flex, compiled, ends
from groupwise.models.forward.forwards import replaced
from groupwise.models.forward.layout import Layout, packed
from groupwise.models.forward.packed_attention import (
    attend_packed,
    hidden_states,
    packed_attention,
    runs_as_one,
    windows_of,
)
from tests.laws.test_layout import MODELS, gradient, make_batch, make_learner, model_of, require_same
from tests.tiny_models import causal

TRIES = range(8)


@pytest.fixture(autouse=True)
def backward_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchs, "_validate_device", lambda *_: None)
    monkeypatch.setattr(torchs, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """What is compiled inside, one number each."""
    monkeypatch.setattr(torchs, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)
    torch._dynamo.reset()
    yield []
    torch._dynamo.reset()


def a_batch(seed: int) -> tuple[Tensor, Tensor, Tensor | None, int]:
    """Tokens, lengths, where parts begin in every other, and a window: rows that part early, late, or not at all."""
    g = torch.Generator().manual_seed(seed)
    rows, width, window = (int(torch.randint(low, high, (), generator=g)) for low, high in ((1, 30), (4, 60), (1, 60)))
    tokens = torch.randint(0, 2, (rows, width), generator=g)
    tokens[:, width // 3 :] = torch.randint(0, 9, (rows, width - width // 3), generator=g)
    length = torch.randint(2, width + 1, (rows,), generator=g)
    read_from = torch.zeros(rows, width, dtype=torch.long)
    for row in range(0, rows, 2):
        start = int(torch.randint(1, width, (), generator=g))
        read_from[row, start:] = start
    return tokens, length, read_from if seed % 2 else None, window


def by_rows(layout: Layout, length: Tensor, read_from: Tensor | None, window: int | None) -> Tensor:
    """[S,S] bool: each token of each row attends to those of its part before it, as far as the window goes."""
    sees = torch.eye(layout.ids.numel(), dtype=torch.bool)
    for row, places in enumerate(layout.place):
        for t in range(int(length[row]) - 1):
            start = 0 if read_from is None else int(read_from[row, t])
            seen = places[max(start, t + 1 - (window or t + 1)) : t + 1]
            if places[t] >= 0:  # a part's last token is not run
                sees[places[t], seen] = True
    return sees


@pytest.mark.parametrize("seed", TRIES)
def test_a_token_sees_what_precedes_it_in_its_row(seed: int) -> None:
    tokens, length, read_from, window = a_batch(seed)
    layout = packed(tokens, length, None, read_from, windows=(None, window))
    blocks = packed(tokens, length, None, read_from)
    tree = layout.line
    assert isinstance(tree, Tree)
    assert torch.equal(layout.place, blocks.place)
    assert torch.equal(layout.ids[:, : layout.tokens], blocks.ids)
    for width in (None, window):
        sees = tree.dense(width)
        assert torch.equal(sees, by_rows(layout, length, read_from, width))
        mask, torchs_own = tree.masks()[width], create_block_mask(tree.sees(width), 1, 1, *sees.shape, device="cpu")
        some, every = (count_of(mask, full) for full in (False, True))
        inside = sees.view(len(sees) // SIDE, SIDE, -1, SIDE)
        assert not (inside.any(3).any(1) & ~(some | every)).any()
        assert not (every & ~inside.all(3).all(1)).any()
        if width is None:  # with a window a block may be looked at in which nothing is seen
            assert torch.equal(mask.to_dense(), torchs_own.to_dense())


def count_of(mask: Any, full: bool) -> Tensor:
    """[q,k] bool: the blocks that a mask lists as full ones, or as those of which each pair is looked at."""
    counts, order = (mask.full_kv_num_blocks, mask.full_kv_indices) if full else (mask.kv_num_blocks, mask.kv_indices)
    table = torch.zeros(order.shape[-2:], dtype=torch.bool)
    for q, (count, listed) in enumerate(zip(counts[0, 0].tolist(), order[0, 0].tolist(), strict=True)):
        table[q, listed[:count]] = True
    return table


def test_a_long_prompt_is_a_full_block_for_all_that_goes_on_from_it() -> None:
    tokens = torch.arange(16 * 300).view(16, 300)
    tokens[:, :280] = tokens[0, :280].clone()
    layout = packed(tokens, torch.full((16,), 300), windows=(None,))
    assert isinstance(layout.line, Tree)
    every = count_of(layout.line.masks()[None], full=True)
    assert every[:, 0].tolist() == [False, True, True, True, False], "the last block is filled up with other tokens"
    assert ends(torch.tensor([0, 1, 1, 0])).tolist() == [3, 2, 3, 4]


@pytest.mark.parametrize("seed", TRIES)
def test_one_attention_is_blocks_forward_and_backward(seed: int) -> None:
    tokens, length, read_from, window = a_batch(seed)
    blocks = packed(tokens, length, None, read_from)
    one = packed(tokens, length, None, read_from, windows=(None, window))
    assert isinstance(one.line, Tree)
    g, dtype = torch.Generator().manual_seed(seed), (torch.float64, torch.float32)[seed % 2]
    heads, shared = (4, 3, 6)[seed % 3], (1, 3, 2)[seed % 3]
    q, k, v = (
        torch.randn(1, n, one.ids.numel(), d, generator=g, dtype=dtype, requires_grad=True)
        for n, d in ((heads, 8), (heads // shared, 8), (heads // shared, 6))
    )
    by_blocks: Any = packed_attention
    module, run = nn.Module(), blocks.ids.numel()
    up = torch.randn(1, run, heads, 6, generator=g, dtype=dtype)
    for width in (None, window):
        expected, _ = by_blocks(
            module, *(x[:, :, :run] for x in (q, k, v)), None, scaling=0.3, sliding_window=width, line=blocks.line
        )
        found, _ = attend_flex(module, q, k, v, None, scaling=0.3, sliding_window=width, line=one.line.masks())
        pairs = [(found[:, :run], expected)]
        pairs += zip(*(torch.autograd.grad(x, (q, k, v), up) for x in pairs[0]), strict=True)
        for ours, theirs in pairs:
            assert (ours - theirs).norm() <= (1e-12 if dtype == torch.float64 else 1e-5) * theirs.norm()


@pytest.mark.parametrize("name", ["llama", "mistral, window 5", "qwen3-moe"])
def test_the_gradient_of_an_update_is_that_of_blocks(name: str) -> None:
    model, algo = model_of(name), groupwise.algorithm("dapo")
    batch = algo.weigh(algo.credit(make_batch()))
    plain = gradient(make_learner(model, 60), algo, batch)
    learner = make_learner(model, 60, recompute=name == "llama")
    learner.windows = windows_of([model.base_model])
    require_same(gradient(learner, algo, batch), plain)


def test_dropout_reaches_one_attention() -> None:
    """A model that drops out where it must not is seen by the checks."""
    torch.manual_seed(0)
    model = causal("gpt2", num_hidden_layers=1, resid_pdrop=0.0).train()
    model.transformer.drop.p = 0.0
    batch = make_batch()
    line = packed(batch.tokens, batch.length, windows=(None,))
    with torch.no_grad(), attend_packed(model.base_model, line.line):
        first, second = (hidden_states(model.base_model, line) for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize(("name", "dtype"), [("llama", torch.bfloat16), ("mistral, window 5", torch.float32)])
def test_a_model_is_tried_before_it_runs_as_one(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    backbone = MODELS[name]().base_model
    windows = windows_of([backbone])
    assert runs_as_one(backbone, windows, dtype)
    assert not runs_as_one(backbone, windows, torch.float64)
    own = Tree.sees
    for wrong in (lambda tree, window: own(tree, 2), lambda tree, window: lambda b, h, q, k: k <= q):
        monkeypatch.setattr(Tree, "sees", wrong)
        assert not runs_as_one(backbone, windows, dtype)


def test_a_model_whose_attention_is_another_does_not_run_as_one() -> None:
    softcapped = causal("gemma2", attn_logit_softcapping=2.0, query_pre_attn_scalar=8).base_model
    assert not runs_as_one(softcapped, windows_of([softcapped]), torch.float32)
    assert not runs_as_one(MODELS["mistral, window 5"]().base_model, (None,), torch.float32)


def test_a_cpu_has_blocks_and_refuses_to_train_by_flex_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_learner(causal("llama")).windows is None
    monkeypatch.undo()
    with pytest.raises(UsageError, match=r'^learner.attention = "flex": .* on cpu, .*; set it to "auto" or "blocks"$'):
        make_learner(causal("llama"), attention="flex")
    with pytest.raises(UsageError, match='flex": this policy runs row by row'):
        make_learner(causal("llama"), attention="flex", shared_prefixes=False)


def line_of(rows: int, windows: tuple[int | None, ...]) -> Layout:
    tokens = torch.randint(0, 32, (rows, 50), generator=torch.Generator().manual_seed(0))
    return packed(tokens, torch.full((rows,), 50), windows=windows)


@pytest.mark.slow
def test_one_kernel_runs_lines_of_every_length(compiling: list[int]) -> None:
    """Two heads of keys and a head's 16 numbers are also counts of blocks: torch must not take one for the other."""

    def backend(graph: Any, _: object) -> Any:
        compiling.append(1)
        return graph

    attend = compiled(backend)
    for rows in (4, 6, 20, 42):
        line = line_of(rows, (None,))
        assert isinstance(line.line, Tree)
        q, k, v = (torch.randn(1, n, line.ids.numel(), 16, requires_grad=True) for n in (4, 2, 2))
        attend(q, k, v, block_mask=line.line.masks()[None], enable_gqa=True)
    assert len(compiling) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's compiler asks for it
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")  # the numbers beside
@pytest.mark.parametrize("name", ["llama", "mistral, window 5"])
def test_a_compiled_layer_holds_it_without_a_break_for_lines_of_every_length(name: str, compiling: list[int]) -> None:
    def backend(graph: Any, _: object) -> Any:
        compiling.append(1)
        return graph

    backbone = MODELS[name]().base_model
    layers = [module for module in backbone.modules() if isinstance(module, GradientCheckpointingLayer)]
    parts = [(x, torch.compile(x.forward, dynamic=True, fullgraph=True, backend=backend)) for x in layers]
    for rows in (4, 8, 20):
        layout = line_of(rows, windows_of([backbone]))
        with attend_packed(backbone, layout.line), torch.autocast("cpu", torch.bfloat16):
            with replaced(parts):
                found = hidden_states(backbone, layout)
            torch.testing.assert_close(found, hidden_states(backbone, layout))
    assert len(compiling) == 1
