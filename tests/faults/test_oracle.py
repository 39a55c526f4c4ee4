"""The oracle finds what it is for: each fault is planted in place of the command, and seen; what is sound is not."""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.forked import Limits
from tests.faults.ground import RECIPE, Ground, toml
from tests.faults.hunt import in_box
from tests.faults.mutant import Mutant
from tests.faults.oracle import BEGINS, LONGEST_LINE, UNFORESEEN

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks with limits, as Linux has them")

EVALUATED = "2 held-out problems x 1 samples\navg@1  0.5000\npass@1  0.5000\n"
CHECKED = "problems\n  note  12 rows read\n\nno faults found\n"


def refuse(text: str = f"{BEGINS}no such thing; take another\n", code: int = 2) -> None:
    sys.stderr.write(text)
    sys.exit(code)


def give(text: str) -> None:
    sys.stdout.write(text)


def after(act: Callable[[], object], then: Callable[[], None] = refuse) -> Callable[[], None]:
    def both() -> None:
        act()
        then()

    return both


def trained(loss: Any = 0.5, rate: float = 0.5, steps: int = 1, **changed: Any) -> Callable[[], None]:
    """A run that is written as one that finished."""

    def write() -> None:
        folder = Path("runs/x")
        folder.mkdir(parents=True)
        (folder / "recipe.toml").write_bytes(toml({**RECIPE, "name": "x", **changed}))
        summary = {"heldout_before": 0.0, "heldout_after": rate, "steps": steps}
        (folder / "summary.json").write_text(json.dumps(summary))
        (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": loss}) + "\n")
        print("run          runs/x: model, seed 0, cpu\nthe run is in runs/x (summary.json, metrics.jsonl, ...)")

    return write


def verdict(entry: Callable[[], Any], tmp_path: Path, limits: Limits = Limits(), **mutant: Any) -> list[str]:
    box = tmp_path / "outer" / "inner" / "box"
    for name in ("tmp", "home", "keep"):
        (box / name).mkdir(parents=True)
    (box / "keep/notes.txt").write_text("mine\n")
    ground = Ground(tmp_path, {0: EVALUATED, 2: EVALUATED, 3: EVALUATED}, b"")
    given = {"kind": "line", "what": "planted", "words": ("explain", "grpo"), **mutant}
    return list(in_box(Mutant(**given), box, ground, limits, entry).verdict.kinds)


def boom() -> None:
    raise ValueError("planted")


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        (boom, "traceback"),
        (lambda: refuse(f"{BEGINS}Traceback (most recent call last)\n"), "traceback"),
        (lambda: give("Traceback (most recent call last)\n"), "traceback"),
        (lambda: refuse(f"{BEGINS}{UNFORESEEN} error: planted\n", 1), "unforeseen"),
        (lambda: refuse(f"{BEGINS}one\nand two\n"), "streams"),
        (lambda: refuse(f"a library warns\n{BEGINS}one\n"), "streams"),
        (lambda: refuse("another program: one\n"), "streams"),
        (lambda: refuse(BEGINS + "\n"), "streams"),
        (lambda: refuse(""), "streams"),
        (lambda: refuse(code=3), "streams"),
        (lambda: refuse(f"{BEGINS}\x1b[31mred\n"), "streams"),
        (lambda: refuse(f"{BEGINS}one\rtwo\n"), "streams"),
        (lambda: refuse(BEGINS + "x" * LONGEST_LINE + "\n"), "streams"),
        (lambda: give("\x1b[2J"), "streams"),
        (after(lambda: sys.stderr.write("a library warns\n"), lambda: give("GRPO\n")), "streams"),
        (after(lambda: Path("keep/notes.txt").write_text("yours\n")), "outside"),
        (after(lambda: os.utime("keep/notes.txt", (1, 1))), "outside"),
        (after(lambda: Path("keep/notes.txt").unlink()), "outside"),
        (after(lambda: Path("keep/notes.txt").chmod(0o777)), "outside"),
        (after(lambda: Path("tmp/left").touch()), "outside"),
        (after(lambda: Path("../beside").touch()), "outside"),
        (after(lambda: subprocess.Popen(["sleep", "60"], start_new_session=True)), "left"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "died"),
        (lambda: None, "silent"),
    ],
)
def test_each_planted_fault_is_found(entry: Callable[[], None], fault: str, tmp_path: Path) -> None:
    assert verdict(entry, tmp_path) == [fault]


@pytest.mark.parametrize("stays", [False, True], ids=["the command", "a process that it waits for"])
def test_a_hang_is_ended_and_found(stays: bool, tmp_path: Path) -> None:
    hang = (lambda: subprocess.run(["sleep", "60"], check=False)) if stays else (lambda: time.sleep(60))
    began = time.monotonic()
    assert verdict(hang, tmp_path, Limits(seconds=0.3))[0] == "late"
    assert time.monotonic() - began < 10


def test_memory_that_grows_is_found(tmp_path: Path) -> None:
    def new_pages() -> None:
        """Not those that the allocator keeps of what the tests before had."""
        pages = mmap.mmap(-1, 48 << 20)
        for _ in range(48):
            pages.write(bytes(1 << 20))

    few = Limits(memory=32 << 20)
    assert verdict(after(new_pages), tmp_path, few) == ["memory"]
    assert verdict(after(lambda: bytearray(1 << 30)), tmp_path / "more", few) == [
        "traceback"
    ]  # there is no more to have


def train(**more: Any) -> dict[str, Any]:
    return {"words": ("train", "recipe.toml"), **more}


EVAL, CHECK = {"words": ("eval", "runs/done"), "kind": "run"}, {"words": ("check", "recipe.toml")}


@pytest.mark.parametrize(
    ("entry", "mutant"),
    [
        (lambda: give("GRPO\n"), {"expects": "refuse"}),
        (lambda: give(EVALUATED), {**EVAL, "expects": "refuse"}),
        (lambda: give(EVALUATED.replace("0.5", "0.6")), {**EVAL, "expects": "same"}),
        (lambda: give(EVALUATED.replace("0.5", "nan")), EVAL),
        (lambda: give(CHECKED), {**CHECK, "rows": 11}),
        (lambda: give("problems\n"), CHECK),
        (lambda: give("page.html (0.1 MB, 0.1 s)\n"), {"words": ("report", "runs/done", "--out", "page.html")}),
        (lambda: give("nothing was served\n"), {"words": ("watch", "runs/done")}),
        (lambda: give("nothing was served\n"), {"words": ("--", "watch", "runs/done")}),
        (trained(loss=None), train()),
        (trained(rate=1.5), train()),
        (trained(steps=2), train()),
        (trained(sampling={"temperature": float("nan")}), train()),
        (trained(), train(asked={"seed": 3})),
        (trained(seed=True), train(asked={"seed": 1})),
        (trained(), train(expects="refuse")),
    ],
)
def test_each_silent_acceptance_is_found(entry: Callable[[], None], mutant: dict[str, Any], tmp_path: Path) -> None:
    assert verdict(entry, tmp_path, **mutant) == ["silent"]


def test_a_run_beside_one_that_was_there_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "outer/inner/box/runs/done").mkdir(parents=True)
    (tmp_path / "outer/inner/box/runs/done/summary.json").write_text("{}")
    assert verdict(trained(), tmp_path, **train(asked={"seed": 1, "task": {"name": "arithmetic"}})) == []


def test_metrics_that_nest_too_deep_to_be_read_are_a_damage_of_before(tmp_path: Path) -> None:
    def damage() -> None:
        metrics = Path("runs/x/metrics.jsonl")
        metrics.write_text('{"step": 0, "loss": ' + "[" * 100_000 + "\n" + metrics.read_text())

    assert verdict(after(trained(), damage), tmp_path, **train(), kind="run") == []


@pytest.mark.parametrize("code", [1, 2])
def test_a_run_folder_that_is_left_after_a_refusal_is_found(code: int, tmp_path: Path) -> None:
    empty = after(
        lambda: (Path("runs/x").mkdir(parents=True), Path("runs/x/recipe.toml").touch()), lambda: refuse(code=code)
    )
    assert verdict(empty, tmp_path, **train()) == ["left"]
    bare = after(lambda: Path("runs/x").mkdir(parents=True), lambda: refuse(code=code))
    assert verdict(bare, tmp_path / "bare", **train()) == ["left"]


@pytest.mark.parametrize(
    ("entry", "mutant"),
    [
        (refuse, {"expects": "refuse"}),
        (lambda: refuse(code=1), train(expects="refuse")),
        (
            lambda: refuse("checkpoints/x is damaged (gone); falling back to an older one\n" + f"{BEGINS}none\n", 1),
            train(),
        ),
        (lambda: give("GRPO\n"), {}),
        (lambda: give(EVALUATED), {**EVAL, "expects": "same"}),
        (lambda: give(CHECKED), {**CHECK, "rows": 12}),
        (after(lambda: give("1 fault\n  model: none\n"), lambda: sys.exit(1)), {**CHECK, "expects": "refuse"}),
        (trained(), train(asked={"seed": 1, "task": {"name": "arithmetic"}})),
    ],
)
def test_what_is_sound_has_no_fault(entry: Callable[[], None], mutant: dict[str, Any], tmp_path: Path) -> None:
    assert verdict(entry, tmp_path, **mutant) == []
