"""Laws of a server with a key: nobody without it gets anything, and both ends say why.

That whoever has it gets the engine is seen in test_address.py.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from groupwise.core.channel import Channel, pack
from groupwise.core.errors import UsageError
from groupwise.core.processes import network
from groupwise.core.processes.handshake import greeted, introduce
from groupwise.engines.outside import serving
from groupwise.engines.outside.connection import GREETING, addresses_of, connect, reach_address
from groupwise.engines.settings import EngineSettings
from tests.engines.outside.made import KEY, listening, made_key

OTHER = b"another key of as many letters.."


@pytest.fixture(scope="module")
def there() -> Iterator[SimpleNamespace]:
    with listening(key=KEY) as server:
        yield server


def settings_with(address: str, file: Path | None) -> EngineSettings:
    return EngineSettings(address=address, key_file=None if file is None else str(file))


def test_a_run_without_the_key_is_told_so_in_one_line(there: Any, tmp_path: Path) -> None:
    began = len(there.notes)
    shared = made_key(tmp_path / "shared")
    shared.chmod(0o644)
    refused: dict[str, tuple[EngineSettings, str]] = {
        "none": (settings_with(there.address, None), "it asks for a key; set engine.key_file to a file with"),
        "shared": (settings_with(there.address, shared), "others may read it, .*: chmod 600 "),
        "no file": (settings_with(there.address, tmp_path / "no"), "no such file or directory; a key is made by: "),
    }
    for settings, words in refused.values():
        with pytest.raises(UsageError, match=rf"^engine\.(address|key_file) = '[^']*': {words}"):
            settings.require_place()
    for _ in range(3):
        with pytest.raises(UsageError, match=r": its --key-file holds another key than engine.key_file$"):
            reach_address(addresses_of(there.address)[0], 1.0, OTHER)(False)
    assert [note.partition(" ")[2] for note in there.notes[began:]] == [
        "is refused: it has another key; further ones are refused without a word"
    ]


def test_a_run_with_a_key_takes_no_engine_from_whoever_has_none() -> None:
    """One that asks for none, and one that says that it does."""
    with listening() as there, pytest.raises(UsageError, match=r": it asks for no key, so it may be anybody"):
        connect(addresses_of(there.address)[0], KEY)
    with socket.create_server(("127.0.0.1", 0)) as other:

        def pretend() -> None:
            with other.accept()[0] as connection:
                Channel(connection).send({**GREETING, "challenge": "00"})
                Channel(connection).receive(5)
                Channel(connection).send({"welcome": "x", "proof": "00"})

        thread = threading.Thread(target=pretend)
        thread.start()
        address = addresses_of(f"127.0.0.1:{other.getsockname()[1]}")[0]
        with pytest.raises(UsageError, match=r": what answers there does not have the key$"):
            reach_address(address, 1.0, KEY)(False)
        thread.join(5)


def test_what_a_server_says_is_shown_without_what_a_terminal_obeys() -> None:
    """A hostile one refuses with a page of escapes."""
    with socket.create_server(("127.0.0.1", 0)) as other:

        def refuse() -> None:
            with other.accept()[0] as connection:
                Channel(connection).send({**GREETING, "challenge": ""})
                Channel(connection).receive(5)
                Channel(connection).send({"refused": "\x1b[2J\n" * 30})

        thread = threading.Thread(target=refuse)
        thread.start()
        address = addresses_of(f"127.0.0.1:{other.getsockname()[1]}")[0]
        with pytest.raises(UsageError) as error:
            reach_address(address, 1.0)(False)
        thread.join(5)
    assert str(error.value).isprintable()


def attempts(place: network.Address) -> Iterator[socket.socket]:
    """Strangers, each in a way of its own, whose connections stay open."""
    whole = pack({"name": "run", "challenge": "0" * 32, "proof": "0" * 64})
    for said in (
        whole,  # a wrong proof
        whole + whole,  # and again
        whole[:40],  # half a frame
        b"\xff\xff\xff\xff" + b"x" * 400,  # 2^32 - 1 bytes, or -1
        b"\x80\x00\x00\x00",  # 2^31
        b"\x00\x00\x00\x00",
        pack({"name": "\x1b]0;owned\x07", "challenge": "0" * 32, "proof": "0" * 64}),
        pack({"name": {"$": 1}, "challenge": 0, "proof": []}),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        os.urandom(512),
    ):
        connection = socket.create_connection(place, timeout=5)
        connection.sendall(said)
        yield connection
    for _ in range(150):  # they say nothing
        yield socket.create_connection(place, timeout=5)


def introduced_by(channel: Channel, challenge: str) -> None:
    with suppress(EOFError, OSError):  # nothing answers in this test
        introduce(channel, challenge, "real", KEY, 5.0)


def test_strangers_of_every_kind_take_nothing_and_keep_nobody_out(there: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is started for any of them, and one with the key is met beside them."""
    place = addresses_of(there.address)[0]
    met: list[str] = []
    monkeypatch.setattr(serving.EngineServer, "_process_for", lambda self, run, *_: met.append(run.name))
    there.server._door._met = there.server._answer  # which is made before this test
    held = list(attempts(place))
    channel, challenge = connect(place, KEY)
    introduced = threading.Thread(target=lambda: introduced_by(channel, challenge), daemon=True)
    introduced.start()
    for _ in range(500):
        if met:
            break
        threading.Event().wait(0.01)
    assert met == ["real"]
    assert len(there.server._door._waiting) <= network.WAITING
    channel.close()
    introduced.join(5)
    for connection in held:
        connection.close()


def test_a_greeting_is_of_the_same_few_bytes_for_everyone(there: Any) -> None:
    for _ in range(2):
        with socket.create_connection(addresses_of(there.address)[0], timeout=5) as connection:
            greeting = greeted(Channel(connection), 5.0)
        assert dict(greeting.said) == GREETING
        assert len(greeting.challenge) == 32
