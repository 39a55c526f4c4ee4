"""The command in processes of their own, forked from one that has imported everything: an import costs nine seconds.

That a fresh interpreter does the same is shown by the slow tests and by the two commands of the README.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import torch

from tests.warm import WarmPopen

#: What such a process runs: threads of torch, bytes of the largest file or "", and the command's words.
CODE = """
import resource, sys
import torch
from groupwise.cli.__main__ import main
_, threads, file_size, *words = sys.argv
sys.stdout.reconfigure(line_buffering=True)
torch.set_num_threads(int(threads))
if file_size:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(file_size), int(file_size)))
sys.argv = ["groupwise", *words]
main()
"""
WarmPopen.codes.add(CODE)


class CommandProcess(WarmPopen):
    """`groupwise WORDS` in a process of its own.

    threads    of torch; as many as this process has unless it is given, so that both compute the same bits
    file_size  bytes of the largest file that the system lets it write; None sets no limit
    """

    def __init__(self, *words: str, threads: int | None = None, file_size: int | None = None) -> None:
        self._output, name = tempfile.mkstemp()
        os.unlink(name)
        given = [str(threads or torch.get_num_threads()), str(file_size or "")]
        super().__init__([sys.executable, "-c", CODE, *given, *words], stdout=self._output, stderr=subprocess.STDOUT)

    def said(self) -> str:
        """All that it has said so far."""
        return os.pread(self._output, os.fstat(self._output).st_size, 0).decode()

    def communicate(self, timeout: float = 60) -> str:  # type: ignore[override]
        """Wait for its end -> all that was said, stdout and stderr. Raises TimeoutError if it does not end."""
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"still running after {timeout:g} s: {self.said()[-2000:]}") from None
        said = self.said()
        os.close(self._output)
        return said
