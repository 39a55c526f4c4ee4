"""Hostile model folders: what is not whole, plain and within bounds is refused in one line that names the folder."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, GPT2Config, GPT2LMHeadModel

from groupwise.core.errors import UsageError
from groupwise.models.load import load_policy, model_folder, save_policy
from groupwise.models.scalar_heads import from_folder, load_reward_model
from groupwise.training.start.initial_policy import check_model

WEIGHTS = "model.safetensors"
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def folder(policy_folder: Path, tmp_path: Path) -> Path:
    """A policy of this test's own."""
    return Path(shutil.copytree(policy_folder, tmp_path / "model"))


@pytest.fixture
def scorer(policy: Any, policy_folder: Path, tmp_path: Path) -> Path:
    """A reward model over the policy's backbone."""
    torch.manual_seed(0)
    kind = AutoModelForSequenceClassification
    kind.from_pretrained(policy_folder, num_labels=1, pad_token_id=None).save_pretrained(tmp_path / "reward")
    policy.tokenizer.save_pretrained(tmp_path / "reward")
    return tmp_path / "reward"


def refusal(folder: Path, load: Callable[[Path], object] = load_policy) -> str:
    """The one line with which a folder is refused."""
    with pytest.raises(UsageError) as refused:
        load(folder)
    line = str(refused.value)
    assert "\n" not in line
    assert str(folder) in line
    return line.replace(str(folder), "FOLDER")


def change_weights(folder: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def change_json(path: Path, *keys: str, value: object) -> None:
    fields = json.loads(path.read_text())
    inner = fields
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path.write_text(json.dumps(fields))


# Weights.


def without(start: str) -> Callable[[Tensors], object]:
    return lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith(start)]


def filled(name: str, value: float) -> Callable[[Tensors], object]:
    return lambda tensors: tensors[name][-1:].fill_(value)


NORM = "model.layers.1.self_attn.q_norm.weight"
WRONG: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "a tensor": (without(NORM), f"1 missing ({NORM})"),
    "a layer": (without("model.layers.1."), "11 missing (model.layers.1.input_layernorm.weight, "),
    "every name": (without(""), "25 missing (lm_head.weight, model.embed_tokens.weight, model.layers.0.input_"),
    "one too many": (lambda tensors: tensors.update(extra=torch.zeros(2)), "1 unexpected (extra)"),
    "another shape": (lambda tensors: tensors.update({NORM: torch.zeros(3)}), f"1 of another shape ({NORM})"),
    "NaN": (filled(NORM, float("nan")), f"1 of its tensors hold NaN or infinity ({NORM})"),
    "infinity": (filled("lm_head.weight", float("-inf")), "1 of its tensors hold NaN or infinity (lm_head.weight)"),
    "large": (filled(NORM, 3e38), "does not run: its outputs are NaN or infinite"),
}


@pytest.mark.parametrize("name", WRONG)
def test_weights_that_are_not_the_models_are_refused_by_name(name: str, folder: Path) -> None:
    change, words = WRONG[name]
    change_weights(folder, change)
    assert words in refusal(folder)


def test_a_wrong_model_type_drops_no_norms(folder: Path) -> None:
    change_json(folder / "config.json", "model_type", value="qwen2")
    line = refusal(folder)
    assert "6 missing (model.layers.0.self_attn.k_proj.bias, " in line
    assert "4 unexpected (model.layers.0.self_attn.k_norm.weight, " in line


def test_an_output_head_that_is_the_embeddings_is_not_missing(folder: Path) -> None:
    change_weights(folder, without("lm_head"))
    assert "1 missing (lm_head.weight)" in refusal(folder)
    change_json(folder / "config.json", "tie_word_embeddings", value=True)
    model = load_policy(folder).model
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_reward_model_without_its_head_or_of_a_policy_is_refused(scorer: Path, folder: Path) -> None:
    load_reward_model(scorer)
    change_weights(scorer, without("score"))
    assert "1 missing (score.weight)" in refusal(scorer, load_reward_model)
    change_json(folder / "config.json", "id2label", value={"0": "score"})
    assert "1 missing (score.weight), 1 unexpected (lm_head.weight)" in refusal(folder, load_reward_model)
    assert "1 missing (lm_head.weight)" in refusal(scorer)


def test_a_reward_model_that_is_not_finite_is_refused(scorer: Path) -> None:
    change_weights(scorer, filled("score.weight", float("nan")))
    assert "1 of its tensors hold NaN or infinity (score.weight)" in refusal(scorer, load_reward_model)


def test_a_critic_may_lack_a_head_of_its_own_but_nothing_else(scorer: Path, folder: Path, policy: Any) -> None:
    def critic(start: Path) -> object:
        return from_folder(start, policy.model)

    critic(scorer)
    change_weights(scorer, without("score"))
    assert "1 missing (score.weight)" in refusal(scorer, critic)  # it says itself that it is a classifier
    critic(folder)
    change_weights(folder, without("lm_head"))
    critic(folder)
    for change, words in (
        (without(NORM), "1 missing (model.layers.1.self_attn.q_norm.weight)"),
        (
            lambda tensors: tensors.update({"model.layers.2.extra": torch.zeros(2)}),
            "1 unexpected (model.layers.2.extra)",
        ),
        (filled("model.norm.weight", float("inf")), "hold NaN or infinity (model.norm.weight)"),
    ):
        shutil.copytree(folder, folder.parent / "other")
        change_weights(folder.parent / "other", change)
        assert words in refusal(folder.parent / "other", critic)
        shutil.rmtree(folder.parent / "other")


# Formats.


class Harm:
    """Unpickled, it leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.trace),)


def named_bin(folder: Path) -> str:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    return "its weights are in pytorch_model.bin, and only safetensors are read"


def bin_index(folder: Path) -> str:
    (folder / WEIGHTS).rename(folder / "pytorch_model-00001-of-00001.bin")
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "pytorch_model-00001-of-00001.bin"}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return "its weights are in pytorch_model-00001-of-00001.bin, pytorch_model.bin.index.json, and only"


def safetensors_index(folder: Path) -> str:
    (folder / WEIGHTS).rename(folder / "shard.bin")
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "shard.bin"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return "its weights are in shard.bin, and only safetensors are read"


def config_key(folder: Path) -> str:
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")
    change_json(folder / "config.json", "transformers_weights", value="adapter_model.bin")
    return "config.json: transformers_weights = adapter_model.bin: expected no such key"


def adapter(folder: Path) -> str:
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "elsewhere"}')
    return "adapter_config.json is of an adapter; merge it into the weights first"


@pytest.mark.parametrize("place", [named_bin, bin_index, safetensors_index, config_key, adapter])
def test_only_safetensors_are_read_and_no_pickle_is_opened(place: Callable[[Path], str], folder: Path) -> None:
    trace = folder.parent / "harm"
    words = place(folder)
    for path in folder.glob("*.bin"):
        path.write_bytes(pickle.dumps({"lm_head.weight": Harm(trace)}))
    assert words in refusal(folder)
    assert not trace.exists()


def test_shards_of_safetensors_load(folder: Path) -> None:
    before = load_policy(folder).model.state_dict()
    (folder / WEIGHTS).rename(folder / "one.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(before, "one.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    after = load_policy(folder).model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("nope.safetensors", "nope.safetensors, which is not there"),
        ("b" * 300 + ".safetensors", "bbb.*, which is not there"),
        ("a folder.safetensors", "which is not there"),
        ("nowhere.safetensors", "which is not there"),
        ("../outside.safetensors", "no name of a file in the folder"),
        ("/outside.safetensors", "no name of a file in the folder"),
        ("a/../outside.safetensors", "no name of a file in the folder"),
        ("./model.safetensors", "no name of a file in the folder"),
        ("a\0b.safetensors", r"'a\\x00b.safetensors', which is no name of a file in the folder"),
        ("a\nb.safetensors", "no name of a file in the folder"),
        (5, "names 5, which is no name of a file in the folder"),
        (["a"], "names .*, which is no name of a file in the folder"),
    ],
)
def test_an_index_names_files_of_its_folder_that_are_there(named: object, words: str, folder: Path) -> None:
    names = list(load_file(folder / WEIGHTS))
    (folder / WEIGHTS).rename(folder.parent / "outside.safetensors")
    (folder / "a folder.safetensors").mkdir()
    (folder / "nowhere.safetensors").symlink_to("gone")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(names, named)}))
    assert re.search(rf"model\.safetensors\.index\.json.* {words}", refusal(folder))


@pytest.mark.parametrize("index", [[], {}, {"weight_map": "x"}, {"weight_map": {"w": "x"}, "metadata": "x"}])
def test_what_is_no_index_is_said_so(index: object, folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model.safetensors.index.json is no index: weight_map and metadata are tables" in refusal(folder)


def test_a_weight_that_two_shards_hold_is_refused(folder: Path) -> None:
    """Which of them is meant, nothing says."""
    names = list(load_file(folder / WEIGHTS))
    (folder / WEIGHTS).rename(folder / "one.safetensors")
    save_file({NORM: torch.ones(16)}, folder / "two.safetensors", metadata={"format": "pt"})
    places = {**dict.fromkeys(names, "one.safetensors"), NORM: "two.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert f"{NORM} is in one.safetensors and in two.safetensors; copy the whole folder again" in refusal(folder)


def retyped(path: Path, kind: str, *names: str) -> None:
    """Changes the type that the header of a file says of tensors, and nothing else."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    for name in names:
        header[name]["dtype"] = kind
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


@pytest.mark.parametrize("kind", ["I32", "U32"])
def test_integers_are_no_weights(kind: str, folder: Path) -> None:
    """Such as those of a header with one word changed, which are finite and of the right shape."""
    retyped(folder / WEIGHTS, kind, NORM)
    assert f"1 of its weights are no floating-point numbers ({NORM}: {kind})" in refusal(folder)


def test_integers_under_the_names_of_a_backbone_are_no_weights(scorer: Path) -> None:
    """The files may leave the name of the model around the backbone out, and hold any further layer."""
    change_weights(scorer, lambda tensors: tensors.update({NORM: tensors[NORM].view(torch.int32)}))
    assert f"({NORM}: I32)" in refusal(scorer, load_reward_model)
    change_weights(scorer, lambda tensors: tensors.update({NORM.removeprefix("model."): tensors.pop(NORM)}))
    assert "layers.1.self_attn.q_norm.weight: I32" in refusal(scorer, load_reward_model)


def test_a_mask_of_an_older_version_beside_the_weights_is_passed_over(tmp_path: Path, policy: Any) -> None:
    """GPT-2's files have one for each layer, in bytes; a bias of its attention has a name that ends as the mask's."""
    sizes: dict[str, Any] = {"n_layer": 1, "n_head": 1, "n_embd": 8, "n_positions": 64}
    ids: dict[str, Any] = {"bos_token_id": None, "eos_token_id": 1}
    model = GPT2LMHeadModel(GPT2Config(**sizes, **ids, vocab_size=len(policy.tokenizer)))
    model.save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    mask = torch.ones(1, 1, 64, 64, dtype=torch.uint8)
    change_weights(tmp_path, lambda tensors: tensors.update({"transformer.h.0.attn.bias": mask}))
    load_policy(tmp_path)
    retyped(tmp_path / WEIGHTS, "I32", "transformer.h.0.attn.c_attn.bias")
    assert "(transformer.h.0.attn.c_attn.bias: I32)" in refusal(tmp_path)


# Fields.

CONFIG: list[tuple[tuple[str, ...], object, str]] = [
    (("hidden_size",), "64", "config.json: .*hidden_size"),
    (("hidden_size",), [], "config.json: .*hidden_size"),
    (("hidden_size",), 10**400, "number"),
    (("num_hidden_layers",), 10**9, "num_hidden_layers = 1000000000: expected at most 1024"),
    (("num_hidden_layers",), None, "config.json"),
    (("num_attention_heads",), 0, ""),
    (("num_labels",), 10**12, "num_labels = 1000000000000: expected at most 16384"),
    (("vocab_size",), 10**10, "config.json describes [0-9,]+ numbers, but its weights are [0-9,]+ bytes"),
    (("vocab_size",), 10**30, ""),
    (("vocab_size",), 16, "2 of another shape .lm_head.weight, model.embed_tokens.weight"),
    (("head_dim",), 10**9, "config.json describes"),
    (("max_position_embeddings",), "256", "max_position_embeddings = 256: expected a whole number"),
    (("max_position_embeddings",), -5, "max_position_embeddings = -5: expected a whole number of at least 1"),
    (("max_position_embeddings",), 0, "max_position_embeddings = 0: expected"),
    (("eos_token_id",), "1", "config.json: .*eos_token_id"),
    (("eos_token_id",), -1, "config.json: eos_token_id = -1: expected ids from 0 to 14"),
    (("eos_token_id",), 10**400, "config.json: eos_token_id = 1000.*: expected ids from 0 to 14"),
    (("eos_token_id",), [[1]], "config.json: .*eos_token_id"),
    (("pad_token_id",), 99, "does not load"),
    (("rope_parameters",), {"rope_type": "default", "rope_theta": "x"}, "does not load"),
    (("rope_parameters",), {"rope_type": "default", "rope_theta": 0}, "NaN or infinity .model.rotary_emb"),
    (("rope_parameters",), {"rope_type": "default", "rope_theta": -2.5}, "NaN or infinity .model.rotary_emb"),
    (("rope_parameters",), {"rope_type": "no-such"}, "does not load"),
    (("rope_parameters",), 5, "config.json"),
    (("rms_norm_eps",), -1e9, "NaN or infinite"),
    (("attention_dropout",), 5.0, "attention_dropout = 5.0: expected a number from 0 to 1"),
    (("hidden_act",), 5, "config.json"),
    (("hidden_act",), "no-such", "KeyError: 'no-such'|no-such"),
    (("dtype",), "no-such", ""),
    (("model_type",), [], "config.json"),
    (("layer_types",), 5, "config.json"),
    (("return_dict",), False, ""),
    (("auto_map",), {"AutoConfig": "a.B"}, ""),
    (("id2label",), 5, "config.json"),
    (("text_config",), 5, "config.json: AttributeError"),
]


@pytest.mark.parametrize(("keys", "value", "words"), CONFIG)
def test_a_field_of_the_configuration_is_refused_in_one_line(keys, value, words: str, folder: Path) -> None:
    change_json(folder / "config.json", *keys, value=value)
    if keys == ("auto_map",):  # transformers has code of its own for it, and that is taken
        load_policy(folder)
        change_json(folder / "config.json", "model_type", value="no-such")
    line = refusal(folder)
    assert re.search(words, line), line


def test_what_cannot_be_saved_again_is_refused_for_training_alone(folder: Path) -> None:
    change_json(folder / "tokenizer_config.json", "processor_class", value="\ud800")
    load_policy(folder)
    words = "cannot be saved again: "
    assert words in refusal(folder, lambda place: load_policy(place, training=True))
    change_json(folder / "tokenizer_config.json", "processor_class", value=None)
    change_json(folder / "config.json", "output_attentions", value=True)
    load_policy(folder)
    assert words in refusal(folder, lambda place: load_policy(place, training=True))


@pytest.mark.parametrize("value", [[], 5, None, "x"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_files_that_hold_something_else_are_refused(name: str, value: object, folder: Path) -> None:
    (folder / name).write_text(json.dumps(value))
    refusal(folder)


TOKENIZER: list[tuple[str, tuple[str, ...], object]] = [
    ("tokenizer.json", ("model",), 5),
    ("tokenizer.json", ("model", "vocab"), []),
    ("tokenizer.json", ("model", "vocab", "7"), "x"),
    ("tokenizer.json", ("model", "vocab", "7"), 10**6),
    ("tokenizer.json", ("added_tokens",), 5),
    ("tokenizer.json", ("added_tokens", 0, "\x1b[2J"), True),
    ("tokenizer.json", ("pre_tokenizer",), {"type": "no-such"}),
    ("tokenizer.json", ("normalizer",), 5),
    ("tokenizer_config.json", ("eos_token",), 5),
    ("tokenizer_config.json", ("eos_token",), {"content": 5}),
    ("tokenizer_config.json", ("tokenizer_class",), 5),
    ("tokenizer_config.json", ("padding_side",), "up"),
    ("tokenizer_config.json", ("extra_special_tokens",), 5),
    ("tokenizer_config.json", ("added_tokens_decoder",), {"x": 5}),
    ("tokenizer_config.json", ("chat_template",), [5]),
    ("generation_config.json", ("eos_token_id",), "x"),
    ("generation_config.json", ("eos_token_id",), [1, -2]),
    ("generation_config.json", ("eos_token_id",), 15),
    ("generation_config.json", ("max_new_tokens",), "x"),
    ("generation_config.json", ("watermarking_config",), 5),
]


@pytest.mark.parametrize(("name", "keys", "value"), TOKENIZER)
def test_a_field_of_the_other_files_is_refused_in_one_line(name: str, keys, value: object, folder: Path) -> None:
    change_json(folder / name, *keys, value=value)
    refusal(folder)


@pytest.mark.parametrize("text", [b"\xff\xfe{}", b"{", b"", b"[" * 100_000, b'{"model_type": ' + b"9" * 5000 + b"}"])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"])
def test_files_that_are_no_json_are_refused(name: str, text: bytes, folder: Path) -> None:
    (folder / name).write_bytes(text)
    refusal(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json", WEIGHTS, "x.json"])
@pytest.mark.parametrize("kind", ["FIFO", "socket"])
def test_what_is_no_file_is_refused_and_nothing_waits_for_it(
    kind: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / name).unlink(missing_ok=True)
    if kind == "FIFO":
        os.mkfifo(folder / name)
    else:
        monkeypatch.chdir(folder)  # a socket's name is short
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(name)
    assert f"{name} is not a regular file" in refusal(folder)


def test_a_folder_in_place_of_a_file_is_refused(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    refusal(folder)


@pytest.mark.parametrize("name", ["a/" + "b" * 5000, "a\0b", "b" * 5000])
def test_a_name_that_can_be_no_folder_is_refused(name: str) -> None:
    def use() -> None:
        check_model("model", name)
        model_folder(name)

    with pytest.raises(UsageError):
        use()


def test_a_path_with_bytes_that_are_no_text_is_refused_before_anything_is_written(policy: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="its path holds bytes that are no text"):
        save_policy(policy.model, policy.tokenizer, tmp_path / "half\udcff")
    assert not any(tmp_path.glob("half*"))
