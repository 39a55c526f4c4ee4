"""Which folders are checkpoints, and which of them are whole."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from groupwise.core.errors import RunError, UsageError
from groupwise.training import checkpoint
from groupwise.training.state import RunState


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three checkpoints."""
    for step in (1, 2, 3):
        checkpoint.save(tmp_path / "root", step, lambda folder: checkpoint.write_state(folder, {"step": 1}), keep=3)
    return tmp_path / "root"


def test_only_what_is_named_exactly_so_is_a_checkpoint(root: Path) -> None:
    """Copies, rests, links and files beside them are nobody's checkpoints: ignored, and left where they are."""
    newest = checkpoint.folder_of(root, 3)
    others = ("step-000004.bak", "step-x", "step-", "step-4", "step-0000004", "step-00000４", "step-000004 ", ".step-9")
    for name in (*others, ".partial-step-000005", "step-" + "9" * 200):
        shutil.copytree(newest, root / name)
    (root / "step-000006").symlink_to(newest)
    (root / "step-000007").write_text("a file")
    os.mkfifo(root / "step-000008")
    assert checkpoint.steps(root) == [1, 2, 3]
    assert checkpoint.newest_good(root) == (newest, [])
    before = len(list(root.iterdir()))
    checkpoint.save(root, 4, lambda folder: checkpoint.write_state(folder, {}), keep=1)
    assert checkpoint.steps(root) == [4]
    assert len(list(root.iterdir())) == before + 1 - 3


def test_a_place_that_cannot_be_read_is_not_taken_for_one_without_checkpoints(tmp_path: Path) -> None:
    """A run that took it so would start over, and cut away what it had written."""
    assert checkpoint.steps(tmp_path / "nowhere") == []
    (tmp_path / "gone").symlink_to(tmp_path / "unmounted")
    (tmp_path / "file").write_text("")
    for name in ("gone", "file"):
        with pytest.raises(RunError, match=f"{name}: cannot be read: "):
            checkpoint.steps(tmp_path / name)


MANIFESTS = [b"", b"{", b"5", b"[]", b"null", b'{"sha256": 5}', b'{"sha256": []}', b'{"sha256": null}', b"\xff"]
MANIFESTS += [b"[" * 100_000, b'{"sha256": {"state.json": ' + b"9" * 5000 + b"}}", b'{"sha256": {}}']
MANIFESTS += [b'{"sha256": {"state.json": [1]}}', b'{"sha256": {"state.json": "0", "\\u0000": "1"}}']
MANIFESTS += [json.dumps({"sha256": {name: "0"}}).encode() for name in ("/etc/passwd", "../x", "x" * 5000, "\ud800")]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda text: repr(text[:30]))
def test_a_manifest_of_any_kind_makes_a_checkpoint_damaged_and_nothing_else(manifest: bytes, root: Path) -> None:
    (checkpoint.folder_of(root, 3) / checkpoint.MANIFEST).write_bytes(manifest)
    newest, (line,) = checkpoint.newest_good(root)
    assert newest == checkpoint.folder_of(root, 2)
    assert "step-000003 is damaged (" in line
    assert "\n" not in line


@pytest.mark.parametrize("name", [checkpoint.MANIFEST, checkpoint.STATE])
def test_a_file_of_a_checkpoint_that_is_a_fifo_is_not_waited_for(name: str, root: Path) -> None:
    (checkpoint.folder_of(root, 3) / name).unlink()
    os.mkfifo(checkpoint.folder_of(root, 3) / name)
    assert checkpoint.newest_good(root)[0] == checkpoint.folder_of(root, 2)


def test_parameters_of_another_shape_are_not_spread_over_the_model(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    save_file({"weight": torch.ones(1, 3), "bias": torch.ones(2)}, tmp_path / "critic")
    with pytest.raises(ValueError, match="other parameters than the model has"):
        checkpoint.read_parameters(tmp_path, model, "critic")


@pytest.mark.parametrize("error", [RuntimeError("size\n mismatch " * 999), KeyError("model.x"), OSError(2, "no file")])
def test_a_checkpoint_that_does_not_fit_is_one_line(error: Exception, root: Path) -> None:
    class Other:
        def restore(self, folder: Path, updates: int) -> None:
            raise error

    state = RunState(root, 1, "", False, None, Other(), None)  # type: ignore[arg-type]
    folder = checkpoint.folder_of(root, 3)
    checkpoint.write_state(folder, {"step": 3, "start": "", "updates": 0, "stream": {}})
    with pytest.raises(UsageError, match="does not fit what the run's recipe makes now: ") as told:
        state.restore(folder)
    assert len(str(told.value).splitlines()) == 1
    assert len(str(told.value)) < 1000
