"""The house: few files at the root and in a folder, imports downward only, names and docstrings that can be read, and
pages that show what is there.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import grimp
import pytest
from docs.dev import floors

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "groupwise"


def packages() -> list[str]:
    return sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def sources() -> Iterator[Path]:
    return (path for path in SOURCE.rglob("*.py") if "__pycache__" not in path.parts)


@cache
def imports() -> dict[str, set[str]]:
    """Who imports whom, file by file, functions and type checking included."""
    graph = grimp.build_graph("groupwise")
    return {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}


def longest_chain(imported: Mapping[str, set[str]]) -> list[str]:
    """The longest path along imports, the highest file first.

    >>> longest_chain({"a": {"b", "c"}, "b": {"c"}, "c": set()})
    ['a', 'b', 'c']
    """

    @cache
    def below(module: str) -> tuple[str, ...]:
        return (module, *max(map(below, sorted(imported[module])), key=len, default=()))

    return list(max(map(below, sorted(imported)), key=len))


def documented(path: Path) -> Iterator[tuple[str, str]]:
    """Every docstring of a file, with the name of what it is about."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "name", "the module"), text


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


def test_the_root_has_three_files_and_at_most_nineteen_packages() -> None:
    assert sorted(path.name for path in SOURCE.glob("*.py")) == ["__init__.py", "__main__.py", "loop.py"]
    assert len(packages()) <= 19


def test_a_folder_has_at_most_fifteen_files() -> None:
    counts = Counter(path.parent.relative_to(SOURCE).as_posix() for path in sources())
    assert {folder: count for folder, count in counts.items() if count > 15} == {}


def test_a_file_earns_its_door() -> None:
    """A file under 40 lines that one other file imports would be read with it."""
    importers = Counter(name for imported in imports().values() for name in imported)
    files = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path for path in sources()}
    small = [name for name, path in files.items() if len(path.read_text().splitlines()) < 40]
    assert [name for name in small if importers[name] == 1] == []


def test_imports_are_at_most_twenty_files_deep() -> None:
    chain = longest_chain(imports())
    assert len(chain) <= 20, chain


def test_no_class_name_is_in_three_packages() -> None:
    where: dict[str, set[str]] = defaultdict(set)
    for path in sources():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                where[node.name].add(path.relative_to(SOURCE).parts[0])
    assert {name: found for name, found in where.items() if len(found) > 2} == {}


#: Openings of a docstring that say neither what a function does nor what a thing is.
UNCLEAR = re.compile(r"(Of|The same|What|Where|How|Why|Which|When|As|For|To|From|In|There|It|Its|After|Before)\b")


def test_a_docstring_begins_with_a_verb_or_a_noun() -> None:
    """Commands' docstrings are their --help, whose words people know; cli/ alone has those."""
    unclear = [
        (path.relative_to(SOURCE).as_posix(), name, text.split("\n")[0])
        for path in sources()
        if path.parent != SOURCE / "cli"
        for name, text in documented(path)
        if UNCLEAR.match(text)
    ]
    assert unclear == []


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
    assert (ROOT / "docs" / "dev" / "floors.svg").read_text() == floors.picture(), "run make docs"


def test_the_page_of_the_code_names_every_package() -> None:
    page = (ROOT / "docs" / "dev" / "architecture.md").read_text()
    table = re.findall(r"^\| \d \| `(\w+)/` \|", page, re.MULTILINE)
    assert sorted(table) == packages()


def test_each_part_of_an_algorithm_is_where_the_page_says() -> None:
    """Check the table of docs/dev/architecture.md: each file is there and has the name."""
    page = (ROOT / "docs" / "dev" / "architecture.md").read_text()
    section = page.partition("## Parts of an algorithm")[2].partition("\n## ")[0]
    paths = re.findall(r"`([\w/]+\.py)`:\s+`(?:\w+\.)?(\w+)", section)
    assert len(paths) >= 5
    for path, name in paths:
        assert re.search(rf"\b{name}\b", (SOURCE / path).read_text()), (path, name)
