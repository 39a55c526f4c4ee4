"""A policy whose weights stay in its files is that of a whole load: its bits, its buffers, its refusals."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from groupwise.core.errors import RunError, UsageError
from groupwise.models.forward import heads
from groupwise.models.forward.heads import few_ids, halves
from groupwise.models.forward.packed_attention import runs_packed
from groupwise.models.load import Policy, digest, load_policy, save_policy
from groupwise.models.precision import cast_weights
from groupwise.models.scalar_heads import from_policy, token_values
from groupwise.models.tiny import TinySpec
from groupwise.models.unread import Weights, device_of, is_unread, running
from tests.tiny_models import causal

PLAIN = {"final_logit_softcapping": None, "attn_logit_softcapping": None}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("qwen3", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "gemma2, two kinds of layers": ("gemma2", PLAIN),
    "qwen2, biases": ("qwen2", {"tie_word_embeddings": False}),
    "phi3": ("phi3", {}),
}


def saved(folder: Path, architecture: str = "qwen3", dtype: torch.dtype = torch.bfloat16, **changes: Any) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = causal(architecture, **changes)
    model.generation_config.max_length = 33
    save_policy(model.to(dtype), TinySpec().tokenizer("0123456789+-="), folder)
    return folder


def both(folder: Path) -> tuple[Policy, Policy]:
    return load_policy(folder, training=True), load_policy(folder, training=True, in_files=True)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad(), running(model):
        return model(input_ids=few_ids(model), use_cache=False).logits


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_it_is_the_policy_of_a_whole_load(name: str, tmp_path: Path) -> None:
    architecture, changes = ARCHITECTURES[name]
    state = torch.get_rng_state()
    whole, unread = both(saved(tmp_path / "model", architecture, **changes))
    assert torch.equal(torch.get_rng_state(), state), "nobody's random numbers are touched"
    one, other = whole.model, unread.model
    assert all(p.is_meta and p.requires_grad for p in other.parameters())
    assert device_of(other) == torch.device("cpu")
    for (a, x), (b, y) in zip(one.named_buffers(), other.named_buffers(), strict=True):
        assert (a, x.dtype) == (b, y.dtype)
        assert torch.equal(x, y)
    assert list(one.state_dict()) == list(other.state_dict())
    for (a, x), (b, y) in zip(one.named_parameters(), Weights(other).named(), strict=True):
        assert (a, x.dtype) == (b, y.dtype)
        assert torch.equal(x, y)
    assert digest(one) == digest(other)
    assert torch.equal(logits(one), logits(other))
    assert runs_packed(halves(one)[0]) == runs_packed(halves(other)[0])
    assert one.config.to_json_string(False) == other.config.to_json_string(False)
    assert one.generation_config.to_json_string() == other.generation_config.to_json_string()
    assert all(p.is_meta for p in other.parameters()), "nothing stays of what ran"
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in other.modules())


def test_copies_of_it_are_in_its_files_too(tmp_path: Path) -> None:
    """A reference, cast, and a critic, whose head is zeros; the critic's numbers are those of one made whole."""
    whole, unread = both(saved(tmp_path / "model"))
    reference = cast_weights(copy.deepcopy(unread.model), "bf16")
    assert is_unread(reference)
    expected = cast_weights(copy.deepcopy(whole.model), "bf16")
    for (_, x), (_, y) in zip(expected.named_parameters(), Weights(reference).named(), strict=True):
        assert x.dtype == y.dtype == torch.bfloat16
        assert torch.equal(x, y)
    one, other = from_policy(whole.model), from_policy(unread.model)
    assert digest(one) == digest(other)
    assert [name for name, p in other.named_parameters() if not p.is_meta] == ["score.weight", "score.bias"]
    tokens, mask = torch.tensor([[3, 5, 7]]), torch.ones(1, 3, dtype=torch.bool)
    for critic in (one, other):
        nn.init.ones_(critic.score.weight)
    with torch.no_grad(), running(other):
        assert torch.equal(token_values(one, tokens, mask), token_values(other, tokens, mask))


def changed(folder: Path, change: Any) -> Path:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
    return folder


NORM, HEAD = "model.norm.weight", "lm_head.weight"
#: What files may have that keeps weights from being read one at a time; where it is refused, it is in the same words.
OTHERWISE = {
    "more": lambda x: x.update(other=torch.zeros(3)),
    "missing": lambda x: x.pop(NORM),
    "not finite, where no trial looks": lambda x: x["model.embed_tokens.weight"][20].fill_(torch.nan),
    "another shape": lambda x: x.update({NORM: torch.ones(31)}),
    "whole numbers": lambda x: x.update({NORM: torch.ones(32, dtype=torch.int64)}),
    "eight bits": lambda x: x.update({NORM: torch.ones(32).to(torch.float8_e4m3fn)}),
    "names without the model's": lambda x: [x.update({k.removeprefix("model."): x.pop(k)}) for k in list(x)],
}


def outcome(folder: Path, in_files: bool) -> str:
    """The digest of a policy that was read whole, or why there is none."""
    try:
        model = load_policy(folder, in_files=in_files).model
    except UsageError as error:
        return str(error)
    assert not is_unread(model)
    return digest(model)


@pytest.mark.parametrize("name", OTHERWISE)
def test_files_that_are_not_the_models_own_are_read_whole_or_refused_as_ever(name: str, tmp_path: Path) -> None:
    folder = changed(saved(tmp_path / "model", tie_word_embeddings=False), OTHERWISE[name])
    whole, unread = (outcome(folder, in_files) for in_files in (False, True))
    assert whole == unread
    assert (" " in whole) == (name not in ("eight bits", "names without the model's"))


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [("qwen3_moe", EXPERTS), ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4})],
    ids=["each expert by itself in the files", "no buffer"],
)
def test_a_model_that_cannot_stay_in_its_files_is_read_whole(
    architecture: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    whole, unread = both(saved(tmp_path / "model", architecture, **changes))
    assert not is_unread(unread.model)
    assert digest(whole.model) == digest(unread.model)


def test_a_model_that_changes_its_logits_is_refused_in_the_same_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "CAPS", ())
    folder = saved(tmp_path / "model", "gemma2", final_logit_softcapping=30.0, attn_logit_softcapping=None)
    words = []
    for in_files in (False, True):
        with pytest.raises(UsageError, match="changes its logits") as error:
            load_policy(folder, in_files=in_files)
        words.append(str(error.value))
    assert len(set(words)) == 1


def test_files_that_go_meanwhile_are_named(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    weights = Weights(load_policy(folder, in_files=True).model)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(RunError, match=r"model: .* cannot be read there any more: .*model\.safetensors ends too early"):
        list(weights.named())
    path.unlink()
    with pytest.raises(RunError, match=r"cannot be read there any more: .*No such file"):
        list(weights.named())
