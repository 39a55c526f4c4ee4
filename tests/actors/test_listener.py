"""A run hears only processes that it has started: whoever else connects is sent away."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from groupwise.actors import place as places
from groupwise.actors.place import TOKEN, Listener
from groupwise.core.channel import Channel, pack
from groupwise.core.processes.handshake import greeted, introduce, name_and_key


class Heard:
    """A listener, and what has arrived at it."""

    def __init__(self) -> None:
        self.arrived: queue.Queue[tuple[str, dict[str, Any], Any]] = queue.Queue()
        self.listener = Listener("127.0.0.1", lambda *facts: self.arrived.put(facts))

    def connect(self) -> socket.socket:
        return socket.create_connection(self.listener.address, timeout=5)

    def call(self, token: str, facts: dict[str, Any] | None = None) -> socket.socket:
        """A connection of whoever has the token; where that is the wrong one it has ended meanwhile."""
        connection = self.connect()
        channel = Channel(connection)
        with suppress(EOFError, OSError):
            introduce(channel, greeted(channel, 5).challenge, *name_and_key(token), 5)
            if facts is not None:
                channel.send(facts)
        return connection


@pytest.fixture
def heard() -> Iterator[Heard]:
    heard = Heard()
    yield heard
    heard.listener.close()


def sent_away(connection: socket.socket) -> bool:
    """Whether the other end closed it, with no more words than a challenge."""
    with connection:
        connection.settimeout(5)
        try:
            while said := connection.recv(100):
                assert len(said) < 70
            return True
        except ConnectionResetError:
            return True


def test_a_process_is_known_by_its_token_and_its_connection_works(heard: Heard) -> None:
    tokens = [heard.listener.expect() for _ in range(2)]
    assert len(set(tokens)) == 2
    assert all(len(token) == TOKEN for token in tokens)
    for token in tokens[::-1]:
        with heard.call(token, {"pid": 7}) as connection:
            arrived, facts, channel = heard.arrived.get(timeout=5)
            assert (arrived, facts) == (token, {"pid": 7})
            channel.send({"question": 1})
            assert connection.recv(100) == pack({"question": 1})
            channel.close()


def test_whoever_has_no_token_is_sent_away(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "SPEAKS", 0.3)
    token = heard.listener.expect()
    for place in (0, -1):  # of the name, of the key
        wrong = list(token)
        wrong[place] = "0" if token[place] != "0" else "1"
        assert sent_away(heard.call("".join(wrong), {}))
    for nonsense in (b"GET / HTTP/1.1\r\n\r\n", pack({"name": "x"}), pack({"name": token[:16]})[:9], b"\xff" * 600):
        connection = heard.connect()
        connection.sendall(nonsense)
        assert sent_away(connection), nonsense
    assert sent_away(heard.call(token, None)), "it said nothing of itself in time"
    assert heard.arrived.empty()


def test_a_token_is_good_once_and_not_after_it_was_forgotten(heard: Heard) -> None:
    once, forgotten = heard.listener.expect(), heard.listener.expect()
    heard.listener.forget(forgotten)
    with heard.call(once, {}), closing(heard.arrived.get(timeout=5)[2]):
        for token in (once, forgotten):
            assert sent_away(heard.call(token, {}))
    assert heard.arrived.empty()


def test_after_it_is_closed_nobody_is_heard(heard: Heard) -> None:
    heard.listener.close()
    heard.listener.close()
    with pytest.raises(OSError, match=r"refused|reset"):
        heard.call("0" * TOKEN, {})
