"""Layers with a state: the engine samples from what the model's own forward gives, and the learner computes it too."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import groupwise
from groupwise.core.collate import collate
from groupwise.core.engine import Request, Sampling
from groupwise.core.records import Batch, Completion, Group, Prompt
from groupwise.core.samples import Sample
from groupwise.engines.local.cache import RowCache
from groupwise.engines.local.columns import LayerWindows
from groupwise.engines.local.engine import LocalEngine
from groupwise.engines.local.forward import Prefill
from groupwise.engines.local.states import RowStates
from groupwise.models.context import windows
from groupwise.models.forward.heads import halves
from groupwise.models.forward.packed_attention import runs_packed
from groupwise.models.moe.record import record_routes, routers
from groupwise.planning.activations import cached_widths, state_numbers, without_memory
from groupwise.planning.sampling_bytes import cache_bytes
from groupwise.training.learner import Learner, LearnerSettings
from tests.engines.local.made import assert_alike, is_recorded
from tests.engines.local.test_held import assert_same, turns_of
from tests.tiny_models import causal

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "layer_types": ["linear_attention", "full_attention"],
}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
MAMBA = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_d_ssm": 64,
    "mamba_chunk_size": 8,
}
MIXER = {"state_size": 8, "n_groups": 1, "chunk_size": 8, "layer_types": None, "intermediate_size": 64}
#: Mixers that Nemotron-H names otherwise, a layer of each kind.
NEMOTRON: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "moe", "full_attention", "mlp"],
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "ssm_state_size": 8,
    "n_groups": 1,
    "chunk_size": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": None,
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 8),
}
ZAMBA = {"layer_types": None, "layers_block_type": ["linear_attention", "hybrid"], "head_dim": None}
SHORT = {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}
#: By what is special: a delta rule, convolutions alone, both kinds in one layer, layers of neither, no attention.
HYBRIDS: dict[str, dict[str, Any]] = {
    "qwen3_next": {**DELTA, **EXPERTS},
    "lfm2": SHORT,
    "falcon_h1": {**MAMBA, "layer_types": None},
    "nemotron_h": NEMOTRON,
    "mamba2": {**MIXER, "num_heads": 4, "head_dim": 16},
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": {**DELTA, **EXPERTS},
    "lfm2_moe": {**SHORT, **EXPERTS, "num_dense_layers": 1},
    "mamba": {**MIXER, "time_step_rank": 4},
    "falcon_mamba": {**MIXER, "time_step_rank": 4},
    "jamba": {
        **EXPERTS,
        **dict.fromkeys(("attn_layer_period", "expert_layer_period"), 2),
        **dict.fromkeys(("attn_layer_offset", "expert_layer_offset"), 1),
        "layer_types": None,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
    },
    "zamba": {
        **ZAMBA,
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
        "n_mamba_heads": 2,
        "attention_head_dim": 16,
        "attention_hidden_size": 64,
    },
    "zamba2": {
        **ZAMBA,
        "mamba_d_state": 8,
        "mamba_ngroups": 1,
        "n_mamba_heads": 4,
        "mamba_headdim": 16,
        "chunk_size": 8,
        "num_mem_blocks": 1,
    },
    "bamba": {**MAMBA, "layer_types": None, "attn_layer_indices": [1]},
    "granitemoehybrid": {**MAMBA, "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 32},
    "olmo_hybrid": DELTA,
    "kimi_linear": {**LATENT, **EXPERTS, "num_local_experts": 4, "linear_head_dim": 8, "linear_num_heads": 4},
    "bailing_hybrid": {**LATENT, **EXPERTS, "n_group": 1, "num_expert_group": 1, "topk_group": 1},
    "inkling2_text": {"layer_types": ["hybrid", "hybrid_sliding"], "sliding_window": 8},
}
#: Those that the installed transformers has.
FOUND = [name for name in HYBRIDS if name in CONFIG_MAPPING]
FIRST = ("qwen3_next", "lfm2", "falcon_h1", "nemotron_h", "mamba2")
DAPO = groupwise.algorithm("dapo")
#: Prompts longer and shorter than a convolution, in an order in which rows come and go.
ASKED = [
    Request(tuple(range(2, 2 + length)), samples, seed=length, max_new_tokens=limit)
    for length, samples, limit in ((3, 2, 12), (20, 1, 9), (1, 2, 5), (5, 1, 14))
]


def hybrid(name: str, **changes: Any) -> Any:
    torch.manual_seed(4)
    given = {key: value for key, value in {**SIZES, **HYBRIDS[name], **changes}.items() if value is not None}
    if HYBRIDS[name].get("layer_types", SIZES) is None:
        given.pop("layer_types", None)
    return causal(name, **given)


def batch_of(answers: list[tuple[Completion, ...]]) -> Batch:
    scored = [tuple(dataclasses.replace(c, score=float(i)) for i, c in enumerate(group)) for group in answers]
    prompts = [Prompt(Sample(str(i), str(i), ""), request.tokens) for i, request in enumerate(ASKED)]
    return collate([Group(*pair) for pair in zip(prompts, scored, strict=True)], 0)


def gap(model: nn.Module, answers: list[tuple[Completion, ...]]) -> float:
    """The largest difference, nats, from the model's own forward over each whole sequence; its routes are compared."""
    worst = 0.0
    for request, group in zip(ASKED, answers, strict=True):
        for one in group:
            ids, at = torch.tensor([request.tokens + one.tokens]), len(request.tokens)
            with torch.no_grad():
                own = model(input_ids=ids).logits[0].double().log_softmax(-1)
                if one.routes is not None:
                    with record_routes(model) as routes:
                        model(input_ids=ids[:, :-1])
                    assert torch.equal(one.routes, routes.tensor[0])
            own = own[at - 1 : -1].gather(1, ids[0, at:, None])[:, 0]
            worst = max(worst, float((own - torch.tensor(one.logp_engine)).abs().max()))
    return worst


@pytest.mark.parametrize(
    "name", [name if name in FIRST else pytest.param(name, marks=pytest.mark.slow) for name in FOUND]
)
def test_rows_come_and_go_and_have_what_model_and_learner_compute_before_and_after_an_update(name: str) -> None:
    model = hybrid(name)
    engine = LocalEngine(model, frozenset({1}), pad=9, max_rows=3, routes=bool(routers(model)))
    learner = Learner(model, None, LearnerSettings(tokens_per_microbatch=60, learning_rate=0.01), 1.0, 1)
    for version in (0, 1):
        answers = engine.generate(ASKED, Sampling())
        assert gap(model, answers) < 1e-5
        batch = learner.annotate(batch_of(answers), old=True, ref=False)
        assert float((batch.need("logp_old") - batch.need("logp_engine"))[batch.mask].abs().max()) < 1e-5
        if version == 0:
            before = batch.need("logp_old")
            learner.update(DAPO.weigh(DAPO.credit(batch)), DAPO)
            engine.load_weights(learner.weights(), 1)
            assert float((learner.logprobs(model, batch) - before).abs().max()) > 1e-3
    assert all(map(is_recorded, engine._step._forward.values()))


def test_a_completion_is_the_same_alone_and_after_sleep() -> None:
    engine = LocalEngine(hybrid("qwen3_5_text"), frozenset({1}), pad=0)
    together = engine.generate(ASKED, Sampling())
    engine.sleep()
    for request, group in zip(ASKED, together, strict=True):
        (alone,) = engine.generate([dataclasses.replace(request, samples=1, first=request.samples - 1)], Sampling())
        assert_alike(alone[0], group[-1])


@pytest.mark.parametrize("name", FIRST)
def test_prompts_of_any_lengths_are_run_as_each_by_itself(name: str) -> None:
    model = hybrid(name)
    prefill = Prefill(
        model, LayerWindows(windows(model.config)), pad=9
    )  # 0 has an embedding of 0, which changes no state
    prompts = [request.tokens for request in ASKED]
    with torch.inference_mode():
        joined, alone = prefill(prompts), [prefill([prompt]) for prompt in prompts]
    for i, (prompt, one) in enumerate(zip(prompts, alone, strict=True)):
        assert joined.tokens[i] == prompt
        for ours, own in zip((joined.logits, *joined.states), (one.logits, *one.states), strict=True):
            torch.testing.assert_close(ours[i], own[0], atol=1e-6, rtol=1e-5)
        for ours, own in zip((*joined.keys, *joined.values), (*one.keys, *one.values), strict=True):
            torch.testing.assert_close(ours[i, :, joined.width - len(prompt) :], own[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", FIRST)
def test_rows_of_a_learner_do_not_see_each_other_nor_padding(name: str) -> None:
    model = hybrid(name)
    learner = Learner(model, None, LearnerSettings(tokens_per_microbatch=10**6), 1.0, 1)
    assert not learner.packs
    tokens, length = torch.arange(3 * 24).view(3, 24) % 38 + 2, torch.tensor([24, 7, 13])
    inside = torch.arange(24) < length[:, None]

    def read(rows: Tensor, width: int) -> Tensor:
        mask = inside[rows, :width].clone()
        mask[:, 0] = False
        none = torch.zeros(len(rows), dtype=torch.long)
        held = tokens[rows, :width] * inside[rows, :width]
        batch = Batch(held, mask, length[rows], none, none.double(), none, torch.zeros(mask.shape))
        return learner.logprobs(model, batch)

    together = read(torch.arange(3), 24)
    for row, width in enumerate(length.tolist()):
        torch.testing.assert_close(read(torch.tensor([row]), width)[0], together[row, :width], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", FIRST)
def test_what_has_a_state_is_not_packed_however_little_the_state_says(name: str) -> None:
    backbone = halves(hybrid(name))[0]
    with torch.no_grad():
        for path, weight in backbone.named_parameters():
            if "conv" in path or "mixer" in path or "linear" in path or "mamba" in path:
                weight.mul_(1e-3)
    assert not runs_packed(backbone)


@pytest.mark.parametrize("name", ["nemotron_h", pytest.param("zamba2", marks=pytest.mark.slow)])
def test_the_least_time_step_holds_for_one_token_as_for_many(name: str) -> None:
    """transformers' own steps leave it out."""
    model = hybrid(name)
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if path.endswith("dt_bias"):
                weight.sub_(9.0)
    assert gap(model, LocalEngine(model, frozenset({1}), pad=0).generate(ASKED, Sampling())) < 1e-5


def test_turns_are_run_anew_as_nothing_is_held_of_a_state() -> None:
    engine = LocalEngine(hybrid("lfm2", vocab_size=64), frozenset({1}), pad=0)
    played = turns_of(engine, Sampling(max_new_tokens=4), holds=True)
    assert not engine._held
    assert_same(played, turns_of(engine, Sampling(max_new_tokens=4), holds=False))


def test_slots_are_refused_and_why_is_said() -> None:
    engine = LocalEngine(hybrid("lfm2"), frozenset({1}), pad=0, slots=True)
    assert engine.remark == "rows: its layers keep states, for which slots have no place"


@pytest.mark.parametrize("name", FIRST)
def test_the_cache_takes_what_is_planned_for_its_states(name: str) -> None:
    model, rows, prompt, new = hybrid(name), 6, 3, 90
    prefill = Prefill(model, LayerWindows(windows(model.config)), pad=0)
    cache, prompts = RowCache(prefill.windows), prefill([(5,) * prompt])
    cache.insert(prompts, torch.zeros(rows, dtype=torch.long), new)
    for column in range(new - 1):
        cache.prepare(new - column, 10**6)
        cache.advance()
    shapes = without_memory(model.config)
    assert state_numbers(shapes) == sum(state[0].numel() for state in prompts.states) > 0
    planned = cache_bytes(cached_widths(shapes), rows, prompt, new, states=state_numbers(shapes))
    assert cache.size == planned.kept


def test_rows_keep_their_states_as_they_come_move_and_go() -> None:
    numbers = torch.Generator().manual_seed(0)
    states, plain = RowStates(), torch.zeros(0, 3)
    for _ in range(30):
        prompts = torch.randn(4, 3, generator=numbers)
        source = torch.randint(4, (int(torch.randint(1, 6, (), generator=numbers)),), generator=numbers)
        states.insert(len(plain), [prompts], source, rows=len(plain) + len(source) + 2)
        plain = torch.cat([plain, prompts[source]])
        assert torch.equal(states.views(len(plain))[0], plain)
        states.views(len(plain))[0].add_(1)
        plain = plain + 1
        keep = (len(plain) + 1) // 2
        to, origin = torch.arange(len(plain) - keep), torch.arange(keep, len(plain))
        states.move(to, origin)
        plain[to] = plain[origin]
        plain = plain[:keep]
        assert torch.equal(states.views(keep)[0], plain)
