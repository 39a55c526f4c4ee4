"""Laws of a handshake: who has the key is known by it, nobody else is, and what was overheard is of no use."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from groupwise.core.channel import Channel, FrameError, pack
from groupwise.core.processes import handshake
from groupwise.core.processes.handshake import Caller, Refused, greeted, introduce, key_in, meet

KEY, OTHER = b"a key of thirty-two characters..", b"another key of as many letters.."


made: list[socket.socket] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while made:
        made.pop().close()


def pair() -> tuple[Channel, Channel]:
    """Both ends of a connection, closed behind the test."""
    made.extend(both := socket.socketpair())
    return Channel(both[0]), Channel(both[1])


def listening(key: bytes = KEY) -> tuple[Channel, Callable[[], Any]]:
    """A connection to whoever knows `run` by the key -> what became of it: a caller, or what was raised."""
    ours, theirs = pair()
    became: list[object] = []

    def meets() -> None:
        try:
            caller = meet(theirs, {"run": key}.get, 5.0, {})
            theirs.send({"proof": caller.proof})
            became.append(caller)
        except (Refused, FrameError, EOFError, OSError) as error:
            became.append(error)
            theirs.close()

    thread = threading.Thread(target=meets)
    thread.start()

    def outcome() -> object:
        thread.join(5)
        return became[0]

    return ours, outcome


def spoken(channel: Channel, key: bytes = KEY, name: str = "run") -> dict[str, Any]:
    return introduce(channel, greeted(channel, 5.0).challenge, name, key, 5.0)


def test_both_that_have_the_key_know_each_other() -> None:
    channel, outcome = listening()
    assert spoken(channel)["proof"] == outcome().proof
    assert isinstance(outcome(), Caller)
    assert outcome().name == "run"


@pytest.mark.parametrize(("key", "name"), [(OTHER, "run"), (KEY, "another"), (KEY[:-1], "run")])
def test_whoever_has_another_key_or_name_is_not_known(key: bytes, name: str) -> None:
    channel, outcome = listening()
    with pytest.raises((EOFError, OSError)):
        spoken(channel, key, name)
    assert isinstance(outcome(), Refused)


def test_whoever_listens_without_the_key_is_found_out() -> None:
    ours, theirs = pair()
    theirs.send({"challenge": "00"})
    theirs.send({"proof": "11"})
    with pytest.raises(Refused, match="does not have the key"):
        spoken(ours)


def test_what_was_overheard_is_of_no_use_to_either_side() -> None:
    """All messages of a handshake that went well are sent once more, by a caller and by a listener."""
    channel, outcome = listening()
    greeting = greeted(channel, 5.0)
    sent: list[dict[str, Any]] = []
    channel.send, send = lambda message, **_: (sent.append(message), send(message)), channel.send  # type: ignore
    answer = introduce(channel, greeting.challenge, "run", KEY, 5.0)
    assert isinstance(outcome(), Caller)
    again, refused = listening()
    again.send(sent[0])
    assert isinstance(refused(), Refused)
    ours, theirs = pair()
    theirs.send({"challenge": greeting.challenge})
    theirs.send(answer)
    with pytest.raises(Refused):
        spoken(ours)


def test_a_proof_is_not_taken_from_its_own_maker() -> None:
    """A listener without the key asks the caller the question that it was asked, and answers with the answer."""
    ours, theirs = pair()
    theirs.send({"challenge": "00"})
    thread = threading.Thread(target=lambda: theirs.send({"proof": theirs.receive(5.0)["proof"]}))
    thread.start()
    with pytest.raises(Refused):
        spoken(ours)
    thread.join()


@pytest.mark.parametrize(
    "said",
    [
        pack({"name": "a\x1b[2J", "challenge": "00", "proof": "11"}),
        pack({"name": "run\n", "challenge": "00", "proof": "11"}),
        pack({"name": "run", "challenge": ["00"], "proof": "11"}),
        pack({"name": "run", "challenge": "00", "proof": "é"}),
        pack({"name": "run", "challenge": "00"}),
        pack({"name": None}),
        b"\xff\xff\xff\xff",
        b"\x80\x00\x00\x00",
        (handshake.MOST + 1).to_bytes(4, "big"),
        pack({"name": "r" * 65, "challenge": "00", "proof": "11"}),
        b"\x00\x00\x00\x02[]",
        b"\x00\x00\x00\x00",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x90" + b"[" * 0x90,
    ],
)
def test_what_is_no_name_ends_at_once(said: bytes) -> None:
    channel, outcome = listening()
    greeted(channel, 5.0)
    channel.send_raw(said)
    assert isinstance(outcome(), FrameError)
    assert len(str(outcome())) < 100
    with pytest.raises((EOFError, OSError)):
        channel.receive(5.0)


def test_drops_of_a_message_do_not_make_it_last_longer() -> None:
    """One byte now and then, as long as the other end listens."""
    ours, theirs = pair()
    stop = threading.Event()

    def drip() -> None:
        for byte in pack({"name": "run", "challenge": "0" * 32, "proof": "0" * 64}):
            if stop.wait(0.05):
                return
            ours.send_raw(bytes([byte]))

    thread = threading.Thread(target=drip)
    thread.start()
    with pytest.raises(TimeoutError):
        meet(theirs, {}.get, 0.2, {})
    stop.set()
    thread.join()


def test_a_key_is_read_from_a_file_that_nobody_else_reads(tmp_path: Path) -> None:
    file = tmp_path / "a key"
    with pytest.raises(ValueError, match=r"^no such file or directory; a key is made by: .* > '.*a key'\)$"):
        key_in(str(file))
    file.write_bytes(KEY + b"\r\n")
    for mode in (0o604, 0o640, 0o602, 0o620, 0o644):
        file.chmod(mode)
        with pytest.raises(ValueError, match=r"^others may read it, .*: chmod 600 '.*a key'$"):
            key_in(str(file))
    file.chmod(0o600)
    assert key_in(str(file)) == KEY
    for content in (b"", b"x" * 15 + b"\n" * 20, b"x" * 4097):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"^it holds [0-9]+ bytes, where a key has 16 to 4096$"):
            key_in(str(file))
    os.mkfifo(tmp_path / "pipe", 0o600)
    for other in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ValueError, match=r"^it is not a regular file$"):
            key_in(str(other))
