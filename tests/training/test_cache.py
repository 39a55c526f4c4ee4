"""The cache of what runs begin from: what does not match its hashes is made again, and said."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from groupwise.models.load import digest
from groupwise.tasks.arithmetic import Arithmetic
from groupwise.training.start.initial_policy import starting_policy
from groupwise.training.start.warm_start import WarmStart

TASK, WARM = Arithmetic(operands=(2, 3), largest=3), WarmStart(steps=2, batch_size=4, demonstrations=20)


def zeros(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(bytes(40_000))


def other_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\1")


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def no_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with one warm-started policy."""
    folder = tmp_path_factory.mktemp("cache")
    start(folder, [])
    return folder


def start(cache: Path, lines: list[str]) -> str:
    """The digest of the starting policy; what is said on the way goes to `lines`."""
    policy = starting_policy("tiny-dense", TASK, WARM, 0, cache, "cpu", lambda *_: None, note=lines.append)
    return digest(policy.model)


@pytest.mark.parametrize("damage", [zeros, other_weights, no_tokenizer, no_manifest])
def test_a_damaged_warm_start_is_made_again_to_the_same_bits_and_said(
    damage: Callable[[Path], None], cache: Path, tmp_path: Path
) -> None:
    lines: list[str] = []
    own = Path(shutil.copytree(cache, tmp_path / "cache"))
    first = start(own, lines)
    assert lines == []
    (cached,) = own.iterdir()
    damage(cached)
    assert start(own, lines) == first
    (line,) = lines
    assert line.startswith(f"cache        the warm-started policy in {cached} is damaged (")
    assert line.endswith("); it is made again")
    assert (start(own, lines), len(lines)) == (first, 1)
