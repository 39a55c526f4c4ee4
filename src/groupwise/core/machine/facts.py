"""Facts that a run depends on and its recipe does not say: the machine, the libraries, and the memory it took."""

import platform
import resource
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import transformers

#: What getrusage counts memory in: kibibytes on Linux, bytes on macOS.
RSS_UNIT = 1 if sys.platform == "darwin" else 2**10


def where(device: str) -> dict[str, Any]:
    """Say the machine in a few words, "x86_64, 2 threads, cpu", and the versions of what computes the numbers."""
    return {
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, {device}",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def peak_bytes() -> int:
    """Return the most memory that this process has held so far, or since `count_peak_anew`.

    On Linux a process that is started takes over its parent's ru_maxrss, so that a small child of a large parent would
    look large; VmHWM is its own.
    """
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT


def count_peak_anew() -> None:
    """Let what was held until now and is free again not count as the most; on Linux alone."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def machine_row(step: int) -> dict[str, Any]:
    """Return a line of machine.jsonl: the time, unix seconds, and the most memory held so far, MiB."""
    row = {"step": step, "time": round(time.time(), 3)}
    row["memory_peak_mib"] = round(peak_bytes() / 2**20, 1)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        row["device_memory_peak_mib"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
    return row
