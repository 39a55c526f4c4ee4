"""The one process of a run that knows Ray: it reserves what the run asks for, and starts actors there.

Ray's threads, signal handlers, log lines, warnings and libraries stay in this process. It ends with the run, and then
Ray ends the actors.
"""

import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from groupwise.actors.host import Host
from groupwise.core.channel import Channel, FrameError
from groupwise.core.errors import one_line, shortened
from groupwise.core.processes.address import LOOPBACK

#: Bytes of a started Ray's store of objects: nothing of a run goes through it.
STORE = 100 * 2**20
#: Seconds that an actor may take to end its process before it is ended itself.
ENDS = 5.0
#: Ray's names.
STRATEGIES = {
    "pack": "PACK",
    "spread": "SPREAD",
    "strict-pack": "STRICT_PACK",
    "strict-spread": "STRICT_SPREAD",
}


def main(
    run: Channel, address: str, strategy: str, bundles: Sequence[Sequence[Any]], seconds: float, folder: str
) -> None:
    """Serves the run at the other end of the channel.

    bundles  of each process its role, and what it asks for by Ray's names
    folder   of a Ray that is started for the run; "" where one is there already
    """
    os.dup2(2, 1)  # whatever Ray prints goes where the run keeps its end
    until = time.monotonic() + seconds
    try:
        ray = joined(address, folder)
    except Exception as error:  # Ray's are of many classes
        run.send({"refused": refusal(error)})
        return
    broker = Broker(run, ray, [(role, dict(resources)) for role, resources in bundles])
    try:
        if broker.reserve(STRATEGIES[strategy], until, grows=not folder):
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
        """Reserves all that the run asks for, at once, and says so, or what there is; whether it was to be had.

        grows  whether other machines may join while it is waited for
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
        """Starts and ends actors, until the run says stop or is gone."""
        while "stop" not in (message := self._run.receive()):
            if "start" in message:
                self._start(message["start"], **message["process"])
            elif actor := self._actors.get(message["end"]):
                actor.end.remote()
                late = threading.Timer(ENDS, self._kill, [actor])
                late.daemon = True
                late.start()

    def close(self) -> None:
        """Leaves Ray, which ends what it has of the run."""
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
        """Waits for the end of an actor's process, or of the actor."""
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


def joined(address: str, folder: str) -> Any:
    """Ray's module, connected; what it prints of actors, its dashboard and its figures of use are off."""
    import ray  # pyright: ignore[reportMissingImports]

    quiet = {"log_to_driver": False, "logging_level": "ERROR", "namespace": "groupwise"}
    if folder:
        own = {"include_dashboard": False, "object_store_memory": STORE, "_temp_dir": folder}
        ray.init(address="local", _node_ip_address=LOOPBACK, **own, **quiet)
    else:
        ray.init(address=address, **quiet)
    return ray


def fits(wanted: Sequence[Mapping[str, float]], there: Mapping[str, float]) -> bool:
    """Whether there is as much in all as is wanted.

    >>> fits([{"CPU": 1}, {"CPU": 2}], {"CPU": 2}), fits([{"CPU": 1}], {"CPU": 2, "GPU": 1})
    (False, True)
    """
    names = {name for one in wanted for name in one}
    return all(sum(one.get(name, 0) for one in wanted) <= there.get(name, 0) for name in names)


def what_there_is(ray: Any) -> str:
    """The resources of each machine, and what of all is free."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    each = ", ".join(_counted(resources) for resources in machines)
    free = _counted(ray.available_resources())
    return f"it has {len(machines)} machine{'s' * (len(machines) > 1)} ({each}), of which {free} are free"


def _counted(resources: Mapping[str, float]) -> str:
    there = [f"{resources[name]:g} {name}" for name in ("CPU", "GPU") if resources.get(name)]
    return " and ".join(there) or "0 CPU"


def refusal(error: Exception) -> str:
    """Why there is no Ray for the run, in one line."""
    return shortened(one_line(error))


def loss(error: Exception) -> tuple[str, bool]:
    """Why an actor has no answer, in one line, and whether Ray has lost it: else its own code has raised.

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
