"""What a microbatch takes, found from shapes, is what the learner's own forward and backward take in tensors."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config

from groupwise import algorithm
from groupwise.core.records import Batch
from groupwise.models.adapters.lora import with_adapters
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.planning.activations import (
    Computation,
    LiveBytes,
    Rows,
    cached_widths,
    microbatch_bytes,
    weight_bytes,
    with_value_head,
    without_memory,
)
from groupwise.training.learner import AdaptedLearner, Learner, LearnerSettings
from tests.planning.made import experts, llama

ROWS = Rows(completions=(3, 3), prompt=20, completion=30)
HOW = Computation(packs=True, bf16=False, recompute=False, chunk_elements=1 << 24, held_elements=1 << 26)
CONFIGS = {
    "llama": llama(num_key_value_heads=2),
    "moe": experts(vocab_size=40, num_hidden_layers=4, num_experts=4, num_experts_per_tok=2, mlp_only_layers=[0]),
    "gpt2": GPT2Config(vocab_size=60, n_embd=64, n_layer=2, n_head=4, n_positions=64),
}


def batch(rows: Rows) -> Batch:
    count, width = sum(rows.completions), rows.prompt + rows.completion
    mask = (torch.arange(width) >= rows.prompt).expand(count, -1)
    noise = torch.Generator().manual_seed(0)
    group = torch.arange(len(rows.completions)).repeat_interleave(torch.tensor(rows.completions))
    tokens = torch.randint(40, (count, width), generator=noise).where(mask, group[:, None])
    tokens[:, rows.prompt] = torch.arange(count)  # so that no two completions begin alike
    return Batch(
        tokens=tokens,
        mask=mask,
        length=torch.full((count,), width),
        group=group,
        score=torch.zeros(count, dtype=torch.float64),
        version=torch.zeros(count, dtype=torch.long),
        logp_engine=torch.zeros(count, width),
        row=torch.arange(count),
        advantage=torch.ones(count, width),
        weight=mask / mask.sum(),
    )


def learner_of(config: Any, settings: LearnerSettings, adapter: AdapterSettings) -> Learner:
    torch.manual_seed(0)
    model, common = AutoModelForCausalLM.from_config(config), {"temperature": 1.0, "total_updates": 1}
    if adapter.rank:
        return AdaptedLearner(model, adapter, 0, settings, **common)
    return Learner(model, None, settings, **common)


def taken(learner: Learner) -> int:
    """The most that a second microbatch takes beside weights and gradients: the first left gradients behind."""
    minibatch, grpo = batch(ROWS), algorithm("grpo", {"kl.beta": 0.0})
    learner.gradients(minibatch, grpo)
    with LiveBytes() as live:
        learner.gradients(minibatch, grpo)
    return live.peak


@pytest.mark.parametrize(
    ("name", "settings", "rank"),
    [
        ("llama", {}, 0),
        ("llama", {"precision": "bf16"}, 0),
        ("llama", {"recompute": True}, 0),
        ("llama", {"shared_prefixes": False}, 0),
        ("llama", {"chunk_logits": 3000, "held_logits": 0}, 0),
        ("moe", {}, 0),
        ("gpt2", {}, 0),
        ("llama", {}, 8),
        ("llama", {"recompute": True}, 8),
        ("moe", {}, 8),
    ],
)
def test_shapes_alone_tell_what_is_held(name: str, settings: dict[str, Any], rank: int):
    chosen = LearnerSettings(**{"chunk_logits": 1 << 24, "held_logits": 1 << 26, **settings})
    how = Computation(
        packs=chosen.shared_prefixes,
        bf16=chosen.bf16,
        recompute=chosen.recompute,
        chunk_elements=int(chosen.chunk_logits),
        held_elements=int(chosen.held_logits),
    )
    model, adapter = without_memory(CONFIGS[name]), AdapterSettings(rank=rank)
    sizes = microbatch_bytes(with_adapters(model, adapter) if rank else model, ROWS, how, "cpu")
    held = taken(learner_of(CONFIGS[name], chosen, adapter))
    assert max(sizes.head, sizes.first, sizes.last) == pytest.approx(held, rel=0.05)


def test_more_layers_of_a_kind_are_counted_without_being_run():
    config = CONFIGS["llama"]
    deep = llama(num_key_value_heads=2, num_hidden_layers=12)
    few, many = (microbatch_bytes(without_memory(c), ROWS, HOW, "cpu") for c in (config, deep))
    assert many.first - few.first == 9 * few.layer
    assert many.layer == few.layer


def test_a_model_that_cannot_be_run_on_shapes_is_estimated(monkeypatch: pytest.MonkeyPatch):
    config = CONFIGS["llama"]
    model = without_memory(config)
    measured = microbatch_bytes(model, ROWS, HOW, "cpu")
    branch = type(model.model).forward

    def branching(self: Any, *args: Any, **kwargs: Any) -> Any:
        assert kwargs["input_ids"].sum() >= 0  # a number, which a shape has not
        return branch(self, *args, **kwargs)

    monkeypatch.setattr(type(model.model), "forward", branching)
    rough = microbatch_bytes(copy.deepcopy(model), ROWS, HOW, "cpu")
    assert rough != measured
    assert rough.first == pytest.approx(measured.first, rel=0.6)


def test_what_is_found_of_a_configuration_does_not_depend_on_where_its_weights_lie():
    here, there, wider = (copy.deepcopy(CONFIGS["llama"]) for _ in range(3))
    here.name_or_path, there.name_or_path, wider.hidden_size = "/runs/a", "/runs/b", 128
    model = without_memory(here)
    assert without_memory(there) is model, "so a second run of it plans nothing anew"
    assert without_memory(wider) is not model
    assert with_value_head(model) is with_value_head(without_memory(there))
    assert here.name_or_path == "/runs/a"


def test_widths_of_keys_and_values():
    assert cached_widths(without_memory(CONFIGS["llama"])) == (2 * 16,) * 6
    assert cached_widths(without_memory(CONFIGS["moe"])) == (64,) * 8


@pytest.mark.parametrize("name", CONFIGS)
def test_weights_are_counted_once(name: str):
    model = AutoModelForCausalLM.from_config(CONFIGS[name])
    assert weight_bytes(without_memory(CONFIGS[name])) == sum(p.nbytes for p in model.parameters())


def test_what_lives_is_counted_until_it_is_gone():
    older = torch.zeros(50)
    with LiveBytes() as live:
        older.t().add_(1)  # neither a view nor a sum in place takes memory
        assert live.now == 0
        one = torch.zeros(1000)
        view = one[10:]
        del one
        assert live.now == 4000
        two = view.double()
        assert live.now == 4000 + 8 * 990
        del view, two
        torch.zeros(10)
    assert live.now == 0
    assert live.peak == 4000 + 8 * 990
