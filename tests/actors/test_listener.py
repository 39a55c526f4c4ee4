"""A run hears only processes that it has started: whoever else connects is sent away."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from groupwise.actors import place as places
from groupwise.actors.place import TOKEN, Listener
from groupwise.core.channel import pack


class Heard:
    """A listener, and what has arrived at it."""

    def __init__(self) -> None:
        self.arrived: queue.Queue[tuple[str, dict[str, Any], Any]] = queue.Queue()
        self.listener = Listener("127.0.0.1", lambda *facts: self.arrived.put(facts))

    def call(self, token: bytes, facts: dict[str, Any] | None = None) -> socket.socket:
        connection = socket.create_connection(self.listener.address, timeout=5)
        connection.sendall(token + (pack(facts) if facts is not None else b""))
        return connection


@pytest.fixture
def heard() -> Iterator[Heard]:
    heard = Heard()
    yield heard
    heard.listener.close()


def sent_away(connection: socket.socket) -> bool:
    """Whether the other end closed it."""
    with connection:
        try:
            return connection.recv(1) == b""
        except ConnectionResetError:
            return True


def test_a_process_is_known_by_its_token_and_its_connection_works(heard: Heard) -> None:
    tokens = [heard.listener.expect() for _ in range(2)]
    assert len(set(tokens)) == 2
    assert all(len(token) == TOKEN for token in tokens)
    for token in tokens[::-1]:
        with heard.call(token.encode(), {"pid": 7}) as connection:
            arrived, facts, channel = heard.arrived.get(timeout=5)
            assert (arrived, facts) == (token, {"pid": 7})
            channel.send({"question": 1})
            assert connection.recv(100) == pack({"question": 1})
            channel.close()


def test_whoever_has_no_token_is_sent_away(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "SPEAKS", 0.3)
    token = heard.listener.expect()
    wrong = ("0" if token[0] != "0" else "1") + token[1:]
    assert sent_away(heard.call(wrong.encode(), {}))
    assert sent_away(heard.call(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"\r\n" * 20))
    assert sent_away(heard.call(token[:-1].encode())), "it came no further in time"
    assert sent_away(heard.call(token.encode(), None)), "it said nothing of itself in time"
    assert heard.arrived.empty()


def test_a_token_is_good_once_and_not_after_it_was_forgotten(heard: Heard) -> None:
    once, forgotten = heard.listener.expect(), heard.listener.expect()
    heard.listener.forget(forgotten)
    with heard.call(once.encode(), {}), closing(heard.arrived.get(timeout=5)[2]):
        for token in (once, forgotten):
            assert sent_away(heard.call(token.encode(), {}))
    assert heard.arrived.empty()


def test_after_it_is_closed_nobody_is_heard(heard: Heard) -> None:
    heard.listener.close()
    heard.listener.close()
    with pytest.raises(OSError, match=r"refused|reset"):
        heard.call(b"0" * TOKEN, {})
