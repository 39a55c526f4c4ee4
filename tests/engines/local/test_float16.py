"""The engine in float16: near the model's plain forward in rows and in slots, and what it says of numbers too large."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from groupwise.core.engine import Sampling
from groupwise.core.errors import RunError, UsageError
from groupwise.engines.local.engine import LocalEngine
from groupwise.engines.local.slots.attention import partial_attention
from tests.engines.local.made import EOS, assert_plain, build
from tests.engines.local.test_slots import HOWS, RAGGED

BEYOND = r"model\.layers\.1\.mlp\.up_proj\.weight has a number of size 70000, and float16 ends at 65,504"


@pytest.fixture(params=[False, True], ids=["rows", "slots"])
def engine(request: pytest.FixtureRequest) -> LocalEngine:
    engine = LocalEngine(build(), EOS, 0, max_rows=11, precision="fp16", slots=request.param)
    assert (engine.precision, engine._slots is not None, engine.why_rows) == ("fp16", request.param, "")
    return engine


def changed(name: str, change: Any) -> dict[str, torch.Tensor]:
    """The engine's weights, one of them changed."""
    weights = {n: tensor.detach().clone() for n, tensor in build().named_parameters()}
    change(weights[name])
    return weights


def test_it_is_near_the_plain_forward_of_float32(engine: LocalEngine) -> None:
    """Nearer than bfloat16 comes, which is up to 0.09 nats away."""
    assert_plain(build(), engine, RAGGED, HOWS["top-p"], atol=0.012)


def test_weights_that_it_cannot_hold_are_refused_and_change_nothing(engine: LocalEngine) -> None:
    before = engine.generate(RAGGED[:3], Sampling(max_new_tokens=6))
    beyond = changed("model.layers.1.mlp.up_proj.weight", lambda weight: weight[3].fill_(-7e4))
    with pytest.raises(RunError, match=f"^{BEYOND}: the engine keeps version 0; ") as error:
        engine.load_weights(beyond.items(), version=1)
    assert "\n" not in str(error.value)
    assert engine.version == 0
    assert engine.generate(RAGGED[:3], Sampling(max_new_tokens=6)) == before
    model = copy.deepcopy(build())
    model.load_state_dict(beyond, strict=False)
    with pytest.raises(UsageError, match=rf"^engine\.precision = 'fp16': {BEYOND}; set it to 'bf16', or to 'same'"):
        LocalEngine(model, EOS, 0, precision="fp16")


def test_logits_beyond_it_are_not_put_down_to_the_weights_alone(engine: LocalEngine) -> None:
    engine.load_weights(changed("model.norm.weight", lambda weight: weight.fill_(6e4)).items(), 1)
    with pytest.raises(RunError, match=r"weights version 1\): a number on the way may have passed 65,504, .*'same'"):
        engine.generate(RAGGED, Sampling())


def test_slots_attend_where_unscaled_products_would_be_infinite() -> None:
    query, keys = torch.full((1, 1, 1, 64), 90.0), torch.full((1, 1, 2, 64), 40.0)
    keys[..., 1, :] = 39.9
    parts = [
        partial_attention(query.to(dtype), keys.to(dtype), keys.to(dtype), torch.tensor([2]), 1 / 80)
        for dtype in (torch.float16, torch.float32)
    ]
    assert not (query.half() @ keys.half().transpose(2, 3)).isfinite().any()
    torch.testing.assert_close(parts[0], parts[1], rtol=2e-3, atol=0)
