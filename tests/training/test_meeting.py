"""Laws of where ranks meet: processes of this user alone can come there, and nothing is left of it."""

from __future__ import annotations

import fcntl
import gc
import os
import socket
import stat
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from torch.distributed import FileStore, HashStore  # pyright: ignore[reportPrivateImportUsage]

from groupwise.core.errors import UsageError
from groupwise.core.processes import network
from groupwise.core.processes.network import heard_only_inside, loopback
from groupwise.training.ranks import meeting as meetings
from groupwise.training.ranks.meeting import KeptMeeting, Meeting, kept


@pytest.fixture(params=["memory", "folder"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> KeptMeeting:
    """Of ranks of one machine, one without files in memory too."""
    if request.param == "folder":
        monkeypatch.delattr(os, "memfd_create")
    return kept("127.0.0.1", 2, own=True, seconds=5.0)


def outcome_in_a_fork(user: int, path: str) -> int:
    """0 if another process of a user can open the file, 1 if it is kept out."""
    process = os.fork()
    if process == 0:
        try:
            os.setuid(user)
            os.close(os.open(path, os.O_RDWR))
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def test_ranks_of_one_machine_meet_where_no_stranger_can_come(place: KeptMeeting) -> None:
    before = network._listening()
    kept("127.0.0.1", 2, own=True, seconds=5.0)
    assert network._listening() == before
    other = Meeting(**place.options)._reached(2)
    other.set("rank 1", "a card")
    assert place.store.get("rank 1") == b"a card"
    assert outcome_in_a_fork(os.getuid(), place.place.file) == 0
    folder = Path(place.place.file).parent
    assert place.place.file.startswith("/proc/") or stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_of_the_machine_is_kept_out(place: KeptMeeting) -> None:
    assert outcome_in_a_fork(65534, place.place.file) == 1


def test_a_store_that_is_collected_late_writes_into_no_other_file(place: KeptMeeting, tmp_path: Path) -> None:
    """torch's store opens its path once more and writes there when it goes, long after the ranks have met."""
    file, store = place.place.file, FileStore(place.place.file)
    store.set("rank 1", "a card")
    with ExitStack() as files:
        others = [files.enter_context((tmp_path / str(i)).open("w+b")) for i in range(20)]
        del store
        gc.collect()
        assert all(os.fstat(other.fileno()).st_size == 0 for other in others)
        assert os.path.exists(file)


def test_nothing_is_left_of_it_and_whoever_comes_late_is_told_so(tmp_path: Path) -> None:
    makes = "from groupwise.training.ranks.meeting import kept\nprint(kept('127.0.0.1', 2, True, 5.0).place.file)\n"
    for memory in ("", "import os\ndel os.memfd_create\n"):
        made = subprocess.run([sys.executable, "-c", memory + makes], capture_output=True, text=True, check=True)
        file = made.stdout.strip()
        assert not os.path.exists(file)
        with pytest.raises(UsageError, match=r"^the ranks' meeting point /.* is not there, .*: rank 0 has ended$"):
            meetings._in(file, 1.0)


def test_ranks_of_one_machine_hear_one_another_on_its_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(meetings, "connect", lambda *_, seconds, interface: asked.append(interface))
    for place in (Meeting(file="/a/file"), Meeting(host="node", port=1)):
        place.joined(0, 2, "cpu", 1.0, HashStore())
    assert asked == [loopback(), ""]
    assert loopback().startswith("lo")


def test_a_look_for_what_listens_leaves_every_descriptor_as_it_was(tmp_path: Path) -> None:
    """A copy of one would hold the lock of a file that is closed."""
    with (tmp_path / "lock").open("w") as file, socket.create_server(("127.0.0.1", 0)) as listens:
        fcntl.flock(file, fcntl.LOCK_EX)
        before = os.listdir("/dev/fd")
        assert listens.fileno() in network._listening()
        assert os.listdir("/dev/fd") == before
        assert listens.getsockname()[1]
        file.write("x")
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_library_that_has_met_its_own_listens_no_more_and_others_do() -> None:
    """The connections that it has stay, and it can close its number once more."""
    with socket.create_server(("127.0.0.1", 0)) as before:
        with heard_only_inside():
            library = socket.create_server(("127.0.0.1", 0))
            met = socket.create_connection(library.getsockname())
            place = library.getsockname()
        assert before.fileno() in network._listening()
        assert library.fileno() not in network._listening()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(place)
        socket.create_connection(before.getsockname()).close()
        met.close()
        library.close()
    with pytest.raises(KeyError), heard_only_inside():
        raise KeyError
