"""Free memory is the least of what the machine and each container around the process leave."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from groupwise.core.machine.free_memory import containers, free_memory, give_back, held_memory

STAT = "inactive_file 30\n"


def folder(path: Path, limit: str, used: int, names: tuple[str, str], stat: str = STAT) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for name, text in zip((*names, "memory.stat"), (limit, str(used), stat), strict=True):
        (path / name).write_text(text)


def test_every_container_around_the_process_counts_and_page_cache_is_free(tmp_path: Path):
    two, one = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
    folder(tmp_path / "outer" / "inner", "max", 90, two)
    folder(tmp_path / "outer", "1000", 200, two)
    folder(tmp_path / "memory" / "box", "500", 100, one, "inactive_file 7\ntotal_inactive_file 50\n")
    folder(tmp_path / "elsewhere", "1", 1, two)
    own = tmp_path / "own"
    own.write_text("0::/outer/inner\n4:memory:/box\n9:name=systemd:/\n")
    assert sorted(containers(tmp_path, own)) == [500 - 100 + 50, 1000 - 200 + 30]


def test_a_machine_without_containers_has_none(tmp_path: Path):
    assert list(containers(tmp_path, tmp_path / "nothing")) == []


def test_what_a_process_takes_it_holds():
    before = held_memory("cpu")
    taken = torch.ones(1 << 26)
    assert held_memory("cpu") - before == pytest.approx(taken.nbytes, rel=0.02)
    assert free_memory("cpu") > 0


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_what_was_freed_below_something_that_stays_goes_back():
    blocks = [
        bytes([i % 256]) * (1 << 16) for i in range(4096)
    ]  # in the heap, not in maps of their own; the last one holds its end
    last, held = blocks[-1], held_memory("cpu")
    blocks.clear()
    give_back()
    assert held - held_memory("cpu") > 200 << 20
    assert len(last) == 1 << 16


PAGES = """
import ctypes, resource, sys
from groupwise.core.machine.free_memory import give_back, keep_freed
if sys.argv[1] == "stays":
    keep_freed()
c = ctypes.CDLL(None)
c.malloc.restype = ctypes.c_void_p

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        blocks = [ctypes.c_void_p(c.malloc(20 << 20)) for _ in range(8)]
        for block in blocks:
            c.memset(block, 1, 20 << 20)
        for block in reversed(blocks):
            c.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
again = faults()
give_back()
print(again, faults())
"""


LARGE = """
import sys
import torch
from groupwise.core.machine.free_memory import held_memory, keep_freed
keep_freed(large=sys.argv[1] == "all")
blocks = [torch.ones(size << 18) for _ in range(16) for size in (3, 12)]
last, held = blocks[-2], held_memory("cpu")
blocks.clear()
print(held - held_memory("cpu") >> 20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
@pytest.mark.slow
def test_large_blocks_go_back_as_they_are_freed_where_only_small_ones_stay():
    """Of 16 blocks of 12 MiB and 16 of 3 the large ones, and none where all stay."""
    small, every = (
        int(subprocess.check_output([sys.executable, "-c", LARGE, how], text=True)) for how in ("small", "all")
    )
    assert 16 * 12 - 8 < small <= 16 * 12
    assert every < 8


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
@pytest.mark.slow
def test_what_stays_with_the_process_is_taken_again_without_a_page_from_the_system():
    """Five times 160 MiB are 204,800 pages of 4 KiB; what was given back is taken from the system once."""
    returning, staying = (
        [int(x) for x in subprocess.check_output([sys.executable, "-c", PAGES, how], text=True).split()]
        for how in ("", "stays")
    )
    assert returning[0] > 50_000
    assert staying[0] < 1_000
    assert 20_000 < staying[1] < 60_000
