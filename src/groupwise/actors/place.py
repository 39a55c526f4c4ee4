"""A Ray as the place where a run's processes live: each in an actor with the resources of the recipe.

    run - broker (a child, which alone knows Ray) - Ray - actor (Host) - process (called_back.py)
    run - listener - - - - - - - - a connection of its own - - - - - - - - - - process

What a process is asked goes over its connection; how it ended comes through Ray.
"""

import importlib.util
import itertools
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from groupwise.actors.broker import OF_THE_RUN
from groupwise.core import VERSION
from groupwise.core.channel import Channel, FrameError
from groupwise.core.errors import UsageError
from groupwise.core.peer import Peer, PeerLost
from groupwise.core.processes.children import Child, Tail, ending
from groupwise.core.processes.handshake import Refused, meet, name_and_key
from groupwise.core.processes.network import Address, Door, keep_alive
from groupwise.core.processes.place import (
    AUTO,
    LOCAL,
    Exit,
    PlacementSettings,
    Role,
    in_words,
    last_of,
    resources_in_words,
)

#: Characters of a caller's token, seconds in which it must have spoken, and bytes of what it then says of itself.
TOKEN, SPEAKS, FACTS = 64, 10.0, 4096

#: (token, what the process says of itself, its connection)
Arrived = Callable[[str, dict[str, Any], Channel], None]


#: The module that runs in the broker.
BROKER = "groupwise.actors.broker"
#: Seconds that Ray may take to leave, an actor's process to end when it is told to, and the news of an end to come.
LEAVES, ENDS, NEWS = 15.0, 15.0, 5.0
#: Seconds before an actor that Ray has lost is started again.
PAUSE = 1.0
#: Seconds in which a Ray's address must answer, and what Ray is given beyond its deadline to say that it has not.
PATIENCE, GRACE = 10.0, 15.0
#: Set for the broker, and through it for a Ray of the run's own: no figures of use leave this machine.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}


class RayProcess(Peer):
    """A process in an actor."""

    shares_memory = False
    pid: int | None = None

    def __init__(self, channel: Channel, number: int, place: "RayPlace") -> None:
        super().__init__(channel)
        self._number, self._place = number, place

    @property
    def usable(self) -> bool:
        """True if it runs, and has answered every time, as far as is known."""
        return not self.closed and not self.lost and self.exit() is None

    def exit(self, seconds: float = 0.0) -> Exit | None:
        """Return how it ended, if the news of its end come within these seconds."""
        return self._place.exit_of(self._number, seconds)

    def printed(self, seconds: float = 0.0) -> str:
        """Return the last that it printed, once it has ended; "" before."""
        self._place.exit_of(self._number, seconds)
        return self._place.printed_by(self._number)

    def close(self) -> None:
        """End the process and its actor."""
        with suppress(OSError):
            self.channel.connection.shutdown(socket.SHUT_RDWR)  # a thread of this process that sends goes on
        super().close()
        self._place.end(self._number)

    def _gone(self) -> str:
        how = self.exit(NEWS)
        return f"it ended: {how.words}" if how else "it closed its connection"


class RayPlace:
    """Processes as actors of a Ray, all of which it has reserved.

    counts  how many processes there will be at a time, by what they do
    note    is told where each of them lives
    host    at which they reach this machine
    Raises UsageError if Ray is not installed, not there, or has not all that is asked for.
    """

    own = False

    def __init__(self, settings: PlacementSettings, counts: Mapping[Role, int], note: Callable[[str], None]) -> None:
        self._settings, self._note = settings, note
        require_ray(settings)
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._numbers = itertools.count()
        self._arrived: dict[str, tuple[dict[str, Any], Channel]] = {}
        self._living: dict[int, RayProcess] = {}
        self._ends: dict[int, tuple[Exit, str]] = {}
        self._lost_by_ray: set[int] = set()
        self._lost = ""
        self._closed = False
        self._tail = Tail()
        self._folder = tempfile.mkdtemp(prefix="groupwise-ray-") if settings.ray == LOCAL else ""
        self._broker: Child | None = None
        try:
            self._broker = self._connected(counts)
            self.host = self._joined(self._broker, counts)
            self._listener = Listener(self.host, self._called)
        except BaseException as error:
            self._leave()
            if isinstance(error, OSError):
                raise UsageError(f"{self._key}: this machine cannot listen for actors: {error.strerror}") from None
            raise
        self._thread = threading.Thread(target=self._hear, args=(self._broker,), name="ray", daemon=True)
        self._thread.start()

    def start(
        self, role: Role, module: str, options: Mapping[str, Any], *, seconds: float, python: str | None = None
    ) -> RayProcess:
        """Start a process in an actor and wait for its call. Raises PeerLost if none comes, or from another version.

        An actor that Ray loses before the call is started again as long as there is time: a node that has gone is
        listed for a while.
        """
        host, port = self._listener.address
        process = {
            "role": role, "module": module, "options": dict(options), "python": python, "folder": os.getcwd(),
            "path": list(sys.path), "threads": os.environ.get(OF_THE_RUN),
        }  # fmt: skip
        until = time.monotonic() + seconds
        while True:
            number, token = next(self._numbers), self._listener.expect()
            self._tell({"start": number, "process": {**process, "call": {"host": host, "port": port, "token": token}}})
            with self._changed:
                left = until - time.monotonic()
                self._changed.wait_for(lambda: token in self._arrived or self._over(number), left)  # noqa: B023
                facts, channel = self._arrived.pop(token, (None, None))
            self._listener.forget(token)
            if facts is not None and channel is not None:
                return self._met(role, number, facts, channel)
            how, why = self.exit_of(number, 0.0), f"Ray did not start it within {seconds:g} seconds"
            if how is not None:
                why = f"it ended: {how.words}{last_of(self.printed_by(number))}"
            self.end(number)
            if number not in self._lost_by_ray or time.monotonic() + PAUSE > until:
                raise PeerLost(why)
            time.sleep(PAUSE)

    def _met(self, role: Role, number: int, facts: Mapping[str, Any], channel: Channel) -> RayProcess:
        started = self._living[number] = RayProcess(channel, number, self)
        if facts["groupwise"] != VERSION:
            started.close()
            raise PeerLost(
                f"groupwise {facts['groupwise']} is installed on Ray's node {facts['node']}, and this is {VERSION}: "
                "install the same there"
            )
        self._note(f"placement    {in_words(role, 1)}: process {facts['pid']} on Ray's node {facts['node']}")
        return started

    def exit_of(self, number: int, seconds: float) -> Exit | None:
        """Return how a process ended, if the news of its end come within these seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._over(number), seconds)
            if number in self._ends:
                return self._ends[number][0]
            return Exit(self._lost, None) if self._lost else None

    def printed_by(self, number: int) -> str:
        """Return what a process that ended had printed last."""
        return self._ends[number][1] if number in self._ends else ""

    def end(self, number: int) -> None:
        """End a process, and wait for it."""
        self._living.pop(number, None)
        if self.exit_of(number, 0.0) is None:
            with suppress(PeerLost):
                self._tell({"end": number})
                self.exit_of(number, ENDS)

    def close(self) -> None:
        """End what still lives, and leave Ray; a Ray that was started for the run ends. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        for process in list(self._living.values()):
            process.close()
        self._listener.close()
        with suppress(PeerLost):
            self._tell({"stop": True})
        self._thread.join(LEAVES)
        self._leave()

    @property
    def _key(self) -> str:
        return f"placement.ray = {self._settings.ray!r}"

    def _over(self, number: int) -> bool:
        return number in self._ends or bool(self._lost)

    def _connected(self, counts: Mapping[Role, int]) -> Child:
        settings = self._settings
        bundles = [(role, settings.resources(role)) for role, count in counts.items() for _ in range(count)]
        options = {
            "address": settings.ray, "strategy": settings.strategy, "bundles": bundles,
            "seconds": settings.deadline, "folder": self._folder,
        }  # fmt: skip
        try:
            environment = {**os.environ, **QUIET, **(own_token() if self._folder else {})}
            return Child(BROKER, options, environment=environment, stderr=self._tail.writing)
        finally:
            self._tail.given()

    def _joined(self, broker: Child, counts: Mapping[Role, int]) -> str:
        """Wait until Ray has all that the run asks for -> how its nodes reach this machine."""
        deadline = self._settings.deadline
        try:
            answer = broker.receive(deadline + GRACE)
        except PeerLost as lost:
            broker.close()  # it is still waiting
            raise UsageError(f"{self._key}: no answer of Ray: {lost}{last_of(self._tail.text(1.0))}") from None
        if why := answer.get("refused"):
            raise UsageError(f"{self._key}: {why}")
        if there := answer.get("lacks"):
            each = ", ".join(
                f"{in_words(role, n)} of {resources_in_words(self._settings, role)}" for role, n in counts.items()
            )
            within = "" if self._folder else f", within {deadline:g} seconds"
            raise UsageError(
                f"{self._key}: it does not give the run all at once, {self._settings.strategy}{within}: {each}; "
                f"{there}. Lower placement.*_cpus or *_gpus, or ask for fewer, or add machines"
            )
        self._note(f"placement    Ray {answer['ray']} of {answer['nodes']} node{'s' * (answer['nodes'] > 1)}")
        return answer["host"]

    def _tell(self, message: Mapping[str, Any]) -> None:
        assert self._broker is not None, "a place without one was not made"
        with self._sending:
            self._broker.send(message)

    def _called(self, token: str, facts: dict[str, Any], channel: Channel) -> None:
        with self._changed:
            self._arrived[token] = facts, channel
            self._changed.notify_all()

    def _hear(self, broker: Child) -> None:
        while True:
            try:
                news = broker.receive()
            except PeerLost as lost:
                with self._changed:
                    self._lost = f"the process that speaks to Ray is lost: {lost}"
                    self._changed.notify_all()
                return
            words = ending(news["code"]) if news["code"] is not None else news.get("words", "its actor was ended")
            with self._changed:
                if news.get("lost"):
                    self._lost_by_ray.add(news["ended"])
                self._ends[news["ended"]] = Exit(words, news["code"]), news.get("printed", "")
                self._changed.notify_all()

    def _leave(self) -> None:
        if self._broker is not None:
            self._broker.channel.close()  # so it leaves Ray, and ends
            with suppress(subprocess.TimeoutExpired):
                self._broker.process.wait(LEAVES)
            self._broker.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


class Listener:
    """The port at which processes that a run has started elsewhere call back, each known by a token of its own.

    It accepts connections until it is closed. A caller without an expected token is sent away, and told nothing.

    address  of the port
    Raises OSError if it cannot listen at the host.
    """

    def __init__(self, host: str, arrived: Arrived) -> None:
        self._arrived = arrived
        self._expected: dict[str, str] = {}  # token by the name in it
        place = Address(host, 0)
        listening = socket.create_server(place, family=place.family)
        self.address = Address(host, listening.getsockname()[1])
        self._door = Door(listening, self._known, self._meet)
        threading.Thread(target=self._door.serve, name="callers", daemon=True).start()

    def expect(self) -> str:
        """Make a new token, good for one connection."""
        token = secrets.token_hex(TOKEN // 2)
        self._expected[name_and_key(token)[0]] = token
        return token

    def forget(self, token: str) -> None:
        """Take back a token."""
        self._expected.pop(name_and_key(token)[0], None)

    def close(self) -> None:
        """Stop listening. A second call does nothing."""
        self._door.close()

    def _known(self, connection: socket.socket) -> str | None:
        """Return a caller's token, once it has shown to have it; None if it is not one that is expected."""
        channel = Channel(connection)
        try:
            caller = meet(channel, self._key_of, SPEAKS, {})
            token = self._expected.pop(caller.name, None)  # None: it was taken back meanwhile, or used
            if token is not None:
                channel.send({"proof": caller.proof}, seconds=SPEAKS)
        except (Refused, OSError, EOFError, FrameError):
            return None
        return token

    def _key_of(self, name: str) -> bytes | None:
        token = self._expected.get(name)
        return None if token is None else name_and_key(token)[1]

    def _meet(self, token: str, connection: socket.socket, _: tuple[str, int]) -> None:
        channel = Channel(connection)
        try:
            keep_alive(connection)
            facts = channel.receive(SPEAKS, limit=FACTS)
        except (OSError, EOFError, FrameError):
            channel.close()
        else:
            self._arrived(token, facts, channel)


def own_token() -> dict[str, str]:
    """Make the token of a Ray of the run's own; without it Ray would write one into the home folder."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def require_ray(settings: PlacementSettings) -> None:
    """Raise UsageError if Ray is not installed here, or nothing listens at its address."""
    key = f"placement.ray = {settings.ray!r}"
    if importlib.util.find_spec("ray") is None:
        raise UsageError(f"{key} needs ray, which is not installed: pip install 'groupwise[ray]'")
    if settings.ray in (AUTO, LOCAL, None):
        return
    address = Address.of(settings.ray)
    try:
        socket.create_connection(address, timeout=PATIENCE).close()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"{key}: nothing is reached there ({why}); begin a Ray with: ray start --head") from None
