"""A run folder with damage of every kind in every file: a page of what is whole, or one line, without waiting."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groupwise.core.errors import GroupwiseError
from groupwise.health.symptoms.base import History
from groupwise.reports.compare import compare
from groupwise.reports.folder import read
from groupwise.reports.live import Watched
from groupwise.reports.page.page import as_json, embedded, page_of_run
from tests.reports.written_runs import CHECKS, being_written, journal

EVALUATED = {"avg_at_k": 0.25, "problems": 64, "samples": 2, "standard_error": 0.01, "length_mean": 5.0}
RECIPE = """steps = 6
seed = 1
model = "tiny-dense"
prompts_per_step = 8
samples_per_prompt = 4
updates_per_batch = 2
passes_per_batch = 1
[task]
name = "sums"
[sampling]
max_new_tokens = 12
[learner]
learning_rate = 1e-3
clip_norm = 1.0
[critic]
warmup_steps = 1
[warm_start]
steps = 3
[algorithm]
name = "gspo"
[algorithm.trust]
kind = "clip"
epsilon_high = 0.2
[algorithm.ratio]
level = "sequence"
[algorithm.kl]
beta = 0.04
place = "reward"
[algorithm.filter]
kind = "mixed"
max_rounds = 3
[rewards.task]
weight = 1.0
[rewards.form]
weight = 0.5
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    with being_written(folder, steps=6) as run:
        run.put(list(journal(6, random.Random(1))))
        for step in (0, 6):
            row = {
                "step": step,
                "evaluation": {**EVALUATED, "avg_at_k": 0.25 + step / 10},
                "seconds": {"evaluate": 1.0},
            }
            problems = {"step": step, "by_problem": {f"{i}+1=": (i + step) / 20 for i in range(12)}}
            run.put(
                [
                    (name, json.dumps(one).encode() + b"\n")
                    for name, one in ((read.METRICS, row), (read.PROBLEMS, problems))
                ]
            )
        run.finish()
    (folder / read.RECIPE).write_text(RECIPE)
    parts = [{"slot": "trust", "kind": "clip", "value": "0.2", "equation": "x"}]
    about = {"started": 1.7e9, "algorithm": {"name": "gspo", "compares_within_group": True, "parts": parts}}
    (folder / read.ABOUT).write_text(json.dumps({**about, "resumed": [{"step": 2}], "versions": {"torch": "2"}}))
    (folder / read.LOG).write_text("starting policy a\nerror: step 3: it failed\n")
    return folder


def shows(folder: Path, whole: Path) -> None:
    """The page of the folder, a comparison with a sound run, and what is said to who watches it."""
    for look in (
        lambda: embedded(page_of_run(folder)),
        lambda: embedded(compare.page([folder, whole])),
        lambda: as_json(Watched(folder).fresh(0)),
    ):
        refused = ""
        try:
            look()
        except GroupwiseError as error:
            refused = str(error)
        assert len(refused.splitlines()) <= 1


FILES = (
    read.RECIPE,
    read.ABOUT,
    read.SUMMARY,
    read.METRICS,
    read.ROLLOUTS,
    read.MACHINE,
    read.PROBLEMS,
    read.LOG,
    read.LOCK,
)

#: What becomes of a whole file.
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "zeros": lambda data: bytes(len(data)),
    "foreign": lambda data: b"\xff\xfe\x00" + data,
    "surrogate": lambda data: data.replace(b'"', b'"\\ud800', 3),
    "deep lists": lambda data: b"[" * 3000 + b"]" * 3000,
    "deep tables": lambda data: b'{"a":' * 900 + b"1" + b"}" * 900,
    "deep row": lambda data: b'{"step":1,"seconds":' + b'{"a":' * 300 + b"1" + b"}" * 301 + b"\n" + data,
    "deep keys": lambda data: b"a" + b".a" * 3000 + b" = 1\n" + data,
    "long number": lambda data: b'{"step":' + b"9" * 5000 + b"}\nsteps = " + b"9" * 5000 + b"\n" + data,
    "huge": lambda data: b'{"step":7,"loss":1' + b"0" * 400 + b',"x":1e308,"evaluation":{"avg_at_k":1e308}}\n' + data,
    "huge key": lambda data: b"huge = 1" + b"0" * 400 + b"\n" + data,
    "nan": lambda data: data.replace(b"0.", b"NaN", 5).replace(b"1", b"-Infinity", 3),
    "error": lambda data: b"error: step " + b"9" * 5000 + b": x\n",
    "controls": lambda data: b"error: \x1b[2J [/x] \x00\n" + data,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_damage_of_a_file(name: str, damage: str, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "[/x]"
    shutil.copytree(whole, folder)
    (folder / name).write_bytes(DAMAGE[damage]((whole / name).read_bytes()))
    shows(folder, whole)


@pytest.mark.parametrize("kind", ["fifo", "folder", "device", "nowhere"])
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file_is_not_waited_for(name: str, kind: str, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    path = folder / name
    path.unlink()
    make: dict[str, Callable[[], object]] = {
        "fifo": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "device": lambda: path.symlink_to("/dev/zero"),
        "nowhere": lambda: path.symlink_to("nowhere"),
    }
    make[kind]()
    shows(folder, whole)


VALUES: tuple[Any, ...] = (None, True, "x", -1, 1e308, 10**18, 10**30, float("nan"), [], [[1]], {}, {"a": {"b": "c"}})


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value inside."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(way for key, each in inner for way in places(each, (*path, key)))]


def put(value: Any, way: tuple[Any, ...], new: Any) -> Any:
    if not way:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[way[0]] = put(copy[way[0]], way[1:], new)
    return copy


def rows_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", [read.METRICS, read.PROBLEMS, read.ROLLOUTS, read.MACHINE, read.ABOUT, read.SUMMARY])
def test_values_of_every_type_in_every_place(name: str, whole: Path, tmp_path: Path) -> None:
    """Every value of the file by turns is one of each wrong type; several rows of it at once."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    lines = name.endswith(".jsonl")
    rows = rows_of(whole / name) if lines else [json.loads((whole / name).read_text())]
    few = rows[:2] + rows[-1:] if lines else rows
    chance = random.Random(0)
    for way in [way for way in places(few) if way]:
        for new in chance.sample(VALUES, 3):
            mutant = put(few, way, new)
            (folder / name).write_text("\n".join(map(json.dumps, mutant + rows[2:-1] if lines else mutant)) + "\n")
            as_json(Watched(folder).fresh(0))


def test_recipes_with_values_of_every_type(whole: Path, tmp_path: Path) -> None:
    """The recipe is whole TOML and its values are anything: the page's words leave out what they cannot say."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    words = ("-1", "true", '"x"', "[]", "{}", "nan", "1e308", "9223372036854775807", "[[1]]", '"a\\u001b[2J"')
    lines = RECIPE.splitlines()
    for i, line in enumerate(lines):
        for word in words:
            key = line.split(" = ")[0]
            other = f"{key} = {word}" if " = " in line else f'"{line}" = {word}'
            (folder / read.RECIPE).write_text("\n".join([*lines[:i], other, *lines[i + 1 :]]))
            as_json(page_of_run(folder))


def test_a_setting_of_another_kind_is_none() -> None:
    history = History([], recipe={"steps": "x", "rewards": 5, "a": {"b": True}, "learner": {"learning_rate": 0.5}})
    assert history.setting("steps", 7) == 7
    assert history.setting("rewards", {}) == {}
    assert history.setting("a.b", 1.0) == 1.0
    assert history.setting("learner.learning_rate", 0) == 0.5
    assert history.setting("steps") == "x"


def test_checks_of_a_known_name_are_in_the_rows(whole: Path) -> None:
    """The mutants above reach the checks too."""
    assert CHECKS[0] in json.dumps(rows_of(whole / read.METRICS))
