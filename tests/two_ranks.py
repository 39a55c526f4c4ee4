"""Processes of a test that find one another, two where no number is said: started together, and ended together.

They are forked from a process that has imported what they run, and that is forked from the warm one.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from groupwise.training.mesh import rendezvous
from tests.warm import WarmPopen

ROOT = Path(__file__).parents[1]
CODE = """
import json, sys, warnings
from tests.two_ranks import fork_ranks
warnings.simplefilter("error")
print(json.dumps(fork_ranks(*sys.argv[1:])))
"""
WarmPopen.codes.add(CODE)


def ran(
    module: str, arguments: Sequence[str], seconds: float, ranks: int = 2
) -> list[subprocess.CompletedProcess[str]]:
    """`python -m module RANK PORT *arguments` on each rank, with one thread, to its end or that of its time.

    All meet at a store that this process keeps at a free port.
    """
    store = rendezvous("127.0.0.1", 0, ranks, leads=True, seconds=seconds)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "OMP_NUM_THREADS": "1"}
    with TemporaryDirectory() as folder:
        own = [module, folder, str(ranks), str(store.port), *arguments]
        process = WarmPopen(
            [sys.executable, "-c", CODE, *own],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            codes = json.loads(process.communicate(timeout=seconds)[0])
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        said = [said_by(Path(folder), rank).read_text() for rank in range(ranks)]
    return [subprocess.CompletedProcess(own, code, out) for code, out in zip(codes, said, strict=True)]


def said_by(folder: Path, rank: int) -> Path:
    return folder / f"said-by-{rank}"


def fork_ranks(module: str, folder: str, ranks: str, port: str, *arguments: str) -> list[int]:
    """A process for each rank, in which `module.main` reads its words -> how they ended."""
    main = importlib.import_module(module).main
    started = []
    for rank in range(int(ranks)):
        if not (process := os.fork()):
            sys.argv = [module, str(rank), port, *arguments]
            live(main, said_by(Path(folder), rank))
        started.append(process)
    return [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in started]


def live(main: Callable[[], None], said: Path) -> NoReturn:
    with said.open("w", buffering=1) as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        try:
            main()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        sys.stdout.flush()
    os._exit(0)
