"""Laws of the tiny models: an ordinary Hugging Face folder, a tokenizer that inverts, bits that follow the seed."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from groupwise.core.errors import UsageError
from groupwise.models.load import digest, load_policy
from groupwise.models.moe.record import routers
from groupwise.models.tiny import MoeSpec, TinySpec
from groupwise.tasks.arithmetic import Arithmetic
from groupwise.training.start.initial_policy import TINY

ALPHABET = Arithmetic().alphabet
SPEC = TinySpec(layers=1, width=32, heads=2, kv_heads=1, head_dim=16, mlp_width=32)
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    SPEC.build(ALPHABET, path, seed=0)
    return path


def test_the_folder_loads_by_the_auto_classes_with_the_shape_of_the_spec(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    config = model.config
    assert (config.num_hidden_layers, config.hidden_size, config.head_dim) == (SPEC.layers, SPEC.width, SPEC.head_dim)
    assert (config.num_attention_heads, config.num_key_value_heads) == (SPEC.heads, SPEC.kv_heads)
    assert config.intermediate_size == SPEC.mlp_width
    assert config.rope_parameters["rope_theta"] == SPEC.rope_theta
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_model_and_tokenizer_agree_on_the_end(folder: Path) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.generation_config.eos_token_id == model.config.eos_token_id == tokenizer.eos_token_id
    assert model.generation_config.pad_token_id == model.config.pad_token_id == tokenizer.pad_token_id
    assert tokenizer.eos_token_id != tokenizer.pad_token_id
    assert tokenizer.bos_token is None
    assert model.config.vocab_size == len(tokenizer) == len(ALPHABET) + 2


@pytest.mark.parametrize("text", [ALPHABET, ALPHABET[::-1], "3+1-4+2=", "--==", *ALPHABET])
def test_one_token_a_character_and_back(folder: Path, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([*ids, tokenizer.eos_token_id, tokenizer.pad_token_id], skip_special_tokens=True) == text


def test_spaces_and_line_breaks_of_an_alphabet_survive(tmp_path: Path) -> None:
    text = "a b\n\n.a , 'b"
    SPEC.build("".join(sorted(set(text))), tmp_path, seed=0)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_character_outside_the_alphabet_is_an_error(folder: Path) -> None:
    with pytest.raises(Exception, match=r"(?i)unk"):
        AutoTokenizer.from_pretrained(folder)("3*4=")


def test_every_layer_of_tiny_moe_has_experts(tmp_path: Path) -> None:
    spec = TINY["tiny-moe"]
    assert isinstance(spec, MoeSpec)
    spec.build(ALPHABET, tmp_path, seed=0)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    found = routers(model)
    assert len(found) == spec.layers == model.config.num_hidden_layers >= 4
    assert {(r.chosen, r.experts) for r in found} == {(spec.chosen, spec.experts)}
    assert (spec.chosen, spec.experts) >= (2, 8)
    weights = found[0].module(torch.randn(5, spec.width, generator=torch.manual_seed(0)))[1]
    torch.testing.assert_close(weights.sum(-1), torch.ones(5))  # of the chosen experts
    shapes = {n: tuple(p.shape) for n, p in model.named_parameters() if ".0.mlp.experts" in n}
    assert sorted(shapes.values()) == [(8, spec.width, spec.mlp_width), (8, 2 * spec.mlp_width, spec.width)]


def test_the_twin_of_tiny_moe_has_what_a_token_goes_through_and_no_router(tmp_path: Path) -> None:
    counts = []
    for name in ("tiny-moe", "tiny-moe-twin"):
        TINY[name].build(ALPHABET, tmp_path / name, seed=0)
        model = AutoModelForCausalLM.from_pretrained(tmp_path / name)
        counts.append({n: p.numel() for n, p in model.named_parameters()})
    moe, twin = counts
    spec = TINY["tiny-moe"]
    assert isinstance(spec, MoeSpec)
    experts = sum(count for n, count in moe.items() if ".experts." in n)
    used = experts * spec.chosen // spec.experts
    assert sum(count for n, count in twin.items() if ".mlp." in n) == used
    assert {n: c for n, c in twin.items() if ".mlp." not in n} == {n: c for n, c in moe.items() if ".mlp." not in n}


def test_the_fast_experts_of_a_loaded_policy_compute_what_a_loop_over_them_does(tmp_path: Path) -> None:
    TINY["tiny-moe"].build(ALPHABET, tmp_path, seed=0)
    model = load_policy(tmp_path).model
    assert model.config._experts_implementation == "grouped_mm"  # docs/findings/performance.md has the figures
    ids = torch.randint(2, 15, (8, 20), generator=torch.manual_seed(0))
    logits = []
    for kind in ("grouped_mm", "eager"):
        model.set_experts_implementation(kind)
        with torch.no_grad():
            logits.append(model(input_ids=ids).logits.log_softmax(-1))
    torch.testing.assert_close(*logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_seed_decides_every_bit(folder: Path, tmp_path: Path, seed: int) -> None:
    SPEC.build(ALPHABET, tmp_path, seed=seed)
    same = (tmp_path / WEIGHTS).read_bytes() == (folder / WEIGHTS).read_bytes()
    assert same == (seed == 0)


def test_building_leaves_the_callers_random_stream_alone(tmp_path: Path) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    SPEC.build(ALPHABET, tmp_path, seed=3)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(("name", "bits"), [("tiny-dense", "994e19c6a47c"), ("tiny-moe", "f338dc7be231")])
def test_tiny_models_are_what_they_always_were(name: str, bits: str, tmp_path: Path) -> None:
    """Their bits are those of every figure that was measured with them. Random numbers are the processor's own,
    so that elsewhere than on x86 only the vocabulary can be compared.
    """
    TINY[name].build("0123456789+-=", tmp_path, seed=0)
    policy = load_policy(tmp_path)
    assert policy.tokenizer.convert_ids_to_tokens(range(15)) == ["<pad>", "<eos>", *"0123456789+-="]
    assert policy.eos == {1}
    if platform.machine() == "x86_64":
        assert digest(policy.model) == bits


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"heads": 3, "kv_heads": 2}, "kv_heads"), ({"layers": 0}, "layers"), ({"head_dim": 7}, "head_dim")],
)
def test_an_impossible_spec_is_refused(fields: dict, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        TinySpec(**fields)


@pytest.mark.parametrize("chosen", [0, 9])
def test_a_token_cannot_go_through_more_experts_than_there_are(chosen: int) -> None:
    with pytest.raises(UsageError, match=rf"model.chosen must be from 1 to model.experts \(8\), not {chosen}"):
        MoeSpec(chosen=chosen)
