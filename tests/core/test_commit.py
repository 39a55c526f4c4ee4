"""The commit that a run was started in."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from groupwise.core.machine.facts import commit


def git(folder: Path, *words: str) -> str:
    named = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(folder), *named, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_commit_is_named_and_changed_files_are_told(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "recipe.toml").write_text("steps = 1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    name = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "new").write_text("what is not tracked is no change")
    assert commit(tmp_path / "runs") == name
    (tmp_path / "recipe.toml").write_text("steps = 2")
    assert commit(tmp_path) == f"{name}, with changes"


def test_outside_a_checkout_or_without_git_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit(tmp_path) == ""
    git(tmp_path, "init", "-q")
    assert commit(tmp_path) == "", "nothing was committed"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit(tmp_path) == ""
