"""The command line: one clear line and the right exit code for everything that can be asked wrongly."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers.processors import TemplateProcessing

import groupwise
from groupwise import cli
from groupwise.core.errors import UsageError
from groupwise.models.load import Policy, load_policy, prompt_ids
from groupwise.models.tiny import ByteSpec, TinySpec


def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["groupwise", *words])
    with pytest.raises(SystemExit) as leaving:
        cli.main()
    out, err = capfd.readouterr()
    return int(leaving.value.code or 0), out, err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train", "quikstart"], "did you mean 'quickstart'? known: "),
        (["train", "quickstart", "--set", "stps=3"], "stps: there is no such key; did you mean 'steps'?"),
        (["train", "quickstart", "--set", "steps"], "expected key=value"),
        (["train", "quickstart", "--set", "sampling.top_p=0"], "sampling.top_p = 0"),
        (
            ["train", "quickstart", "--set", "sampling.max_new_tokens=300"],
            "that is beyond the model's 256 positions; set it to at most 248",
        ),
        (["train", "quickstart", "--ray", "ray://x:1"], "give HOST:PORT of a Ray, 'auto' or 'local'"),
        (["train", "quickstart", "--ray", "local"], "nothing of this run lives outside of its own process"),
        (["train"], "a recipe or --resume RUN"),
        (["train", "quickstart", "--resume", "x"], "a recipe or --resume RUN"),
        (["train", "--resume", "nowhere"], "nowhere: not a run folder"),
        (["train", "--resume", "nowhere", "--set", "steps=3"], "nowhere: not a run folder"),
        (["eval", "quickstart"], "to evaluate a model say on which task: --recipe RECIPE"),
        (["eval", "nowhere", "--recipe", "quickstart"], "nowhere"),
        (["eval", "a", "b", "--step", "3"], "--step 3: of one run; among several policies write RUN:STEP"),
        (["eval", "a", "--recipe", "quickstart", "--out", "."], "--out .: it exists already, and is not written over"),
        (["train", "times-tables"], "there is no such folder; make it with: groupwise model smollm2 models/smollm2"),
        (["model", "smolm2", "x"], "did you mean 'smollm2'? known: smollm2"),
        (["model", "smollm2", "."], "exists already and stays as it is; name another folder"),
        (["trian"], "No such command 'trian'"),
        (["train", "quickstart", "--stps", "3"], "No such option"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(words, told, monkeypatch, capfd, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, _, err = call(monkeypatch, capfd, *words, *(["--set", "warm_start.steps=1"] * (words[-1].endswith("=300"))))
    assert code == 2
    assert told in err
    assert len(err.strip().splitlines()) == 1
    assert not list(tmp_path.glob("runs/[!.]*")), "nothing was started, so nothing is left behind"


def test_an_evaluation_of_a_model_whose_answers_would_not_end(monkeypatch, capfd, tmp_path):
    ByteSpec(chat=True).build("", tmp_path, seed=0)
    for name, key, value in (("generation_config", "eos_token_id", 1), ("tokenizer_config", "eos_token", "<eos>")):
        fields = json.loads((tmp_path / f"{name}.json").read_text())
        (tmp_path / f"{name}.json").write_text(json.dumps({**fields, key: value}))
    code, _, err = call(monkeypatch, capfd, "eval", str(tmp_path), "--recipe", "times-tables")
    assert code == 2
    assert "closes an answer with <|im_end|>" in err
    assert "answers would run on to the limit" in err


def test_help_is_not_an_error(monkeypatch, capfd):
    code, out, _ = call(monkeypatch, capfd, "train", "--help")
    assert code == 0
    assert "--resume" in out


def test_help_does_not_wait_for_torch():
    """Nobody should wait seconds to read a help text."""
    code = "import sys, groupwise.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    TinySpec().build("0123456789", tmp_path / "model", seed=0)
    return tmp_path / "model"


def test_a_model_without_a_tokenizer(folder: Path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        os.remove(folder / name)
    with pytest.raises(UsageError, match="no tokenizer"):
        load_policy(folder)


def test_a_tokenizer_of_another_model(folder: Path, tmp_path: Path):
    TinySpec().build("0123456789+-=abcdef", tmp_path / "larger", seed=0)
    (folder / "tokenizer.json").write_bytes((tmp_path / "larger" / "tokenizer.json").read_bytes())
    with pytest.raises(UsageError, match=r"the tokenizer has 21 ids but the model only 12 embeddings"):
        load_policy(folder)


def test_a_folder_that_is_no_model(folder: Path):
    with pytest.raises(UsageError, match=r"no config\.json"):
        load_policy(folder.parent)
    (folder / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(UsageError, match="does not load as a causal language model"):
        load_policy(folder)


def test_a_file_of_weights_that_is_cut_short(folder: Path):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UsageError, match="does not load as a causal language model"):
        load_policy(folder)


def test_every_end_id_is_known(folder: Path):
    policy = load_policy(folder)
    policy.model.generation_config.eos_token_id = [1, 5]
    policy.model.save_pretrained(folder)
    assert load_policy(folder).eos == {1, 5}


def encode(policy: Policy, prompt: str) -> list[int]:
    return prompt_ids(policy.tokenizer, [prompt])[0]


def test_a_prompt_keeps_its_bos_and_loses_an_end_that_the_tokenizer_adds(policy):
    """Some tokenizers close every text with an end id: sampling after that would be sampling after the answer."""
    tokenizer = copy.deepcopy(policy.tokenizer)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="5 $0 <eos>", special_tokens=[("5", 7), ("<eos>", 1)]
    )
    assert tokenizer("3+1=")["input_ids"] == [7, *encode(policy, "3+1="), 1]
    assert prompt_ids(tokenizer, ["3+1=", "2="]) == [[7, *encode(policy, "3+1=")], [7, *encode(policy, "2=")]]


def test_a_prompt_is_encoded_without_an_end(policy):
    assert policy.decode(encode(policy, "3+1=")) == "3+1="
    assert policy.decode((*encode(policy, "42"), *policy.eos)) == "42"
    assert torch.is_tensor(policy.model(torch.tensor([encode(policy, "1+1=")])).logits)


def test_completions_that_the_tokenizer_cannot_read(monkeypatch, capfd, tmp_path):
    """Prompts of 0, 1 and signs can be read, the answer 2 cannot: a finding of `check`, a line of `train`."""
    monkeypatch.chdir(tmp_path)
    TinySpec().build("01+-=", tmp_path / "model", seed=0)
    words = ["quickstart", "--set", "model=model", "--set", "task.operands=[2,2]", "--set", "task.largest=1"]
    words += ["--set", "evaluation.problems=1"]
    code, out, err = call(monkeypatch, capfd, "check", *words, "--no-model")
    assert code == 1
    assert re.search(r"fault completion '.*2.*': the model's tokenizer cannot read it", out)
    assert not err
    code, _, err = call(monkeypatch, capfd, "train", *words)
    assert code == 2
    assert "a demonstration: the model's tokenizer cannot read it" in err
    assert len(err.strip().splitlines()) == 1


def test_the_package_is_the_command_of_its_interpreter() -> None:
    done = subprocess.run([sys.executable, "-m", "groupwise", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"groupwise {groupwise.__version__}\n"
    wrong = subprocess.run([sys.executable, "-m", "groupwise", "tain"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("groupwise: No such command")
