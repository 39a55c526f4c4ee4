"""Every link, path and module that a page names leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "groupwise"
#: The pages that people read; docs/dev/log.md tells what was, at the paths of its day.
PAGES = [ROOT / "README.md", *sorted(set((ROOT / "docs").rglob("*.md")) - {ROOT / "docs" / "dev" / "log.md"})]
#: What a path on a page may be relative to.
BASES = (ROOT, SOURCE, ROOT / "docs", ROOT / "tests", ROOT / "benchmarks")
#: What a page tells its reader to write, and the first names of what a run writes.
THEIRS = {
    "docs/evidence/gpu.jsonl",
    "path/to/file.py",
    "src/groupwise/engines/mine/__init__.py",
    "src/groupwise/algorithms/parts/stale.py",
    "tests/laws/test_stale.py",
    "groupwise.algorithms.parts.stale",
}
RUNS = ("runs/", "code/", "policy/", "checkpoints/")
pages = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


def anchors(text: str) -> set[str]:
    """The anchors of a file: its lines, its headings as GitHub makes them, and those that it names itself."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    lines = {f"L{number}" for number in range(1, text.count("\n") + 1)}
    made = {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}
    return lines | made | set(re.findall(r'<a name="([^"]+)">', text))


def broken_links(page: Path) -> list[str]:
    """The relative links of a page that lead to no file, or to no heading in it."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        file = page.parent / name if name else page
        if not file.exists() or (anchor and anchor not in anchors(file.read_text())):
            broken.append(link)
    return broken


def lost_paths(text: str) -> list[str]:
    """The paths in code marks or behind `src/groupwise/`, `tests/` or `benchmarks/` that are no file or folder."""
    marked = re.findall(r"`((?:[\w.-]+/)+(?:[\w.-]+/|[\w.-]+\.(?:py|toml|md|jsonl|png|svg)))(?::[^`]*)?`", text)
    named = re.findall(
        r"(?<![\w/.])((?:src/groupwise|tests|benchmarks|docs|recipes)/[\w./-]+\.(?:py|toml|md|jsonl))\b", text
    )
    paths = {path for path in (*marked, *named) if path not in THEIRS and not path.startswith(RUNS)}
    return sorted(path for path in paths if not any((base / path).exists() for base in BASES))


def lost_modules(text: str) -> list[str]:
    """The dotted names below `groupwise` that cannot be imported; names of entry points stand in quotes."""
    names = set(re.findall(r'(?<![\w".-])groupwise(?:\.\w+)+', text)) - THEIRS
    return sorted(name for name in names if not is_there(name))


def is_there(name: str) -> bool:
    """Whether a dotted name is a module, or what one has."""
    try:
        resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@pages
def test_every_link_path_and_module_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    assert (broken_links(page), lost_paths(text), lost_modules(text)) == ([], [], [])


def test_every_page_that_the_code_names_is_there() -> None:
    files = [path for folder in (SOURCE, ROOT / "tests", ROOT / "benchmarks") for path in folder.rglob("*.py")]
    named = {page for file in files for page in re.findall(r"\bdocs/[\w/-]+\.md\b", file.read_text())}
    assert len(named) > 10
    assert sorted(page for page in named if not (ROOT / page).exists()) == []


def test_folders_in_the_table_of_packages_are_inside_their_package() -> None:
    rows = re.findall(
        r"^\| \d \| `(\w+)/` \| (.*) \|$", (ROOT / "docs" / "dev" / "architecture.md").read_text(), re.MULTILINE
    )
    folders = [SOURCE / package / name for package, words in rows for name in re.findall(r"`([\w.]+/?)`", words)]
    assert len(folders) > 20
    assert [str(folder) for folder in folders if not folder.exists()] == []


def test_what_is_lost_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A head: one\n[a](#a-head-one) [b](page.md#two) [c](no.md) [d](https://x.org/no)\n")
    assert broken_links(page) == ["page.md#two", "no.md"]
    text = "`core/records.py`, `core/nothing.py`, `core/files/`, `nowhere/here/`, tests/laws/none.py: `x.py`"
    assert lost_paths(text) == ["core/nothing.py", "nowhere/here/", "tests/laws/none.py"]
    text = "groupwise.train, groupwise.core.nothing, `groupwise.core.masked`"
    assert lost_modules(text) == ["groupwise.core.nothing"]
