"""What an actor is: it starts one process on its machine, waits for its end, and says how that was."""

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.core.processes.children import Child
from groupwise.core.processes.tail import Tail

#: The module that runs in the process.
MODULE = "groupwise.actors.called_back"
#: Seconds in which the rest of what an ended process printed must have come.
REST = 1.0
#: What Ray sets for its own processes, and a run's are to have as the run has it.
OF_THE_RUN = "OMP_NUM_THREADS"


class Host:
    """A process of a run. It ends with the actor, which ends with its Ray, its machine, or the run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._ending = False

    def run(
        self,
        module: str,
        options: Mapping[str, Any],
        python: str | None,
        path: Sequence[str],
        folder: str,
        threads: str | None,
        call: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Starts it and waits -> its exit code, and what it printed last.

        path     the run's sys.path, before this machine's own
        folder   its working folder, where this machine has such a one
        threads  the run's OMP_NUM_THREADS
        call     where it reaches the run: host, port, token
        """
        environment = {name: value for name, value in os.environ.items() if name != OF_THE_RUN}
        if threads is not None:
            environment[OF_THE_RUN] = threads
        tail = Tail()
        try:
            with self._lock:
                if self._ending:
                    return {"code": None, "printed": ""}
                self._child = child = Child(
                    MODULE,
                    {"module": module, "options": options},
                    command=[python, "-P"] if python else (),
                    alone=python is not None,
                    path=[*path, *(entry for entry in sys.path if entry not in path)],
                    environment=environment,
                    folder=folder if os.path.isdir(folder) else None,
                    stderr=tail.writing,
                )
        finally:
            tail.given()
        child.send({**call, "node": _node()})
        code = child.process.wait()
        child.close()  # and what it has left
        return {"code": code, "printed": tail.text(REST)}

    def end(self) -> None:
        """Ends the process, with all that it started."""
        with self._lock:
            self._ending = True
            child = self._child
        if child is not None:
            child.close()


def _node() -> str:
    """The machine, as Ray names it."""
    import ray  # pyright: ignore[reportMissingImports]

    context = ray.get_runtime_context()
    return f"{context.get_node_id()[:8]} at {ray.util.get_node_ip_address()}"
