"""A GGUF file to a folder: the same function of the same ids, an answer that ends, and one line for what is wrong."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from groupwise.commands.model import write_folder, write_packaged
from groupwise.core.errors import UsageError
from groupwise.models.files.gguf import PACKAGED, packaged_file, read_gguf, require_installed
from groupwise.models.load import Policy, load_policy
from tests.models.gguf_files import TOKENS, stored_name, tiny_llama, write_gguf

IDS = torch.arange(60).reshape(2, 30) % len(TOKENS)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes the tiny model's file, with changes to it."""
    pytest.importorskip("gguf")
    return lambda **changes: write_gguf(tmp_path / "tiny.gguf", tiny_llama(), **changes)


@pytest.fixture
def policy(write: Callable[..., Path], tmp_path: Path) -> Policy:
    """The policy of the folder that the tiny model's file becomes."""
    write_folder(write(), tmp_path / "model")
    return load_policy(tmp_path / "model")


def test_the_folder_computes_what_the_model_did(policy: Policy) -> None:
    with torch.no_grad():
        assert torch.equal(policy.model(IDS).logits, tiny_llama()(IDS).logits)


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "BF16"])
def test_a_quantised_weight_is_the_number_that_it_stands_for(
    kind: str, write: Callable[..., Path], tmp_path: Path
) -> None:
    import gguf

    write_folder(write(quantised=kind), tmp_path / "model")
    expected = copy.deepcopy(tiny_llama())
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "tiny.gguf").tensors}
    for name, parameter in expected.named_parameters():
        if "mlp" in name:
            tensor = stored[stored_name(name)]
            assert tensor.tensor_type.name == kind
            parameter.data = torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type))
    with torch.no_grad():
        assert torch.equal(load_policy(tmp_path / "model").model(IDS).logits, expected(IDS).logits)
        assert not torch.equal(expected(IDS).logits, tiny_llama()(IDS).logits)


def test_digits_are_cut_off_before_spaces_are_joined(policy: Policy) -> None:
    """As the model was trained: GPT-2's way would make three tokens of two spaces and a digit."""
    spelled = policy.tokenizer.convert_ids_to_tokens(policy.tokenizer("a\n\n48  7")["input_ids"])
    assert spelled == ["a", "ĊĊ", "4", "8", "ĠĠ", "7"]


def test_an_answer_ends_and_the_template_is_there(policy: Policy, tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    ids = policy.tokenizer.apply_chat_template(turns, return_dict=True)["input_ids"]
    assert policy.eos == {2}
    assert ids[-2:] == [2, policy.tokenizer.convert_tokens_to_ids("Ċ")]
    assert json.loads((tmp_path / "model" / "generation_config.json").read_text())["eos_token_id"] == [2]
    assert policy.positions == policy.tokenizer.model_max_length == 512
    assert "quantization_config" not in json.loads((tmp_path / "model" / "config.json").read_text())


def test_a_template_for_tools_is_taken_where_there_are_tools(write: Callable[..., Path], tmp_path: Path) -> None:
    write_folder(write(), tmp_path / "model", tool_use="{{ tools | length }} tools")
    tokenizer = load_policy(tmp_path / "model").tokenizer
    turns = [{"role": "user", "content": "?"}]
    assert tokenizer.apply_chat_template(turns, tools=[{}, {}], tokenize=False) == "2 tools"
    assert "tools" not in tokenizer.apply_chat_template(turns, tokenize=False)


def test_what_was_said_about_the_folder(write: Callable[..., Path], tmp_path: Path) -> None:
    parameters, size = write_folder(write(), tmp_path / "model")
    assert parameters == sum(p.numel() for p in tiny_llama().parameters())
    assert size == sum(path.stat().st_size for path in (tmp_path / "model").iterdir())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"without": ["blk.1.attn_q.weight"]},
            "not those of its configuration: it has 19, the model 20: model.layers.1.self_attn.q_proj",
        ),
        ({"extra": ["rope_freqs.weight"]}, "not those of its configuration: it has 21, the model 20$"),
        ({"architecture": "qwen2"}, "its architecture is qwen2, and only llama is read"),
        ({"end": 0}, r"closes an answer with <\|im_end\|> \(2\), which is not among the ids that end"),
        ({"end": 9999}, "tiny.gguf: cannot be read as a GGUF file: "),
    ],
)
def test_a_file_that_is_no_whole_policy(
    change: dict[str, Any], words: str, write: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words):
        write_folder(write(**change), tmp_path / "model")
    assert sorted(os.listdir(tmp_path)) == ["tiny.gguf"]


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.5, 0.999])
def test_a_file_that_is_cut_off(share: float, write: Callable[..., Path], tmp_path: Path) -> None:
    path = write()
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(UsageError, match=r"tiny.gguf: cannot be read as a GGUF file: \S"):
        write_folder(path, tmp_path / "model")
    assert sorted(os.listdir(tmp_path)) == ["tiny.gguf"]


def test_a_file_of_another_kind_is_refused_before_a_library_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"PK\3\4")
    os.mkfifo(tmp_path / "b.gguf")
    words = {
        "a": "not a GGUF file; it begins with",
        "b": "cannot be read: it is no regular file",
        "c": "cannot be read",
    }
    for name, line in words.items():
        with pytest.raises(UsageError, match=line):
            read_gguf(tmp_path / f"{name}.gguf")


def test_a_name_and_a_folder_are_looked_at_before_packages(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"model 'smolm2': .*; did you mean 'smollm2'\? known: smollm2"):
        write_packaged("smolm2", tmp_path)
    (tmp_path / "mine").write_text("")
    with pytest.raises(UsageError, match="mine exists already and stays as it is"):
        write_packaged("smollm2", tmp_path / "mine")


def test_each_package_that_is_missing_is_said_with_its_command() -> None:
    installs = {"no_such_reader": "'reader>=1'", "json": "json", "no_such_model": "--no-deps no-such-model"}
    words = "Tiny needs no_such_reader and no_such_model, not installed here: "
    commands = "pip install 'reader>=1' && pip install --no-deps no-such-model"
    with pytest.raises(UsageError, match=f"{words}{commands}$"):
        require_installed("Tiny", installs)


@pytest.mark.slow
def test_the_packaged_model_becomes_a_folder_that_answers(tmp_path: Path) -> None:
    try:
        packaged_file(PACKAGED["smollm2"])
    except UsageError as error:
        pytest.skip(str(error))
    written = write_packaged("smollm2", tmp_path / "smollm2")
    assert written.parameters == 134_515_008
    policy = load_policy(tmp_path / "smollm2")
    asked = policy.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    answer = policy.model.generate(**asked, max_new_tokens=24, do_sample=False)[0, asked["input_ids"].shape[1] :]
    assert policy.decode(tuple(answer.tolist())) == "The capital of France is Paris."
    assert int(answer[-1]) in policy.eos
