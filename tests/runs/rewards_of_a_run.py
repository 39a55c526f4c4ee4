"""Rewards that a run's tests name by file: some fail for real, each in its own way, on a few of the completions."""

from __future__ import annotations

import ctypes
import itertools
import os
import time
import zlib

FAULTS = [
    ("loop in C", lambda: sum(itertools.repeat(0))),
    ("segfault", lambda: ctypes.string_at(0)),
    ("ten gigabytes", lambda: bytearray(10 * 2**30)),
    ("exception", lambda: [][3]),
    ("not a number", lambda: float("nan")),
    ("sleep", lambda: time.sleep(600)),
]


def kind_of(key: str, completion: str) -> int:
    """Which fault a completion meets; most meet none."""
    return zlib.crc32(f"{key}/{completion}".encode()) % 60


def risky(sample, completion):
    kind = kind_of(sample.key, completion)
    if kind < len(FAULTS):
        return FAULTS[kind][1]()
    return 1.0 if completion.endswith(sample.answer) else 0.0


def goes_off(key: str) -> bool:
    """Whether the completions of a problem meet the fork bomb: about one problem in four, whatever is sampled."""
    return zlib.crc32(key.encode()) % 4 == 1


def bomb(sample, completion):
    while goes_off(sample.key):
        os.fork()
    return 1.0


def short(completions, **kwargs):
    """As TRL has them."""
    return [-float(len(completion)) for completion in completions]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """As verl has it."""
    return {"score": float(solution_str.endswith(ground_truth)), "data": data_source}


async def patient(samples, completions):
    return [float("=" in text) for text in completions]


class Counts:
    def __init__(self, letter="="):
        self.letter = letter

    def __call__(self, attempts):
        return [float(a.completion.count(self.letter)) for a in attempts]
