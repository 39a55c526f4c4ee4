"""The other ranks of a run: started by rank 0, told what to do, and named where one is lost."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from threading import RLock
from typing import Any

import torch.distributed as dist

from groupwise.core.errors import ProcessLost, UsageError
from groupwise.core.peer import PeerLost
from groupwise.core.processes.place import HERE, Exit, Place, Process, Role, last_line, started
from groupwise.training.mesh import Mesh, Message, Verb, connect, rendezvous
from groupwise.training.ranks.verbs import tell

#: Seconds that a rank has to import what it needs, and to end once it is told to.
STARTS, ENDS = 120.0, 5.0
#: Seconds after which ranks that lost another have ended of themselves, and the lost one is what is left.
SETTLED = 3.0
#: The exit code of a rank that ended because another one did.
LOST_OTHERS = 3
#: Where the system has no room for as many processes.
MORE_PROCESSES = ", or for more processes and open files of the system's (ulimit -u, ulimit -n)"


@dataclass(frozen=True)
class Follower:
    """Another rank: its number, and its process."""

    rank: int
    process: Process


@dataclass(frozen=True)
class LeadingMesh(Mesh):
    """Rank 0's mesh: whatever it does together with the others, it tells them first.

    followers  ranks 1 and on
    seconds    that one may keep the others waiting
    go_on      what a person can do after a rank was lost
    turn       held while the ranks do something: a thread that samples ahead scores with them too
    """

    followers: tuple[Follower, ...] = ()
    seconds: float = 0.0
    go_on: str = ""
    turn: AbstractContextManager[Any] = field(default_factory=RLock, repr=False, compare=False)

    @contextmanager
    def together(self, message: Message) -> Iterator[None]:
        """Inside, every rank does what the message says. Raises ProcessLost, with the rank, where one is lost."""
        with self.turn, self.answering():
            tell(self, message)
            yield

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Inside, the ranks work together. Raises ProcessLost, with the rank, where one is lost."""
        try:
            yield
        except BaseException as error:
            for follower in self.followers:
                follower.process.lost = True  # the others are in the middle of something, and would not hear of a stop
            if not isinstance(error, RuntimeError) or not of_ranks(error):
                raise
            raise ProcessLost(lost_rank(self.followers, self.size, self.seconds), self.go_on) from None

    def close(self) -> None:
        """Tells the others to stop, and ends those that do not. Again does nothing."""
        processes = [follower.process for follower in self.followers]
        if all(process.usable for process in processes):
            with suppress(RuntimeError):
                tell(self, Message(Verb.STOP))
            for process in processes:
                with suppress(PeerLost):
                    process.receive(ENDS)
        if any(not process.closed for process in processes):
            for process in processes:
                process.close()
            super().close()


def lead(
    module: str, options: Mapping[str, Any], size: int, seconds: float, go_on: str, place: Place = HERE
) -> LeadingMesh:
    """Starts the other `size` - 1 ranks, each running a module's `main`, and meets them.

    Raises UsageError where one cannot be started, or ends before it is there.
    """
    store = rendezvous(place.host, 0, size, leads=True, seconds=STARTS)
    shared = {**options, "host": place.host, "port": store.port, "size": size, "seconds": seconds}
    makers = [partial(_started, place, rank, module, {**shared, "rank": rank}) for rank in range(1, size)]
    followers = [Follower(rank, process) for rank, process in enumerate(started(makers), start=1)]
    try:
        for follower in followers:
            _arrived(follower)
        own = connect(store, 0, size, seconds=seconds)
    except BaseException:
        for follower in followers:
            follower.process.close()
        raise
    return LeadingMesh(0, size, own.device, own.shards, own.waiting, tuple(followers), seconds, go_on)


def lost_rank(followers: Sequence[Follower], size: int, seconds: float) -> str:
    """Which rank was lost, and how. Those that wait for it in vain end of themselves; one that stalls does not."""
    _wait_for_ends(followers)
    if first := _ended(followers):
        follower, how = first
        return f"rank {follower.rank} of {size} ended: {how.words}{last_line(follower.process)}"
    still = [str(follower.rank) for follower in followers if follower.process.exit() is None]
    return f"rank {' and '.join(still) or '?'} of {size} kept the others waiting for {seconds:g} seconds"


def of_ranks(error: RuntimeError) -> bool:
    """Whether an error says that another rank is gone or late; torch has no class for those of gloo."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def _ended(followers: Sequence[Follower]) -> tuple[Follower, Exit] | None:
    """The first that ended of itself, and how."""
    exits = ((follower, follower.process.exit()) for follower in followers)
    return next(((f, how) for f, how in exits if how is not None and how.code != LOST_OTHERS), None)


def _wait_for_ends(followers: Sequence[Follower]) -> None:
    """Gives ranks that were killed, or that lost another one, the time to end."""
    until = time.monotonic() + SETTLED
    while time.monotonic() < until and _ended(followers) is None:
        time.sleep(0.05)


def _started(place: Place, rank: int, module: str, options: Mapping[str, Any]) -> Process:
    try:
        return place.start(Role.RANK, module, options, seconds=STARTS)
    except PeerLost as lost:
        more = f"; ask for fewer{MORE_PROCESSES if place.own else ''}"
        words = f"learner.ranks = {options['size']}: the process of rank {rank} was not started: {lost}{more}"
        raise UsageError(words) from None


def _arrived(follower: Follower) -> None:
    """Waits until a rank has imported what it needs. Raises UsageError where it has not."""
    try:
        follower.process.receive(STARTS)
    except PeerLost as gone:
        words = f"learner.ranks: rank {follower.rank} did not start: {gone}{last_line(follower.process)}"
        raise UsageError(words) from None
