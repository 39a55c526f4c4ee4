"""Mutants of what comes over a wire: answers of an engine, and bytes that are no frames, at both ends of a connection.

The engine, its server and whoever else connects are threads of the command's own process, which is a fork: what they do
costs no start of a process. What the command does with it is what counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

from hypothesis import strategies as st

from groupwise.commands import serve
from groupwise.core.channel import Channel, pack
from groupwise.core.processes.network import Address
from groupwise.engines.outside import server, serving
from tests.faults.forked import command
from tests.faults.ground import RECIPE, Ground, toml
from tests.faults.mutant import Mutant, as_json, damaged, odd_json, odd_table, one

#: Questions of a run of one step, in their order: start, four of generation and loads between them.
MESSAGES = 6
#: All questions of a run together are waited for no longer than a mutant may take.
ENGINE = {"deadline": 2.0, "start_deadline": 5.0, "restarts": 1}
TRAIN = (("recipe.toml", toml({**RECIPE, "engine": ENGINE})),)
#: What a stranger may send first.
STRANGE = [
    b"", b"\0", b"\0" * 4, b"\xff" * 4, b"\xff" * 300, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00",
    b"SSH-2.0-x\r\n", pack({}), pack({"run": None}), pack({"run": 5}), pack({"run": "a" * 300}),
    pack({"run": "\x1b[31m"}),
    (2**31).to_bytes(4, "big") + b"{}", (2).to_bytes(4, "big") + b"[]", (3).to_bytes(4, "big") + b"{\xff}",
    (6000).to_bytes(4, "big") + b"[" * 6000, pack({"proof": "x", "run": "x"}), pack({"challenge": "x"}),
]  # fmt: skip


@dataclass(frozen=True)
class Damage:
    """What the other end does.

    at       number of the message that it damages, from 0; the first connection's alone, or each one's
    always   each one's
    content  what its JSON becomes: (where, value) of one place; None: as it is
    array    (its name, the element's number, the value) of an array; None: as it is
    data     bytes in place of the frame; None: as they are
    ends     whether the connection is closed behind them, or held open
    """

    at: int = 0
    always: bool = False
    content: tuple[tuple[Any, ...], Any] | None = None
    array: tuple[str, int, float] | None = None
    data: bytes | None = None
    ends: bool = True


@st.composite
def answer(draw: st.DrawFn, ground: Ground) -> Mutant:
    """One value of an answer that is another one."""
    at, always = draw(st.integers(1, MESSAGES)), draw(st.booleans())
    if draw(st.booleans()):
        name, number = draw(one("tokens", "logp_engine")), draw(st.integers(0, 40))
        ids, nats = [-1, 15, 2**31, 2**62, 0, 1, 2], ["nan", "inf", "-inf", 0.5, 1e308, 0.0, -0.1, -1e9]
        value = draw(one(*ids)) if name == "tokens" else float(draw(one(*nats)))
        return _mutant("answer", f"an element of {name}", Damage(at, always, array=(name, number, value)))
    field = draw(
        one("groups", "tokens", "finish", "stop", "spans", "support_ids", "support_start", "routes", "tokens_run",
            "version", "routes", "keeps_support", "options", "precision", "library")
    )  # fmt: skip
    place = (field, *draw(one((), (), (0,), (3,), (0, 0, "version"), (0, 0, "own"), (0, 0, "stop"))))
    return _mutant("answer", f"its {field}", Damage(at, always, content=(place, draw(odd_json()))))


@st.composite
def frame(draw: st.DrawFn, ground: Ground) -> Mutant:
    """Bytes in the place of a frame: what a server hears of a stranger, or a run of a server."""
    strange = draw(st.sampled_from(STRANGE) | st.binary(max_size=400) | _near())
    if draw(st.booleans()):
        return _mutant("frame", "a stranger", Damage(data=strange, ends=draw(st.booleans())), "serve")
    at, ends = draw(st.integers(0, MESSAGES)), draw(one(True, True, False))
    damage = Damage(at, draw(st.booleans()), data=strange, ends=ends)
    return _mutant("frame", "of the engine's end", damage)


@st.composite
def _near(draw: st.DrawFn) -> bytes:
    """A frame that is nearly one."""
    said: dict[str, Any] = {draw(one("groupwise", "run", "welcome", "answer", "error", "finished")): draw(one("x", {}))}
    if draw(st.booleans()):
        return draw(damaged(pack(said)))[1]
    body = as_json(draw(odd_table(said))[1])
    return len(body).to_bytes(4, "big") + body


def _mutant(kind: str, what: str, damage: Damage, end: str = "train") -> Mutant:
    words = ("train", "recipe.toml") if end == "train" else ("serve", "0")
    return Mutant(kind, f"{end}: {what}", words, TRAIN if end == "train" else (), "either", wire=damage)


def act(damage: Damage) -> None:
    """What runs in place of the command alone, in its process."""
    server.os = SimpleNamespace(**{**vars(os), "_exit": sys.exit})  # of this thread, not of the process
    serving.Child = partial(InThread, damage)
    (_served if sys.argv[1:2] == ["serve"] else _trained)(damage)


def _trained(damage: Damage) -> None:
    lying = LyingServer(Address("127.0.0.1", 0), None, "cpu", 1, lambda line: None)
    lying.damage = damage
    threading.Thread(target=lying.serve, daemon=True).start()
    sys.argv += ["--set", f"engine.address={lying.address}"]
    command()


def _served(damage: Damage) -> None:
    addresses: list[Address] = []

    class Known(serving.EngineServer):
        def __init__(self, *words: Any, **named: Any) -> None:
            super().__init__(*words, **named)
            addresses.append(self.address)

    serve.EngineServer = Known
    threading.Thread(target=_stranger, args=(damage, addresses), daemon=True).start()
    command()


def _stranger(damage: Damage, addresses: list[Address]) -> None:
    """Connects, says what it says, and looks if a run would be greeted afterwards."""
    while not addresses:
        time.sleep(0.005)
    try:
        with socket.create_connection(addresses[0], timeout=5) as connection, contextlib.suppress(OSError):
            connection.sendall(damage.data or b"")
            if not damage.ends:
                connection.settimeout(0.2)
                connection.recv(1)
                connection.recv(1 << 16)
        with socket.create_connection(addresses[0], timeout=5) as connection:
            assert connection.recv(1)
    except (OSError, AssertionError) as error:
        sys.stderr.write(f"nobody is greeted any more: {error!r}\n")
    os.kill(os.getpid(), signal.SIGINT)


class LyingServer(serving.EngineServer):
    """A server whose greeting may be another one."""

    damage = Damage(at=-1)

    def _run_of(self, connection: socket.socket) -> Any:
        if self.damage.at == 0 and self.damage.data is not None:
            _bytes_for(self.damage, connection)
            self.damage = self.damage if self.damage.always else Damage(at=-1)
            return None
        return super()._run_of(connection)


class InThread:
    """An engine's process that is a thread; the first one of them damages a message, or each does."""

    made = 0

    def __init__(self, damage: Damage, *_: Any, **__: Any) -> None:
        self._damage = damage if damage.always or not InThread.made else Damage(at=-1)
        InThread.made += 1
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.process = SimpleNamespace(pid=os.getpid(), wait=self._wait)

    def send(self, _: Any, descriptors: Any, *__: Any) -> None:
        self._connection = socket.socket(fileno=os.dup(descriptors[0]))
        self._thread.start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        with self._connection, contextlib.suppress(SystemExit, OSError):
            Liar(Channel(self._connection), self._damage).serve()

    def _wait(self, seconds: float | None = None) -> int:
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise subprocess.TimeoutExpired("a thread", seconds or 0)
        return 0


class Liar(server.Server):
    """An engine's program that sends one message otherwise."""

    def __init__(self, run: Channel, damage: Damage) -> None:
        super().__init__(run, ("cpu", 1))
        self._damage, self._sent = damage, 0

    def _send(self, content: Mapping[str, Any], arrays: Any = MappingProxyType({})) -> None:
        damage, self._sent = self._damage, self._sent + ("answer" in content)
        if "answer" not in content or self._sent != damage.at:
            return super()._send(content, arrays)
        if damage.data is not None:
            _bytes_for(damage, self._run.connection)
            sys.exit()
        content, arrays = json.loads(json.dumps(content)), {name: array.copy() for name, array in arrays.items()}
        with contextlib.suppress(LookupError, TypeError):
            _put(content["answer"], damage.content)
        if damage.array is not None and damage.array[0] in arrays:
            name, number, value = damage.array
            if number < len(arrays[name]):
                arrays[name][number] = value
        return super()._send(content, arrays)


def _put(answer: Any, change: tuple[tuple[Any, ...], Any] | None) -> None:
    if change is not None:
        *path, last = change[0]
        for part in path:
            answer = answer[part]
        answer[last] = float(change[1][1:]) if change[1] in ("@nan", "@inf") else change[1]


def _bytes_for(damage: Damage, connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(damage.data or b"")
        if not damage.ends:
            connection.settimeout(ENGINE["deadline"] + 2)
            connection.recv(1 << 16)
        connection.shutdown(socket.SHUT_RDWR)
