"""What the engine is planned to take is what its memory grows to."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaForCausalLM

from groupwise.core.engine import Request, Sampling
from groupwise.engines.local.cache import PrefilledPrompts, RowCache
from groupwise.engines.local.columns import LayerColumns, LayerWindows
from groupwise.engines.local.engine import KEEP_BYTES, LocalEngine
from groupwise.models.context import EVERY
from groupwise.planning.activations import LiveBytes
from groupwise.planning.sampling_bytes import cache_bytes, drawing_bytes, slot_bytes
from tests.planning.made import llama


@pytest.mark.parametrize(("rows", "prompt", "new"), [(3, 5, 1), (3, 5, 30), (2, 40, 200), (4, 300, 40), (1, 1, 300)])
@pytest.mark.parametrize("windows", [(), (24, 24, 24), (24, EVERY, 24)], ids=["all", "windowed", "mixed"])
def test_a_cache_grows_to_what_was_planned(rows: int, prompt: int, new: int, windows: tuple[int, ...]):
    layers, heads, sizes = 3, 2, (7, 7) if EVERY in windows else (5, 7)
    cache = RowCache(LayerWindows(windows or None))
    keys, values = ([torch.ones(1, heads, prompt, size)] * layers for size in sizes)
    prompts = PrefilledPrompts(((1,) * prompt,), keys, values, torch.tensor([prompt]), torch.zeros(1, 4))
    with LiveBytes() as live:
        cache.insert(prompts, torch.zeros(rows, dtype=torch.long), new)
        before = live.peak
        for column in range(new - 1):
            cache.prepare(new - column, 10**6)
            cache.advance()
    planned = cache_bytes([heads * size for size in sizes] * layers, rows, prompt, new, windows=windows)
    assert cache.size == planned.kept
    assert planned.peak >= cache.size
    assert max(before, live.peak) == pytest.approx(planned.peak, rel=0.1, abs=4096)


def test_a_large_cache_is_not_held_between_calls():
    rows = KEEP_BYTES // (4 * 8 * 200)
    assert cache_bytes([8], rows, 50, 40).kept > 0
    assert cache_bytes([8], 2 * rows, 50, 40).kept == 0


@pytest.mark.parametrize(("rows", "samples", "prompt", "new"), [(8, 4, 5, 40), (6, 2, 30, 150), (12, 12, 17, 70)])
@pytest.mark.parametrize("more", [0, 100])
def test_slots_take_what_was_planned(rows: int, samples: int, prompt: int, new: int, more: int):
    config = llama(vocab_size=30, max_position_embeddings=256, hidden_size=32, num_hidden_layers=3)
    engine = LocalEngine(LlamaForCausalLM(config), frozenset(), 0, max_rows=rows + more, slots=True)
    asked = [Request((2 + i,) * prompt, samples, i) for i in range(rows // samples * (1 if more else 2))]
    engine.generate(asked, Sampling(max_new_tokens=new))
    assert engine._slots is not None
    assert engine._slots.tables is not None
    memory = engine._slots.tables.memory
    planned = slot_bytes([m.shape[1] * m.shape[3] for m in memory.own], rows, rows + more, samples, prompt, new)
    assert planned.kept == memory.size


def tiny(vocabulary: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = dict.fromkeys(("hidden_size", "intermediate_size"), 8)
    heads = dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads"), 1)
    return LlamaForCausalLM(llama(vocab_size=vocabulary, max_position_embeddings=64, **sizes, **heads))


def test_rows_whose_prompts_are_run_some_at_a_time_are_laid_out_once(monkeypatch: pytest.MonkeyPatch):
    """Else what each layout leaves stays with the process, in pieces that the next does not fit."""
    engine = LocalEngine(tiny(30), eos=frozenset(), pad=0)
    engine._prefill_tokens = 2 * 40
    runs, laid = [], []
    prefill, swap = engine._prefill, LayerColumns._swap
    monkeypatch.setattr(
        engine, "_prefill", lambda prompts, held: (runs.append(len(prompts)), prefill(prompts, held))[1]
    )
    monkeypatch.setattr(LayerColumns, "_swap", lambda *args: (laid.append(args), swap(*args))[1])
    engine.generate([Request((2 + i,) * 40, 3, i) for i in range(6)], Sampling(max_new_tokens=4))
    assert runs == [2, 2, 2]
    assert len(laid) == 2, "keys and values"


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.7), Sampling(top_k=50)])
def test_drawing_takes_no_more_than_was_planned(sampling: Sampling):
    rows, vocabulary = 64, 20_000
    engine = LocalEngine(tiny(vocabulary), eos=frozenset(), pad=0)
    engine.generate([Request((1, 2), 2, 0, 2)], sampling)  # recordings are made
    with LiveBytes() as live:
        engine.generate([Request((1, 2), rows, 0, 4)], sampling)
    planned = drawing_bytes(rows, vocabulary, sampling.truncates)
    assert 0.6 * planned < live.peak < 1.1 * planned
