"""The constants of an estimate of time: a row of devices.toml, a file of one's own, or this machine, measured."""

import tomllib
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from timeit import repeat
from typing import Any

import torch

from groupwise.core.errors import UsageError, nearest

#: The device that is measured.
CPU = "cpu"
#: Rows of the matrices that are multiplied to measure, bytes that are copied, and how often: the quickest counts.
MATRIX, COPIED, TRIES = 1024, 1 << 27, 8
GIB = 1 << 30


@dataclass(frozen=True)
class Device:
    """One device of a run: a GPU with its part of the network, or a rank's part of this machine's processor.

    memory           bytes that a rank may hold
    bf16, fp32       operations a second of matrix products, at most
    bandwidth        bytes a second from and to its memory, at most
    inside, between  bytes a second to another device of the same machine, and by its own card to another machine
    machine          devices of a machine
    reached          share of bf16 or fp32 that a pass reaches
    streamed         share of the bandwidth that reading weights and caches reaches
    network          share of inside or between that a collective reaches
    host             bytes a second between two processes, on which weights go to an engine outside of the run
    layer            seconds that a layer takes at least, for each pass over it
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
    streamed: float
    network: float
    host: float
    layer: float
    source: str

    def link(self, ranks: int) -> float:
        """Compute the bytes a second that reach each of so many ranks in a collective.

        Rings over several machines enter each of them by all of its network cards, a part of the bytes by each.
        """
        apart = self.machine * self.between if ranks > self.machine else self.inside
        return self.network * min(self.inside, apart)


def known_devices() -> list[str]:
    """List the names that `device_of` takes."""
    return [CPU, *(name for name in _table() if name not in (CPU, "assumed"))]


def device_of(name: str, ranks: int, free: int) -> Device:
    """Find the device of that name, of which `ranks` work together; `free` bytes are those of this machine.

    Raises UsageError for a name that no row has, and for a file (NAME.toml) whose keys are not those of a row.
    """
    if name == CPU:
        return _measured(ranks, free)
    if name.endswith(".toml"):
        row = _of_file(Path(name))
    elif name in known_devices():
        row = _table()["assumed"] | _table()[name]
    else:
        raise UsageError(f"--device {name}: {nearest(name, known_devices())}, or a file of constants, NAME.toml")
    return Device(name=name, **(row | {"memory": row["memory"] * GIB}))


def _of_file(path: Path) -> dict[str, Any]:
    try:
        row = {"title": path.stem, "source": str(path), **_table()["assumed"], **tomllib.loads(path.read_text("utf-8"))}
    except (OSError, ValueError) as error:
        raise UsageError(f"--device {path}: cannot be read: {error}") from None
    known = set(Device.__dataclass_fields__) - {"name"}
    if unknown := sorted(set(row) - known):
        raise UsageError(f"--device {path}: {unknown[0]}: {nearest(unknown[0], sorted(known))}")
    for key in sorted(known - {"title", "source"}):
        if type(row.get(key)) not in (int, float) or not row[key] > 0:
            raise UsageError(f"--device {path}: {key}: expected a number above 0, not {row.get(key)!r}")
    return row


def _measured(ranks: int, free: int) -> Device:
    """Measure a rank's part of this machine's processor: its threads, and the memory that all ranks share."""
    row, before = _table()[CPU], torch.get_num_threads()
    threads = max(1, before // ranks)
    one, other = torch.zeros(2, COPIED, dtype=torch.uint8)
    matrices = [torch.rand(MATRIX, MATRIX).to(dtype) for dtype in (torch.float32, torch.bfloat16)]
    tried = [*(partial(torch.mm, a, a) for a in matrices), partial(one.copy_, other)]
    torch.set_num_threads(1)  # two that share their cores with other work would wait for one another
    try:
        fp32, bf16, copied = (min(repeat(work, number=1, repeat=TRIES)) for work in tried)
    finally:
        torch.set_num_threads(before)
    return Device(
        name=CPU,
        title=f"{threads} thread{'s' * (threads > 1)} of this machine for each rank",
        memory=free,
        bf16=threads * 2 * MATRIX**3 / bf16,
        fp32=threads * 2 * MATRIX**3 / fp32,
        bandwidth=2 * COPIED / copied,
        inside=row["host"],
        between=row["host"],
        machine=ranks,
        source=f"measured now on one thread: products of {MATRIX} x {MATRIX}, a copy of {COPIED >> 20} MiB",
        **row,
    )


@lru_cache
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("devices.toml").read_text(encoding="utf-8"))
