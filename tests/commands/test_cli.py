"""The command line: one clear line and the right exit code for everything that can be asked wrongly."""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers.processors import TemplateProcessing

import groupwise
from groupwise.cli import __main__ as cli
from groupwise.core.errors import UsageError
from groupwise.core.processes.stop import SIGNALS
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
        (["train", "quickstart", "--set", "steps=1\nseed = 3"], "--set 'steps=1\\nseed = 3': more than one value"),
        (["train", "quickstart", "--set", f"seed={2**64}"], "seed = 18446744073709551616"),
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


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_a_command_does_not_obey_in_order_is_one_line_and_its_exit_code(
    number: int, monkeypatch, capfd, tmp_path: Path
) -> None:
    """Before a run begins, and after its end while its page is made: as by Ctrl-C, and the handlers are put back."""
    before = {each: signal.getsignal(each) for each in SIGNALS}

    def signalled(*_: object) -> None:
        os.kill(os.getpid(), number)

    monkeypatch.setattr("groupwise.commands.train.train.plan_of", signalled)
    told = call(monkeypatch, capfd, "train", "quickstart")
    monkeypatch.setattr("groupwise.reports.make.make", signalled)
    assert told == call(monkeypatch, capfd, "report", str(tmp_path))
    assert told == (128 + number, "", "groupwise: stopped at once; what was saved before is kept\n")
    assert before == {each: signal.getsignal(each) for each in SIGNALS}


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
    code = "import sys, groupwise.cli.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    TinySpec().build("0123456789", tmp_path / "model", seed=0)
    return tmp_path / "model"


def other_tokenizer(folder: Path) -> None:
    TinySpec().build("0123456789+-=abcdef", folder.parent / "larger", seed=0)
    (folder / "tokenizer.json").write_bytes((folder.parent / "larger" / "tokenizer.json").read_bytes())


def cut_short(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])


NO_MODEL = "does not load as a causal language model"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: [path.unlink() for path in folder.glob("tokenizer*")], "no tokenizer"),
        (other_tokenizer, "the tokenizer has 21 ids but the model only 12 embeddings"),
        (lambda folder: (folder / "config.json").unlink(), r"no config\.json"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "no-such-model"}'), NO_MODEL),
        (cut_short, NO_MODEL),
    ],
)
def test_a_folder_that_holds_no_whole_model_is_refused(damage: Callable[[Path], object], words: str, folder: Path):
    damage(folder)
    with pytest.raises(UsageError, match=words):
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
    assert policy.decode(encode(policy, "3+1=")) == "3+1="
    assert policy.decode((*encode(policy, "42"), *policy.eos)) == "42"
    tokenizer = copy.deepcopy(policy.tokenizer)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="5 $0 <eos>", special_tokens=[("5", 7), ("<eos>", 1)]
    )
    assert tokenizer("3+1=")["input_ids"] == [7, *encode(policy, "3+1="), 1]
    assert prompt_ids(tokenizer, ["3+1=", "2="]) == [[7, *encode(policy, "3+1=")], [7, *encode(policy, "2=")]]


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
    code, _, err = call(monkeypatch, capfd, "train", *words, "--set", "warm_start.steps=5")
    assert code == 2
    assert "a demonstration: the model's tokenizer cannot read it" in err
    assert len(err.strip().splitlines()) == 1


def test_the_package_is_the_command_of_its_interpreter() -> None:
    done = subprocess.run([sys.executable, "-m", "groupwise", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"groupwise {groupwise.__version__}\n"
    wrong = subprocess.run([sys.executable, "-m", "groupwise", "tain"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("groupwise: No such command")
