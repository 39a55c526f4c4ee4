"""An engine at an address gives the bits of the one inside; what goes wrong on the way there is one line.

One server listens for the whole file, on this machine, with engines in real processes behind real connections.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import groupwise
from groupwise.commands.serve import serve
from groupwise.commands.train.train import resume
from groupwise.core.channel import pack
from groupwise.core.engine import Finished
from groupwise.core.errors import RunError, UsageError
from groupwise.engines.make import make_engine
from groupwise.engines.outside import connection as connections
from groupwise.engines.outside import serving, wire
from groupwise.engines.outside.connection import GREETING, Address, connect
from groupwise.engines.outside.serving import EngineServer
from groupwise.engines.settings import EngineSettings
from groupwise.models.load import Policy
from tests.command_process import CommandProcess
from tests.engines.outside.made import (
    ENDLESS,
    KEY,
    LONG,
    REQUESTS,
    SAMPLINGS,
    assert_same,
    listening,
    made_key,
    noted,
    process_of,
)
from tests.runs.test_run import assert_same_run
from tests.runs.tiny_runs import cut_back, tiny_run


@pytest.fixture(scope="module")
def both(experts: Policy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The engine inside, the one at an address with a key, its settings, what the run has noted, and the server."""
    notes: list[str] = []
    with listening(key=KEY) as there:
        inside = make_engine(policy=experts, settings=EngineSettings(), routes=True)
        key_file = made_key(tmp_path_factory.mktemp("key") / "key")
        settings = EngineSettings(address=there.address, key_file=str(key_file))
        settings.require_place()
        remote = make_engine(policy=experts, settings=settings, routes=True, note=notes.append)
        yield SimpleNamespace(inside=inside, remote=remote, settings=settings, notes=notes, there=there)
        remote.close()


@pytest.mark.slow
def test_an_engine_that_stalls_there_is_named_within_its_deadline(both: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    both.remote.generate(REQUESTS, SAMPLINGS["plain"])
    monkeypatch.setattr(both.remote, "_settings", both.remote._settings.replace(deadline=1.0, restarts=0))
    os.kill(process_of(both.there.server), signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(RunError, match=r"engine.restarts = 0: it gave no sign of progress for 1 seconds; resume"):
        both.remote.generate(LONG, ENDLESS)
    assert time.monotonic() - began < 5
    monkeypatch.undo()
    assert_same(both.remote.generate(REQUESTS, SAMPLINGS["plain"]), both.inside.generate(REQUESTS, SAMPLINGS["plain"]))


def test_one_run_at_a_time_and_the_next_when_it_has_gone(both: Any, policy: Policy) -> None:
    with pytest.raises(UsageError) as error:
        make_engine(policy=policy, settings=both.settings)
    assert str(error.value) == (
        f"engine.address = '{both.there.address}': another run has the engine there; wait for its end, or start a "
        "second server"
    )
    pid = process_of(both.there.server)
    both.remote.generate(REQUESTS, SAMPLINGS["plain"])
    assert process_of(both.there.server) == pid, "who is refused disturbs no run"


@pytest.mark.slow
def test_a_run_that_goes_away_in_the_middle_of_an_answer_leaves_the_engine_to_the_next(
    policy: Policy,
) -> None:
    class Broken(Exception):
        pass

    def fail(_: Finished) -> None:
        raise Broken

    with listening() as there:
        settings = EngineSettings(address=there.address)
        first = make_engine(policy=policy, settings=settings)
        with pytest.raises(Broken):
            first.generate(LONG, ENDLESS, fail)
        first.close()
        assert noted(there, "has gone")
        second = make_engine(policy=policy, settings=settings)
        expected = make_engine(policy=policy, settings=EngineSettings()).generate(REQUESTS[:2], SAMPLINGS["plain"])
        assert_same(second.generate(REQUESTS[:2], SAMPLINGS["plain"]), expected)
        second.close()


def test_a_server_hears_that_a_run_is_gone_behind_what_its_stopped_engine_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "GRACE", 0.1)
    with listening() as there:
        line: Any = connections.reach_address(there.server.address, 5.0)(False).line
        assert noted(there, "has an engine now")
        os.kill(process_of(there.server), signal.SIGSTOP)
        line.channel.connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            line.channel.connection.sendall(bytes(1 << 26))
        line.close()
        assert noted(there, "has gone")


@pytest.mark.slow
def test_an_engine_that_is_stopped_for_good_goes_with_its_run(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot see that its run is gone; without somebody who does, every other run would be refused."""
    monkeypatch.setattr(serving, "GRACE", 0.1)
    with listening() as there:
        settings = EngineSettings(address=there.address)
        first = make_engine(policy=policy, settings=settings)
        stopped = process_of(there.server)
        os.kill(stopped, signal.SIGSTOP)
        first.close()
        assert noted(there, "has gone")
        second = make_engine(policy=policy, settings=settings)
        assert process_of(there.server) != stopped
        second.close()


@pytest.mark.slow
def test_a_run_has_the_bits_of_the_run_inside_and_goes_on_when_its_server_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server goes away after step 2, and is there again a moment later, on its port. Then the run is resumed from
    that step, at another address.
    """
    monkeypatch.setattr(connections, "PAUSE", 0.05)
    changes = {"steps": 4, "algorithm__name": "grpo", "evaluation__every": 2}
    inside = groupwise.train("quickstart", tiny_run(tmp_path, name="inside", **changes)).folder
    with contextlib.ExitStack() as stack:
        there = stack.enter_context(listening())
        port = there.server.address.port

        def restart(record: Any) -> None:
            if record.step == 2:
                there.server.close()
                threading.Timer(0.3, lambda: stack.enter_context(listening(port))).start()

        overrides = tiny_run(tmp_path, name="remote", engine__address=there.address, **changes)
        remote = groupwise.train("quickstart", overrides, callbacks=[restart]).folder
    assert_same_run(inside, remote)
    log = (remote / "log.txt").read_text()
    assert "engine       transformers " in log
    assert log.count("its process is lost") == 1
    cut_back(remote, 2)
    with listening() as second:
        assert resume(remote, {"engine.address": second.address}).finished
    assert_same_run(inside, remote)


@pytest.mark.slow
def test_a_server_that_does_not_come_back_ends_the_run_in_one_line(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "PAUSE", 0.05)
    with listening() as there:
        settings = EngineSettings(address=there.address, start_deadline=60.0, restarts=1)
        remote: Any = make_engine(policy=policy, settings=settings)
    remote._reach = connections.reach_address(there.server.address, seconds=0.3)
    with pytest.raises(RunError) as error:
        remote.generate(REQUESTS[:1], SAMPLINGS["plain"])
    assert str(error.value) == (
        f"the engine's process is lost, 2 times in a row: engine.address = '{there.address}': nothing listens there; "
        f"start it on that machine: groupwise serve {there.server.address.port}; resume the run to go on from its "
        "newest checkpoint"
    )
    remote.close()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return made_key(tmp_path / "key")


#: Stands in a command's words for the path of a key.
KEY_FILE = "FILE"


@contextlib.contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """Something else that listens -> its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError), listener.accept()[0] as connection:
                answer(connection)
                connection.recv(1)

        thread = threading.Thread(target=accept)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(5)


NO_SERVER = "what answers there is no engine's server; start one there: groupwise serve"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.9\r\n"), NO_SERVER),
        (lambda connection: connection.sendall(pack({"hello": 1})), NO_SERVER),
        (lambda connection: connection.shutdown(socket.SHUT_WR), NO_SERVER),
        (lambda connection: None, NO_SERVER),
        (
            lambda connection: connection.sendall(pack({"groupwise": "9.9.9"})),
            f"groupwise 9.9.9 serves there, and this is {GREETING['groupwise']}: install the same at both ends",
        ),
    ],
    ids=["ssh", "another service", "closes", "silent", "another version"],
)
def test_what_else_answers_is_one_line(
    answer: Callable[[socket.socket], None], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "PATIENCE", 0.3)
    with answering(answer) as port, pytest.raises(UsageError) as error:
        connect(Address("127.0.0.1", port))
    assert str(error.value).startswith(f"engine.address = '127.0.0.1:{port}': {words}")
    assert "\n" not in str(error.value)


def test_a_host_that_is_not_there_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"^engine.address = 'no.such.host.invalid:7001': there is no such host$"):
        connect(Address.of("no.such.host.invalid:7001"))


def test_an_address_where_nothing_listens_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(UsageError) as error:
        groupwise.train("quickstart", tiny_run(tmp_path, engine__address=f"127.0.0.1:{port}"))
    assert str(error.value) == (
        f"engine.address = '127.0.0.1:{port}': nothing listens there; start it on that machine: groupwise serve {port}"
    )


@pytest.mark.parametrize("text", ["", "host", "host:", "host:70000", "a b:7", "http://host:1", "::1:7001", "host:0"])
def test_what_is_no_address_is_refused_before_anything_is_tried(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"engine.address = "):
        groupwise.train("quickstart", tiny_run(tmp_path, engine__address=text))


@pytest.mark.parametrize("key", ["process", "python"])
def test_keys_of_this_machine_are_not_for_an_engine_elsewhere(key: str, tmp_path: Path) -> None:
    given = {"engine__address": "127.0.0.1:1", f"engine__{key}": "child" if key == "process" else "python3"}
    with pytest.raises(UsageError, match=rf"^engine.{key}: set, but nothing in this run reads it"):
        groupwise.train("quickstart", tiny_run(tmp_path, **given))


def test_a_stranger_that_only_looks_or_talks_nonsense_leaves_the_server_as_it_was(both: Any, policy: Policy) -> None:
    connect(both.there.server.address, KEY).channel.close()
    for nonsense in (b"", b"GET / HTTP/1.1\r\n\r\n", pack({"walk": 1}), pack({"name": "x"})[:7]):
        channel = connect(both.there.server.address, KEY).channel
        channel.send_raw(nonsense)
        channel.close()
    assert_same(both.remote.generate(REQUESTS, SAMPLINGS["plain"]), both.inside.generate(REQUESTS, SAMPLINGS["plain"]))


def test_files_go_whole_and_none_lands_outside_its_folder(tmp_path: Path) -> None:
    (tmp_path / "from/deep").mkdir(parents=True)
    contents = {"config.json": b"{}", "deep/empty": b"", "deep/bytes": bytes(range(256))}
    for name, data in contents.items():
        (tmp_path / "from" / name).write_bytes(data)
    sent = wire.files_in(tmp_path / "from")
    wire.write_files(tmp_path / "to", {**sent, wire.WEIGHTS: np.zeros(3)})
    written = {path.relative_to(tmp_path / "to").as_posix(): path for path in (tmp_path / "to").rglob("*")}
    assert {name: path.read_bytes() for name, path in written.items() if path.is_file()} == contents
    for name in ("../outside", "/etc/outside", "deep/../../outside"):
        with pytest.raises(ValueError, match="a file named"):
            wire.write_files(tmp_path / "to", {wire.FILE + name: np.zeros(1, np.uint8)})


def test_the_command_says_where_it_listens_and_ends_with_an_interrupt() -> None:
    process = CommandProcess("serve", "0")
    try:
        end = time.monotonic() + 60
        while not (said := process.said()).endswith("\n") and time.monotonic() < end:
            time.sleep(0.05)
        listens = re.fullmatch(r"listens at (\S+:\d+); a run takes --set engine.address=\1; Ctrl-C ends\n", said)
        assert listens
        connect(Address.of(listens[1])).channel.close()
        taken = CommandProcess("serve", listens[1])
        assert taken.communicate() == (
            f"groupwise: cannot listen at {listens[1]}: address already in use; take another port, or 0 for any that "
            "is free\n"
        )
        assert taken.returncode == 2
        process.send_signal(signal.SIGINT)
        assert process.communicate(20) == f"{said}ends\n"
        assert process.returncode == 0
    finally:
        process.kill()


def test_a_server_for_everyone_asks_for_a_key_and_says_so(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineServer, "serve", lambda self: None)
    for host, shown, warned in (("0.0.0.0", "HOST", True), ("localhost", "localhost", False), ("", "127.0.0.1", False)):
        for key in (None, str(key_file)):
            lines: list[str] = []
            address = f"{host}:0".removeprefix(":")
            if warned and not key:
                with pytest.raises(UsageError, match=r"^'0.0.0.0:0': other machines reach it, .* with --key-file FILE"):
                    serve(address, None, "cpu", 1, key, lines.append)
                continue
            serve(address, None, "cpu", 1, key, lines.append)
            port = lines[0].split(";")[0].split(" and ")[0].rpartition(":")[2]
            named = " and engine.key_file with the same key" if key else ""
            assert f"engine.address={shown}:{port}{named};" in lines[0]
            assert any("nothing on the way is encrypted" in line for line in lines) == warned


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["x"], "'x': an address is HOST:PORT, such as 127.0.0.1:7001, or a port of this machine"),
        (["0", "--python", "/no/python"], "--python /no/python: there is no such program"),
        (["no.such.host.invalid:0", "--key-file", KEY_FILE], "cannot listen at no.such.host.invalid:0: "),
        (["0", "--key-file", "/no/key"], "--key-file /no/key: no such file or directory; a key is made by: (umask 077"),
        (["0", "--device", "cuda"], "--device cuda: torch finds no GPU here"),
    ],
)
def test_what_cannot_be_served_is_one_line(arguments: list[str], words: str, key_file: Path) -> None:
    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    refused = CommandProcess("serve", *(str(key_file) if argument == KEY_FILE else argument for argument in arguments))
    said = refused.communicate()
    assert refused.returncode == 2
    assert said.startswith(f"groupwise: {words}")
    assert said.count("\n") == 1
