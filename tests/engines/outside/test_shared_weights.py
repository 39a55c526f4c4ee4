"""Weights that cross in shared memory arrive to the bit, or not at all."""

from __future__ import annotations

import dataclasses
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from groupwise.core.errors import RunError
from groupwise.core.files.tensor_layout import DTYPES
from groupwise.engines.outside.shared_weights import SharedWeights, mapped, read_weights

NOISE = torch.Generator().manual_seed(0)
TENSORS = {
    "ends": torch.ones(3, dtype=torch.bool),  # three bytes: what follows would lie where no number may begin
    **{str(dtype): (torch.randn(5, 3, generator=NOISE) * 100).to(dtype) for dtype in DTYPES},
    "turned": torch.randn(4, 7, generator=NOISE).T,
    "one": torch.tensor(0.1),
    "none": torch.zeros(0, 4),
    "weight.ä": torch.randn(1000, generator=NOISE).requires_grad_(),
}


@pytest.fixture
def shared() -> Iterator[SharedWeights]:
    shared = SharedWeights()
    yield shared
    shared.close()
    shared.close()


def raw(shared: SharedWeights) -> bytes:
    return Path(f"/proc/self/fd/{shared.descriptor}").read_bytes()


def test_every_tensor_arrives_to_the_bit_and_the_layout_is_the_formats_own(shared: SharedWeights) -> None:
    stamp = shared.write(TENSORS, version=7)
    arrived = read_weights(mapped(shared.descriptor), stamp)
    for there in (arrived, load(raw(shared))):
        assert there.keys() == TENSORS.keys()
        for name, tensor in TENSORS.items():
            assert there[name].dtype == tensor.dtype
            assert torch.equal(there[name], tensor.detach())
    assert all(tensor.data_ptr() % tensor.element_size() == 0 for tensor in arrived.values())


def test_another_version_replaces_the_one_before_whatever_its_names_and_sizes(shared: SharedWeights) -> None:
    first = shared.write(TENSORS, version=9)
    size = len(raw(shared))
    second = shared.write(TENSORS, version=10)
    assert len(raw(shared)) == size, "nothing is reserved again for a version of the same tensors"
    with pytest.raises(RunError, match=r"^the weights of version 9 did not arrive whole: their checksum is "):
        read_weights(mapped(shared.descriptor), first)
    read_weights(mapped(shared.descriptor), second)
    third = shared.write({"other": torch.arange(4.0)}, version=11)
    assert len(raw(shared)) < size
    assert read_weights(mapped(shared.descriptor), third)["other"].tolist() == [0, 1, 2, 3]


def test_what_is_read_does_not_change_the_memory(shared: SharedWeights) -> None:
    stamp = shared.write(TENSORS, version=1)
    read_weights(mapped(shared.descriptor), stamp)["one"].fill_(5.0)
    assert read_weights(mapped(shared.descriptor), stamp)["one"] == TENSORS["one"]


@pytest.mark.parametrize("place", [0.0, 0.3, 0.999])
def test_a_byte_that_changed_is_found_wherever_it_is(shared: SharedWeights, place: float) -> None:
    stamp = shared.write(TENSORS, version=3)
    at = int(place * len(raw(shared)))
    (before,) = os.pread(shared.descriptor, 1, at)
    os.pwrite(shared.descriptor, bytes([before ^ 1]), at)
    with pytest.raises(RunError, match="the weights of version 3 did not arrive whole: their checksum is"):
        read_weights(mapped(shared.descriptor), stamp)
    os.pwrite(shared.descriptor, bytes([before]), at)
    read_weights(mapped(shared.descriptor), stamp)


def test_weights_of_another_version_are_not_taken_for_these(shared: SharedWeights) -> None:
    stamp = shared.write(TENSORS, version=3)
    with pytest.raises(RunError, match="of version 4 did not arrive whole: what lies there is of version 3"):
        read_weights(mapped(shared.descriptor), dataclasses.replace(stamp, version=4))


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The kernel gives this process no larger file, in memory or elsewhere."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_memory_that_is_full_is_one_line_and_not_a_signal(shared: SharedWeights) -> None:
    with largest_file(1 << 20), pytest.raises(RunError) as error:
        shared.write({"weight": torch.zeros(1 << 20)}, version=1)
    words = str(error.value)
    assert words.startswith("the weights for the engine's process do not fit into shared memory: 4 MiB: ")
    assert "\n" not in words
    stamp = shared.write({"weight": torch.zeros(1 << 20)}, version=1)
    assert read_weights(mapped(shared.descriptor), stamp)["weight"].sum() == 0


def test_the_memory_has_no_name_in_any_folder(shared: SharedWeights) -> None:
    shared.write(TENSORS, version=1)
    assert os.readlink(f"/proc/self/fd/{shared.descriptor}").startswith("/memfd:")
    assert os.fstat(shared.descriptor).st_nlink == 0
