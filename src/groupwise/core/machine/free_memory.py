"""Memory that a process holds, and that it can take: the machine's, a container's, or a GPU's."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from groupwise.core.machine.facts import peak_bytes

#: Where Linux says what the machine has, and what the containers do that this process is in.
MEMINFO, CGROUPS, OWN_CGROUPS = Path("/proc/meminfo"), Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
#: Files of a container's limit and use: of the second version of cgroups, and of the first.
LIMITS = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
#: Of glibc's mallopt: the options, by their numbers in malloc.h, and what they are set to, bytes. Blocks of 32 MiB or
#: more have pages of their own in any case; no option of glibc goes higher.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
KEEP_ALL = {MMAP_THRESHOLD: 32 << 20, TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 64 << 20}
KEEP_SMALL = {MMAP_THRESHOLD: 4 << 20, TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 0}


def held_memory(device: str) -> int:
    """Count the bytes that this process holds now, on a GPU those of torch's tensors."""
    if device != "cpu":
        return torch.cuda.memory_allocated()
    if sys.platform != "linux":
        return peak_bytes()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def free_memory(device: str) -> int:
    """Count the bytes that this process can take beside those that it holds."""
    if device != "cpu":
        free, _ = torch.cuda.mem_get_info()
        return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    if not MEMINFO.exists():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") - held_memory(device)
    return min([available(MEMINFO.read_text()), *containers(CGROUPS, OWN_CGROUPS)])


def give_back_card() -> None:
    """Return to the GPU what was freed here and torch still keeps, so that another process can take it."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def card_memory() -> tuple[int, int]:
    """Count the bytes of the GPU that another process can take, beside what this one holds; and all that it has."""
    give_back_card()
    return torch.cuda.mem_get_info()


def give_back() -> None:
    """Return to the machine what was freed here and the C library still keeps; without glibc nothing happens.

    It keeps what it may need again, but in pieces: without this a policy of 135 million parameters, whose step takes
    and frees 1.5 GiB in blocks of all sizes, holds some 300 MiB more after each of its first steps.
    """
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def keep_freed(large: bool = True) -> None:
    """Let what is freed here from now on stay with the process, for what it takes next; without glibc nothing happens.

    The C library returns the end of its heap whenever that is free. A microbatch takes and frees all of its
    activations, so each takes every page from the system again: an eighth of an update's time. `give_back` returns it.

    large  whether blocks of 4 MiB and more stay too. Where they do not, an update holds what its tensors are: else
           gradients, which stay for longer, take pieces of what activations have freed, and those need new memory
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        for option, value in (KEEP_ALL if large else KEEP_SMALL).items():
            mallopt(option, value)


@contextmanager
def freed_stays(large: bool = True) -> Iterator[None]:
    """Keep what is freed inside with the process (`keep_freed`); before and behind it, give it back."""
    give_back()
    keep_freed(large)
    try:
        yield
    finally:
        give_back()


def available(meminfo: str) -> int:
    """Read the bytes that can be taken without swapping.

    >>> available("MemTotal: 8 kB\\nMemAvailable:       3 kB")
    3072
    """
    fields = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024


def containers(root: Path, own: Path) -> Iterator[int]:
    """Yield what each container around this process leaves; page cache that can be dropped counts as free."""
    lines = own.read_text().splitlines() if own.exists() else []
    places = {line.split(":", 2)[2].lstrip("/") for line in lines if line.count(":") >= 2}
    folders = {folder for place in places for base in (root, root / "memory") for folder in _upward(base, base / place)}
    for folder in sorted(folders):
        for limit, used in LIMITS:
            with suppress(OSError, ValueError):  # "max" is no number: no limit
                yield int((folder / limit).read_text()) - int((folder / used).read_text()) + _droppable(folder)


def _upward(base: Path, folder: Path) -> list[Path]:
    return [each for each in (folder, *folder.parents) if each == base or base in each.parents]


def _droppable(folder: Path) -> int:
    fields = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return int(fields.get("total_inactive_file", fields.get("inactive_file", 0)))
