"""Processes of a test that find one another, two where no number is said: started together, and ended together."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from groupwise.training.mesh import rendezvous

ROOT = Path(__file__).parents[1]


def ran(
    module: str, arguments: Sequence[str], seconds: float, ranks: int = 2
) -> list[subprocess.CompletedProcess[str]]:
    """`python -m module RANK PORT *arguments` on each rank, with one thread, to its end or that of its time.

    All meet at a store that this process keeps at a free port.
    """
    store = rendezvous("127.0.0.1", 0, ranks, leads=True, seconds=seconds)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-m", module, str(rank), str(store.port), *arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        said = [process.communicate(timeout=seconds)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [subprocess.CompletedProcess(p.args, p.returncode, out) for p, out in zip(processes, said, strict=True)]
