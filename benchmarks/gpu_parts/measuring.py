"""What every part is told and how it answers: figures that have a row, a clock that waits for the device, rows."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gpu_parts.sizes import SMALL_AMOUNTS, WHOLE_AMOUNTS, Amounts
from groupwise.core.errors import GroupwiseError, shortened

Row = dict[str, Any]
#: How a row begins in what a part prints; everything else that it prints is its log.
ROW = "ROW "


@dataclass(frozen=True)
class Context:
    """What a part is told.

    device    "cuda" or "cpu"
    small     whether amounts are those for two processor cores
    models    a folder for the models and problems that are made
    smollm2   the folder of the real model; it may be missing
    have      the keys of the part's figures that have a row
    ceilings  bytes and operations a second of this machine, where they have been measured
    """

    device: str
    small: bool
    models: Path
    smollm2: Path
    have: Sequence[Mapping[str, Any]] = ()
    ceilings: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Context:
        told = json.loads(text)
        return cls(**{**told, "models": Path(told["models"]), "smollm2": Path(told["smollm2"])})

    def written(self) -> str:
        return json.dumps({**vars(self), "models": str(self.models), "smollm2": str(self.smollm2)})

    @property
    def amounts(self) -> Amounts:
        return SMALL_AMOUNTS if self.small else WHOLE_AMOUNTS

    def measure(self, key: Mapping[str, Any], figure: Callable[[], Mapping[str, Any]]) -> None:
        """Print the row of a figure that has none; of one that fails, a row that says why, and the next can follow."""
        if key in self.have:
            return
        try:
            row = {"key": key, **figure()}
        except (GroupwiseError, RuntimeError, OSError, ValueError, ImportError) as error:
            said = shortened(" ".join(str(error).split()), 300)
            row = {"key": key, "failed": f"{type(error).__name__}: {said}"}
        free(self.device)
        print(ROW + json.dumps(row), flush=True)


class NotEqual(GroupwiseError):
    """The fast path differs from the plain one, so that nothing of it is timed."""


def require_close(what: str, difference: float, limit: float) -> None:
    """Raises NotEqual for a difference that is not within the limit."""
    if not difference <= limit:
        raise NotEqual(f"{what}: {difference:.3g} from the plain path, limit {limit:.3g}; not timed")


def wait(device: str) -> None:
    """Return when the device has done all that it was given."""
    if device != "cpu":
        torch.cuda.synchronize()


def free(device: str) -> None:
    """Give unused blocks back to the device."""
    if device != "cpu":
        torch.cuda.empty_cache()


def seconds(device: str, call: Callable[[], object]) -> float:
    """Seconds of one call, with the device's work at its end."""
    wait(device)
    begun = time.perf_counter()
    call()
    wait(device)
    return time.perf_counter() - begun


def median_seconds(device: str, call: Callable[[], object], runs: int) -> float:
    """Seconds of a call: the median of `runs`, after one that warms up."""
    return statistics.median([seconds(device, call) for _ in range(runs + 1)][1:])


def start_of_peak(device: str) -> None:
    """Count the peak of the allocator anew."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()


def peak_gib(device: str) -> float | None:
    """The most that torch's allocator held since `start_of_peak`; None on a CPU, which has none."""
    return round(torch.cuda.max_memory_allocated() / 2**30, 3) if device != "cpu" else None
