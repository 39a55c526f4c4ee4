"""A reward that does what its completion says: every way in which a user's function can fail, for real."""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import sys
import threading
import time
from typing import Any

from groupwise.core.errors import RunError
from groupwise.core.samples import Sample


def _bomb() -> float:
    while True:
        os.fork()


def _stubborn_bomb() -> float:
    while True:
        try:
            os.fork()
        except OSError:
            time.sleep(0.001)


def _forks() -> float:
    """How many processes may be started: what a fork bomb comes to."""
    for count in range(2000):
        try:
            if os.fork() == 0:
                time.sleep(600)
        except OSError:
            return float(count)
    return 2000.0


def _many() -> float:
    """Start a thousand processes, one after the other, and then threads: how many there may be of these at once."""
    for _ in range(1000):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    over, threads = threading.Event(), list[threading.Thread]()
    try:
        for _ in range(100):
            threads.append(threading.Thread(target=over.wait))
            threads[-1].start()
    except RuntimeError:
        threads.pop()
    over.set()
    for thread in threads:
        thread.join()
    return float(len(threads))


def _swarm() -> float:
    """Answers, and leaves a hundred processes that soon take every core they can get."""
    held, closed = os.pipe()
    for _ in range(100):
        if os.fork() == 0:
            os.close(closed)
            os.read(held, 1)
            time.sleep(0.3)
            while True:
                pass
    os.close(closed)
    return 1.0


def _work() -> float:
    """Half a second, of which a fifth on a core."""
    time.sleep(0.4)
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    return 1.0


def _daemon() -> float:
    """Leaves a process in a session of its own, with nothing that ties it to this one."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 4096)
            time.sleep(600)
        os._exit(0)
    os.wait()
    return 1.0


def _twice() -> float:
    os.fork()
    return 1.0


def _chatter() -> float:
    for _ in range(2000):
        print("x" * 1000)
        os.write(2, b"y" * 1000)
    return 1.0


def _close() -> float:
    os.closerange(0, 4096)
    return 1.0


def _leak(held: list[bytearray] = []) -> float:  # noqa: B006
    held.append(bytearray(400 << 20))
    return 1.0


def _group() -> float:
    os.killpg(0, 9)
    return 1.0


ACTS: dict[str, Any] = {
    "loop": lambda: sum(itertools.repeat(0)),
    "regex": lambda: re.match(r"(a+)+$", "a" * 64 + "b"),
    "segfault": lambda: ctypes.string_at(0),
    "bomb": _bomb,
    "stubborn bomb": _stubborn_bomb,
    "forks": _forks,
    "many": _many,
    "swarm": _swarm,
    "work": _work,
    "daemon": _daemon,
    "twice": _twice,
    "memory": lambda: bytearray(10 * 2**30),
    "leak": _leak,
    "exception": lambda: {}["a key of mine"],
    "surrogate": lambda: (_ for _ in ()).throw(ValueError("half \ud800 of a pair")),
    "nan": lambda: float("nan"),
    "huge": lambda: 1e308,
    "none": lambda: None,
    "string": lambda: "0.5",
    "sleep": lambda: time.sleep(600),
    "exit": lambda: sys.exit(0),
    "interrupt": lambda: (_ for _ in ()).throw(KeyboardInterrupt()),
    "hard exit": lambda: os._exit(0),
    "close": _close,
    "chatter": _chatter,
    "input": lambda: float(bool(input() + "x")),
    "group": _group,
}


def one(sample: Sample, completion: str) -> Any:
    return ACTS[completion]() if completion in ACTS else float(completion == sample.answer)


def many(samples: list[Sample], completions: list[str]) -> list[Any]:
    scores = [one(sample, completion) for sample, completion in zip(samples, completions, strict=True)]
    return scores[1:] if "short" in completions else scores


async def together(sample: Sample, completion: str) -> Any:
    return one(sample, completion)


class Leaves:
    """Ends its process while it is made."""

    def __init__(self) -> None:
        sys.exit(3)


class Interrupted(Leaves):
    def __init__(self) -> None:
        raise KeyboardInterrupt


class Gone(Leaves):
    def __init__(self) -> None:
        os._exit(3)


class Slow:
    """A task as a pool sees it: what it scores with takes long to start, and is lost after each score."""

    quick = False
    alphabet = ""
    starting: Any = None

    def start_inside(self, starting: Any) -> None:
        self.starting = starting

    def score(self, sample: Sample, completion: str) -> float:
        with self.starting():
            time.sleep(0.6)
            if completion == "lost":
                raise RunError("what it scores with cannot be started")
        return one(sample, completion)


class Late(Slow):
    """One whose scorer may hang, and whose completion is then wrong."""

    late = 0.0


class Moody:
    """Fails where it has scored before: what it holds from others breaks it, not what it is given."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, sample: Sample, completion: str) -> float:
        self.calls += 1
        return one(sample, "segfault" if self.calls > 3 else completion)
