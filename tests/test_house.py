"""The house: few files at the root, imports downward only, and pages that show what is there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs import floors

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "groupwise"


def packages() -> list[str]:
    return sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))


def lint(source: Path) -> subprocess.CompletedProcess[str]:
    """import-linter over a tree of sources, by the contract of pyproject.toml."""
    program = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    command = [sys.executable, "-c", program, "--no-cache", "--no-logo", "--config", str(ROOT / "pyproject.toml")]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=source, check=False)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("house") / "src"
    shutil.copytree(SOURCE, folder / "groupwise", ignore=shutil.ignore_patterns("__pycache__", "assets"))
    return folder


def test_the_root_has_four_files_and_at_most_eighteen_packages() -> None:
    assert sorted(path.name for path in SOURCE.glob("*.py")) == ["__init__.py", "__main__.py", "cli.py", "loop.py"]
    assert len(packages()) <= 18


def test_no_import_points_up(copy: Path) -> None:
    done = lint(copy)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "arrow",
    [
        "from groupwise import loop",
        "def later():\n    from groupwise.training.learner import Learner\n    return Learner",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from groupwise.config.plan import REWARD_MODEL",
        "import groupwise",
    ],
    ids=["plain", "inside a function", "for type checking", "the root"],
)
def test_a_planted_arrow_up_is_seen(copy: Path, arrow: str) -> None:
    path = copy / "groupwise" / "core" / "numbers" / "seeds.py"
    before = path.read_text()
    path.write_text(f"{before}\n\n{arrow}\n")
    try:
        assert lint(copy).returncode == 1
    finally:
        path.write_text(before)


def test_neighbours_on_a_floor_do_not_know_each_other(copy: Path) -> None:
    path = copy / "groupwise" / "engines" / "__init__.py"
    before = path.read_text()
    path.write_text(f"{before}\nfrom groupwise.rollout import selection\n")
    try:
        assert lint(copy).returncode == 1
    finally:
        path.write_text(before)


def test_the_picture_shows_the_imports() -> None:
    assert (ROOT / "docs" / "floors.svg").read_text() == floors.picture(), "run make docs"


def test_readme_and_architecture_name_every_package() -> None:
    tree = re.findall(r"^      (\w+)/ ", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert sorted(tree) == packages()
    table = re.findall(r"^\| \d \| `(\w+)/` \|", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
    assert sorted(table) == packages()


def test_the_five_paths_lead_somewhere() -> None:
    """What docs/architecture.md says a reader finds by the tree: each file is there and has the name."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.partition("## Found by the tree alone")[2].partition("\n## ")[0]
    paths = re.findall(r"`([\w/]+\.py)`:\s+`(?:\w+\.)?(\w+)", section)
    assert len(paths) >= 5
    for path, name in paths:
        assert re.search(rf"\b{name}\b", (SOURCE / path).read_text()), (path, name)
