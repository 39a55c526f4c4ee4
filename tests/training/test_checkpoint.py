"""Which folders are checkpoints, which of them are whole, and which a run goes back to."""

from __future__ import annotations

import copy
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from groupwise.core.errors import RunError, UsageError
from groupwise.core.stream import StreamState
from groupwise.training import checkpoint
from groupwise.training.state import Progress, RunState, way_back


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


def test_an_extra_checkpoint_takes_no_others_place_and_goes_when_a_newer_one_comes(tmp_path: Path) -> None:
    kept = {}
    for step in (0, 3, 5, 6, 7, 8, 9, 12):
        checkpoint.save(tmp_path, step, lambda folder: checkpoint.write_state(folder, {}), keep=2, every=3)
        kept[step] = checkpoint.steps(tmp_path)
    assert kept[5] == [0, 3, 5]
    assert kept[6] == [3, 6]
    assert kept[8] == [3, 6, 8]
    assert kept[12] == [9, 12]


def test_later_checkpoints_go_the_newest_first(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is left by a kill in the middle has all that came before it."""
    removed: list[Path] = []
    monkeypatch.setattr(checkpoint, "remove", removed.append)
    checkpoint.remove_after(root, 1)
    assert removed == [checkpoint.folder_of(root, 3), checkpoint.folder_of(root, 2)]


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


@pytest.mark.parametrize("left", [".partial-step-000004", "step-000004"])
def test_a_fifo_in_the_place_of_a_save_is_taken_away(left: str, root: Path) -> None:
    os.mkfifo(root / left)
    made = checkpoint.save(root, 4, lambda folder: checkpoint.write_state(folder, {}), keep=2)
    assert checkpoint.damaged(made) == ""
    assert not list(root.glob(".partial-*"))


def test_parameters_of_another_shape_are_not_spread_over_the_model(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    save_file({"weight": torch.ones(1, 3), "bias": torch.ones(2)}, tmp_path / "critic")
    with pytest.raises(ValueError, match="other parameters than the model has"):
        checkpoint.read_parameters(tmp_path, model, "critic")


def test_integers_are_no_parameters_and_no_moments(tmp_path: Path) -> None:
    """As in a stranger's checkpoint, whose hashes are right."""
    model = torch.nn.Linear(3, 2)
    kept = copy.deepcopy(model.state_dict())
    ones = torch.ones(2, 3, dtype=torch.int32)
    save_file({"weight": ones, "bias": torch.ones(2)}, tmp_path / "critic")
    with pytest.raises(ValueError, match=r"critic holds weight as torch\.int32"):
        checkpoint.read_parameters(tmp_path, model, "critic")
    assert all(torch.equal(model.state_dict()[name], kept[name]) for name in kept)
    save_file({"weight/exp_avg": ones, "weight/step": torch.tensor(1)}, tmp_path / "optimizer")
    with pytest.raises(ValueError, match=r"optimizer holds weight/exp_avg as torch\.int32"):
        checkpoint.read_optimizer(tmp_path, model, torch.optim.AdamW(model.parameters()), "optimizer")


SAVED = {
    "step": 3,
    "reference": "",
    "reference_step": 0,
    "updates": 0,
    "critic_updates": 0,
    "skipped_in_a_row": 0,
    "seconds_total": 1.5,
    "seconds_training": 1,
    "stream": {"cursor": 8, "surplus": [], "keep_rate": 0.5, "levels": {"sums": 1}},
}


class Fits:
    """A learner that takes whatever is in a checkpoint, or raises."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def restore(self, folder: Path, updates: int) -> None:
        if self.error is not None:
            raise self.error


def restored(root: Path, saved: object, error: Exception | None = None) -> tuple[Progress, StreamState]:
    folder = checkpoint.folder_of(root, 3)
    (folder / "state.json").write_text(json.dumps(saved))
    return RunState(root, 1, None, None, Fits(error), None).restore(folder)  # type: ignore[arg-type]


ERRORS = [
    RuntimeError("size\n mismatch " * 999),
    KeyError("model.x"),
    OSError(2, "no file"),
    SafetensorError("header too small"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_checkpoint_that_does_not_fit_is_one_line(error: Exception, root: Path) -> None:
    assert restored(root, SAVED)[1] == StreamState(8, (), 0.5, {"sums": 1})
    with pytest.raises(UsageError, match="does not fit what the run's recipe makes now: ") as refused:
        restored(root, SAVED, error)
    assert len(str(refused.value).splitlines()) == 1
    assert len(str(refused.value)) < 1000


OTHER_KINDS = [
    (key, value)
    for key in [*SAVED, "stream.cursor", "stream.keep_rate", "stream.levels", "stream.surplus"]
    for value in (None, "x", -1, [], {}, 1e300, True)
    if (key, value) not in (("reference", "x"), ("stream.levels", {}), ("stream.surplus", []))
]


@pytest.mark.parametrize(("key", "value"), OTHER_KINDS)
def test_a_state_with_a_value_of_another_kind_is_one_line(key: str, value: object, root: Path) -> None:
    saved = copy.deepcopy(SAVED)
    outer, _, inner = key.rpartition(".")
    (saved[outer] if outer else saved)[inner] = value  # type: ignore[index]
    with pytest.raises(UsageError, match=r"does not fit what the|not the state of a checkpoint"):
        restored(root, saved)


@pytest.mark.parametrize("saved", [[], 5, {}], ids=repr)
def test_what_is_no_state_is_one_line(saved: object, root: Path) -> None:
    with pytest.raises(UsageError, match="not the state of a checkpoint; remove step-000003"):
        restored(root, saved)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints before the first step and after every third, and one after a person's stop in step 5.

    From step 9 on they hold a reference that was renewed.
    """
    root = tmp_path_factory.mktemp("checkpoints")

    def write(folder: Path) -> None:
        checkpoint.write_state(folder, {})
        if int(folder.name[-2:]) >= 9:
            (folder / "reference.safetensors").write_bytes(b"weights")

    for step in (0, 3, 5, 6, 9, 12):
        checkpoint.save(root, step, write, keep=9)
    return root


@pytest.mark.parametrize(
    ("step", "returned_to", "step_back"),
    [
        (13, 0, 3),
        (15, 0, 3),  # that of step 5 is a stop's own
        (16, 0, 6),
        (40, 0, 12),
        (2, 0, 0),
        (8, 6, 6),  # two steps after a return
        (14, 6, 6),
        (40, 6, 12),
    ],
)
def test_it_is_from_before_the_steps_that_the_warning_speaks_of(
    history: Path, step: int, returned_to: int, step_back: int
) -> None:
    """Or the one that the run went back to: the steps before it were warned of by nothing."""
    found = way_back(history, step, every=3, returned_to=returned_to)
    assert found == checkpoint.folder_of(history, step_back)


def test_one_without_what_the_run_has_to_be_put_back_to_is_passed_over(history: Path) -> None:
    """As those are that a run without this guard made before it first renewed its reference."""
    assert way_back(history, 40, every=3, needed=["reference.safetensors"]) == checkpoint.folder_of(history, 12)
    assert way_back(history, 16, every=3, needed=["reference.safetensors"]) is None
