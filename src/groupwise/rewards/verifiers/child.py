"""The other side of a guard: a process that reads questions as JSON lines, answers each, and dies with its parent."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import select
import sys
from collections.abc import Callable

from groupwise.core.errors import UsageError

#: An answer that needs more memory than this fails: bytes of address space.
MEMORY = 4 * 2**30


def serve(prepare: Callable[[], Callable[..., object]]) -> None:
    """Answers every line of stdin until it closes.

    prepare  loads what is needed and gives the function that answers; its UsageError is passed on to the asker
    """
    _tie(int(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not be taken for an answer
    try:
        answer = prepare()
    except UsageError as error:
        _tell(out, str(error))
        return
    _tell(out, None)
    for line in sys.stdin:
        _tell(out, answer(*json.loads(line)))


def _tie(lifeline: int) -> None:
    """When the parent's end of the pipe closes SIGIO comes, whose default action ends even a process inside C code."""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:
        raise SystemExit(0)  # the parent was gone before


def _tell(out, value: object) -> None:
    out.write(json.dumps(value) + "\n")
    out.flush()
