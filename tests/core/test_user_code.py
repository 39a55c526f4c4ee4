"""A user's own code from a file: imported by its content, whatever becomes of the file, here and in another process."""

from __future__ import annotations

import re
import sys
import traceback
from pathlib import Path

import pytest

from groupwise.core.code.user_code import LARGEST_FILE, load, source, source_of, use_of
from groupwise.core.errors import UsageError

PART = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Mine:
    number: int = VALUE

    def worth(self):
        return self.number * VALUE

def divide():
    return 1 / 0
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(PART.replace("VALUE", "2"))
    return path


def test_the_same_content_is_one_module_and_another_content_another(file: Path) -> None:
    first, again = load(f"{file}:Mine", "x"), load(f"{file}:Mine", "x")
    assert first is again
    file.write_text(PART.replace("VALUE", "3"))
    later = load(f"{file}:Mine", "x")
    assert (first().worth(), later().worth()) == (4, 9)
    assert first.__module__ != later.__module__
    assert use_of(first) == use_of(later) == f"{file}:Mine"
    assert (source_of(first), source_of(int)) == (source_of(again), None)


@pytest.mark.parametrize("after", ["gone", "changed"])
def test_a_kept_file_is_what_it_was(file: Path, after: str) -> None:
    kept = source(f"{file}:Mine", "x")
    assert kept is not None
    if after == "gone":
        file.unlink()
    else:
        file.write_text("raise ValueError('changed')")
    assert load(f"{file}:Mine", "x", {file: kept})().worth() == 4
    with pytest.raises(UsageError, match=r"no file|raised ValueError: changed"):
        load(f"{file}:Mine", "x")


def test_a_traceback_shows_the_users_line_and_the_module_has_its_path(file: Path) -> None:
    divide = load(f"{file}:divide", "x")
    file.unlink()
    with pytest.raises(ZeroDivisionError) as raised:
        divide()
    assert f'"{file}", line 12, in divide\n    return 1 / 0' in "".join(traceback.format_exception(raised.value))
    assert sys.modules[divide.__module__].__file__ == str(file)


def test_what_lies_beside_a_file_is_imported_and_what_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "beside_this_file.py").write_text("seven = 7")
    (tmp_path / "mine.py").write_text("from beside_this_file import seven")
    assert load(f"{tmp_path}/mine.py:seven", "x") == 7
    (tmp_path / "mine.py").write_text("import not_beside_this_file")
    words = f"x: it imports 'not_beside_this_file', which is not installed and not in {tmp_path}; a run keeps a copy of"
    with pytest.raises(UsageError, match=f"^{re.escape(words)}"):
        load(f"{tmp_path}/mine.py:seven", "x")


@pytest.mark.parametrize(
    ("text", "use", "words"),
    [
        ("a = 1", "mine.py", "x: write path/to/file.py:Name or package.module:Name"),
        ("a = 1", "mine.py:b", "has no 'b'; "),
        ("a = 1", "mien.py:a", "did you mean 'mine.py'?"),
        ("a = ", "mine.py:a", "x: importing it raised SyntaxError: "),
        ("import sys; sys.exit(3)", "mine.py:a", "x: importing it raised SystemExit: 3 ("),
        ("import not_here", "mine:a", "x: importing it raised ModuleNotFoundError: No module named 'not_here'"),
        ("[][3]", "mine.py:a", "x: importing it raised IndexError: list index out of range ("),
        ("#" * (LARGEST_FILE + 1), "mine.py:a", "is longer than 1 MiB"),
        ("a = '\0'", "mine.py:a", "x: importing it raised "),
    ],
)
def test_what_cannot_be_loaded_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, use: str, words: str
) -> None:
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=re.escape(words)) as told:
        load(use, "x")
    assert "\n" not in str(told.value)
