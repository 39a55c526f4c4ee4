"""Rows run over their whole texts: what the cache gives, and models of which nothing can be cached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.architectures.build import save_small, small_model
from benchmarks.architectures.trial import RUN
from torch import Tensor

import groupwise
from groupwise.core.engine import Request, Sampling
from groupwise.core.errors import UsageError
from groupwise.engines.local import engine as local
from groupwise.engines.local.columns import LayerWindows
from groupwise.engines.local.engine import LocalEngine
from groupwise.engines.local.trial import WHOLE_TEXTS, require_sampled
from groupwise.planning.activations import without_memory
from tests.engines.local import made
from tests.engines.local.made import each
from tests.engines.local.test_engine_routes import REQUESTS, assert_own_routes
from tests.engines.local.test_held import assert_same, turns_of
from tests.engines.local.test_windows import batch_of, learned, worst_gap

EOS = frozenset({3, 7})
#: A model type, and why nothing of it is cached: layers that choose what they see, in chunks, compressed; states in a
#: cache of their own; no cache; no positions.
UNCACHED = {
    "deepseek_v32": "indexed_attention",
    "llama4_text": "chunked_attention",
    "deepseek_v4": "compressed_sparse_attention",
    "minimax": "refuses positions, a cache",
    "recurrent_gemma": "elsewhere than in transformers' cache",
    "xlstm": "do not all keep keys and values",
    "openai-gpt": "do not all keep keys and values",
    "bart": "takes no position_ids",
    "moshi": "of their norm from those of a whole text",
}


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model's rows run over their whole texts, 40 padded tokens at a time."""
    monkeypatch.setattr(local, "require_sampled", lambda model: LayerWindows(uncached="as this test has it"))
    monkeypatch.setattr(local, "PREFILL_TOKENS_CPU", 40)


def played(model: Any, **engine: Any) -> Any:
    """Complete requests of uneven prompts in fewer rows than there are completions, to the last position."""
    requests = [*made.REQUESTS, Request((6,) * 90, 2, seed=3, max_new_tokens=6)]
    return each(
        requests, LocalEngine(model, EOS, 0, max_rows=4, **engine).generate(requests, Sampling(max_new_tokens=30))
    )


@pytest.mark.parametrize("name", [*made.MODELS])
def test_whole_texts_give_what_the_cache_gives(name: str, request: pytest.FixtureRequest) -> None:
    model = made.build(name)
    cached = played(model)
    request.getfixturevalue("whole")
    assert_same(cached, played(model))


def test_a_later_turn_is_run_from_its_first_token(request: pytest.FixtureRequest) -> None:
    model, sampling = made.build(), Sampling(max_new_tokens=8)
    cached = turns_of(LocalEngine(model, EOS, 0), sampling, holds=True)
    request.getfixturevalue("whole")
    engine = LocalEngine(model, EOS, 0)
    assert_same(cached, turns_of(engine, sampling, holds=True))
    assert not engine._held


@pytest.mark.usefixtures("whole")
def test_routes_are_those_of_one_forward_over_the_text() -> None:
    model = made.build_moe()
    requests = [*REQUESTS, Request((9,) * 33, 2, seed=5)]
    answers = LocalEngine(model, frozenset({3}), 0, max_rows=4, routes=True).generate(
        requests, Sampling(max_new_tokens=16)
    )
    assert_own_routes(model, each(requests, answers))


@pytest.mark.parametrize("kind", [*UNCACHED])
def test_a_model_of_which_nothing_can_be_cached_is_sampled_as_it_is_trained(kind: str) -> None:
    model = small_model(kind)
    asked = [Request(tuple(range(4, 4 + n)), samples, n) for n, samples in ((3, 2), (20, 2), (9, 1))]
    engine = LocalEngine(model, frozenset(), pad=0, max_rows=3)
    assert WHOLE_TEXTS in engine.remark
    assert UNCACHED[kind] in engine.remark
    answers = engine.generate(asked, Sampling(max_new_tokens=20))
    assert worst_gap(model, answers, asked) < 1e-4
    batch = batch_of(asked, answers)
    together = learned(model, batch, tokens_per_microbatch=400)
    assert float((together - batch.logp_engine)[batch.mask].abs().max()) < 1e-4


@pytest.mark.parametrize("kind", ["deepseek_v32", "llama4_text", "minimax", "xlstm"])
def test_a_plan_knows_it_without_weights(kind: str) -> None:
    model = small_model(kind)
    assert require_sampled(without_memory(model.config)).uncached == require_sampled(model).uncached != ""


def test_a_check_and_a_run_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = {**RUN, "model": str(save_small("openai-gpt", tmp_path / "model")), "runs": str(tmp_path), "steps": 1}
    assert any(WHOLE_TEXTS in str(remark) for remark in groupwise.check(recipe).findings)
    groupwise.train(recipe)
    assert WHOLE_TEXTS in " ".join(capsys.readouterr().out.split())


def test_what_is_cached_stays_cached() -> None:
    for kind in ("llama", "gemma3_text", "qwen3_next", "mamba2", "bloom", "gpt_oss"):
        assert require_sampled(small_model(kind)).uncached == "", kind


def test_a_model_that_is_no_function_of_its_text_is_refused_in_one_line() -> None:
    model = made.build()
    own = model.forward

    def forward(input_ids: Tensor, **inputs: Any) -> Any:
        output = own(input_ids=input_ids, **inputs)
        output.logits = output.logits.roll(input_ids.shape[1], -1)  # so does a padded place change them
        return output

    model.forward = forward
    with pytest.raises(
        UsageError, match=r"^the local engine cannot sample Qwen3ForCausalLM: .*; beside a longer text .*; set "
    ):
        require_sampled(model)


def test_whole_texts_have_no_place_in_slots() -> None:
    model, requests = small_model("llama4_text"), [Request((4, 5, 6), 2, 0)]
    plain, asked = (LocalEngine(model, frozenset(), pad=0, slots=slots) for slots in (False, True))
    assert asked.generate(requests, Sampling(max_new_tokens=6)) == plain.generate(requests, Sampling(max_new_tokens=6))


def test_steps_over_whole_texts_are_not_compiled() -> None:
    with pytest.raises(UsageError, match=r"^engine\.compile: .*keys and values.*; set it to false"):
        LocalEngine(small_model("openai-gpt"), frozenset(), pad=0, compiled=True)


def test_no_more_places_than_asked_for_are_run_at_once(monkeypatch: pytest.MonkeyPatch, whole: None) -> None:
    model, sizes = made.build(), list[int]()
    engine = LocalEngine(model, EOS, 0, max_rows=8)
    engine._model.register_forward_pre_hook(
        lambda _, __, inputs: sizes.append(inputs["input_ids"].numel()), with_kwargs=True
    )
    engine.generate([Request((5,) * 9, 8, 0)], Sampling(max_new_tokens=20))
    assert 30 < max(sizes) <= 40
    assert torch.tensor(sizes).sum() > 8 * 20 * 9
