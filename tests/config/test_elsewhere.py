"""TRL's and verl's names are answered with ours, by the table that the page is made from; no row of it is empty."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from groupwise.cli.__main__ import main
from groupwise.cli.app import app
from groupwise.config.answers import in_words
from groupwise.config.elsewhere import chapters, option_of, with_lists
from groupwise.config.keys import sections
from groupwise.config.recipe import load
from groupwise.config.resolve import resolve
from groupwise.core.errors import UsageError

OPTIONS = [option for chapter in chapters() for option in chapter.options]
KEYS = {key.name for section in sections() for key in section.keys}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_no_row_is_empty_and_every_key_is_one(option):
    assert len(option.words) > 5 or (option.here and not option.words)
    assert all(key in KEYS or key.startswith("groupwise ") for key in option.here), option.here
    assert option_of(option.name.replace("*", "x")) is not None


@pytest.mark.parametrize("project", ["trl", "verl"])
def test_every_option_of_theirs_has_a_row_or_our_name(project):
    names = (Path(__file__).parent / f"options_of_{project}.txt").read_text().split("\n")
    options = [name for name in names if name and not name.startswith("#")]
    assert len(options) > 150
    assert [name for name in options if option_of(name) is None and name not in KEYS] == []


def test_a_name_has_one_row():
    assert len({option.name for option in OPTIONS}) == len(OPTIONS)


def test_no_name_of_theirs_is_a_key_of_ours():
    assert not [option.name for option in OPTIONS if option.name in KEYS]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("weight_decay", 0.1, "weight_decay: a name of TRL's; here it is learner.weight_decay; such as --set "),
        ("beta", 0.1, "beta: a name of TRL's; here it is algorithm.kl.beta: "),
        ("num_generations", 8, "num_generations: a name of TRL's; here it is samples_per_prompt: "),
        ("learner.lr_scheduler_type", "cosine", "a name of TRL's; here it is learner.schedule: "),
        ("algorithm.epsilon_high", 0.28, "a name of TRL's; here it is algorithm.trust.epsilon_high: "),
        ("vllm_mode", "colocate", "vllm_mode: a name of TRL's; not here: a setting of vLLM"),
        (
            "actor_rollout_ref.actor.kl_loss_coef",
            0.1,
            "actor_rollout_ref.actor.kl_loss_coef: a name of verl's; here it is algorithm.kl.beta: ",
        ),
        ("critic.optim.lr", 1e-5, "critic.optim.lr: a name of verl's; here it is critic.learning_rate: "),
        ("algorithm.adv_estimator", "grpo", "here it is algorithm.name and algorithm.advantage.kind: "),
        (
            "trainer.nnodes",
            2,
            'trainer.nnodes: a name of verl\'s; here it is placement.ray: "HOST:PORT" of a Ray cluster',
        ),
        ("reward_model.overlong_buffer.len", 4096, "here it is algorithm.shaping.overlong_cache: a share of the limit"),
        ("lora_r", 16, "here it is adapter.rank: LoRA learns at learner.learning_rate x adapter.rate_factor"),
        ("data.train_batch_size", 64, "a name of verl's; here it is prompts_per_step: "),
    ],
)
def test_a_name_of_theirs_is_answered_with_ours(key, value, words):
    with pytest.raises(UsageError) as error:
        load("quickstart", {key: value})
    assert words in str(error.value)
    assert str(error.value).startswith(f"quickstart.toml: {key}: ")


@pytest.mark.parametrize(
    "key", ["lerner.rate", "sampling.temprature", "stepss", "algorithm.trust.epsilon", "task.beta"]
)
def test_a_name_of_nobodys_is_answered_as_before(key):
    with pytest.raises(UsageError, match="no such key") as error:
        resolve(load("quickstart", {key: 1}))
    assert "a name of" not in str(error.value)


@pytest.mark.parametrize(
    "words", [["--learning_rate", "1e-5"], ["--learning-rate=1e-5"], ["learning_rate=1e-5", "trainer.nnodes=1"]]
)
def test_their_way_to_write_a_command_is_answered_too(words, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["groupwise", "train", "quickstart", *words])
    with pytest.raises(SystemExit) as leaving:
        main()
    assert leaving.value.code == 2
    assert "learning_rate: a name of TRL's; here it is learner.learning_rate" in capsys.readouterr().err


def test_words_of_ours_are_no_names_of_theirs():
    assert in_words(["train", "quickstart", "--set", "steps=3", "--resume", "runs/a"], {"--set", "--resume"}) == ""


def test_options_with_one_answer_share_a_row_and_every_option_is_on_the_page_once():
    page = with_lists("# Prose")
    cells = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| `")]
    shown = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    assert sorted(shown) == sorted(option.name for option in OPTIONS if option.project)
    assert any("`do_eval`, `do_predict`" in cell for cell in cells)


def test_the_page_in_docs_is_made_from_the_table():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "from-trl-and-verl.md").read_text()
    assert page == with_lists(page), "run make docs"
    assert max(len(line) for line in page.splitlines() if not line.startswith("|")) <= 110


COMMANDS = get_command(app).commands  # type: ignore[attr-defined]
NAMES = {section.name for section in sections()}
TORCHRUN = {"--nproc-per-node"}
SECTIONS = {key.partition(".")[0] for key in KEYS if "." in key}
#: `groupwise VERB words`, up to what ends a phrase; a word in capitals stands for what a user gives.
COMMAND = re.compile(r"groupwise ([a-z]+)((?: (?:--[a-z-]+|[A-Z]+|[a-z]+/[\w:]+))*)")


def commands_in(text: str) -> list[list[str]]:
    return [[verb, *words.split()] for verb, words in COMMAND.findall(text)]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_command_option_and_key_that_an_answer_names_exists(option):
    said = f"{'; '.join(option.here)}; {option.words}"
    for verb, *words in commands_in(said):
        assert verb in COMMANDS, said
        given = [{"N": "3", "RUN": "runs/a"}.get(word, word) for word in words]
        # `train RECIPE` and the like are parsed as a user would type them; a verb alone names the command.
        if given:
            COMMANDS[verb].make_context(verb, given)
    verbs = [verb for verb, *_ in commands_in(said)]
    known = {opt for verb in verbs for parameter in COMMANDS[verb].params for opt in parameter.opts}
    assert set(re.findall(r"--[a-z-]+", said)) <= known | (TORCHRUN if "torchrun" in said else set()), said
    named = re.findall(rf"\b(?:{'|'.join(SECTIONS)})\.[\w]+(?:\.\w+)*\*?", said)
    for key in named:
        ours = any(one.startswith(key.rstrip("*_")) for one in KEYS) if key.endswith("*") else key in KEYS | NAMES
        assert ours or key.endswith((".py", ".md", ".jsonl", ".json")), (key, said)
    for page in re.findall(r"docs/[\w/-]+\.md", said):
        assert (Path(__file__).parents[2] / page).is_file(), page
