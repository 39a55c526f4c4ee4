"""The command in processes of their own, forked from one that has imported everything: an import costs nine seconds.

That a fresh interpreter does the same is shown by the slow tests and by the two commands of the README.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(["groupwise.cli", "groupwise.commands.train.train"])


class CommandProcess:
    """`groupwise WORDS` in a process of its own; used as a subprocess.Popen is.

    threads    of torch; as many as this process has unless it is given, so that both compute the same bits
    file_size  bytes of the largest file that the system lets it write; None sets no limit
    """

    def __init__(self, *words: str, threads: int | None = None, file_size: int | None = None) -> None:
        handle, name = tempfile.mkstemp(prefix="command-")
        os.close(handle)
        self._output = Path(name)
        self._process: Any = _CONTEXT.Process(
            target=_run, args=(words, name, threads or torch.get_num_threads(), file_size)
        )
        self._process.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def said(self) -> str:
        """All that it has said so far."""
        return self._output.read_text()

    def communicate(self, timeout: float = 60) -> str:
        """All that was said, stdout and stderr, after its end. Raises TimeoutError where it does not end."""
        self._process.join(timeout)
        if self.returncode is None:
            self.kill()
            raise TimeoutError(f"still running after {timeout:g} s: {self.said()[-2000:]}")
        said = self.said()
        self._output.unlink(missing_ok=True)
        return said


def _run(words: Sequence[str], output: str, threads: int, file_size: int | None) -> None:
    from groupwise.cli import main

    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    torch.set_num_threads(threads)
    if file_size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
    sys.argv = ["groupwise", *words]
    main()
