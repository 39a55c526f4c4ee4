"""Tensors on disk: written one by one in the format of safetensors, each rank its rows, and put together again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from groupwise.core.files.tensor_layout import DTYPES
from groupwise.models.shards import dealt_rows
from groupwise.training import checkpoint
from groupwise.training.mesh import ALONE
from groupwise.training.ranks.parts import stored, write_parts, write_tensors

NAME = "optimizer.safetensors"
WHOLE = {
    "a/exp_avg": torch.arange(75.0).view(15, 5),
    "b/exp_avg": torch.arange(3.0),
    "a/step": torch.tensor(7.0),
}


def write_ranks(folder: Path, ranks: int, step: int = 1) -> None:
    """The files that so many ranks write of WHOLE, times the step."""
    folder.mkdir(parents=True, exist_ok=True)
    places = {}
    for key, tensor in WHOLE.items():
        places[key] = {
            "shape": list(tensor.shape),
            "rows": list(dealt_rows(len(tensor), ranks)) if tensor.dim() else [],
        }
    for rank in range(ranks):
        own = {key: tensor for key, tensor in WHOLE.items() if tensor.dim() or rank == 0}
        parts = {
            key: step * (x[places[key]["rows"][rank] : places[key]["rows"][rank + 1]] if x.dim() else x)
            for key, x in own.items()
        }
        write_tensors(folder / f"optimizer.{rank + 1:05d}-of-{ranks:05d}.safetensors", parts)
    (folder / "optimizer.layout.json").write_text(json.dumps({"ranks": ranks, "tensors": places}))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_rows_of_any_number_of_ranks_are_the_tensors(tmp_path: Path, ranks: int) -> None:
    """Of seven ranks four hold nothing of the second tensor."""
    write_ranks(tmp_path, ranks)
    with stored(tmp_path, NAME) as saved:
        assert saved.places.keys() == WHOLE.keys()
        for key, tensor in WHOLE.items():
            assert saved.places[key].shape == tuple(tensor.shape)
            assert torch.equal(saved.whole(key), tensor)
            assert torch.equal(saved.like(key, torch.empty_like(tensor)), tensor)


def test_a_process_by_itself_writes_one_file_and_no_layout(tmp_path: Path) -> None:
    assert write_parts(tmp_path, NAME, WHOLE, ALONE) == {}
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    with stored(tmp_path, NAME) as saved:
        assert all(torch.equal(saved.whole(key), tensor) for key, tensor in WHOLE.items())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two checkpoints of two ranks."""
    for step in (1, 2):

        def write(folder: Path, step: int = step) -> None:
            write_ranks(folder, ranks=2, step=step)
            checkpoint.write_state(folder, {"step": step})

        checkpoint.save(tmp_path / "root", step, write, keep=2)
    return tmp_path / "root"


SHARD = "optimizer.00002-of-00002.safetensors"


def missing(newest: Path, older: Path) -> str:
    (newest / SHARD).unlink()
    return f"{SHARD} is missing"


def of_another_step(newest: Path, older: Path) -> str:
    shutil.copy(older / SHARD, newest / SHARD)
    return f"{SHARD} does not match its hash"


def of_another_run(newest: Path, older: Path) -> str:
    write_ranks(newest.parent.parent / "other", ranks=2, step=5)
    shutil.copy(newest.parent.parent / "other" / SHARD, newest / SHARD)
    return f"{SHARD} does not match its hash"


def truncated(newest: Path, older: Path) -> str:
    (newest / SHARD).write_bytes((newest / SHARD).read_bytes()[:-8])
    return f"{SHARD} does not match its hash"


def of_another_number_of_ranks(newest: Path, older: Path) -> str:
    write_ranks(newest, ranks=3)
    return "optimizer.layout.json does not match its hash"


def without_layout(newest: Path, older: Path) -> str:
    (newest / "optimizer.layout.json").unlink()
    return "optimizer.layout.json is missing"


FAULTS = [missing, of_another_step, of_another_run, truncated, of_another_number_of_ranks, without_layout]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_shard_that_is_not_the_checkpoints_is_named_and_the_older_one_is_used(
    root: Path, fault: Callable[[Path, Path], str]
) -> None:
    newest, older = (checkpoint.folder_of(root, step) for step in (2, 1))
    assert checkpoint.newest_good(root) == (newest, [])
    words = fault(newest, older)
    assert checkpoint.newest_good(root) == (older, [f"{newest} is damaged ({words}); falling back to an older one"])


def test_hashes_that_ranks_made_are_sealed_as_they_are(tmp_path: Path) -> None:
    """A file that is not what its rank wrote is damaged, although it is so when it is sealed."""
    (tmp_path / SHARD).write_bytes(b"half")
    checkpoint.seal(tmp_path, {SHARD: "the hash of the whole"})
    assert checkpoint.damaged(tmp_path, needed=()) == f"{SHARD} does not match its hash"


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_what_is_written_is_read_back_to_the_bit(tmp_path: Path, dtype: torch.dtype):
    noise = torch.Generator().manual_seed(0)
    whole = (torch.randn(5, 6, generator=noise) * 100).to(dtype)
    tensors = {
        "a": whole,
        "turned": whole.T,
        "part": whole[1:3, ::2],
        "b/step": whole[0, 0],
        "none": whole[:0],
        "ä": whole,
    }
    write_tensors(tmp_path / "file", tensors)
    back = load_file(tmp_path / "file")
    assert set(back) == set(tensors)
    for name, tensor in tensors.items():
        assert back[name].dtype == dtype
        assert back[name].shape == tensor.shape
        assert torch.equal(back[name], tensor)


def test_tensors_lie_where_a_word_of_eight_bytes_can_begin(tmp_path: Path):
    """Readers map the file into memory: a tensor of 8-byte numbers behind a header of any length must be aligned."""
    for name in ("a", "ab", "abc"):
        write_tensors(tmp_path / name, {name: torch.arange(3)})
        assert int.from_bytes((tmp_path / name).read_bytes()[:8], "little") % 8 == 0
        with safe_open(tmp_path / name, "pt") as file:
            assert file.get_tensor(name).tolist() == [0, 1, 2]
