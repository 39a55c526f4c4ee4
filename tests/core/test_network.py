"""Laws of a port that strangers reach: none of them ends what listens there, or keeps another out."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from groupwise.core.channel import Channel, FrameError, pack
from groupwise.core.processes import network
from groupwise.core.processes.network import Door


def known(connection: socket.socket) -> str | None:
    """Their name, of four letters, in the end."""
    connection.settimeout(20)
    try:
        return connection.recv(4).decode() or None
    except OSError:
        return None


class Aborting(socket.socket):
    """A socket that listens, and of which every other connection has gone before it was accepted."""

    tried = 0

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        self.tried += 1
        if self.tried % 2:
            raise ConnectionAbortedError(errno.ECONNABORTED, "aborted")
        return super().accept()


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def place(notes: list[str]) -> Iterator[tuple[str, int]]:
    """Of a door that sends everyone their name."""
    listening = Aborting()
    listening.bind(("127.0.0.1", 0))
    listening.listen(200)

    def met(name: str, connection: socket.socket, _: tuple[str, int]) -> None:
        with connection:
            connection.sendall(name.encode())

    door = Door(listening, known, met, notes.append)
    thread = threading.Thread(target=door.serve, daemon=True)
    thread.start()
    yield listening.getsockname()
    door.close()
    door.close()
    thread.join(5)
    assert not thread.is_alive()


def is_served(connection: socket.socket) -> bool:
    connection.settimeout(10)
    connection.sendall(b"name")
    return connection.recv(4) == b"name"


def test_many_that_wait_keep_nobody_out_and_the_oldest_go(place: tuple[str, int]) -> None:
    idle = [socket.create_connection(place, timeout=5) for _ in range(network.WAITING + 20)]
    with socket.create_connection(place, timeout=5) as real:
        assert is_served(real)
    assert [connection.recv(1) for connection in idle[:20]] == [b""] * 20
    assert is_served(idle[-1])
    for connection in idle:
        connection.close()


def test_a_connection_that_is_aborted_is_no_end_and_no_news(place: tuple[str, int], notes: list[str]) -> None:
    for _ in range(3):
        with socket.create_connection(place, timeout=5) as real:
            assert is_served(real)
    assert notes == []


def test_a_lack_of_descriptors_is_no_end_and_is_said_once(place: tuple[str, int], notes: list[str]) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    made, held = [socket.socket() for _ in range(3)], []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, limits[1]))
    try:
        with suppress(OSError):
            while True:
                held.append(os.dup(0))
        for connection in made:
            connection.connect(place)
        made[-1].settimeout(4 * network.PAUSE)
        with pytest.raises(TimeoutError):
            made[-1].recv(1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in held:
            os.close(descriptor)
    assert is_served(made[-1])
    assert notes == ["no connection can be taken for now: too many open files (ulimit -n); it goes on listening"]
    for connection in made:
        connection.close()


def test_an_interrupt_that_no_wait_sees_ends_it_all_the_same() -> None:
    """Another thread gets the signal, so the wait for a connection goes on, as where it comes right before one."""
    listening = socket.create_server(("127.0.0.1", 0))
    door = Door(listening, known, lambda *_: None)
    interrupt = threading.Timer(0.2, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT))
    closes = threading.Timer(10 * network.LOOK, door.close)
    for timer in (interrupt, closes):
        timer.start()
    with pytest.raises(KeyboardInterrupt):
        door.serve()
    assert closes.is_alive()
    closes.cancel()
    door.close()


def test_a_message_above_a_limit_is_refused_by_its_length_alone() -> None:
    ours, theirs = map(Channel, socket.socketpair())
    theirs.send_raw((257).to_bytes(4, "big"))
    with pytest.raises(FrameError, match="a message above 256 bytes"):
        ours.receive(5.0, limit=256)
    ours.close()
    theirs.close()
    assert len(pack({"run": "0" * 16})) < 256
