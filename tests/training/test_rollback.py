"""Which checkpoint a run goes back to from an early warning of collapse."""

from __future__ import annotations

from pathlib import Path

import pytest

from groupwise.training import checkpoint
from groupwise.training.state import way_back


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    root: Path, step: int, returned_to: int, step_back: int
) -> None:
    """Or the one that the run went back to: the steps before it were warned of by nothing."""
    found = way_back(root, step, every=3, returned_to=returned_to)
    assert found == checkpoint.folder_of(root, step_back)


def test_one_without_what_the_run_has_to_be_put_back_to_is_passed_over(root: Path) -> None:
    """As those are that a run without this guard made before it first renewed its reference."""
    assert way_back(root, 40, every=3, needed=["reference.safetensors"]) == checkpoint.folder_of(root, 12)
    assert way_back(root, 16, every=3, needed=["reference.safetensors"]) is None
