"""What a device does in a second, and what it holds: a row of devices.toml, or this machine's processor, measured."""

import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from groupwise.core.errors import UsageError, nearest

#: The device that is measured.
CPU = "cpu"
#: Rows of the square matrices that are multiplied to measure, bytes that are copied, and how often at most.
MATRIX, COPIED, TRIES = 1024, 1 << 27, 8


@dataclass(frozen=True)
class Device:
    """One device of a run: a GPU with its part of the network, or a rank's part of this machine's processor.

    memory           bytes that a rank may hold
    bf16, fp32       operations a second of matrix products, at most
    bandwidth        bytes a second from and to its memory, at most
    inside, between  bytes a second to another device of the same machine, and by its own card to another machine
    machine          devices of a machine
    reached          share of bf16 or fp32 that a forward or backward pass reaches
    sampling         share of the bandwidth that sampling reaches
    network          share of inside or between that a collective reaches
    call, layer      seconds that a collective, and a layer of a pass, take at least
    host             bytes a second between the processors of two ranks, on which rank 0 sends what it says
    overlaps         whether weights and gradients pass while others are computed with
    doubled          whether gradients pass twice, as where a backend adds up whole tensors and takes a part
    source           where the numbers come from
    """

    name: str
    title: str
    memory: float
    bf16: float
    fp32: float
    bandwidth: float
    inside: float
    between: float
    machine: int
    reached: float
    sampling: float
    network: float
    call: float
    layer: float
    host: float
    overlaps: bool
    doubled: bool
    source: str

    def speed(self, bf16: bool) -> float:
        """Operations a second that a pass reaches."""
        return self.reached * (self.bf16 if bf16 else self.fp32)

    def link(self, ranks: int) -> float:
        """Bytes a second that reach each of so many ranks in a collective.

        Rings over several machines enter each of them by all of its network cards, a part of the bytes by each.
        """
        apart = self.machine * self.between if ranks > self.machine else self.inside
        return self.network * min(self.inside, apart)


def known_devices() -> list[str]:
    """The names that `device_of` takes."""
    return [CPU, *(name for name in _table() if name not in (CPU, "assumed"))]


def device_of(name: str, ranks: int, free: int) -> Device:
    """The device of that name, of which `ranks` work together; `free` bytes are those of this machine's processor.

    Raises UsageError for a name that no row has.
    """
    if name == CPU:
        return _measured(ranks, free)
    if name not in known_devices():
        raise UsageError(f"--device {name}: {nearest(name, known_devices())}")
    row = _table()[name] | _table()["assumed"]
    return Device(name=name, overlaps=True, doubled=False, **(row | {"memory": row["memory"] * 2**30}))


def _measured(ranks: int, free: int) -> Device:
    """A rank's part of this machine's processor: its threads, and the memory that all ranks share."""
    row, threads = _table()[CPU], max(1, torch.get_num_threads() // ranks)
    with _one_thread():
        fp32, bf16 = (threads * _multiplied_per_second(dtype) for dtype in (torch.float32, torch.bfloat16))
        bandwidth = _copied_per_second()
    return Device(
        name=CPU,
        title=f"{threads} thread{'s' * (threads > 1)} of this machine for each rank",
        memory=free,
        bf16=bf16,
        fp32=fp32,
        bandwidth=bandwidth,
        inside=row["host"],
        between=row["host"],
        machine=ranks,
        overlaps=False,
        doubled=True,
        source=f"measured now on one thread: products of {MATRIX} x {MATRIX}, a copy of {COPIED >> 20} MiB",
        **row,
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Inside, torch has one: two that share their cores with other work would wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _multiplied_per_second(dtype: torch.dtype) -> float:
    """Operations of a matrix product, two for each pair of numbers."""
    a, b = (torch.rand(MATRIX, MATRIX).to(dtype) for _ in range(2))
    return 2 * MATRIX**3 / _quickest(lambda: a @ b)


def _copied_per_second() -> float:
    """Bytes read and written."""
    a = torch.zeros(COPIED, dtype=torch.uint8)
    b = torch.empty_like(a)
    return 2 * COPIED / _quickest(lambda: b.copy_(a))


def _quickest(work: Callable[[], object]) -> float:
    """Seconds of the quickest of some tries, of which the first only warms up."""
    work()
    seconds = []
    for _ in range(TRIES):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


@lru_cache
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("devices.toml").read_text(encoding="utf-8"))
