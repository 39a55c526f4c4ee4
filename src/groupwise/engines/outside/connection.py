"""Connections of a run to a process that has an engine: a child of its own, or what listens at an address."""

import secrets
import socket
import struct
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, NamedTuple, Protocol

from pydantic import AfterValidator

from groupwise.core import VERSION
from groupwise.core.channel import Channel, FrameError
from groupwise.core.errors import UsageError, shortened
from groupwise.core.peer import Peer, PeerLost, Transport
from groupwise.core.processes.handshake import Refused, greeted, introduce
from groupwise.core.processes.network import Address, keep_alive
from groupwise.core.processes.place import REST, Place, Process, Role

#: The module that runs in an engine's process.
SERVER = "groupwise.engines.outside.server"
#: Seconds between two tries to reach a server again.
PAUSE = 1.0
#: Seconds that a connection may take, and the first words on it.
PATIENCE = 10.0
#: The first words of a server, before its challenge.
GREETING: Mapping[str, str] = {"groupwise": VERSION}
#: Options of `groupwise serve` for what a section of the recipe names.
OPTION: Mapping[str, str] = {"engine": "", "reference": " --teacher MODEL"}
#: The remedies where one end alone has a key.
NO_KEY_HERE = "it asks for a key; set engine.key_file to a file with the key of its --key-file"
NO_KEY_THERE = (
    "it asks for no key, so it may be anybody, and engine.key_file is set; start it with --key-file, or take "
    "engine.key_file out"
)


def addresses_of(text: str) -> tuple[Address, ...]:
    """Read "HOST:PORT", or several with commas between them. Raises ValueError for what is none.

    >>> [str(address) for address in addresses_of("gpu-1:7001, gpu-2:7001")]
    ['gpu-1:7001', 'gpu-2:7001']
    """
    every = tuple(Address.of(one.strip()) for one in text.split(","))
    if not all(address.port for address in every):
        raise ValueError("port 0 is no port to be reached")
    if len(set(every)) < len(every):
        raise ValueError("an address is there twice; a server has one engine")
    return every


#: One address, or several with commas between them, as a recipe has them; spelled in full.
AddressText = Annotated[str, AfterValidator(lambda text: ", ".join(map(str, addresses_of(text))))]


class Greeted(NamedTuple):
    """A connection to a server that has greeted, and its challenge; "" if it asks for no key."""

    channel: Channel
    challenge: str


def connect(address: Address, key: bytes | None = None, section: str = "engine") -> Greeted:
    """Connect to a server that asks for a key if there is one here, and hear its greeting.

    section  of the recipe that names it; one that serves a model of its own is a teacher, for "reference"
    Raises UsageError if there is none of this version.
    """
    try:
        connection = socket.create_connection(address, timeout=PATIENCE)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{section}.address = '{address}': {_unreachable(error, address, section)}") from None
    keep_alive(connection)
    channel = Channel(connection)
    try:
        challenge, said = greeted(channel, PATIENCE)
        version = said.get("groupwise")
        if not isinstance(version, str):
            raise FrameError
    except (OSError, EOFError, FrameError):
        channel.close()
        words = "what answers there is no engine's server; start one there: groupwise serve"
        raise UsageError(f"{section}.address = '{address}': {words} {address.port}{OPTION[section]}") from None
    if version != VERSION:
        channel.close()
        words = f"groupwise {printable(version)} serves there, and this is {VERSION}: install the same at both ends"
        raise UsageError(f"{section}.address = '{address}': {words}")
    if ("model" in said) != (section == "reference"):
        channel.close()
        what = f"{'a teacher' if 'model' in said else 'an engine'} is served there; start another server"
        raise UsageError(f"{section}.address = '{address}': {what}: groupwise serve PORT{OPTION[section]}")
    if bool(challenge) != (key is not None):
        channel.close()
        words = (NO_KEY_HERE if challenge else NO_KEY_THERE).replace("engine", section)
        raise UsageError(f"{section}.address = '{address}': {words}")
    return Greeted(channel, challenge)


def printable(text: object) -> str:
    """Return what another process said as a message repeats it: short, and nothing that a terminal obeys.

    >>> printable("a\\x1b[2Jb\\n")
    'a?[2Jb?'
    """
    return shortened("".join(letter if letter.isprintable() else "?" for letter in str(text)))


def _unreachable(error: Exception, address: Address, section: str) -> str:
    if isinstance(error, ConnectionRefusedError):
        return f"nothing listens there; start it on that machine: groupwise serve {address.port}{OPTION[section]}"
    if isinstance(error, TimeoutError):
        return f"no answer for {PATIENCE:g} seconds"
    if isinstance(error, socket.gaierror | UnicodeError):
        return "there is no such host"
    return (getattr(error, "strerror", None) or str(error)).lower()


class EngineLine(Transport, Protocol):
    """The run's end of a connection to a process with an engine.

    pid            of the process, where it is one of this machine's
    shares_memory  whether it gets descriptors that are sent to it; else all bytes have to be sent
    """

    @property
    def pid(self) -> int | None: ...

    @property
    def shares_memory(self) -> bool: ...

    def speaks(self, seconds: float) -> bool: ...

    def close(self) -> None: ...


class Reached(NamedTuple):
    """A connection to a process without an engine yet, and what adds to its loss what is known of the cause."""

    line: EngineLine
    explained: Callable[[PeerLost], PeerLost]


#: Makes a connection; `again`: after one that was lost. Raises PeerLost, and UsageError for what cannot get better.
Reach = Callable[[bool], Reached]


def reach_place(place: Place, python: str | None, seconds: float) -> Reach:
    """Return what starts a process of the run's own, the first time and again."""

    def reach(again: bool) -> Reached:
        process = place.start(Role.ENGINE, SERVER, {}, seconds=seconds, python=python)
        return Reached(process, partial(_with_last_line, process))

    return reach


def _with_last_line(process: Process, lost: PeerLost) -> PeerLost:
    """Add the last line that the process printed, if its program failed, and all of it as a note."""
    printed = process.printed(0.0 if lost.late else REST)
    how = process.exit()
    failed = how is not None and (how.code or 0) > 0
    last = printed.strip().rpartition("\n")[2].strip()
    words = PeerLost(f"{lost} ({last})" if failed and last else str(lost), lost.late, lost.killed)
    if printed:
        words.add_note(printed)
    return words


class AddressLine(Peer):
    """A connection to a process that a server at an address has started for this run."""

    pid: int | None = None
    shares_memory = False


def reach_address(address: Address, seconds: float, key: bytes | None = None, section: str = "engine") -> Reach:
    """Return what connects to the server at an address, in the name of one run, with the key that it asks for.

    It raises UsageError if no process can be had at once, or PeerLost if none is there `seconds` after a loss.
    """
    run = secrets.token_hex(8)

    def explained(lost: PeerLost) -> PeerLost:
        where = "" if lost.late else f"; groupwise serve at {address} has printed why"
        return PeerLost(f"{lost}{where}", lost.late, killed=not lost.late)

    def reach(again: bool) -> Reached:
        end = time.monotonic() + seconds
        while True:
            try:
                return Reached(_process_at(address, run, key, section), explained)
            except UsageError as error:
                if not again:
                    raise
                if time.monotonic() + PAUSE > end:
                    raise PeerLost(str(error)) from None
            time.sleep(PAUSE)

    return reach


def _process_at(address: Address, run: str, key: bytes | None, section: str) -> AddressLine:
    channel, challenge = connect(address, key, section)
    try:
        answer = introduce(channel, challenge, run, key, PATIENCE)
    except (OSError, EOFError):
        answer = {"refused": "it closed the connection"}
    except (FrameError, Refused) as error:
        answer = {"refused": str(error)}
    if refused := answer.get("refused"):
        channel.close()
        raise UsageError(f"{section}.address = '{address}': {printable(refused)}")
    # However this process ends, the server hears of it at once: what a stopped engine does not read would be kept, and
    # the end of the connection behind it.
    channel.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return AddressLine(channel)
