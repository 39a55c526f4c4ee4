"""The ranks that torchrun starts: what it tells each of them, where they meet, and rank 0's mesh of them.

torchrun tells a process who it is by environment variables. They are read here, by `given_ranks`, and nowhere else.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from groupwise.core.errors import ProcessLost, UsageError, one_line, shortened
from groupwise.training.mesh import Mesh, Message, Verb, connect
from groupwise.training.ranks.followers import LeadingMesh, of_ranks
from groupwise.training.ranks.verbs import tell

#: What torchrun tells, and what says that it is torchrun which keeps the place where ranks meet.
VARIABLES, KEEPS_STORE = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"), "TORCHELASTIC_USE_AGENT_STORE"
#: Seconds that a rank waits for rank 0 to load a run: torch counts milliseconds in 32 bits, which are 24 days.
PATIENCE = 20 * 86400.0
#: The key under which rank 0 says how long one rank may keep the others waiting.
SECONDS = "seconds"


@dataclass(frozen=True)
class GivenRanks:
    """This process as torchrun has started it: its number, how many there are, and where they meet."""

    rank: int
    size: int
    host: str
    port: int

    def store(self, seconds: float = PATIENCE) -> Store:
        """Where the ranks meet, which torchrun keeps; what is asked for there is waited for so long.

        Raises UsageError where it cannot be reached.
        """
        try:
            store = TCPStore(self.host, self.port, self.size, is_master=False, timeout=timedelta(seconds=seconds))
        except RuntimeError as error:  # torch's own, which has no finer class
            words = shortened(one_line(error))
            raise UsageError(f"torchrun's meeting point {self.host}:{self.port} cannot be reached: {words}") from None
        return PrefixStore("groupwise", store)


@dataclass
class _Standing:
    """What has become of the other ranks."""

    lost: bool = False
    left: bool = False


@dataclass(frozen=True)
class GivenMesh(LeadingMesh):
    """Rank 0's mesh of processes that torchrun has started, and ends when one of them does."""

    standing: _Standing = field(default_factory=_Standing)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Inside, the ranks work together. Raises ProcessLost where one is lost; torchrun says which."""
        try:
            yield
        except BaseException as error:
            self.standing.lost = True
            if not isinstance(error, RuntimeError) or not of_ranks(error):
                raise
            late = f"or kept the others waiting for {self.seconds:g} seconds"
            raise ProcessLost(f"one of {self.size} ranks ended, {late}: torchrun says which", self.go_on) from None

    def close(self) -> None:
        """Tells the others to stop. Again does nothing."""
        if self.standing.left:
            return
        self.standing.left = True
        if not self.standing.lost:
            with suppress(RuntimeError):
                tell(self, Message(Verb.STOP))
        Mesh.close(self)


def given_ranks(environment: Mapping[str, str] | None = None) -> GivenRanks | None:
    """What torchrun tells this process; None where it has not started it, or has started no other.

    Raises UsageError where something else tells it the same, and the ranks have nowhere to meet.

    >>> variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    >>> given_ranks({**variables, "TORCHELASTIC_USE_AGENT_STORE": "True"})
    GivenRanks(rank=1, size=2, host='localhost', port=29500)
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
    return GivenRanks(int(rank), int(size), host, int(port))


def lead_given(given: GivenRanks, seconds: float, go_on: str) -> GivenMesh:
    """Rank 0's mesh of the ranks that torchrun has started, once every one of them is there.

    Raises UsageError where they do not come.
    """
    store = given.store()
    store.set(SECONDS, str(seconds))
    own = connect(store, 0, given.size, seconds=seconds)
    return GivenMesh(0, given.size, own.device, own.shards, own.waiting, seconds=seconds, go_on=go_on)


def join_given(given: GivenRanks) -> Mesh:
    """The mesh of another rank that torchrun has started: it waits for rank 0 as long as that takes to load a run."""
    store = given.store()
    return connect(store, given.rank, given.size, seconds=float(store.get(SECONDS)))
