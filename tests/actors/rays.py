"""Real Rays of tests, and the processes that live there."""

from __future__ import annotations

import importlib.util
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'groupwise[ray]'"
)

#: Modules that run in processes of actors, by what they do.
MODULES = {
    "rank": "groupwise.commands.build.learner",
    "engine": "groupwise.engines.outside.server",
    "pool": "groupwise.rewards.pool.remote",
}


def small(*roles: str) -> dict[str, Any]:
    """So little asked for that a machine has it beside whatever else runs there."""
    return {f"placement.{role}_cpus": 0.1 for role in roles}


def processes(*words: str) -> list[int]:
    """The living processes that have all these words in their command lines."""
    living = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_text()
            zombie = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue
        if all(word in line for word in words) and not zombie and int(entry.name) != os.getpid():
            living.append(int(entry.name))
    return living


def in_actors(role: str) -> list[int]:
    """The processes of runs that live in actors and do this."""
    return processes("groupwise.actors.called_back", MODULES[role])


def actors() -> list[int]:
    """Ray's own processes, one an actor."""
    return processes("ray::Host")


def gone(seconds: float = 20.0) -> bool:
    """Whether all processes of actors end within these seconds."""
    end = time.monotonic() + seconds
    while any(map(in_actors, MODULES)) or processes("groupwise.actors.broker"):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


class Machines:
    """A Ray of two nodes, both on this machine, as two machines would be. Ray takes a token from whoever joins.

    address      of the Ray
    environment  what a run that joins needs in its own
    """

    def __init__(self, folder: str, cpus: int) -> None:
        self._folder = folder
        self.environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self._cpus = cpus
        self.address = ""

    def begin(self) -> None:
        """Starts both nodes."""
        cpus, folder = self._cpus, self._folder
        self._start("--head", "--port=0", f"--temp-dir={folder}", f"--num-cpus={cpus}", "--include-dashboard=false")
        self.address = (Path(folder) / "ray_current_cluster").read_text().strip()
        self._start(f"--address={self.address}", f"--num-cpus={cpus}")

    def raylets(self) -> list[int]:
        """The process that is each node, the head's first."""
        return sorted(processes("/raylet/raylet", self._folder))

    def stop(self) -> None:
        """Ends every process of it."""
        for pid in processes(self._folder):
            os.kill(pid, signal.SIGKILL)

    def _start(self, *words: str) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "RAY_USAGE_STATS_ENABLED": "0",
            **self.environment,
        }
        command = [str(Path(sys.executable).with_name("ray")), "start", "--disable-usage-stats", *words]
        command += [f"--object-store-memory={100 * 2**20}"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def machines(cpus: int = 4) -> Iterator[Machines]:
    """A Ray of two nodes with so many CPUs each."""
    with tempfile.TemporaryDirectory(prefix="gw-ray-", ignore_cleanup_errors=True) as folder:
        ray = Machines(folder, cpus)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in ray.environment.items():
                patch.setenv(name, value)
            try:
                ray.begin()
                yield ray
            finally:
                ray.stop()
