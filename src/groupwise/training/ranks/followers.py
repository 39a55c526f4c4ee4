"""Rank 0's mesh: the other ranks of a run, told what to do, and named if one is lost.

Rank 0 starts them (`lead`), or torchrun has (`lead_given`), which tells each process who it is by environment
variables. `given_ranks` alone reads these.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from threading import Event, RLock
from typing import Any

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from groupwise.core.errors import ProcessLost, UsageError, one_line, shortened
from groupwise.core.peer import PeerLost
from groupwise.core.processes.place import HERE, Exit, Place, Process, Role, last_line, started
from groupwise.core.records import Batch
from groupwise.training.mesh import Mesh, Verb, connect
from groupwise.training.ranks.meeting import kept

#: Seconds that a rank has to import what it needs, and to end once it is told to.
STARTS, ENDS = 120.0, 5.0
#: Seconds after which ranks that lost another have ended of themselves, and the lost one is what is left.
SETTLED = 3.0
#: The exit code of a rank that ended because another one did.
LOST_OTHERS = 3
#: The way out if the system has no room for as many processes.
MORE_PROCESSES = ", or for more processes and open files of the system's (ulimit -u, ulimit -n)"
#: What torchrun tells, and what says that it is torchrun which keeps the place where ranks meet.
VARIABLES, KEEPS_STORE = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"), "TORCHELASTIC_USE_AGENT_STORE"
#: What torchrun tells of this machine alone: the process's number here, and how many of them are here.
LOCAL = ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
#: Seconds that a rank waits for rank 0 to load a run: torch counts milliseconds in 32 bits, which are 24 days.
PATIENCE = 20 * 86400.0
#: The keys under which rank 0 says how long one rank may keep the others waiting, and on what kind of device they are.
SECONDS, DEVICE = "seconds", "device"


@dataclass(frozen=True)
class LeadingMesh(Mesh):
    """Rank 0's mesh: whatever it does together with the others, it tells them first.

    processes  of ranks 1 and on
    seconds    that one may keep the others waiting
    go_on      what a person can do after a rank was lost
    turn       held while the ranks do something: a thread that samples ahead scores with them too
    """

    processes: tuple[Process, ...] = ()
    seconds: float = 0.0
    go_on: str = ""
    turn: AbstractContextManager[Any] = field(default_factory=RLock, repr=False, compare=False)

    @contextmanager
    def together(
        self, verb: Verb, batch: Batch | None = None, supervised: Batch | None = None, **others: Any
    ) -> Iterator[None]:
        """Let every rank do inside what the verb says. Raises ProcessLost, with the rank, if one is lost."""
        with self.turn, self.answering():
            self.tell(verb, batch, supervised, **others)
            yield

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Let the ranks work together inside. Raises ProcessLost, with the rank, if one is lost."""
        try:
            yield
        except BaseException as error:
            self._give_up()
            if not isinstance(error, RuntimeError) or not of_ranks(error):
                raise
            raise ProcessLost(self._loss(), self.go_on) from None

    def close(self) -> None:
        """Tell the others to stop, and end those that do not. A second call does nothing."""
        if all(process.usable for process in self.processes):
            with suppress(RuntimeError):
                self.tell(Verb.STOP)
            for process in self.processes:
                with suppress(PeerLost):
                    process.receive(ENDS)
        if any(not process.closed for process in self.processes):
            for process in self.processes:
                process.close()
            super().close()

    def _give_up(self) -> None:
        """Speak to no rank any more: they are in the middle of something, and would not hear of a stop."""
        for process in self.processes:
            process.lost = True

    def _loss(self) -> str:
        """Say which rank was lost, and how. Those that wait for it end of themselves; one that stalls does not."""
        until = time.monotonic() + SETTLED
        while time.monotonic() < until and self._first_ended() is None:
            time.sleep(0.05)
        if first := self._first_ended():
            rank, process, how = first
            return f"rank {rank} of {self.size} ended: {how.words}{last_line(process)}"
        still = [str(rank) for rank, process in enumerate(self.processes, start=1) if process.exit() is None]
        return f"rank {' and '.join(still) or '?'} of {self.size} kept the others waiting for {self.seconds:g} seconds"

    def _first_ended(self) -> tuple[int, Process, Exit] | None:
        for rank, process in enumerate(self.processes, start=1):
            how = process.exit()
            if how is not None and how.code != LOST_OTHERS:
                return rank, process, how
        return None


def lead(
    module: str, options: Mapping[str, Any], devices: Sequence[str], seconds: float, go_on: str, place: Place = HERE
) -> LeadingMesh:
    """Start all ranks but this one, each running a module's `main`, and meet them.

    devices  of each rank, this one included, by the name that each has in its process
    Raises UsageError if one cannot be started, or ends before it is there.
    """
    size = len(devices)
    meeting = kept(place.host, size, place.own, STARTS)
    shared = {**options, "meeting": meeting.options, "size": size, "seconds": seconds}
    each = [{**shared, "rank": rank, "device": device} for rank, device in enumerate(devices)]
    makers = [partial(_started, place, rank, module, each[rank]) for rank in range(1, size)]
    processes: tuple[Process, ...] = ()
    try:
        processes = tuple(started(makers))
        for rank, process in enumerate(processes, start=1):
            try:
                process.receive(STARTS)  # once it has imported what it needs
            except PeerLost as gone:
                words = f"learner.ranks: rank {rank} did not start: {gone}{last_line(process)}{gone.remedy}"
                raise UsageError(words) from None
        own = meeting.place.joined(0, size, devices[0], seconds, meeting.store)
    except BaseException:
        for process in processes:
            process.close()
        raise
    return LeadingMesh(0, size, own.device, own.shards, own.waiting, processes, seconds, go_on)


def of_ranks(error: RuntimeError) -> bool:
    """Return whether an error says that another rank is gone or late; torch has no class for those of gloo."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def _started(place: Place, rank: int, module: str, options: Mapping[str, Any]) -> Process:
    try:
        return place.start(Role.RANK, module, options, seconds=STARTS)
    except PeerLost as lost:
        more = f"; ask for fewer{MORE_PROCESSES if place.own else ''}"
        words = f"learner.ranks = {options['size']}: the process of rank {rank} was not started: {lost}{more}"
        raise UsageError(words) from None


@dataclass(frozen=True)
class GivenRanks:
    """This process as torchrun has started it: its number, how many there are, and where they meet.

    local, local_size  its number among those of this machine, and how many these are
    """

    rank: int
    size: int
    host: str
    port: int
    local: int = 0
    local_size: int = 1

    def store(self, seconds: float = PATIENCE) -> Store:
        """Reach the place where the ranks meet, which torchrun keeps; what is asked for there is waited for so long.

        Raises UsageError if it cannot be reached.
        """
        try:
            store = TCPStore(self.host, self.port, self.size, is_master=False, timeout=timedelta(seconds=seconds))
        except RuntimeError as error:  # torch's own, which has no finer class
            words = shortened(one_line(error))
            raise UsageError(f"torchrun's meeting point {self.host}:{self.port} cannot be reached: {words}") from None
        return PrefixStore("groupwise", store)


@dataclass(frozen=True)
class GivenMesh(LeadingMesh):
    """Rank 0's mesh of processes that torchrun has started, and ends when one of them does.

    lost  set once a rank is lost
    left  set once the others are left
    """

    lost: Event = field(default_factory=Event)
    left: Event = field(default_factory=Event)

    def close(self) -> None:
        """Tell the others to stop. A second call does nothing."""
        if self.left.is_set():
            return
        if not self.lost.is_set():
            with suppress(RuntimeError):
                self.tell(Verb.STOP)
        self.left.set()
        Mesh.close(self)

    def _give_up(self) -> None:
        self.lost.set()

    def _loss(self) -> str:
        late = f"or kept the others waiting for {self.seconds:g} seconds"
        return f"one of {self.size} ranks ended, {late}: torchrun says which"


def given_ranks(environment: Mapping[str, str] | None = None) -> GivenRanks | None:
    """Read what torchrun tells this process; None if it has not started it, or has started no other.

    Raises UsageError if something else tells it the same, and the ranks have nowhere to meet.

    >>> variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    >>> given_ranks({**variables, "TORCHELASTIC_USE_AGENT_STORE": "True"})
    GivenRanks(rank=1, size=2, host='localhost', port=29500, local=1, local_size=2)
    """
    variables = os.environ if environment is None else environment
    if any(not variables.get(name) for name in VARIABLES) or variables["WORLD_SIZE"] == "1":
        return None
    rank, size, host, port = (variables[name] for name in VARIABLES)
    if not (rank + size + port).isdecimal() or variables.get(KEEPS_STORE) != "True":
        raise UsageError(
            f"RANK = {rank}, WORLD_SIZE = {size}: these variables are set, and not by torchrun; start the ranks with "
            "torchrun, or with learner.ranks and without the variables"
        )
    local, here = (variables.get(name, other) for name, other in zip(LOCAL, (rank, size), strict=True))
    return GivenRanks(int(rank), int(size), host, int(port), int(local), int(here))


def lead_given(given: GivenRanks, device: str, seconds: float, go_on: str) -> GivenMesh:
    """Make rank 0's mesh of the ranks that torchrun has started, once every one of them is there.

    device  "cpu" or "cuda", of all of them
    Raises UsageError if they do not come.
    """
    store = given.store()
    store.set(SECONDS, str(seconds))
    store.set(DEVICE, device)
    own = connect(store, 0, given.size, _numbered(device, given.local), seconds=seconds)
    return GivenMesh(0, given.size, own.device, own.shards, own.waiting, seconds=seconds, go_on=go_on)


def join_given(given: GivenRanks) -> Mesh:
    """Join the mesh as another rank that torchrun has started, which waits until rank 0 has loaded a run."""
    store = given.store()
    device = _numbered(store.get(DEVICE).decode(), given.local)
    return connect(store, given.rank, given.size, device, seconds=float(store.get(SECONDS)))


def _numbered(device: str, local: int) -> str:
    """Name the device of a rank, by its number on this machine."""
    return device if device == "cpu" else f"{device}:{local}"
