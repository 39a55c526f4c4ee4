"""The text of a multimodal folder trains alone, and the folder that comes out is the one that went in around it."""

from __future__ import annotations

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import groupwise
from groupwise.commands.build.machine import disk_plan, empty_model
from groupwise.commands.build.policy import export
from groupwise.config.recipe import load
from groupwise.core.errors import RunError, UsageError
from groupwise.engines.local.engine import LocalEngine
from groupwise.models.causal import CausalLM
from groupwise.models.load import description, digest, load_policy, model_like, save_policy
from groupwise.models.multimodal import Whole, text_of, whole_of
from tests.models.multimodal_folders import KINDS, changed, multimodal, published, saved, tensors_of, whole_class_of
from tests.runs.tiny_runs import laid_over, tiny_run

IDS = torch.arange(2, 28)[None]
QUICK = [("Gemma3", published), ("Qwen2_5_VL", saved), ("Qwen3_5", published)]
OTHERS = [one for one in itertools.product(KINDS, (saved, published)) if one not in QUICK]


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits.float().log_softmax(-1)


def around(model: Any) -> Whole:
    found = whole_of(model)
    assert found is not None
    return found


@pytest.mark.parametrize(("kind", "make"), [*QUICK, *(pytest.param(*one, marks=pytest.mark.slow) for one in OTHERS)])
def test_what_comes_out_is_the_model_that_went_in_with_another_text(kind: str, make: Any, tmp_path: Path) -> None:
    source = make(tmp_path / "source", kind)
    policy = load_policy(source, training=True)
    own = whole_class_of(kind).from_pretrained(source, dtype=torch.float32)
    assert float((logits(own) - logits(policy.model)).abs().max()) < 1e-5, "its text is that of the whole model"

    before = digest(policy.model)
    save_policy(changed(policy).model, policy.tokenizer, tmp_path / "out")
    old, new = tensors_of(source), tensors_of(tmp_path / "out")
    assert old.keys() == new.keys()
    same = {name for name in old if old[name].dtype == new[name].dtype and torch.equal(old[name], new[name])}
    assert same == {name for name in old if "vis" in name or "projector" in name}
    configs = [json.loads((folder / "config.json").read_text()) for folder in (source, tmp_path / "out")]
    assert configs[0]["architectures"] == configs[1]["architectures"] == [whole_class_of(kind).__name__]
    assert configs[0]["model_type"] == configs[1]["model_type"]
    for name in ("preprocessor_config.json", "generation_config.json"):
        assert (source / name).exists() == (tmp_path / "out" / name).exists()
    again = load_policy(tmp_path / "out")
    assert digest(again.model) == digest(policy.model) != before
    whole, info = whole_class_of(kind).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not [*info["missing_keys"], *info["unexpected_keys"]]
    assert float((logits(whole) - logits(policy.model)).abs().max()) < 1e-5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return published(tmp_path / "model", "Gemma3")


def test_what_does_not_train_is_nowhere_but_in_the_files(folder: Path) -> None:
    policy = load_policy(folder, training=True)
    whole, size = around(policy.model), sum(p.numel() for p in policy.model.parameters())
    assert {p.device.type for p in whole.frame.parameters()} == {"meta"}
    assert whole.untrained_bytes == sum(x.nbytes for name, x in tensors_of(folder).items() if name in whole.others)
    assert not any("vis" in name or "projector" in name for name in policy.model.state_dict())
    assert sum(p.numel() for p in empty_model(folder).parameters()) == size, "a plan counts what trains"
    assert around(copy.deepcopy(policy.model)) is whole
    plan = disk_plan(load("quickstart"), folder, policy.model, None, copies_reference=False)
    assert plan.checkpoint == 12 * size + whole.untrained_bytes


def test_another_process_makes_the_text_of_its_description(tmp_path: Path) -> None:
    model = load_policy(saved(tmp_path / "model", "Qwen2_5_VL")).model
    other = model_like(CausalLM, description(model), "meta")
    assert type(other).__name__ == type(model).__name__ == "Qwen2_5_VLTextForCausalLM"
    assert {name: x.shape for name, x in other.state_dict().items()} == {
        name: x.shape for name, x in model.state_dict().items()
    }
    own = LocalEngine(model, frozenset({1}), 0)
    assert not any("vis" in name for name, _ in own._model.named_parameters())


def test_folders_with_one_text_and_two_towers_are_two_policies(folder: Path, tmp_path: Path) -> None:
    policy = load_policy(folder)
    save_policy(policy.model, policy.tokenizer, tmp_path / "same")
    assert digest(load_policy(tmp_path / "same").model) == digest(policy.model)
    path = tmp_path / "same" / "model.safetensors"
    weights = tensors_of(tmp_path / "same")
    weights["model.vision_tower.embeddings.patch_embedding.weight"] += 1
    save_file(weights, path, metadata={"format": "pt"})
    assert digest(load_policy(tmp_path / "same").model) != digest(policy.model)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_run_trains_the_text_alone_and_its_policy_is_the_whole_folder(
    folder: Path, tmp_path: Path, rank: int
) -> None:
    model = json.loads((folder / "config.json").read_text())
    keys = {"steps": 1, "model": str(folder), "adapter.rank": rank, "evaluation": {"problems": 0}}
    run = groupwise.train("quickstart", laid_over(tiny_run(tmp_path), keys))
    assert export(run.folder, tmp_path / "out", None, print) == 1
    old, new = tensors_of(folder), tensors_of(tmp_path / "out")
    assert old.keys() == new.keys()
    assert all(torch.equal(old[name], new[name]) for name in old if "vis" in name or "projector" in name)
    assert any(not torch.equal(old[name].float(), new[name]) for name in old if "q_proj" in name)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == model["architectures"]
    loaded = whole_class_of("Gemma3").from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert float((logits(loaded) - logits(run.policy().model)).abs().max()) < 1e-5


def test_files_that_have_changed_since_are_not_copied(folder: Path, tmp_path: Path) -> None:
    policy = load_policy(folder)
    for path in folder.glob("*.safetensors"):
        save_file({name: weight.float() for name, weight in load_file(path).items()}, path)
    words = r"model-0000\d-of-00002.safetensors: model\S* cannot be read there any more: "
    with pytest.raises(RunError, match=words + "the file is another one now"):
        save_policy(policy.model, policy.tokenizer, tmp_path / "out")
    for path in folder.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(RunError, match=words):
        save_policy(policy.model, policy.tokenizer, tmp_path / "out")


def refusal(folder: Path) -> str:
    with pytest.raises(UsageError) as error:
        load_policy(folder)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500
    return str(error.value)


def test_what_has_no_text_that_stands_alone_is_refused_in_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["Gemma9ForConditionalGeneration"]}))
    assert "has no 'Gemma9" in refusal(folder)
    (folder / "config.json").write_text(json.dumps(config))
    headless = multimodal("Gemma3")
    headless.get_output_embeddings = lambda: None
    with pytest.raises(UsageError, match=r"^here: Gemma3ForConditionalGeneration has no one part that is its text"):
        text_of(headless, folder, "here")
    cls = whole_class_of("Gemma3")
    own = cls.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = own(self, *args, **kwargs)
        output.logits = output.logits * 1.01
        return output

    monkeypatch.setattr(cls, "forward", forward)
    assert "computes other logits of a text than its Gemma3ForCausalLM alone" in refusal(folder)
