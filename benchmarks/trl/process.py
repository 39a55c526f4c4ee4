"""What each side's process says of itself: its peak memory, its versions, and what the machine can do at most."""

import json
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

#: The side of the square matrices whose product is the ceiling, and how many products are tried.
SIDE, TRIES = 1536, 12
#: What getrusage counts memory in: bytes on macOS, kibibytes elsewhere.
RSS_UNIT = 1 if sys.platform == "darwin" else 2**10


def peak_mib() -> dict[str, float]:
    """The most memory this process held, and the largest of those that it started and that ended."""
    who = {"memory_mib": resource.RUSAGE_SELF, "largest_child_mib": resource.RUSAGE_CHILDREN}
    return {name: round(resource.getrusage(each).ru_maxrss * RSS_UNIT / 2**20, 1) for name, each in who.items()}


def ceiling() -> float:
    """Operations a second of the fastest of a few fp32 matrix products."""
    left, right = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    seconds = []
    for _ in range(TRIES):
        start = time.perf_counter()
        torch.mm(left, right)
        seconds.append(time.perf_counter() - start)
    return 2 * SIDE**3 / min(seconds)


def machine() -> str:
    """The processor's name, and how many of it there are."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def finish(out: Path, steps: list[dict[str, float]], **more: Any) -> None:
    """Write the side's row."""
    row = {"steps": steps, **more, "ceiling": round(ceiling()), "threads": torch.get_num_threads()}
    row["machine"] = machine()
    row["versions"] = {name: version(name) for name in ("torch", "transformers")}
    out.write_text(json.dumps(row))


def mean(values: Sequence[float]) -> float:
    return round(statistics.fmean(values), 3)
