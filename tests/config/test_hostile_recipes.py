"""Recipes and command lines that mean harm, or slipped: each is refused in one bounded line, and nothing is started."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

import groupwise
from groupwise.algorithms.parts.trust import Clip
from groupwise.algorithms.settings import DIVERGENCES, ESTIMATORS, KIND_KEY, KINDS, algorithm
from groupwise.config import given, recipe, recipe_files
from groupwise.config.recipe import Recipe
from groupwise.core.errors import UsageError, nearest
from groupwise.core.settings import Settings
from groupwise.tasks.make import kind_of, names
from tests.config.made import refusal

NOT_FINITE = (math.nan, math.inf, -math.inf)
BEYOND = (2**63, -(2**64), 10**400, -(10**4000))
#: What a part needs to be made, beside its defaults.
NEEDED: dict[str, dict[str, Any]] = {"aggregate.constant": {"aggregate.limit": 8}}


def numeric(model: type[Settings], kind: type, path: str = "") -> Iterator[str]:
    """The keys of a section, and of those inside, whose value is a number of that kind."""
    for name, field in model.model_fields.items():
        for one in (field.annotation, *get_args(field.annotation)):
            if isinstance(one, type) and issubclass(one, Settings):
                yield from numeric(one, kind, f"{path}{name}.")
            elif one is kind:
                yield path + name


#: (slot, kind, field) of every number that a part takes.
NUMBERS = [
    (slot, name, f.name)
    for slot, kinds in (*KINDS.items(), ("kl", DIVERGENCES))
    for name, part in kinds.items()
    for f in dataclasses.fields(part)
    if f.type in (int, float)
]


@pytest.mark.parametrize("key", list(numeric(Recipe, float)))
def test_no_number_of_a_section_is_infinite_or_none(key: str) -> None:
    for value in NOT_FINITE:
        assert f"{key} = {value}: must be a finite number" in refusal({key: value})
    section, _, field = key.rpartition(".")
    annotation = Recipe.model_fields[section].annotation
    (kind,) = [
        one for one in (annotation, *get_args(annotation)) if isinstance(one, type) and issubclass(one, Settings)
    ]
    for value in NOT_FINITE:  # and the section by itself, which is not read from a file
        with pytest.raises(ValueError, match=field):
            kind(**{field: value})


@pytest.mark.parametrize("key", list(numeric(Recipe, int)))
def test_no_whole_number_goes_beyond_64_bits(key: str) -> None:
    for value in BEYOND:
        assert f"{key} = {str(value)[:9]}" in refusal({key: value})


@pytest.mark.parametrize(("slot", "kind", "field"), NUMBERS)
def test_no_number_of_a_part_is_infinite_or_none_or_huge(slot: str, kind: str, field: str) -> None:
    base = {f"{slot}.{KIND_KEY.get(slot, 'kind')}": kind, **NEEDED.get(f"{slot}.{kind}", {})}
    assert algorithm("grpo", base)
    for value in (*NOT_FINITE, *BEYOND, 1e300):
        with pytest.raises(UsageError, match=rf"^algorithm\.{slot}\.{field} = ") as caught:
            algorithm("grpo", {**base, f"{slot}.{field}": value})
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize("key", ["kl.beta", "entropy_coefficient"])
def test_nor_is_the_weight_of_a_penalty(key: str) -> None:
    for value in (*NOT_FINITE, 10**400):
        with pytest.raises(UsageError, match=rf"^algorithm\.{key} = "):
            algorithm("grpo", {key: value})


def test_every_number_of_every_part_is_in_the_law() -> None:
    assert len(NUMBERS) >= 25
    assert {slot for slot, *_ in NUMBERS} >= {"shaping", "filter", "advantage", "trust", "mismatch", "aggregate"}
    assert not any(dataclasses.fields(kind) for kind in ESTIMATORS.values())


@pytest.mark.parametrize(
    ("name", "key"),
    [(n, f.name) for n in names() for f in dataclasses.fields(kind_of(n)) if type(f.default) in (int, float)],
)
def test_no_number_of_a_task_is_infinite_or_none_or_beyond_64_bits(name: str, key: str) -> None:
    path = {"path": "absent.jsonl"} if "path" in vars(kind_of(name)) else {}
    for value in (*NOT_FINITE, *BEYOND):
        with pytest.raises(UsageError, match=rf"^task\.{key} = "):
            groupwise.task(name, {**path, key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("task", {"name": "data", "path": "a.jsonl", "filter": {"level": {"max": math.inf}}}),
        ("rewards", {"short": {"kind": "repetition", "weight": math.nan}}),
        ("algorithm.kl.beta", 10**400),
    ],
)
def test_numbers_inside_tables_are_none_of_these_either(key: str, value: Any) -> None:
    assert "quickstart.toml: " in refusal({key: value})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 2**64}, "seed = 18446744073709551616: a whole number beyond 64 bits"),
        ({"steps": 10**15}, "steps = 1000000000000000: must be at most 1000000000"),
        ({"scoring.workers": 10**6}, "scoring.workers = 1000000: must be"),
        ({"evaluation.samples": 10**9}, "evaluation.samples = 1000000000: must be"),
        ({"samples_per_prompt": 2**16, "prompts_per_step": 64}, "a step would have 4194304 completions; 1048576 are"),
        ({"sampling.temperature": 1e-40}, "sampling.temperature = 1e-40: must be 0, which is greedy, or at least 0.01"),
        ({"sampling.temperature": 1e9}, "sampling.temperature = 1000000000.0: must be"),
        ({"algorithm.shaping.scale": 0.0}, "algorithm.shaping.scale = 0.0: with step_scale = 0 as well"),
        ({"algorithm.shaping.scale": -1.0}, "algorithm.shaping.scale = -1.0: must be from 0 to 1e+06"),
        ({"algorithm.advantage.epsilon": 2.0}, "algorithm.advantage.epsilon = 2.0: must be from 0 to 1"),
        ({"algorithm.entropy_coefficient": {"x": 1.0}}, "algorithm.entropy_coefficient = {'x': 1.0}: must be a number"),
        ({"task.problems": -1}, "task.problems must be at least 2, not -1"),
        ({"task.problems": 10**12}, "task.problems must be at most 1000000"),
        ({"task.operands": [2, 12], "task.largest": 999}, "task.operands and task.largest give more than"),
        ({"name": ".."}, "name = '..': "),
        ({"name": ".cache"}, "name = '.cache': "),
        ({"name": "x" * 300}, "name = 'xxx"),
        ({"chat.system": "\ud800"}, "chat.system = '\\ud800': half of a surrogate pair is no character"),
        ({"task": {"name": "data", "path": "a.jsonl", "filter": {"\ud800": 1}}}, "half of a surrogate pair"),
        ({"task.seed": {1, 2}}, "task.seed = {1, 2}: a set is no value of a recipe"),
    ],
)
def test_values_that_make_no_sense_are_refused_by_their_key(changes: dict[str, Any], words: str) -> None:
    assert words in refusal(changes)


@pytest.mark.parametrize("value", ["[" * 3000 + "]" * 3000, "{a=" * 3000 + "1" + "}" * 3000, "9" * 5000])
def test_values_that_python_cannot_read_are_refused(value: str, tmp_path: Path) -> None:
    path = tmp_path / "deep.toml"
    path.write_text(f"steps = {value}\n")
    with pytest.raises(UsageError, match=r"deep\.toml: not a TOML file: "):
        recipe.load(str(path))
    with pytest.raises(UsageError, match=r"^--set 'steps=.*: cannot be read: ") as caught:
        recipe_files.assignment(f"steps={value}")
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'steps = 2\nname = "a\0b"\n', "line 2 holds a NUL byte (0x00); take it out"),
        (b"\xef\xbb\xbf\xef\xbb\xbfsteps = 2\n", "line 1 begins with a second byte order mark (EF BB BF); take it out"),
        (b"steps = 2\n\xef\xbb\xbfseed = 1\n", "line 2 begins with a byte order mark (EF BB BF); take it out"),
    ],
)
def test_what_an_editor_does_not_show_is_named_with_its_line(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "unseen.toml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=re.escape(f"unseen.toml: not a TOML file: {words}")):
        recipe.load(str(path))


def test_numbers_of_hundreds_of_digits_and_tables_thousands_deep_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "long.toml"
    path.write_text(f"steps = {'9' * 400}\n")
    with pytest.raises(UsageError, match=r"long\.toml: steps = 9+\.\.\.9+: a whole number beyond 64 bits"):
        recipe.load(str(path))
    assert "more than 16 tables and lists" in refusal({".".join("a" * 3000): 1})
    assert "more than 16 tables and lists" in refusal(
        {"task": {"filter": {"a": [[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]}}}
    )
    deep: dict[str, Any] = {}
    for _ in range(3000):
        deep = {"a": deep}
    with pytest.raises(UsageError, match="more than 16 tables and lists"):
        given.given("quickstart", {"task.filter": deep})


@pytest.mark.parametrize(
    "text",
    [
        "steps=1\nseed = 3",
        "steps=1\n[seed]",
        "steps=1 # and more",
        "a=1]#",
        "chat.system='x'\nseed = 3",
        "a={b=1}}#",
        "a=1 # ]\n",
    ],
)
def test_what_a_set_would_drop_is_refused_or_kept_whole(text: str) -> None:
    try:
        _, value = recipe_files.assignment(text)
    except UsageError as error:
        assert str(error).startswith(f"--set {text!r}: more than one value")  # noqa: PT017
    else:
        assert value == text.partition("=")[2].strip()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("a=3", 3), ("a=1e-4", 1e-4), ("a=dapo", "dapo"), ("a=[2, 3]", [2, 3]), ("a=true", True), ("a='x=y'", "x=y")),
        *(("a=runs/x", "runs/x"), ("a=[1,\n 2]", [1, 2]), ('a="""x\ny"""', "x\ny"), ("a=# 1", "# 1"), ("a=\n1\n", 1)),
        *(("a=", ""), ("a='#'", "#")),
    ],
)
def test_a_value_of_the_command_line_is_one_value(text: str, value: object) -> None:
    assert recipe_files.assignment(text) == ("a", value)


def test_an_assignment_without_a_value_is_refused() -> None:
    with pytest.raises(UsageError, match="expected key=value"):
        recipe_files.assignment("steps")


PATHS = {
    "model": {},
    "runs": {},
    "critic.start": {"algorithm": {"name": "ppo"}},
    "preference.model": {},
    "preference.path": {},
    "chat.template": {},
    "task.path": {"task": {"name": "data"}},
    "task.heldout": {"task": {"name": "data", "path": __file__.replace(".py", ".jsonl")}},
}


@pytest.mark.parametrize("key", PATHS)
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("~nobody-has-this-name/x", "there is no such user; a name that begins with ~ is written ./~"),
        ("x" * 300, "File name too long"),
        ("x/" * 3000, "File name too long"),
        ("a\0b", "embedded null byte"),
    ],
)
def test_a_path_that_no_file_can_have_is_refused(key: str, path: str, words: str, tmp_path: Path) -> None:
    there = tmp_path / "a.jsonl"
    there.write_text('{"prompt": "1", "answer": "1"}\n')
    changes = dict(PATHS[key])
    if key == "task.heldout":
        changes["task"] = {"name": "data", "path": str(there), "heldout": path}
    else:
        changes[key] = path
    told = refusal(changes)
    assert f"{key} = " in told
    assert told.lower().endswith(words.lower())


def test_a_home_is_expanded_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert recipe.load("quickstart", {"runs": "~/runs"}).runs == str(tmp_path / "runs")
    (tmp_path / "own.toml").write_text('steps = 1\ntask.name = "arithmetic"\nalgorithm.name = "grpo"\n')
    assert recipe.load("~/own.toml").name == "own"


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + ".toml", "a\0b.toml", "~nobody-has-this-name/a.toml", ""])
def test_a_recipe_that_no_file_can_be_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"^recipe = "):
        recipe.load(name)


def test_a_pipe_is_no_recipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(UsageError, match=r"pipe\.toml': not a regular file"):
        recipe.load(str(tmp_path / "pipe.toml"))
    with pytest.raises(UsageError, match="not a regular file"):
        recipe_files.read_table(Path("/dev/zero"))


def test_a_file_too_long_for_a_recipe_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"#" * (recipe_files.LARGEST_FILE + 1))
    with pytest.raises(UsageError, match="longer than 1 MiB; no recipe is"):
        recipe.load(str(tmp_path / "a.toml"))


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "y" * 10**6},
        {"name": "/" * 10**6},
        {"x" * 10**6: 1},
        {"task.name": "x" * 10**6},
        {"algorithm.name": "x" * 10**6},
        {"algorithm.trust.kind": "x" * 10**6},
        {"algorithm.trust.epsilon_low": "x" * 10**6},
        {"device": list(range(10**5))},
        {f"key{i}": i for i in range(1000)},
    ],
    ids=lambda changes: next(iter(changes))[:9],
)
def test_a_message_is_short_whatever_it_repeats(changes: dict[str, Any]) -> None:
    refusal(changes)


def test_a_message_lists_a_dozen_names() -> None:
    words = nearest("nonsense", [f"name{i}" for i in range(100)])
    assert words.endswith("name11 and 88 more")
    assert len(refusal({"nonsense": 1})) < 500


def test_a_part_made_in_python_may_do_without_a_bound() -> None:
    assert Clip(epsilon_high=math.inf).epsilon_high == math.inf
    with pytest.raises(UsageError, match=r"algorithm\.trust\.epsilon_high = inf"):
        algorithm("grpo", {"trust.epsilon_high": math.inf})
