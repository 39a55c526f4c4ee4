"""Positions: a token's rotation does not depend on how long its sequence is, and models with positions of another kind
(alibi, learned ones, none) are sampled as their own forward computes them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from groupwise.core.engine import Request, Sampling
from groupwise.core.errors import UsageError
from groupwise.engines.local.engine import LocalEngine
from groupwise.engines.local.trial import require_sampled
from groupwise.models.context import LENGTHS, positions, positions_in_words
from groupwise.models.forward.packed_attention import runs_packed
from groupwise.planning.activations import without_memory
from tests.engines.local.test_windows import batch_of, learned, worst_gap
from tests.models.test_what_is_refused import LONGROPE, SIZES, config_of, model_of

MOST = 48
KEYS: dict[str, Any] = {**SIZES, "max_position_embeddings": MOST, "initializer_range": 0.3, "sliding_window": None}
THETA = {"rope_theta": 10000.0}
#: Parameters of each rope; of those that transformers may get, what most have.
ROPES: dict[str, dict[str, Any]] = {
    "default": {},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "llama3": {
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "longrope": LONGROPE,
}
#: Positions after which a rope of these parameters changes.
CHANGING = {"longrope": 24, "dynamic": MOST}


def rope(kind: str) -> dict[str, Any]:
    return {**THETA, **ROPES.get(kind, {"factor": 4.0}), "rope_type": kind}


def llama(kind: str) -> Any:
    return config_of("Llama", **KEYS, rope_parameters=rope(kind))


@pytest.mark.parametrize("kind", ["default", *ROPE_INIT_FUNCTIONS])
def test_a_rotation_is_the_same_in_every_sequence_that_fits_the_positions(kind: str) -> None:
    model = model_of(llama(kind))
    most, x = positions(model.config), torch.zeros(1)

    def rotation(tokens: int) -> torch.Tensor:
        return torch.stack(model.model.rotary_emb(x, torch.arange(tokens)[None]))[:, :, :4]

    short = rotation(4)
    for tokens in (*range(5, most), most):
        assert rotation(tokens).equal(short)
    assert rotation(most + 1).equal(short) == (kind not in CHANGING)  # no model is held to less than it takes
    assert most == CHANGING.get(kind, MOST)
    assert rotation(4).equal(short)


#: Gemma 3 with a rope for each kind of layers: the shortest of their limits is the model's.
BY_LAYER = {
    f"{full} and {sliding}": config_of(
        "Gemma3Text",
        **{**KEYS, "sliding_window": 40},
        head_dim=8,
        layer_types=["full_attention", "sliding_attention"],
        rope_parameters={"full_attention": rope(full), "sliding_attention": rope(sliding)},
    )
    for full, sliding in (("linear", "default"), ("longrope", "default"), ("yarn", "dynamic"))
}
PHIMOE = config_of(
    "Phimoe",
    **KEYS,
    num_local_experts=4,
    rope_parameters={**rope("longrope"), "short_mscale": 1.1, "long_mscale": 1.4},
)
ROPED = {kind: llama(kind) for kind in ("default", *ROPE_INIT_FUNCTIONS)} | BY_LAYER | {"phimoe": PHIMOE}
#: Without rotary positions, or with older code.
OLDER = {
    "bloom": config_of("Bloom", vocab_size=40, hidden_size=32, n_head=4, n_layer=2),
    "falcon, alibi": config_of("Falcon", **KEYS, alibi=True),
    "mpt": config_of("Mpt", vocab_size=40, d_model=32, n_heads=4, n_layers=2, max_seq_len=MOST),
    "falcon": config_of("Falcon", **KEYS),
    "gpt2": config_of("GPT2", vocab_size=40, n_embd=32, n_head=4, n_layer=2, n_positions=MOST),
    "gpt neo": config_of(
        "GPTNeo", **KEYS, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=7
    ),
    "gptj": config_of("GPTJ", vocab_size=40, n_embd=32, n_head=4, n_layer=2, n_positions=MOST, rotary_dim=4),
    "codegen": config_of("CodeGen", vocab_size=40, n_embd=32, n_head=4, n_layer=2, n_positions=MOST, rotary_dim=4),
    "ctrl": config_of("CTRL", vocab_size=40, n_embd=32, n_head=4, n_layer=2, n_positions=MOST, dff=48),
    "opt": config_of("OPT", **KEYS, ffn_dim=48, word_embed_proj_dim=32),
    "biogpt": config_of("BioGpt", **KEYS),
    "xglm": config_of("XGLM", **{**KEYS, "d_model": 32, "num_layers": 2}, attention_heads=4, ffn_dim=48),
}
XLSTM = {"vocab_size": 40, "hidden_size": 64, "embedding_dim": 64, "num_heads": 4, "num_blocks": 1, "chunk_size": 64}
FIRST = ("bloom", "falcon, alibi", "mpt", "longrope", "yarn and dynamic")


def to_the_limit(config: Any) -> list[Request]:
    """Prompts of unlike length, each with answers as long as the model has positions."""
    most, numbers = min(positions(config), MOST), torch.Generator().manual_seed(0)
    prompts = [tuple(torch.randint(2, 40, (n,), generator=numbers).tolist()) for n in (3, 20, 1, most - 1)]
    return [Request(tokens, 2, len(tokens), max_new_tokens=most - len(tokens)) for tokens in prompts]


@pytest.mark.parametrize(
    "name",
    [name if name in FIRST else pytest.param(name, marks=pytest.mark.slow) for name in (*ROPED, *OLDER)],
)
def test_engine_learner_and_model_agree_to_the_last_position(name: str) -> None:
    model = model_of((ROPED | OLDER)[name])
    for weight in model.parameters():
        weight.data.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)), alpha=0.1)
    asked = to_the_limit(model.config)
    answers = LocalEngine(model, frozenset(), pad=0, max_rows=3).generate(asked, Sampling())
    assert worst_gap(model, answers, asked) < 1e-4
    batch = batch_of(asked, answers)
    together = learned(model, batch, tokens_per_microbatch=400)
    assert float((together - batch.logp_engine)[batch.mask].abs().max()) < 1e-4
    alone = learned(model, batch, tokens_per_microbatch=1)
    assert float((together - alone)[batch.mask].abs().max()) < 1e-5


@pytest.mark.parametrize("name", ["longrope", "dynamic", "yarn and dynamic", "longrope and default"])
def test_a_sequence_beyond_a_ropes_limit_is_refused_by_its_reason(name: str) -> None:
    config = ROPED[name]
    kind = "dynamic" if "dynamic" in name else "longrope"
    key = LENGTHS[0] if kind == "dynamic" else "original_max_position_embeddings"
    asked = Request((4, 5), 1, 0, max_new_tokens=positions(config) - 1)
    within = rf"the {CHANGING[kind]} positions \({key}\) within which the model's rope \({kind}\) is one function"
    assert within.replace("\\", "") in positions_in_words(config)
    with pytest.raises(UsageError, match=rf"{within}.* at most {CHANGING[kind] - 2}"):
        LocalEngine(model_of(config), frozenset(), pad=0).generate([asked], Sampling())


def test_alibi_runs_in_rows_and_is_taken_without_weights_too() -> None:
    for name in ("bloom", "falcon, alibi", "mpt"):
        model = model_of(OLDER[name])
        assert not runs_packed(model.base_model)
        assert require_sampled(model).by_token == require_sampled(without_memory(OLDER[name])).by_token
