"""A stranger's program (a template, a tokenizer's rules), run once in a process that can be ended."""

import resource
from collections.abc import Mapping
from typing import Any

from groupwise.core.errors import RunError
from groupwise.core.peer import PeerLost
from groupwise.core.processes.children import Child

#: Seconds in which the process must have started; then the most that a few words may take: seconds, and bytes.
START_SECONDS, SECONDS, MEMORY = 120.0, 10.0, 2**30
TOO_LARGE = f"takes more than {MEMORY / 2**20:,.0f} MiB of memory for a few words"


def limit_memory() -> None:
    """Give this process MEMORY bytes, and let it leave no picture of them if it ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def tried(module: str, question: Mapping[str, Any], what: str) -> str:
    """Ask a process that runs `module` what is wrong with the program in `question`; "" if nothing is.

    The process says that it is ready, is sent the question, and answers {"excess": ...}.

    what  the program, in words
    Raises RunError if no process can be started.
    """
    child = Child(module)
    try:
        try:
            child.receive(START_SECONDS)
        except PeerLost as lost:
            raise RunError(f"the process that tries {what} did not start: {lost}") from None
        child.send(question, seconds=SECONDS)
        return child.receive(SECONDS)["excess"]
    except PeerLost as lost:
        return f"takes more than {SECONDS:g} seconds for a few words" if lost.late else f"ends its process ({lost})"
    finally:
        child.close()
