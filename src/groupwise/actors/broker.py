"""The one process of a run that imports Ray, and the actors that it starts there.

Ray's threads, signal handlers, log lines, warnings and libraries stay in this process. It ends with the run, and then
Ray ends the actors. All that a run asks for is one placement group, which is granted whole or not at all, so that no
run waits for ever for its second engine.
"""

import os
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from groupwise.core.channel import Channel, FrameError
from groupwise.core.errors import one_line, shortened
from groupwise.core.processes.children import Child, Tail
from groupwise.core.processes.network import LOOPBACK

#: Bytes of a started Ray's store of objects: nothing of a run goes through it.
STORE = 100 * 2**20
#: Seconds that an actor may take to end its process before it is ended itself.
ENDS = 5.0
#: The module that runs in an actor's process.
MODULE = "groupwise.actors.called_back"
#: Seconds in which the rest of what an ended process printed must have come.
REST = 1.0
#: A variable that Ray sets for its own processes; those of a run have it as the run does.
OF_THE_RUN = "OMP_NUM_THREADS"


def main(
    run: Channel, address: str, strategy: str, bundles: Sequence[Sequence[Any]], seconds: float, folder: str
) -> None:
    """Serve the run at the other end of the channel.

    bundles  of each process its role, and what it asks for by Ray's names
    folder   of a Ray that is started for the run; "" where one is there already
    """
    os.dup2(2, 1)  # whatever Ray prints goes where the run keeps its end
    until = time.monotonic() + seconds
    try:
        ray = joined(address, folder)
    except Exception as error:  # Ray's are of many classes
        run.send({"refused": shortened(one_line(error))})
        return
    broker = Broker(run, ray, [(role, dict(resources)) for role, resources in bundles])
    try:
        if broker.reserve(strategy.upper().replace("-", "_"), until, grows=not folder):
            broker.serve()
    except (EOFError, OSError, FrameError):
        pass  # the run is gone
    finally:
        broker.close()


class Broker:
    """The places that a run has at a Ray.

    ray      the module, connected
    bundles  of each process its role, and what it asks for by Ray's names
    """

    def __init__(self, run: Channel, ray: Any, bundles: Sequence[tuple[str, Mapping[str, float]]]) -> None:
        self._run, self._sending, self._ray = run, threading.Lock(), ray
        self._bundles, self._free = bundles, [index for index, _ in enumerate(bundles)]
        self._actors: dict[int, Any] = {}
        self._left = False

    def reserve(self, strategy: str, until: float, grows: bool) -> bool:
        """Reserve all that the run asks for and tell the run, or else what there is -> whether it was reserved.

        strategy  of the placement group, by Ray's name
        grows     whether other machines may join during the wait
        """
        from ray.util.placement_group import placement_group  # pyright: ignore[reportMissingImports]

        ray, wanted = self._ray, [dict(resources) for _, resources in self._bundles]
        if grows or fits(wanted, ray.cluster_resources()):
            self._group = placement_group(wanted, strategy=strategy)
            if self._group.wait(timeout_seconds=max(1, int(until - time.monotonic()))):
                nodes = sum(node["Alive"] for node in ray.nodes())
                host = ray.util.get_node_ip_address() if grows else LOOPBACK
                self._send({"host": host, "nodes": nodes, "ray": ray.__version__})
                return True
        self._send({"lacks": what_there_is(ray)})
        return False

    def serve(self) -> None:
        """Start and end actors until the run says stop or is gone."""
        while "stop" not in (message := self._run.receive()):
            if "start" in message:
                self._start(message["start"], **message["process"])
            elif actor := self._actors.get(message["end"]):
                actor.end.remote()
                late = threading.Timer(ENDS, self._kill, [actor])
                late.daemon = True
                late.start()

    def close(self) -> None:
        """Leave Ray, which ends what it has of the run."""
        self._left = True
        self._ray.shutdown()

    def _start(self, number: int, role: str, **process: Any) -> None:
        index = next((i for i in self._free if self._bundles[i][0] == role), None)
        if index is None:
            self._send({"ended": number, "words": f"the run has asked Ray for no other {role}", "code": None})
            return
        self._free.remove(index)
        resources = self._bundles[index][1]
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # pyright: ignore[reportMissingImports]

        actor = (
            self._ray.remote(Host)
            .options(
                num_cpus=resources.get("CPU", 0),
                num_gpus=resources.get("GPU", 0),
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index),
                max_concurrency=2,
            )
            .remote()
        )
        self._actors[number] = actor
        ended = actor.run.remote(**process)
        threading.Thread(target=self._watch, args=(number, actor, index, ended), daemon=True).start()

    def _watch(self, number: int, actor: Any, index: int, ended: Any) -> None:
        try:
            how = self._ray.get(ended)
        except Exception as error:  # Ray's are of many classes
            words, lost = loss(error)
            how = {"code": None, "words": words, "printed": "", "lost": lost}
        self._kill(actor)
        del self._actors[number]
        self._free.append(index)
        self._send({"ended": number, **how})

    def _kill(self, actor: Any) -> None:
        if not self._left:  # Ray would be joined once more
            with suppress(Exception):  # it is gone
                self._ray.kill(actor)

    def _send(self, message: Mapping[str, Any]) -> None:
        with suppress(OSError), self._sending:
            self._run.send(message)


class Host:
    """An actor: it starts one process of the run, and ends with its Ray, its machine, or the run.

    The process is a child rather than the actor itself, because Ray's worker has Ray's threads, libraries and way to
    die; so a run has the same bits, and the same words for an end, with Ray and without.
    """

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
        """Start the process and wait -> its exit code, and what it printed last.

        path     the run's sys.path, before this machine's own
        folder   the run's working folder, if this machine has it
        threads  the run's OMP_NUM_THREADS
        call     how the process reaches the run: host, port, token
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
        """End the process, with all that it started."""
        with self._lock:
            self._ending = True
            child = self._child
        if child is not None:
            child.close()


def _node() -> str:
    import ray  # pyright: ignore[reportMissingImports]

    context = ray.get_runtime_context()
    return f"{context.get_node_id()[:8]} at {ray.util.get_node_ip_address()}"


def joined(address: str, folder: str) -> Any:
    """Connect to Ray, without its prints of actors and its dashboard -> its module."""
    import ray  # pyright: ignore[reportMissingImports]

    quiet = {"log_to_driver": False, "logging_level": "ERROR", "namespace": "groupwise"}
    if folder:
        own = {"include_dashboard": False, "object_store_memory": STORE, "_temp_dir": folder}
        ray.init(address="local", _node_ip_address=LOOPBACK, **own, **quiet)
    else:
        ray.init(address=address, **quiet)
    return ray


def fits(wanted: Sequence[Mapping[str, float]], there: Mapping[str, float]) -> bool:
    """Tell whether there is as much in all as is wanted.

    >>> fits([{"CPU": 1}, {"CPU": 2}], {"CPU": 2}), fits([{"CPU": 1}], {"CPU": 2, "GPU": 1})
    (False, True)
    """
    names = {name for one in wanted for name in one}
    return all(sum(one.get(name, 0) for one in wanted) <= there.get(name, 0) for name in names)


def what_there_is(ray: Any) -> str:
    """Say what each machine has, and what of all is free."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    each = ", ".join(_counted(resources) for resources in machines)
    free = _counted(ray.available_resources())
    return f"it has {len(machines)} machine{'s' * (len(machines) > 1)} ({each}), of which {free} are free"


def _counted(resources: Mapping[str, float]) -> str:
    there = [f"{resources[name]:g} {name}" for name in ("CPU", "GPU") if resources.get(name)]
    return " and ".join(there) or "0 CPU"


def loss(error: Exception) -> tuple[str, bool]:
    """Say why an actor has no answer, in one line, and whether Ray has lost it; otherwise its own code has raised.

    >>> loss(RuntimeError("The actor died:\\n\\tpid: 1\\nWorker exit detail: It has gone. Some common causes"))
    ('its actor is lost: It has gone', True)
    """
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        return f"its actor failed: {type(cause).__name__}: {shortened(one_line(cause))}", False
    lines = str(error).splitlines()
    words = " ".join(line for line in (lines[1:] if len(lines) > 1 else lines) if not line.startswith("\t"))
    detail = re.search(r"Worker exit detail: (.*?)(?: Some common causes|$)", words)
    lost = "creation task" not in str(error)  # such as groupwise, which is not installed there
    return f"its actor is lost: {shortened(detail[1] if detail else words).rstrip('.')}", lost
