"""Recipes: strict, refused in one line, and every key of them does something."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.algorithms.parts.aggregate import Constant
from groupwise.algorithms.settings import CATALOG, algorithm, settings
from groupwise.config import recipe, recipe_files
from groupwise.config.recipe import Recipe
from groupwise.config.resolve import resolved_recipe
from groupwise.core.errors import UsageError
from groupwise.core.files.paths import recipe_folder
from groupwise.core.processes.place import PlacementSettings
from groupwise.core.settings import Settings
from groupwise.engines.settings import OF_A_CHILD, EngineSettings
from groupwise.journal.kept import create_recipe, replace_recipe, whole_recipe
from groupwise.training.start.reward_model import PreferenceSettings
from tests.config.made import plan, read_back, refusal

FOLDER = recipe_folder()
RECIPES = sorted(FOLDER.rglob("*.toml"))


DECIDED = "             beside it the task's own score decides "
#: A recipe with changes, and a line that its plan says.
PLANNED: list[tuple[str, dict[str, Any], str]] = [
    ("quickstart", {}, "precision    learner fp32, engine fp32, reference fp32"),
    ("quickstart", {"engine.precision": "bf16"}, "precision    learner fp32, engine bf16, reference fp32"),
    ("quickstart", {"engine.precision": "fp16"}, "precision    learner fp32, engine fp16, reference fp32"),
    ("quickstart", {"engine.process": "child"}, "engine       local, in a child process"),
    ("quickstart", {"adapter.rank": 16}, "learning rate 10 x 0.0003 = 0.003"),
    ("quickstart", {"learner.warmup_updates": 3, "learner.clip_norm": 0.0}, "3 updates of warmup, any gradient norm"),
    ("quickstart", {"learner.weight_decay": 0.1}, "constant, gradient norm at most 1, weight decay 0.1"),
    ("quickstart", {"sampling.top_k": 5, "sampling.stop": ["\n"]}, "sampling     temperature 1, top_k 5, stop '\\n'"),
    ("quickstart", {"sampling.logit_bias": {"5": -1.5}, "evaluation.min_p": 0.2}, "logit_bias 5: -1.5"),
    ("quickstart", {"algorithm.entropy_coefficient": 0.01}, "  entropy    0.01"),
    ("rlhf", {"preference": {"pairs": 7, "noise": 0.0}}, "reward model from 7 pairs of the policy's own completions"),
    ("rlhf", {"preference": {"path": "pairs.jsonl"}}, "reward model from the pairs in pairs.jsonl, "),
    ("rlhf", {"preference": {"model": "."}}, "reward model from ."),
    ("rlhf", {"algorithm": {"name": "ppo"}}, f"{DECIDED}step rewards (algorithm.shaping)"),
    ("rlhf", {"algorithm": {"name": "dapo"}}, f"{DECIDED}which groups train (algorithm.filter)"),
]


@pytest.mark.parametrize(("name", "changes", "said"), PLANNED)
def test_a_plan_says_what_it_will_do_and_its_recipe_reads_back(name: str, changes: dict[str, Any], said: str):
    """A key that nothing reads must not stand in the recipe of a run: no resume would take it."""
    first = plan(changes, name)
    assert said in first.describe()
    again = read_back(first)
    assert again.describe() == first.describe()
    assert resolved_recipe(again) == resolved_recipe(first)


def test_a_plan_is_silent_about_what_is_not_there():
    starts = {line[:12] for line in plan({"algorithm.name": "dapo"}).describe().splitlines()}
    assert not starts & {"engine      ", "adapters    ", "reference   "}
    assert DECIDED not in plan(name="rlhf").describe()


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_every_recipe_resolves_and_reads_back(path: Path, tmp_path: Path):
    file = tmp_path / "problems.jsonl"  # a recipe's own data set may be on a hub
    file.write_text("".join(json.dumps({"question": f"{i}?", "answer": f"#### {i}"}) + "\n" for i in range(6000)))
    changes = {"task.path": str(file), "task.heldout_share": 0.3} if path.stem.startswith("gsm8k") else {}
    first = plan(changes, path.relative_to(FOLDER).with_suffix("").as_posix())
    again = read_back(first)
    assert (again.algorithm, again.task) == (first.algorithm, first.task)
    assert again.describe() == first.describe()


@pytest.mark.parametrize("algorithm_name", ["grpo", "ppo"])
def test_a_resolved_recipe_says_every_key_of_every_section(algorithm_name: str):
    given = {"algorithm": {"name": algorithm_name}, "guard": "rollback"}
    table = resolved_recipe(plan(given, "rlhf"))
    absent = {"rewards", "start", "adapter", "supervised", "mix"} | ({"critic"} if algorithm_name == "grpo" else set())
    assert list(table) == [key for key in Recipe.model_fields if key not in absent]
    for key, section in table.items():
        value = getattr(recipe.parse(table, "again"), key)
        if isinstance(value, Settings):
            unread = {
                "preference": {"model", "path"},
                "reference": {"address", "key_file", "deadline"},
                "engine": OF_A_CHILD | {"cache_mib", "memory_share", "address", "key_file"},
            }
            of_ray = set(PlacementSettings.model_fields) - {"restarts"}
            unread |= {"rollout": {"turn_tokens", "free", "gateway"}, "placement": of_ray}
            unread = unread.get(key, set())
            assert list(section) == [name for name in type(value).model_fields if name not in unread]


def test_a_value_that_is_no_section_is_refused_without_the_name_of_a_class():
    words = r"warm_start = 3: this is a section; its keys are warm_start\.steps, "
    with pytest.raises(UsageError, match=words):
        recipe.load("quickstart", {"warm_start": 3})


@pytest.mark.parametrize("name", sorted(CATALOG))
def test_a_row_is_rebuilt_from_its_settings(name: str):
    assert algorithm(name, settings(algorithm(name))) == algorithm(name)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("learner.learning_rat", 1e-4, r"learner.learning_rat: there is no such key; did you mean 'learning_rate'\?"),
        ("stps", 3, r"stps: there is no such key; did you mean 'steps'\?"),
        ("eval.problems", 3, r"eval: there is no such key; did you mean 'evaluation.problems'\? known: name, "),
        ("nonsense.x", 3, "nonsense: there is no such key; known: name, "),
        ("learner", 3, "learner = 3"),
        ("critic", None, "critic = None: a recipe has no such value; leave the key out"),
        ("critic.learning_rate", None, "critic.learning_rate = None: a recipe has no such value"),
        ("critic", {"learning_rate": None}, "critic.learning_rate = None: a recipe has no such value"),
        ("learner.learning_rate", "fast", "learner.learning_rate = 'fast': .*number"),
        ("learner.learning_rate", True, "learner.learning_rate = True"),
        ("steps", 2.0, "steps = 2.0: must be a whole number"),
        ("steps", 0, "steps = 0: must be at least 1"),
        ("sampling.top_p", 0, "sampling.top_p = 0: must be more than 0"),
        ("sampling.top_p", 1.5, "sampling.top_p = 1.5"),
        ("sampling.max_new_tokens", -4, "sampling.max_new_tokens = -4"),
        ("sampling.temperature", 0.0, "sampling.temperature = 0: greedy"),
        ("samples_per_prompt", 1, "samples_per_prompt = 1: group-zscore.* needs at least 2"),
        ("updates_per_batch", 65, "updates_per_batch = 65: a batch of 64 groups"),
        ("algorithm.name", "gropo", r"no such algorithm; did you mean 'grpo'\?"),
        ("algorithm.trust.epsilon", 0.1, "algorithm.trust.epsilon: trust 'clip' has no such key"),
        ("algorithm.trust.kind", "clop", r"algorithm.trust.kind = 'clop': did you mean 'clip'\?"),
        ("algorithm.trust.epsilon_low", 1.5, "algorithm.trust.epsilon_low = 1.5: must be at least 0 and below 1"),
        ("algorithm.trust.epsilon_low", "x", "algorithm.trust.epsilon_low = 'x': must be a number"),
        ("algorithm.aggregate.limit", 3, "aggregate 'sequence-mean' has no such key"),
        ("algorithm.kl.bta", 3, r"algorithm.kl.bta: kl 'k3' has no such key; did you mean 'beta'\?"),
        ("algorithm.kl.beta", -1.0, "algorithm.kl.beta = -1.0: must not be negative"),
        ("algorithm.clip", 3, "algorithm.clip: there is no such key"),
        ("algorithm.nmae", "grpo", r"algorithm.nmae: there is no such key; did you mean 'name'\?"),
        ("algorithm", {}, "algorithm.name is missing"),
        ("task.name", "arithmetics", r"no such task; did you mean 'arithmetic'\?"),
        ("task.operand", [2, 3], r"task.operand: .*did you mean 'operands'\?"),
        ("task.operands", "3", "task.operands = '3': must be a list"),
        ("task.largest", -1, "task.largest must be"),
        ("evaluation.problems", 10**6, "evaluation.problems = 1000000: the task holds out only"),
        ("model", "/nowhere", "model = '/nowhere': there is no such folder"),
        ("model", __file__, "is a file; a model is a folder"),
        ("name", "a/b", "name = 'a/b'"),
        ("seed", -1, "seed = -1"),
    ],
)
def test_bad_input_is_one_line_that_names_the_key(key: str, value: Any, words: str):
    assert re.search(words, refusal({key: value}))


def test_recipes_that_exist_are_listed():
    with pytest.raises(UsageError, match="did you mean 'quickstart'"):
        recipe.load("quickstat")
    with pytest.raises(UsageError, match="no such file"):
        recipe.load("missing.toml")


def test_broken_files_are_refused(tmp_path: Path):
    path = tmp_path / "broken.toml"
    for text, words in (("steps = = 3", "not a TOML file"), ("steps = 3", "task is missing; algorithm is missing")):
        path.write_text(text)
        with pytest.raises(UsageError, match=words):
            recipe.load(str(path))


#: Another value for each key of a recipe, where adding 1 or halving would not do.
OTHER: dict[str, Any] = {
    "rollout.turn_tokens": 5,
    "rollout.free": 2,
    "name": "other",
    "model": ".",
    "device": "cpu",
    "runs": "elsewhere",
    "passes_per_batch": 3,
    "logp_old": "engine",
    "preference": {"pairs": 8},
    "routing.replay": "learner",
    "learner.schedule": "cosine",
    "checks.witness": "warn",
    "learner.precision": "bf16",
    "learner.shared_prefixes": False,
    "deterministic": False,
    "learner.attention": "blocks",
    "learner.recompute": True,
    "learner.compile": True,
    "engine.precision": "bf16",
    "engine.process": "child",
    "engine.python": "python3",
    "reference.precision": "bf16",
    "reference.model": ".",
    "reference.template": "{prompt}",
    "reference.by_source": {"algebra": "."},
    "learner.tokens_per_microbatch": 7,
    "learner.chunk_logits": 7,
    "learner.held_logits": 7,
    "task": {"name": "arithmetic", "largest": 7},
    "algorithm": {"name": "dapo"},
    "sampling.top_p": 0.5,
    "evaluation.top_p": 0.5,
    "sampling.logit_bias": {"3": 1.0},
    "sampling.stop": ["="],
    "sampling.stop_ids": [3],
    "evaluation.logit_bias": {"3": 1.0},
    "evaluation.stop": ["="],
    "evaluation.stop_ids": [3],
    "rewards": {"task": {"weight": 0.5}},
    "scoring.fault_limit": 0.5,
    "chat.template": "none",
    "chat.system": "Be brief.",
    "chat.thinking": "on",
    "chat.open": "<think>",
    "evaluation.problems": 100,
    "evaluation.metric": "reward",
    "evaluation.pass_at": 0.5,
    "prompt_truncation": "left",
    "threads": 7,
    "learner.moments": "host",
    "reference.offload": True,
    "learner.beta1": 0.5,
    "learner.beta2": 0.5,
    "warm_start.warmup": 0.5,
    "warm_start.matrix_learning_rate": 0.01,
    "warm_start.learning_rate": 0.01,
    "journal.report": False,
    "journal.tracker": "wandb",
    "journal.project": "mine",
    "journal.group": "baselines",
    "journal.tags": ["first"],
    "adapter.targets": ["q_proj"],
    "guard": "stop",
    "rollback.rate_factor": 0.5,
    "placement.share_cards": True,
    "placement.ray": "local",
    "engine.sleep": True,
    "placement.strategy": "spread",
}


def keys(model: type[Settings], path: str = ""):
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Settings):
            yield from keys(kind, f"{path}{name}.")
        else:
            yield path + name


#: Keys that have one value here, are refused for training, or are gone through in other tests: an address, a critic, a
#: start.
ELSEWHERE = (
    "engine.name",
    "engine.cache_mib",
    "engine.compile",
    "engine.memory_share",
    "engine.address",
    "engine.key_file",
    "adapter.base",
    "device",
    "sampling.repetition_penalty",
    "critic",
    "start",
    # tests/training/test_teacher_address.py
    "reference.address",
    "reference.key_file",
    "reference.deadline",
    # tests/rollout/gateway/test_agent_run.py
    "rollout.gateway",
    # tests/runs/test_supervised_run.py
    "supervised",
    "mix.reinforced",
    "mix.distilled",
    "mix.supervised",
)


@pytest.mark.parametrize("key", [k for k in keys(Recipe) if k not in ELSEWHERE])
def test_every_key_changes_the_run(key: str):
    """An option that is accepted and then ignored is the worst kind of bug. The quickstart has no reward model."""
    base = recipe.load("quickstart")
    now: Any = base
    for part in key.split("."):
        now = getattr(now, part)
    value: Any = OTHER.get(key)
    given: dict[str, Any] = {}
    if key == "scoring.combine":
        value, given = "after", {"rewards": {"task": {}, "learned": {}}, "preference": {}}
    elif value is None:
        value = now * 2 + 1
    if key.startswith("adapter.") and key != "adapter.rank":
        given = {"adapter.rank": 4}
    if key.startswith("rollback."):
        given = {"guard": "rollback"}
    if key in {f"engine.{name}" for name in OF_A_CHILD}:
        given = {"engine.process": "child"}
    if key.startswith("placement."):
        slow = {"task": {}, "format": {"pattern": "="}}
        given = {"placement.ray": "auto", "engine.process": "child", "learner.ranks": 2, "rewards": slow}
    if key == "placement.share_cards":
        given = {"learner.ranks": 2}
    if key == "prompt_truncation":
        given = {"max_prompt_tokens": 99}
    before, changed = plan(given), plan({**given, key: value})
    old, new = ({**vars(one.recipe), **vars(one), "recipe": None} for one in (before, changed))
    assert old != new


@pytest.mark.parametrize("value", [{"a": 1}, [[1]], [{"a": 1}], -1, True, math.nan, "x" * 3000, "\0"], ids=repr)
def test_every_key_takes_a_value_or_refuses_it_in_a_line(value: Any):
    refused = []
    for key in keys(Recipe):
        try:
            recipe.load("quickstart", {key: value})
        except UsageError as error:
            refused.append(str(error))
    assert len(refused) > 50
    assert [line for line in refused if "\n" in line] == []


@pytest.mark.parametrize("key", list(PreferenceSettings.model_fields))
def test_every_key_of_a_reward_model_changes_it(key: str):
    base = plan({"preference": {}}).recipe.preference
    assert base is not None
    others = {"model": ".", "path": "pairs.jsonl", "noise": 0.2, "offload": True}
    other = others[key] if key in others else getattr(base, key) * 2 + 1
    changed = plan({"preference": {key: other}}).recipe.preference
    assert changed is not None
    assert vars(changed) == {**vars(base), key: other}
    assert changed.source == (other if key in ("model", "path") else base.source)


#: Keys that were set and that nothing reads, each with what would read it.
UNREAD: list[tuple[str, dict[str, Any]]] = [
    *((f"adapter.{key}", {f"adapter.{key}": value}) for key, value in (("alpha", 32.0), ("targets", ["q_proj"]))),
    ("adapter.rate_factor", {"adapter.rate_factor": 10.0}),
    *(
        (f"engine.{key}", {f"engine.{key}": "python3" if key == "python" else getattr(EngineSettings(), key)})
        for key in sorted(OF_A_CHILD)
    ),
    ("engine.cache_mib", {"engine.cache_mib": 64}),
    ("engine.memory_share", {"engine.memory_share": 0.5}),
    ("reference.precision", {"algorithm.name": "dapo", "reference.precision": "fp32"}),
    *(
        (f"preference.{key}", {"preference": {source: ".", key: getattr(PreferenceSettings(), key) or "pairs.jsonl"}})
        for source in ("model", "path")
        for key in sorted(PreferenceSettings.model_validate({source: "."}).unread)
    ),
]


@pytest.mark.parametrize(("key", "changes"), UNREAD)
def test_a_key_that_nothing_reads_is_refused(key: str, changes: dict[str, Any]):
    assert refusal(changes) == f"{key}: set, but nothing in this run reads it; take it out"


def test_sampling_keys_are_those_that_no_other_source_of_pairs_reads():
    for source in ("model", "path"):
        assert PreferenceSettings.model_validate({source: "."}).unread >= {"pairs", "noise", "samples"}
    inside = resolved_recipe(plan())["engine"]
    assert inside.keys() == {"name", "process", "max_rows", "compile", "precision", "sleep"}
    assert "reference" not in resolved_recipe(plan({"algorithm.name": "dapo"}))
    read = resolved_recipe(plan({"reference.precision": "bf16"}))
    none = {"template": "", "by_source": {}}
    assert read["reference"] == {"model": "start", "every": 0, "precision": "bf16", "offload": False, **none}


def test_rank_0_laid_over_a_recipe_with_adapters_leaves_their_keys_unread():
    without = plan({"model": "tiny-dense", "adapter.rank": 0}, "times-tables")
    assert without.recipe.adapter.rate_factor == 20.0
    assert "adapter" not in resolved_recipe(without)  # so that a key that is set on resuming is refused
    laid = plan({"model": "tiny-dense"}, "times-tables")
    assert resolved_recipe(laid)["adapter"]["rate_factor"] == 20.0
    assert "learning rate 20 x 2e-05 = 0.0004" in laid.describe()


@pytest.fixture
def interpreter(tmp_path: Path) -> str:
    """What says that it has whatever it is asked for."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    return str(program)


def test_vllm_lives_in_a_child_and_the_recipe_reads_back(interpreter: str):
    changes = {"engine.name": "vllm", "engine.python": interpreter, "engine.cache_mib": 64, "engine.restarts": 5}
    first = plan(changes)
    assert first.recipe.engine.process == "child"
    assert f"engine       vllm, in a child process, run by {interpreter}" in first.describe().splitlines()
    assert read_back(first).recipe.engine == first.recipe.engine


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine.name": "vllm", "engine.process": "inside"}, "engine.process = 'inside': vLLM needs libraries of its"),
        ({"engine.name": "vllm", "engine.python": "sleep"}, "engine.name = 'vllm': the interpreter sleep has no vLLM"),
        ({"engine.name": "vllm", "engine.python": "no-such"}, "engine.python = 'no-such': there is no such program; "),
        (
            {"engine.name": "vllm"},
            "engine.python = '.venv-vllm/bin/python': there is no such program; make one: python3 -m venv .venv-vllm "
            "&& .venv-vllm/bin/python -m pip install vllm",
        ),
        ({"engine.name": "vlm"}, "quickstart.toml: engine.name = 'vlm': must be 'local' or 'vllm'"),
    ],
)
def test_a_vllm_that_cannot_be_is_one_line(
    changes: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"^{re.escape(words)}") as error:
        plan(changes).recipe.engine.require_place()
    assert "\n" not in str(error.value)
    assert "make vllm" not in str(error.value), "who has the wheel has no Makefile"


@pytest.mark.parametrize("place", ["no-such-python", "/no/such/python", "/etc/passwd", "/"])
def test_an_interpreter_that_is_none_is_refused_before_anything_starts(place: str):
    with pytest.raises(UsageError, match=f"^engine.python = '{place}': there is no such program; name one that has"):
        groupwise.train("quickstart", {"engine.process": "child", "engine.python": place})


@pytest.mark.parametrize("engine", [{"engine.name": "vllm"}, {"engine.address": "127.0.0.1:1"}])
def test_an_engine_that_is_not_here_is_asked_for_where_it_is_to_sample(
    engine: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A look at the recipe needs none; what starts one says so before anything is loaded."""
    monkeypatch.chdir(tmp_path)
    found = groupwise.check("quickstart", {**engine, "model": "tiny-dense"}, model=False)
    assert found.faults == []
    said = "(there is no such program|nothing listens there)"
    with pytest.raises(UsageError, match=said):
        groupwise.evaluate(tmp_path, recipe="quickstart", overrides=engine)
    for start in (groupwise.check, groupwise.train):
        with pytest.raises(UsageError, match=said):
            start("quickstart", engine)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("encoding", "newline"), [("utf-8-sig", "\r\n"), ("utf-8-sig", "\n"), ("utf-8", "\r\n")])
def test_a_recipe_is_read_as_editors_save_it(encoding: str, newline: str, tmp_path: Path):
    text = (FOLDER / "quickstart.toml").read_text()
    plain, saved = tmp_path / "plain.toml", tmp_path / "saved.toml"
    plain.write_text(text)
    saved.write_text(text, encoding=encoding, newline=newline)
    assert recipe_files.read_table(saved) == recipe_files.read_table(plain)


@pytest.mark.parametrize(
    ("encoding", "words"),
    [(f"utf-{kind}", "saved as UTF-16 or UTF-32") for kind in ("16", "16-le", "16-be", "32", "32-be")]
    + [("latin-1", "not UTF-8 at byte 8")],
)
def test_a_recipe_that_is_not_utf8_is_one_line_that_says_so(encoding: str, words: str, tmp_path: Path):
    path = tmp_path / "saved.toml"
    path.write_text('name = "é"\n', encoding=encoding)
    with pytest.raises(UsageError, match=f"saved.toml: not a TOML file: it is {words}; save it as UTF-8$"):
        recipe_files.read_table(path)


def test_peft_is_asked_for_where_it_is_needed_and_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    plan()
    with pytest.raises(UsageError, match=r"^adapter.rank = 4 needs peft, .*: pip install 'groupwise\[adapters\]'$"):
        plan({"adapter.rank": 4})


@pytest.mark.parametrize(("changes", "limit"), [({}, 9), ({"algorithm.aggregate.limit": 5}, 5)])
def test_dr_grpos_limit_is_the_samplings(changes: dict[str, Any], limit: int):
    chosen = {"algorithm.name": "dr-grpo", "sampling.max_new_tokens": 9, **changes}
    assert plan(chosen).algorithm.aggregate == Constant(limit)


def test_a_runs_recipe_that_an_editor_marked_is_read_and_cut_off_is_still_seen(tmp_path: Path):
    create_recipe(tmp_path, "# a comment\nsteps = 3\n")
    path = tmp_path / "recipe.toml"
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert recipe_files.read_table(whole_recipe(tmp_path)) == {"steps": 3}
    replace_recipe(tmp_path, "steps = 4\n", "a remark")
    assert path.read_text().splitlines()[1:4] == ["# a comment", "# a remark", "steps = 4"]
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]), encoding="utf-8-sig")
    with pytest.raises(UsageError, match="cut off, its last line is missing"):
        whole_recipe(tmp_path)
