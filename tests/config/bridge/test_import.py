"""A file of TRL's or verl's becomes a recipe: every option is answered once, nothing is dropped, nothing is run."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from groupwise.cli.__main__ import main
from groupwise.commands.check.check import check_sections
from groupwise.commands.check.findings import Level
from groupwise.config.bridge.given import Given, read
from groupwise.config.bridge.recipe import RLOO, TRL, VERL, AnswerKind, Imported, Project, imported
from groupwise.config.recipe import load
from groupwise.core.errors import UsageError

FILES = Path(__file__).parent / "files"
#: What TRL does by default with vLLM.
MASKED = {"kind": "sequence-mis", "cap": 3.0}
NAMES = sorted(path.name for path in FILES.iterdir())


def made(name: str) -> Imported:
    return imported(read(str(FILES / name)))


def of_trl(**options: Any) -> Imported:
    return imported(Given("run.yaml", False, False, options))


def of_verl(options: dict[str, Any]) -> Imported:
    return imported(Given("run.yaml", True, False, options))


def at(table: Any, key: str) -> Any:
    for part in key.split("."):
        table = table.get(part, {})
    return table


def verdict(done: Imported, name: str) -> AnswerKind:
    return next(answer.verdict for answer in done.answers if answer.name == name)


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["groupwise", *words])
    with pytest.raises(SystemExit) as leaving:
        main()
    out, err = capsys.readouterr()
    return int(leaving.value.code or 0), out, err


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_answered_once_and_what_is_not_here_is_in_the_recipe(name: str) -> None:
    done = made(name)
    assert [answer.name for answer in done.answers] == list(done.given.options)
    comments = " ".join(line.lstrip("# ") for line in done.text().splitlines() if line.startswith("#"))
    for answer in done.answers:
        if answer.verdict not in (AnswerKind.TRANSLATED, AnswerKind.DEFAULT):
            assert f"{answer.name} = " in comments
    assert max(map(len, (line for line in done.text().splitlines() if line.startswith("#")))) <= 110


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data and the rewards that the files name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    rows = [
        {"prompt": f"{i}+1=", "solution": f"{i + 1}", "data_source": "x", "reward_model": {"ground_truth": f"{i + 1}"}}
        for i in range(60)
    ]
    for name, some in (("train.jsonl", rows[:40]), ("test.jsonl", rows[40:])):
        (tmp_path / name).write_text("\n".join(map(json.dumps, some)))
    reward = "def {}(completions, **others):\n    return [float(len(text)) for text in completions]\n"
    verls = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n"
    (tmp_path / "rewards.py").write_text(reward.format("reward") + reward.format("reward_len"))
    (tmp_path / "rewards").mkdir()
    (tmp_path / "rewards" / "math_dapo.py").write_text(verls)
    return tmp_path


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("trl_grpo.yaml", "trl_lora.json")])
def test_check_accepts_the_recipe_as_far_as_model_and_data_are_there(name: str, folder: Path) -> None:
    """What is left out here needs a library or a module that is not installed: rewards of trl and of my_lib."""
    place = folder / "recipe.toml"
    place.write_text(made(name).text())
    changes = {"model": "tiny-bytes", "task.path": "train.jsonl", "sampling.max_new_tokens": 16}
    task = tomllib.loads(place.read_text())["task"]
    if "heldout_sets" in task:
        changes["task.heldout_sets"] = {"test": "test.jsonl"}
    elif "heldout" in task:
        changes["task.heldout"] = "test.jsonl"
    found = [one for section in check_sections(str(place), changes, rows=0, model=False) for one in section.findings]
    assert [one for one in found if one.level is Level.FAULT] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_recipe_is_read_back(name: str, tmp_path: Path) -> None:
    place = tmp_path / "recipe.toml"
    place.write_text(made(name).text())
    load(str(place))


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("trl_grpo.yaml", {"prompts_per_step": 4, "steps": 400, "learner.warmup_updates": 40, "task.check": "math"}),
        ("trl_grpo.yaml", {"algorithm.kl.estimator": "k3-ratio", "algorithm.mismatch": MASKED, "chat.thinking": "off"}),
        ("trl_lora.json", {"task.path": "my/data:main", "adapter.rank": 32, "adapter.rate_factor": 1.0}),
        ("trl_lora.json", {"algorithm.aggregate.limit": 512, "passes_per_batch": 2}),
        ("trl_script.txt", {"steps": 250, "updates_per_batch": 4, "prompts_per_step": 8, "adapter.rank": 8}),
        ("trl_script.txt", {"algorithm.trust.kind": "cispo", "sampling.stop": ["</answer>"]}),
        ("trl_command.sh", {"algorithm.name": "rloo", "prompts_per_step": 8, "runs": "outputs", "name": "rloo"}),
        ("verl_gsm8k.sh", {"task.path": "~/data/gsm8k/train.parquet", "updates_per_batch": 4, "samples_per_prompt": 5}),
        ("verl_gsm8k.sh", {"algorithm.kl.beta": 0.001, "algorithm.trust.dual_clip": 3.0, "journal.tracker": "wandb"}),
        ("verl_dapo.yaml", {"algorithm.shaping.overlong_cache": 0.2, "algorithm.trust.epsilon_high": 0.28}),
        ("verl_dapo.yaml", {"prompt_truncation": "left", "algorithm.mismatch.kind": "tis", "updates_per_batch": 16}),
        ("verl_ppo.yaml", {"algorithm.name": "ppo", "algorithm.advantage.lam": 1.0, "algorithm.kl.beta": 0.002}),
        (
            "verl_ppo.yaml",
            {"critic.learning_rate": 1e-5, "learner.beta2": 0.95, "adapter.targets": ["q_proj", "v_proj"]},
        ),
    ],
)
def test_values_are_those_of_the_file(name: str, keys: dict[str, Any]) -> None:
    table = made(name).table
    assert {key: at(table, key) for key in keys} == keys


@pytest.mark.parametrize(
    ("name", "option", "expected"),
    [
        ("trl_grpo.yaml", "num_generation", AnswerKind.UNKNOWN),
        ("trl_grpo.yaml", "use_vllm", AnswerKind.MANUAL),
        ("trl_grpo.yaml", "learning_rate", AnswerKind.DEFAULT),
        ("trl_grpo.yaml", "logging_steps", AnswerKind.ABSENT),
        ("trl_lora.json", "lora_dropout", AnswerKind.ABSENT),
        ("trl_script.txt", "run_name", AnswerKind.MANUAL),
        ("trl_command.sh", "--config_file", AnswerKind.ABSENT),
        ("trl_command.sh", "unheard_of", AnswerKind.UNKNOWN),
        ("verl_gsm8k.sh", "data.train_batchsize", AnswerKind.UNKNOWN),
        ("verl_dapo.yaml", "actor_rollout_ref.actor.policy_loss.loss_mode", AnswerKind.ABSENT),
        ("verl_dapo.yaml", "defaults", AnswerKind.ABSENT),
        ("verl_ppo.yaml", "critic.model.path", AnswerKind.DEFAULT),
    ],
)
def test_an_answer_is_of_the_right_kind(name: str, option: str, expected: AnswerKind) -> None:
    assert verdict(made(name), option) is expected


@pytest.mark.parametrize(
    ("options", "name", "expected"),
    [
        ({"loss_type": "vespo"}, "loss_type", AnswerKind.TRANSLATED),
        ({"loss_type": "vespo", "epsilon": 0.1}, "epsilon", AnswerKind.ABSENT),
        ({"loss_type": "vespo", "use_vllm": True, "vllm_importance_sampling_mode": "token_mask"},
         "vllm_importance_sampling_mode", AnswerKind.ABSENT),
        ({"loss_type": "sapo", "vespo_k_pos": 3.0}, "vespo_k_pos", AnswerKind.ABSENT),
        ({"loss_type": "other"}, "loss_type", AnswerKind.ABSENT),
        ({"max_completion_length": None}, "max_completion_length", AnswerKind.MANUAL),
        ({"max_steps": None}, "max_steps", AnswerKind.DEFAULT),
        ({"ref_model_sync_steps": None}, "ref_model_sync_steps", AnswerKind.DEFAULT),
        ({"off_policy_mask_threshold": 0.5}, "off_policy_mask_threshold", AnswerKind.TRANSLATED),
        ({"off_policy_mask_threshold": 0.5, "use_vllm": True}, "off_policy_mask_threshold", AnswerKind.MANUAL),
        ({"off_policy_mask_threshold": 0.5, "loss_type": "cispo"}, "off_policy_mask_threshold", AnswerKind.ABSENT),
        ({"multi_objective_aggregation": "sum_then_normalize"}, "multi_objective_aggregation", AnswerKind.DEFAULT),
        ({"multi_objective_aggregation": "normalize_then_sum", "scale_rewards": "none"}, "scale_rewards",
         AnswerKind.ABSENT),
    ],
)  # fmt: skip
def test_an_option_of_trls_that_goes_with_some_losses_only(options, name, expected) -> None:
    assert verdict(of_trl(**options), name) is expected


@pytest.mark.parametrize(
    ("options", "name", "expected"),
    [
        ({"clip_ratio": 0.3}, "clip_ratio", AnswerKind.ABSENT),
        ({"clip_ratio": 0.2}, "clip_ratio", AnswerKind.DEFAULT),
        ({"clip_ratio": 0.3, "clip_ratio_low": None}, "clip_ratio", AnswerKind.TRANSLATED),
        ({"clip_ratio": 0.3, "clip_ratio_low": None}, "clip_ratio_low", AnswerKind.TRANSLATED),
        ({"clip_ratio_c": None}, "clip_ratio_c", AnswerKind.MANUAL),
        ({"ppo_max_token_len_per_gpu": None}, "ppo_max_token_len_per_gpu", AnswerKind.DEFAULT),
        ({"policy_loss.loss_mode": "dro"}, "policy_loss.loss_mode", AnswerKind.MANUAL),
        ({"policy_loss.loss_mode": "dro", "policy_loss.dro_beta": 0.1, "use_kl_loss": True}, "use_kl_loss",
         AnswerKind.ABSENT),
        ({"policy_loss.dro_beta": 0.1}, "policy_loss.dro_beta", AnswerKind.ABSENT),
        ({"policy_loss.loss_mode": "dppo_kl", "clip_ratio_c": 10.0}, "clip_ratio_c", AnswerKind.TRANSLATED),
        ({"policy_loss.loss_mode": "gpg", "clip_ratio_low": 0.1}, "clip_ratio_low", AnswerKind.ABSENT),
        ({"policy_loss.loss_mode": "gspo", "clip_ratio_c": 5.0}, "clip_ratio_c", AnswerKind.ABSENT),
        ({"policy_loss.loss_mode": "sapo", "loss_agg_mode": "token-mean"}, "loss_agg_mode", AnswerKind.ABSENT),
        ({"policy_loss.loss_mode": "kl_cov"}, "policy_loss.loss_mode", AnswerKind.ABSENT),
    ],
)  # fmt: skip
def test_an_option_of_verls_that_goes_with_some_losses_only(options, name, expected) -> None:
    actor = {f"actor_rollout_ref.actor.{key}": value for key, value in options.items()}
    done = of_verl({"algorithm.adv_estimator": "grpo", **actor})
    assert verdict(done, f"actor_rollout_ref.actor.{name}") is expected


@pytest.mark.parametrize(("of_verl", "rloo", "known"), [(False, False, TRL), (False, True, RLOO), (True, False, VERL)])
def test_an_option_that_is_null_is_answered_whichever_it_is(of_verl: bool, rloo: bool, known: Project) -> None:
    for name in known.rules:
        (answer,) = imported(Given("run.yaml", of_verl, rloo, {name: None})).answers
        assert answer.verdict in (AnswerKind.DEFAULT, AnswerKind.MANUAL, AnswerKind.TRANSLATED, AnswerKind.ABSENT), name
    assert len(imported(Given("run.yaml", of_verl, rloo, dict.fromkeys(known.rules))).answers) == len(known.rules)


def test_defaults_of_theirs_that_differ_are_written() -> None:
    """A file that names nothing trains as TRL would: no KL term, a mean over tokens, a linear schedule."""
    table = of_trl(model_name_or_path="m", dataset_name="d", max_steps=10).table
    assert at(table, "algorithm.kl.beta") == 0.0
    assert at(table, "algorithm.aggregate.kind") == "token-mean"
    assert at(table, "learner.schedule") == "linear"
    assert at(of_verl({"algorithm.adv_estimator": "gae"}).table, "algorithm.advantage.lam") == 1.0


@pytest.mark.parametrize(
    ("options", "prompts", "updates"),
    [
        ({"per_device_train_batch_size": 8, "num_generations": 8}, 1, 1),
        ({"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4, "num_generations": 8}, 4, 1),
        ({"per_device_train_batch_size": 8, "steps_per_generation": 4, "num_generations": 8}, 4, 4),
        ({"per_device_train_batch_size": 8, "generation_batch_size": 64, "num_generations": 8}, 8, 8),
        ({"per_device_train_batch_size": 8, "steps_per_generation": 1, "gradient_accumulation_steps": 4}, 4, 1),
    ],
)
def test_batches_are_counted_as_trl_counts_them(options: dict[str, int], prompts: int, updates: int) -> None:
    table = of_trl(**options).table
    assert (table["prompts_per_step"], table.get("updates_per_batch", 1)) == (prompts, updates)


def test_the_order_of_a_file_changes_nothing() -> None:
    for name in NAMES:
        given = read(str(FILES / name))
        turned = Given(given.name, given.of_verl, given.rloo, dict(reversed(list(given.options.items()))))
        assert imported(turned).table == imported(given).table, name


def test_a_script_is_read_and_not_run() -> None:
    assert "raise SystemExit" in (FILES / "trl_script.txt").read_text()
    assert made("trl_script.txt").given.options["output_dir"] == "Qwen2-0.5B-GRPO"


def test_the_recipe_is_printed_or_written_and_nothing_is_written_over(monkeypatch, capsys, tmp_path: Path) -> None:
    code, out, err = call(monkeypatch, capsys, "import", str(FILES / "verl_ppo.yaml"))
    assert code == 0
    assert tomllib.loads(out)["critic"]["clip"] == 0.5
    assert "translated (" in err
    place = tmp_path / "recipe.toml"
    code, told, _ = call(monkeypatch, capsys, "import", str(FILES / "verl_ppo.yaml"), "--out", str(place))
    assert code == 0
    assert place.read_text().strip() == out.strip()
    assert "next: groupwise check" in told
    code, _, err = call(monkeypatch, capsys, "import", str(FILES / "verl_ppo.yaml"), "--out", str(place))
    assert code == 2
    assert "exists already" in err


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.yaml", "learning_rate: [1", "not a YAML file"),
        ("a.yaml", "- 1\n- 2\n", "expected options with values"),
        ("a.yaml", "", "expected options with values"),
        ("a.yaml", "a: &x 1\nb: *x\n", "anchors"),
        ("a.json", "{", "not a JSON file"),
        ("a.json", "[" * 100_000, "a.json: "),
        ("a.py", "GRPOConfig(", "not a Python file"),
        ("a.py", "print(1)", "no option in it"),
        ("a.sh", "echo hello\n", "no command of TRL or verl"),
        ("a.sh", "trl grpo --beta '0.1\n", "cannot be read as a command"),
        ("a.yaml", "learning_rate: fast\n", "its values make no recipe: "),
        ("a.yaml", "temperature: -3\n", "its values make no recipe: "),
    ],
)
def test_a_file_that_is_none_is_one_line(name, content, said, monkeypatch, capsys, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    code, out, err = call(monkeypatch, capsys, "import", str(tmp_path / name))
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_a_file_that_is_not_there_or_no_file_is_one_line(tmp_path: Path) -> None:
    for place in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(UsageError):
            read(str(place))
