"""The other ranks of a run on this machine: started by rank 0, told what to do, and named where one is lost."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from groupwise.core.children import Child, ending
from groupwise.core.errors import ProcessLost, UsageError, one_line, shortened
from groupwise.core.peer import PeerLost
from groupwise.core.tail import Tail
from groupwise.training.mesh import Mesh, Message, Verb, connect, rendezvous
from groupwise.training.verbs import tell

#: Where the ranks of one machine meet.
HOST = "127.0.0.1"
#: Seconds that a rank has to import what it needs, and to end once it is told to.
STARTS, ENDS = 120.0, 5.0
#: Seconds after which ranks that lost another have ended of themselves, and the lost one is what is left.
SETTLED = 3.0
#: The exit code of a rank that ended because another one did.
LOST_OTHERS = 3


class Follower(Child):
    """A rank in a child process: its number, and what it printed last."""

    def __init__(self, rank: int, module: str, options: Mapping[str, Any]) -> None:
        """Raises UsageError where it cannot be started."""
        self.rank = rank
        try:
            self._tail = Tail()
            try:
                super().__init__(module, {**options, "rank": rank}, stderr=self._tail.writing)
            finally:
                self._tail.given()
        except (OSError, RuntimeError) as error:  # RuntimeError: no more threads, of which the tail has one
            words = getattr(error, "strerror", None) or one_line(error)
            raise UsageError(
                f"learner.ranks = {options['size']}: the process of rank {rank} cannot be started: {words}; ask for "
                "fewer, or for more processes and open files of the system's (ulimit -u, ulimit -n)"
            ) from None

    def last_words(self) -> str:
        """The last line that it printed, in brackets; "" where it printed none."""
        line = self._tail.text(1.0).strip().rpartition("\n")[2].strip()
        return f" ({shortened(line)})" if line else ""


@dataclass(frozen=True)
class LeadingMesh(Mesh):
    """Rank 0's mesh: whatever it does together with the others, it tells them first.

    followers  ranks 1 and on
    seconds    that one may keep the others waiting
    go_on      what a person can do after a rank was lost
    """

    followers: tuple[Follower, ...] = ()
    seconds: float = 0.0
    go_on: str = ""

    @contextmanager
    def together(self, message: Message) -> Iterator[None]:
        """Inside, every rank does what the message says. Raises ProcessLost, with the rank, where one is lost."""
        with self.answering():
            tell(self, message)
            yield

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Inside, the ranks work together. Raises ProcessLost, with the rank, where one is lost."""
        try:
            yield
        except BaseException as error:
            for follower in self.followers:
                follower.lost = True  # the others are in the middle of something, and would not hear of a stop
            if not isinstance(error, RuntimeError) or not of_ranks(error):
                raise
            raise ProcessLost(lost_rank(self.followers, self.size, self.seconds), self.go_on) from None

    def close(self) -> None:
        """Tells the others to stop, and ends those that do not. Again does nothing."""
        if all(follower.usable for follower in self.followers):
            with suppress(RuntimeError):
                tell(self, Message(Verb.STOP))
            for follower in self.followers:
                with suppress(PeerLost):
                    follower.receive(ENDS)
        if any(not follower.closed for follower in self.followers):
            for follower in self.followers:
                follower.close()
            super().close()


def lead(module: str, options: Mapping[str, Any], size: int, seconds: float, go_on: str) -> LeadingMesh:
    """Starts the other `size` - 1 ranks, each running a module's `main`, and meets them.

    Raises UsageError where one cannot be started, or ends before it is there.
    """
    store = rendezvous(HOST, 0, size, leads=True, seconds=STARTS)
    followers: list[Follower] = []
    try:
        shared = {**options, "port": store.port, "size": size, "seconds": seconds}
        for rank in range(1, size):
            followers.append(Follower(rank, module, shared))
        for follower in followers:
            _arrived(follower)
        own = connect(store, 0, size, seconds=seconds)
    except BaseException:
        for follower in followers:
            follower.close()
        raise
    return LeadingMesh(0, size, own.device, own.shards, own.waiting, tuple(followers), seconds, go_on)


def lost_rank(followers: Sequence[Follower], size: int, seconds: float) -> str:
    """Which rank was lost, and how. Those that wait for it in vain end of themselves; one that stalls does not."""
    _wait_for_ends(followers)
    if first := _ended(followers):
        return f"rank {first.rank} of {size} ended: {ending(first.process.wait())}{first.last_words()}"
    still = [str(follower.rank) for follower in followers if follower.process.poll() is None]
    return f"rank {' and '.join(still) or '?'} of {size} kept the others waiting for {seconds:g} seconds"


def of_ranks(error: RuntimeError) -> bool:
    """Whether an error says that another rank is gone or late; torch has no class for those of gloo."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def _ended(followers: Sequence[Follower]) -> Follower | None:
    """The first that ended of itself."""
    return next((f for f in followers if f.process.poll() not in (None, LOST_OTHERS)), None)


def _wait_for_ends(followers: Sequence[Follower]) -> None:
    """Gives ranks that were killed, or that lost another one, the time to end."""
    until = time.monotonic() + SETTLED
    while time.monotonic() < until and _ended(followers) is None:
        time.sleep(0.05)


def _arrived(follower: Follower) -> None:
    """Waits until a rank has imported what it needs. Raises UsageError where it has not."""
    try:
        follower.receive(STARTS)
    except PeerLost as gone:
        raise UsageError(f"learner.ranks: rank {follower.rank} did not start: {gone}{follower.last_words()}") from None
