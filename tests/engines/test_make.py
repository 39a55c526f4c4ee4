"""The engine that a run gets, what it declares, and what training requires of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from groupwise.core.engine import Request, Sampling
from groupwise.core.errors import RunError, UsageError
from groupwise.engines.local.sampler import draw
from groupwise.engines.make import make_engine, require_engine_support, require_engine_top
from groupwise.engines.settings import EngineSettings


def policy(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    config = Qwen3Config(**sizes, num_attention_heads=2, num_key_value_heads=1, head_dim=8, pad_token_id=0)  # type: ignore[arg-type]
    model = Qwen3ForCausalLM(config).to(dtype).eval()
    return SimpleNamespace(model=model, eos=frozenset({3}), pad=0, decode=lambda ids: str(ids))


@pytest.mark.parametrize(
    ("dtype", "precision"), [(torch.float32, "fp32"), (torch.bfloat16, "bf16"), (torch.float16, "fp16")]
)
def test_the_local_engine_says_what_it_is(dtype, precision):
    engine = make_engine(policy=policy(dtype), settings=EngineSettings(max_rows=3))
    assert (engine.precision, engine.routes, engine.keeps_support, engine.keeps_top) == (precision, False, True, True)
    assert (engine.version, engine._max_rows) == (0, 3)  # type: ignore[attr-defined]


def test_a_closed_engine_holds_nothing_and_refuses_to_sample():
    engine = make_engine(policy=policy(), settings=EngineSettings())
    request = Request((4, 5), 2, seed=0)
    assert len(engine.generate([request], Sampling(max_new_tokens=3))[0]) == 2
    engine.close()
    engine.close()
    held = [value for value in vars(engine).values() if isinstance(value, torch.nn.Module)]
    assert not held
    assert engine._cache.size == 0  # type: ignore[attr-defined]
    with pytest.raises(RunError, match="closed"):
        engine.generate([request], Sampling(max_new_tokens=3))


class Untold:
    """An engine that does not return the ids that top-p, top-k or min-p left."""

    keeps_support = keeps_top = False


@pytest.mark.parametrize("sampling", [Sampling(top_p=0.9), Sampling(top_k=5), Sampling(min_p=0.1)])
def test_training_over_a_support_needs_an_engine_that_returns_it(sampling):
    with pytest.raises(UsageError, match=r"^sampling.top_p = .*: the run's engine does not return the ids") as caught:
        require_engine_support(Untold(), sampling)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    require_engine_support(Untold(), Sampling())  # type: ignore[arg-type]
    require_engine_support(SimpleNamespace(keeps_support=True), sampling)  # type: ignore[arg-type]


def test_a_loss_that_reads_likely_ids_needs_an_engine_that_returns_them():
    with pytest.raises(
        UsageError, match=r"^algorithm\.trust\.k = 7: the run's engine does not return .*local"
    ) as caught:
        require_engine_top(Untold(), 7)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    require_engine_top(Untold(), 0)  # type: ignore[arg-type]
    require_engine_top(SimpleNamespace(keeps_top=True), 7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("setting", "declared"), [("same", "fp32"), ("fp32", "fp32"), ("bf16", "bf16"), ("fp16", "fp16")]
)
def test_the_engines_copy_has_the_precision_that_is_set(setting, declared):
    master = policy()
    engine = make_engine(policy=master, settings=EngineSettings(precision=setting))
    assert (engine.precision, master.model.dtype) == (declared, torch.float32)
    engine.load_weights(master.model.named_parameters(), version=1)
    assert engine.precision == declared
    (completion,) = engine.generate([Request((4, 5), 1, seed=0)], Sampling(max_new_tokens=9))[0]
    assert len({*completion.logp_engine}) == len(completion.tokens)


def test_log_probabilities_of_bf16_logits_are_float32s():
    logits = 4 * torch.randn(7, 300, generator=torch.Generator().manual_seed(0))
    uniform = torch.rand(7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rough = logits.bfloat16()
    for sampling in (Sampling(), Sampling(temperature=0.7), Sampling(top_p=0.9)):
        drawn = draw(rough, uniform, sampling)
        exact = rough.double() / sampling.temperature
        if drawn.support is not None:
            exact = exact.masked_fill(~drawn.support, -torch.inf)
        expected = exact.log_softmax(-1).gather(1, drawn.tokens[:, None])[:, 0]
        torch.testing.assert_close(drawn.logp, expected, rtol=0, atol=2e-6)
