"""Places of the processes of a run: here, as children of its own, or where something else starts them.

    process = place.start(Role.ENGINE, "groupwise.some.module", {"option": 1}, seconds=60)
    process.send({"question": 2})                        # there: main(channel, option=1)

What a process is asked, and how it is lost, is the same at every place.
"""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypeVar

from pydantic import AfterValidator, Field

from groupwise.core.errors import one_line, shortened
from groupwise.core.peer import PeerLost, Transport
from groupwise.core.processes.children import Child, Tail, ending
from groupwise.core.processes.network import LOOPBACK, Address
from groupwise.core.settings import Changeable, Settings

#: Seconds in which the rest of what an ended process printed must have come.
REST = 1.0


class Closable(Protocol):
    """Holder of something until it is closed."""

    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class Role(StrEnum):
    """Part that a process has in its run."""

    RANK = "rank"
    ENGINE = "engine"
    POOL = "pool"


class Exit(NamedTuple):
    """End of a process.

    words  such as "killed by SIGKILL"
    code   negative where a signal ended it; None where only what it lived in is known to be gone
    """

    words: str
    code: int | None


class Process(Transport, Protocol):
    """A process at the other end of a connection, as core/peer.py asks it, and what is known of it besides.

    lost           whether an answer failed to come, so that the next one could be taken for it
    shares_memory  whether it gets descriptors that are sent to it; else all bytes have to be sent
    pid            its number, where it is a child of this process
    """

    lost: bool

    @property
    def shares_memory(self) -> bool: ...

    @property
    def pid(self) -> int | None: ...

    @property
    def usable(self) -> bool:
        """True if it runs, and has answered every time, as far as is known."""
        ...

    @property
    def closed(self) -> bool: ...

    def speaks(self, seconds: float) -> bool: ...

    def exit(self, seconds: float = 0.0) -> Exit | None:
        """Say how it ended, if it does within these seconds; None where it runs, as far as is known."""
        ...

    def printed(self, seconds: float = 0.0) -> str:
        """Return the last that it printed; waits so long at most for the rest of a process that is about to end."""
        ...

    def close(self) -> None:
        """End it, with all that it started, and wait for its end. Again does nothing."""
        ...


class Place(Protocol):
    """Place at which processes are started.

    host  at which they reach this machine
    own   whether they are children of this process, so that descriptors can be passed to them
    """

    @property
    def host(self) -> str: ...

    @property
    def own(self) -> bool: ...

    def start(
        self, role: Role, module: str, options: Mapping[str, Any], *, seconds: float, python: str | None = None
    ) -> Process:
        """Start a process that runs the module's `main(channel, **options)`; it ends with this one, however that ends.

        seconds  in which it must run
        python   its interpreter, which has libraries of its own; None is the one of this process
        Raises PeerLost where it does not.
        """
        ...

    def close(self) -> None:
        """End what the place itself needs. Again does nothing."""
        ...


class LocalProcess(Child):
    """A child of this process that says how it ended and what it printed last."""

    shares_memory = True

    def __init__(self, module: str, options: Mapping[str, Any], python: str | None = None) -> None:
        """Raise PeerLost where it cannot be started."""
        command = [python, "-P"] if python else ()
        try:
            self._tail = Tail()
            try:
                super().__init__(module, options, command=command, alone=python is not None, stderr=self._tail.writing)
            finally:
                self._tail.given()
        except (OSError, RuntimeError) as error:  # RuntimeError: no more threads, of which the tail has one
            words = getattr(error, "strerror", None) or one_line(error)
            raise PeerLost(f"it cannot be started: {words}") from None
        self.pid: int | None = self.process.pid

    def exit(self, seconds: float = 0.0) -> Exit | None:
        """Say how it ended, if it does within these seconds."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        return Exit(ending(code), code)

    def printed(self, seconds: float = 0.0) -> str:
        """Return the last that it printed."""
        return self._tail.text(seconds)


class Here:
    """Processes as children of this one."""

    host, own = LOOPBACK, True

    def start(
        self, role: Role, module: str, options: Mapping[str, Any], *, seconds: float, python: str | None = None
    ) -> LocalProcess:
        """Start a child, at once; whether it comes to run its module is seen when it is asked. Raises PeerLost."""
        return LocalProcess(module, options, python)

    def close(self) -> None:
        """Do nothing: each child is closed by whoever started it."""


#: This machine, and this process's own children.
HERE = Here()


def last_line(process: Process) -> str:
    """Return the last line that a process printed, as `last_of` has it."""
    return last_of(process.printed(REST))


def last_of(text: str) -> str:
    """Return the last line of what was printed, in brackets behind a space; "" where there is none.

    >>> last_of("one\\ntwo\\n"), last_of("")
    (' (two)', '')
    """
    line = text.strip().rpartition("\n")[2].strip()
    return f" ({shortened(line)})" if line else ""


def started(makers: Sequence[Callable[[], C]]) -> list[C]:
    """Make all of them side by side. Raises the first's error where one fails, and closes what others have made."""
    with ThreadPoolExecutor(len(makers)) as workers:
        futures = [workers.submit(maker) for maker in makers]
    errors = [error for future in futures if (error := future.exception()) is not None]
    if not errors:
        return [future.result() for future in futures]
    for future in futures:
        if future.exception() is None:
            future.result().close()
    raise errors[0]


#: A Ray that runs on this machine already, and one that is started for the run.
AUTO, LOCAL = "auto", "local"


def _ray_address(text: str) -> str:
    """Raise ValueError for what is no Ray's."""
    if text in (AUTO, LOCAL):
        return text
    try:
        return str(Address.of(text))
    except ValueError:
        raise ValueError(f"give HOST:PORT of a Ray, {AUTO!r} or {LOCAL!r}") from None


#: What the key `placement.ray` may say.
RayAddress = Annotated[str, AfterValidator(_ray_address)]
Cpus = Annotated[float, Field(ge=0.01, le=4096)]
Gpus = Annotated[float, Field(ge=0, le=64)]


class PlacementSettings(Settings):
    """Processes of a run besides its own, and their place on a Ray cluster.

    restarts     automatic resumes in a row after a rank or an engine is lost; a new step resets the count; 0: the run
                 ends
    share_cards  let ranks share GPUs if there are fewer GPUs; slow (gloo), to try ranks on one GPU
    ray          Ray cluster for ranks, child engines and scoring: "HOST:PORT", "auto" (this machine's) or "local"
                 (started for the run); default: none
    strategy     Ray placement: on few machines ("pack") or many ("spread") if possible; strictly on one, or on one each
    deadline     seconds to reach Ray, get resources and start a scoring process
    rank_cpus    CPUs of each rank but the first
    engine_cpus  CPUs of each engine
    pool_cpus    CPUs of each scoring pool; also its processes, unless scoring.workers is set
    rank_gpus    GPUs of each rank but the first
    engine_gpus  GPUs of each engine
    pool_gpus    GPUs of each scoring pool
    """

    restarts: Changeable[int] = Field(default=0, ge=0, le=1000)
    share_cards: Changeable[bool] = False
    ray: Changeable[RayAddress | None] = None
    strategy: Changeable[Literal["pack", "spread", "strict-pack", "strict-spread"]] = "pack"
    deadline: Changeable[float] = Field(default=60.0, ge=1, le=86_400)
    rank_cpus: Changeable[Cpus] = 1.0
    rank_gpus: Changeable[Gpus] = 0.0
    engine_cpus: Changeable[Cpus] = 1.0
    engine_gpus: Changeable[Gpus] = 0.0
    pool_cpus: Changeable[Cpus] = 1.0
    pool_gpus: Changeable[Gpus] = 0.0

    def resources(self, role: Role) -> dict[str, float]:
        """Return what a process of a role asks Ray for, by Ray's names.

        >>> PlacementSettings(engine_cpus=2.0, engine_gpus=1.0).resources(Role.ENGINE)
        {'CPU': 2.0, 'GPU': 1.0}
        """
        every = {"CPU": getattr(self, f"{role}_cpus"), "GPU": getattr(self, f"{role}_gpus")}
        return {name: count for name, count in every.items() if count}

    def unread(self, roles: set[Role]) -> set[str]:
        """Return the keys that nothing reads in a run with processes of these roles: without Ray all that are about it.

        >>> sorted(PlacementSettings(ray="local").unread({Role.ENGINE, Role.POOL}))
        ['rank_cpus', 'rank_gpus', 'share_cards']
        """
        of_roles = {role: {f"{role}_cpus", f"{role}_gpus"} for role in Role}
        alone = set[str]() if Role.RANK in roles else {"share_cards"}
        if self.ray is None:
            return {"ray", "strategy", "deadline"}.union(alone, *of_roles.values())
        return alone.union(*(keys for role, keys in of_roles.items() if role not in roles))


#: What a role's processes are called, one and several.
NAMES = {
    Role.RANK: ("other rank", "other ranks"),
    Role.ENGINE: ("engine", "engines"),
    Role.POOL: ("pool that scores", "pools that score"),
}


def in_words(role: Role, count: int) -> str:
    """Name so many processes of a role.

    >>> in_words(Role.ENGINE, 2), in_words(Role.RANK, 1)
    ('2 engines', '1 other rank')
    """
    return f"{count} {NAMES[role][count > 1]}"


def resources_in_words(settings: PlacementSettings, role: Role) -> str:
    """Return what a process of a role asks Ray for.

    >>> resources_in_words(PlacementSettings(rank_gpus=1.0), Role.RANK)
    '1 CPU and 1 GPU'
    """
    return " and ".join(f"{count:g} {name}" for name, count in settings.resources(role).items())
