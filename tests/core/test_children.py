"""The supervisor of child processes with real ones: each way a child can end is said in words, and none is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from groupwise.core.channel import Channel, FrameError, pack, unpack
from groupwise.core.peer import PeerLost
from groupwise.core.processes.children import MOST, Child, Tail

ACTS = "tests.core.child_acts"


@pytest.fixture
def child() -> Iterator[Child]:
    """A child that has said that it runs."""
    child = Child(ACTS)
    assert child.receive(20)["pid"] == child.process.pid
    yield child
    child.close()


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def ended(*pids: int, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while any(runs(pid) for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_messages_come_back_whole_and_in_order(child: Child) -> None:
    messages = [{"text": "x" * 500_000}, {}, {"list": [1, None, "ü"]}]
    for message in messages:
        child.send(message)
        assert child.receive(10) == message
    assert child.usable


def test_options_and_descriptors_reach_the_child() -> None:
    child = Child(ACTS, {"greeting": "hello"})
    assert child.receive(20)["greeting"] == "hello"
    pipes = [os.pipe() for _ in range(3)]
    for number, (_, writing) in enumerate(pipes):
        os.write(writing, f"pipe {number}".encode())
    child.send({"text": "no descriptors with this one"})
    child.send({"act": "read"}, [pipes[2][0], pipes[0][0]])
    child.send({"act": "read"}, [pipes[1][0]])
    child.receive(5)
    assert [child.receive(5)["texts"] for _ in range(2)] == [["pipe 2", "pipe 0"], ["pipe 1"]]
    for pipe in pipes:
        for descriptor in pipe:
            os.close(descriptor)
    child.close()


@pytest.mark.parametrize("act", ["sleep", "hang"])
def test_a_child_that_does_not_answer_in_time_is_lost(child: Child, act: str) -> None:
    child.send({"act": act})
    started = time.monotonic()
    with pytest.raises(PeerLost, match=r"^it did not answer for 0\.3 seconds$") as lost:
        child.receive(0.3)
    assert lost.value.late
    assert 0.3 <= time.monotonic() - started < 2.0
    assert not child.usable
    child.close()
    assert ended(child.process.pid)


def test_a_child_that_reads_nothing_is_lost_when_its_socket_is_full(child: Child) -> None:
    child.send({"act": "sleep"})
    with pytest.raises(PeerLost, match=r"did not answer for 0\.3 seconds"):
        child.send({"text": "x" * 10_000_000}, seconds=0.3)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"act": "exit", "code": 3}, "it ended: exit code 3"),
        ({"act": "exit", "code": 0}, "it ended: exit code 0"),
        ({"act": "kill", "signal": "SIGKILL"}, "it ended: killed by SIGKILL"),
        ({"act": "kill", "signal": "SIGSEGV"}, "it ended: killed by SIGSEGV"),
        ({"act": "close"}, "it closed its connection"),
        ({"act": "garbage", "bytes": "hello, world"}, f"it sent a message above {2**30} bytes"),
        ({"act": "garbage", "bytes": "\0\0\0\3abc"}, "it sent a message that is not JSON"),
        ({"act": "garbage", "bytes": "\0\0\0\2[]"}, "it sent a message that is not an object"),
    ],
)
def test_why_a_child_is_lost_is_said_in_words(child: Child, message: dict[str, object], words: str) -> None:
    child.send(message)
    with pytest.raises(PeerLost) as lost:
        child.receive(10)
    assert str(lost.value) == words
    assert not lost.value.late
    assert not child.usable


def test_a_send_to_a_child_that_has_ended_says_how_it_ended(child: Child) -> None:
    os.kill(child.process.pid, signal.SIGTERM)
    child.process.wait()
    with pytest.raises(PeerLost, match="it ended: killed by SIGTERM"):
        child.send({})


def test_close_ends_the_whole_group_and_may_be_repeated(child: Child) -> None:
    child.send({"act": "grandchild"})
    grandchild = child.receive(5)["pid"]
    assert runs(grandchild)
    assert child.usable
    child.close()
    child.close()
    assert child.closed
    assert not child.usable
    assert child.process.returncode == -signal.SIGKILL
    assert ended(grandchild)
    with pytest.raises(PeerLost, match="it was closed"):
        child.receive(1)


def test_a_child_that_is_forgotten_ends() -> None:
    child = Child(ACTS)
    pid = child.receive(20)["pid"]
    del child
    assert ended(pid)


def test_a_fork_does_not_own_the_child_and_does_not_hold_it(child: Child) -> None:
    fork = os.fork()
    if fork == 0:
        correct = child.closed and child.channel.connection.fileno() == -1
        child.close()
        os._exit(0 if correct else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 0
    child.send({"text": "still here"})
    assert child.receive(5) == {"text": "still here"}


PARENT = """
import os, sys, threading, time
from groupwise.core.processes.children import Child
children = []
thread = threading.Thread(target=lambda: children.append(Child({acts!r})))
thread.start()
thread.join()
child, = children
pid = child.receive(20)["pid"]
child.send({{"act": "hang"}})
fork = os.fork()
if fork == 0:
    time.sleep(600)
print(pid, fork, flush=True)
time.sleep(600)
"""


def test_a_child_ends_with_its_parent_even_in_c_code_and_while_a_fork_of_the_parent_lives() -> None:
    """Not before it: the thread that started the child has ended when the parent's other work begins."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PARENT.format(acts=ACTS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as parent:
        assert parent.stdout is not None
        pid, fork = map(int, parent.stdout.readline().split())
        time.sleep(0.3)
        assert runs(pid)
        parent.kill()
        parent.wait()
        try:
            assert ended(pid)
            assert runs(fork)
        finally:
            os.kill(fork, signal.SIGKILL)


def test_another_command_folder_path_and_environment(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import os, sys\n"
        "def main(parent):\n"
        "    parent.send({'folder': os.getcwd(), 'environment': sorted(os.environ), 'site': 'site' in sys.modules})\n"
        "    os.read(0, 1)\n"
    )
    root = str(Path(__file__).parents[2] / "src")
    command = [sys.executable, "-S", "-s", "-P", "-B"]
    child = Child("own", command=command, path=[str(tmp_path), root], environment={"A": "1"}, folder=str(tmp_path))
    facts = child.receive(20)
    child.close()
    assert facts["folder"] == str(tmp_path)
    assert set(facts["environment"]) <= {"A", "LC_CTYPE"}
    assert facts["site"] is False


def test_another_interpreter_gets_groupwise_and_no_library_of_this_process() -> None:
    """Here one without libraries: what needs the standard library alone runs, what needs jinja2 does not."""
    bare: dict[str, Any] = {
        "command": [sys.executable, "-S", "-P"],
        "environment": {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    }
    off = dict.fromkeys(("namespaces", "bubblewrap", "landlock", "seccomp", "root"), False)
    for alone, module, options in (
        (True, "groupwise.rewards.sandbox.zygote", {"options": off}),
        (False, "groupwise.models.chat.trial_rendering", {}),
    ):
        child = Child(module, options, alone=alone, **bare)
        assert "failed" not in child.receive(20)
        child.close()
    child = Child("groupwise.models.chat.trial_rendering", alone=True, **bare)
    with pytest.raises(PeerLost, match="exit code 1"):
        child.receive(20)
    child.close()


def test_whether_a_child_speaks_is_known_without_taking_what_it_says(child: Child) -> None:
    assert not child.speaks(0.05)
    child.send({"text": "here"})
    assert child.speaks(5)
    assert child.receive(5) == {"text": "here"}
    os.kill(child.process.pid, signal.SIGKILL)
    assert child.speaks(5), "its end is there to be told"
    with pytest.raises(PeerLost, match="killed by SIGKILL"):
        child.receive(5)
    child.close()
    assert child.speaks(5)


def test_what_cannot_be_started_raises_and_leaves_no_descriptor() -> None:
    before = len(os.listdir("/dev/fd"))
    with pytest.raises(OSError, match="no-such-program"):
        Child(ACTS, command=["/no-such-program"])
    assert len(os.listdir("/dev/fd")) == before


def test_a_frame_above_the_limit_is_refused_before_it_has_come() -> None:
    with pytest.raises(FrameError, match="above 10 bytes"):
        unpack(bytearray(pack({"text": "x" * 100})[:4]), limit=10)


def test_neither_channel_nor_supervisor_imports_more_than_the_standard_library() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from groupwise.core import channel; "
        "from groupwise.core.processes import children; "
        "print([name for name in sys.modules if name.split('.')[0] not in {*sys.stdlib_module_names, 'groupwise'}])"
    )
    root = str(Path(__file__).parents[2] / "src")
    command = [sys.executable, "-S", "-s", "-P", "-c", code, root]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['__main__']" or done.stdout.strip() == "[]"


def test_a_channel_to_nobody_says_so() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    channel = Channel(ours)
    with pytest.raises((EOFError, OSError)):
        channel.receive(1)
    with pytest.raises(OSError, match="pipe"):
        channel.send({})
    channel.close()


# The last of what a process prints


FLOOD = "import sys\nfor i in range(200_000): print('x' * 100, i, file=sys.stderr)\nprint('the end', file=sys.stderr)"


def test_a_flood_does_not_stop_who_prints_and_its_end_is_kept() -> None:
    tail = Tail()
    process = subprocess.Popen([sys.executable, "-c", FLOOD], stderr=tail.writing)
    tail.given()
    assert process.wait(60) == 0
    text = tail.text(20.0)
    assert text.endswith("199999\nthe end\n")
    assert len(text) == MOST


def test_the_thread_ends_with_the_process_and_does_not_wait_for_one_that_lives() -> None:
    tail = Tail()
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stderr=tail.writing)
    tail.given()
    assert tail.text() == ""
    process.kill()
    process.wait()
    tail.text(20.0)
    assert not [thread for thread in threading.enumerate() if thread.name == "tail" and thread is tail._thread]
