"""A file of tensors that is written one by one is the format's own: the library reads it back to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from groupwise.core.files.tensor_layout import DTYPES
from groupwise.training.ranks.tensor_file import write_tensors


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
