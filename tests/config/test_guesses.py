"""What people guess of a recipe's keys is answered in one line, with the key and an example that can be typed."""

from __future__ import annotations

import re
import sys

import pytest

from groupwise.algorithms.settings import algorithm
from groupwise.cli.__main__ import main
from groupwise.config.elsewhere import chapters
from groupwise.config.recipe import load
from groupwise.config.recipe_files import assignment
from groupwise.core.errors import UsageError

GUESSES = [option for chapter in chapters() if not chapter.project for option in chapter.options]
EXAMPLES = sorted(
    {option.here[0]: option.example for chapter in chapters() for option in chapter.options if option.example}.items()
)

#: A guess -> the key that it is answered with.
COMMON = {
    "lr": "learner.learning_rate",
    "learner.lr": "learner.learning_rate",
    "learning_rate": "learner.learning_rate",
    "batch_size": "prompts_per_step",
    "learner.batch_size": "prompts_per_step",
    "epochs": "steps",
    "num_train_epochs": "steps",
    "max_steps": "steps",
    "group_size": "samples_per_prompt",
    "num_generations": "samples_per_prompt",
    "kl_coef": "algorithm.kl.beta",
    "beta": "algorithm.kl.beta",
    "clip": "algorithm.trust.epsilon_low",
    "epsilon": "algorithm.trust.epsilon_low",
    "gpus": "learner.ranks",
    "max_tokens": "sampling.max_new_tokens",
    "max_new_tokens": "sampling.max_new_tokens",
    "model_name": "model",
    "model_name_or_path": "model",
    "dataset": "task.path",
    "dataset_name": "task.path",
    "temperature": "sampling.temperature",
    "top_p": "sampling.top_p",
    "lora": "adapter.rank",
    "lora_r": "adapter.rank",
    "use_vllm": "engine.name",
    "bf16": "learner.precision",
    "wandb": "journal.tracker",
    "report_to": "journal.tracker",
    "output_dir": "runs",
    "save_steps": "checkpoint.every",
    "eval_steps": "evaluation.every",
    "warmup": "learner.warmup_updates",
    "warmup_steps": "learner.warmup_updates",
    "system_prompt": "chat.system",
    "reward_fn": "rewards.NAME.use",
    "max_grad_norm": "learner.clip_norm",
    "gradient_checkpointing": "learner.recompute",
    "per_device_train_batch_size": "prompts_per_step",
}


def line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["groupwise", *words])
    with pytest.raises(SystemExit) as leaving:
        main()
    said = capsys.readouterr().err
    assert leaving.value.code == 2
    assert len(said.strip().splitlines()) == 1, said
    return said


@pytest.mark.parametrize(("guess", "key"), COMMON.items())
def test_a_guess_is_answered_with_the_key_and_an_example(guess: str, key: str) -> None:
    with pytest.raises(UsageError) as error:
        load("quickstart", {guess: 1})
    assert re.search(
        rf"{re.escape(guess)}: .*here it is {re.escape(key)}\b.*; such as --set {re.escape(key)}=\S", str(error.value)
    )


@pytest.mark.parametrize("guess", ["lr", "learning_rate", "lora_r", "gpus", "batch-size"])
def test_a_guess_written_as_an_option_is_answered_too(guess, monkeypatch, capsys) -> None:
    said = line(monkeypatch, capsys, "train", "quickstart", f"--{guess}", "1")
    assert f"{guess.replace('-', '_')}: " in said
    assert f"; such as --set {COMMON[guess.replace('-', '_')]}=" in said


@pytest.mark.parametrize("word", ["logging_steps", "packing"])
def test_what_is_no_key_here_is_answered_without_an_example(word: str) -> None:
    with pytest.raises(UsageError, match=r"not here: every step|here it is learner\.shared_prefixes"):
        load("quickstart", {word: 1})


def test_there_are_thirty_and_each_leads_to_a_key_or_a_command() -> None:
    assert len(GUESSES) > 60
    assert [option.name for option in GUESSES if not option.here] == []
    assert [
        option.name for option in GUESSES if not option.example and not option.here[0].startswith("groupwise ")
    ] == []


@pytest.mark.parametrize(("key", "example"), EXAMPLES, ids=lambda value: value)
def test_an_example_is_a_value_that_the_key_takes(key: str, example: str) -> None:
    name, value = assignment(f"{key.replace('NAME', 'mine')}={example}")
    changes = {name: value}
    if name.startswith("algorithm."):  # a key of a part is of an algorithm that has the part
        chosen = "ppo" if ".lam" in name or ".gamma" in name else "grpo"
        changes = {"algorithm.name": chosen, **changes}
        algorithm(
            str(value) if name == "algorithm.name" else chosen,
            {} if name == "algorithm.name" else {name.removeprefix("algorithm."): value},
        )
    load("quickstart", changes)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "10"], "a key is set with --set: --set steps=10"),
        (["--steps=10"], "a key is set with --set: --set steps=10"),
        (["steps=10"], "a key is set with --set: --set steps=10"),
        (["--seed", "3"], "a key is set with --set: --set seed=3"),
        (["--learner.learning-rate", "1e-5"], "a key is set with --set: --set learner.learning_rate=1e-5"),
        (["--algorithm.name=dapo"], "a key is set with --set: --set algorithm.name=dapo"),
        (["--steps"], "a key is set with --set: --set steps=VALUE"),
    ],
)
def test_a_key_written_as_an_option_is_shown_as_it_is_set(words, said, monkeypatch, capsys) -> None:
    assert said in line(monkeypatch, capsys, "train", "quickstart", *words)


def test_an_option_that_a_command_has_is_not_taken_for_a_key(monkeypatch, capsys) -> None:
    """`plan --device` is an option of its own, and no wrong word of this line."""
    said = line(monkeypatch, capsys, "plan", "quickstart", "--device", "h100", "--rank", "3")
    assert "--set device" not in said


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("algorithm=dapo", "algorithm = 'dapo': this is a section; say algorithm.name=dapo"),
        ("task=gsm8k", "task = 'gsm8k': this is a section; say task.name=gsm8k"),
        ("engine=vllm", "engine = 'vllm': this is a section; say engine.name=vllm"),
        ("learner=3", "learner = 3: this is a section; its keys are learner.beta1, "),
        ("adapter=true", "adapter = True: this is a section; its keys are adapter.rank, "),
        ("rewards=rewards.py:f", "a reward has a table of its own, such as --set rewards.NAME.use="),
    ],
)
def test_a_section_that_is_given_a_value_is_answered_with_its_keys(setting, said, monkeypatch, capsys) -> None:
    assert said in line(monkeypatch, capsys, "train", "quickstart", "--set", setting)


def test_kind_chooses_the_part_of_every_slot() -> None:
    """Eight slots call it so; of the others `level` and `estimator` are what a recipe keeps."""
    assert algorithm("grpo", {"ratio.kind": "sequence"}) == algorithm("grpo", {"ratio.level": "sequence"})
    assert algorithm("grpo", {"kl.kind": "k2"}) == algorithm("grpo", {"kl.estimator": "k2"})
    with pytest.raises(UsageError, match=r"algorithm\.ratio\.level = 'tokn': did you mean 'token'"):
        algorithm("grpo", {"ratio": {"kind": "tokn"}})


def test_both_names_of_a_part_are_refused() -> None:
    with pytest.raises(UsageError, match=r"algorithm\.ratio\.kind"):
        algorithm("grpo", {"ratio.kind": "token", "ratio.level": "sequence"})
