"""The wheel, installed where no source tree is near: commands, recipes and data files come with it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from groupwise import __version__

ROOT = Path(__file__).parents[1]

#: A user's file, and a recipe that is made of it.
CODE = Path(__file__).parent / "runs" / "code_of_a_user.py"
OWN = """
steps = 1
prompts_per_step = 8
samples_per_prompt = 4
task = { use = "mine.py:Doubles", largest = 40 }
warm_start = { steps = 20, demonstrations = 200 }
sampling.max_new_tokens = 5
evaluation.problems = 8
journal.report = false
threads = 1
rewards = { task = {}, brevity = { use = "mine.py:brevity", weight = 0.1 } }
[algorithm]
name = "grpo"
trust.use = "mine.py:StaleClip"
advantage.use = "mine.py:Scaled"
filter.use = "mine.py:SomeRight"
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel, and sees the libraries of this one behind it."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    install = ["install", "-q", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")  # its own .pth files are not read
    return python.parent


def output_of(command: list[str | Path], folder: Path) -> str:
    """What a command prints in a folder, without this process's paths."""
    own = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=True).stdout


def test_what_is_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    files = {
        "py.typed",
        "config/elsewhere.toml",
        "recipes/quickstart.toml",
        "recipes/grid_world.py",
        "reports/page/pictures.toml",
        "planning/devices.toml",
    }
    assert {f"groupwise/{file}" for file in files} <= names
    assert not [name for name in names if name.startswith(("tests", "docs", "benchmarks")) or "__pycache__" in name]
    metadata = next(name for name in names if name.endswith("METADATA"))
    text = zipfile.ZipFile(wheel).read(metadata).decode()
    for field in (
        "Author",
        "Project-URL: Source, https://",
        "Keywords",
        "Classifier: Typing :: Typed",
        "License-Expression: Apache-2.0",
    ):
        assert f"\n{field}" in text
    readme = (ROOT / "README.md").read_text()
    linked = re.findall(r"\]\(([^)]+)\)", readme)
    assert len(linked) > 20
    for target in linked:
        assert re.search(rf"\]\(https://\S+/main/{re.escape(target)}\)", text) or target.startswith("https://"), target
    assert not re.findall(r"\]\((?!https://)", text)


def test_the_commands_work_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    program = installed / "groupwise"
    assert output_of([program, "--version"], tmp_path) == f"groupwise {__version__}\n"
    where = output_of([installed / "python", "-c", "import groupwise; print(groupwise.__file__)"], tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)
    assert "  learner.learning_rate = 1e-06  (number, at least 0)" in output_of([program, "keys"], tmp_path)
    assert "quickstart-moe" in output_of([program, "recipes"], tmp_path)
    changes = {
        "steps": 1,
        "prompts_per_step": 4,
        "samples_per_prompt": 2,
        "warm_start.steps": 5,
        "evaluation.problems": 4,
        "evaluation.every": 0,
        "sampling.max_new_tokens": 8,
        "threads": 1,
    }
    sets = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    assert "the run is in runs/quickstart " in output_of([program, "train", "quickstart", *sets], tmp_path)
    assert (tmp_path / "runs" / "quickstart" / "report.html").is_file()
    # An example, whose code lies beside its recipe: the run keeps it.
    sets += ["--set", "sampling.max_new_tokens=30"]
    assert "the run is in runs/grid-world " in output_of([program, "train", "grid-world", *sets], tmp_path)
    assert (tmp_path / "runs" / "grid-world" / "code" / "grid_world.py").is_file()


def test_a_users_own_code_lives_on_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    """A trust region, an advantage, a filter, a task and a reward of one file: train, go on, eval, explain, report."""
    program, run = installed / "groupwise", "runs/own"
    shutil.copy(CODE, tmp_path / "mine.py")
    (tmp_path / "own.toml").write_text(OWN)
    assert " of 14 laws hold" in output_of([program, "laws", "mine.py:StaleClip"], tmp_path)
    assert "the run is in runs/own " in output_of([program, "train", "own.toml"], tmp_path)
    (tmp_path / "mine.py").unlink()
    resumed = output_of([program, "train", "--resume", run, "--set", "steps=2"], tmp_path)
    assert "changed after step 1: steps 1 -> 2" in resumed
    assert "reward brevity  mean " in output_of([program, "eval", run], tmp_path)
    assert "StaleClip(epsilon_low=0.2, " in output_of([program, "explain", run], tmp_path)
    assert "runs/own/report.html" in output_of([program, "report", run], tmp_path)
