"""The supervisor's hold on a zygote: starting it, giving it orders, ending it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from groupwise.core.errors import RunError
from groupwise.rewards.sandbox.outcome import Layers, Limits

_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); from groupwise.rewards.sandbox.zygote import main; del sys.path[0]; "
    "main(sys.argv[2:])"
)
_START, _ORDER = 60.0, 20.0  # seconds


class Lost(Exception):
    """The zygote died, hangs, or could not start. The message says which, in words."""


class Zygote:
    """A running zygote with the layers that it reported. Use `start`."""

    def __init__(self, process: subprocess.Popen[bytes], orders: socket.socket) -> None:
        self.process, self.orders, self.owner = process, orders, os.getpid()
        self.layers, self.lost = Layers(), False
        self._turn = threading.Lock()

    def spawn(self, limits: Limits, descriptors: Sequence[int]) -> int:
        """A fresh child on these four descriptors (stdin, stdout, stderr, control). Its number, for `reap`."""
        return int(self._order({"spawn": asdict(limits)}, descriptors)["id"])

    def reap(self, child: int, patience: float = 0.0) -> tuple[int, float, bool]:
        """Kills a child that does not end by itself within `patience` seconds.

        How it ended (as os.wait tells it), its processor time in seconds, and whether it was killed here.
        """
        reply = self._order({"reap": child, "patience": patience})
        return int(reply["status"]), float(reply["cpu"]), bool(reply["killed"])

    @property
    def usable(self) -> bool:
        """Whether it is this process's own, and answers as far as is known."""
        return not self.lost and self.owner == os.getpid() and self.process.poll() is None

    def receive(self, timeout: float) -> dict[str, Any]:
        """Its next message. Raises Lost."""
        self.orders.settimeout(timeout)
        try:
            data = self.orders.recv(65536)
        except TimeoutError:
            raise self._lost(f"it did not answer for {timeout:.0f} seconds") from None
        except OSError as error:
            raise self._lost(str(error)) from None
        if not data:
            raise self._lost("it ended")
        return json.loads(data)

    def _lost(self, why: str) -> Lost:
        self.lost = True
        return Lost(why)

    def close(self) -> None:
        """Ends it and all its children, and waits for that. In a process that only inherited it: forgets it."""
        self.orders.close()
        if self.owner != os.getpid():
            self.process.returncode = 0  # another process's child: there is nothing to wait for here
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _order(self, order: dict[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        with self._turn:
            try:
                socket.send_fds(self.orders, [json.dumps(order).encode()], list(descriptors))
            except OSError as error:
                raise self._lost(str(error)) from None
            reply = self.receive(_ORDER)
        if "failed" in reply:
            raise RunError(f"sandbox: no process for a program: {reply['failed']}")
        return reply


def start(without: Iterable[str] = ()) -> Zygote:
    """A zygote with the best layers of this machine: its own namespaces, else bubblewrap's, else neither.

    without  layers to leave out, such as "namespaces": how it behaves on a machine that has none
    Raises RunError where none starts at all.
    """
    left_out, told = set(without), []
    for outer in ("namespaces", "bubblewrap", ""):
        if outer in left_out or (outer and sys.platform != "linux"):
            continue
        if outer == "bubblewrap" and shutil.which("bwrap") is None:
            continue
        try:
            return _start(outer, left_out)
        except Lost as lost:
            told.append(f"{outer or 'plain'}: {lost}")
    raise RunError(f"sandbox: its process does not start ({'; '.join(told)})")


def _start(outer: str, left_out: set[str]) -> Zygote:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = _watch_parent()
    options = {
        "namespaces": outer == "namespaces",
        "bubblewrap": outer == "bubblewrap",
        "landlock": "landlock" not in left_out,
        "seccomp": "seccomp" not in left_out,
        "root": os.getuid() == 0,
    }
    command = [*(_bubblewrap() if outer == "bubblewrap" else []), *_python()]
    passed = [there.fileno(), *([parent] if parent >= 0 else [])]
    try:
        process = subprocess.Popen(
            [*command, str(there.fileno()), str(parent), json.dumps(options)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}, cwd="/", pass_fds=passed, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        here.close()
        raise Lost(str(error)) from None
    finally:
        there.close()
        if parent >= 0:
            os.close(parent)
    return _greeted(Zygote(process, here))


def _greeted(zygote: Zygote) -> Zygote:
    try:
        told = zygote.receive(_START)
        if "failed" in told:
            raise Lost(str(told["failed"]))
    except Lost:
        zygote.close()
        raise
    zygote.layers = Layers(**told["layers"])
    return zygote


def _python() -> list[str]:
    """Python with its own library alone: no site folder, no user folder, no bytecode written, UTF-8."""
    if not sys.executable:
        raise RunError("sandbox: this Python does not know its own program (sys.executable is empty)")
    return [sys.executable, "-S", "-s", "-P", "-B", "-X", "utf8", "-c", _BOOT, str(Path(__file__).parents[3])]


def _bubblewrap() -> list[str]:
    """bwrap with new namespaces and the host's files read-only; Landlock and seccomp narrow them in each child."""
    return ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--cap-drop", "ALL"]


def _watch_parent() -> int:
    """A descriptor that becomes readable when this process ends, however it ends; -1 where the system has none.

    The zygote does not ask to die with its parent, because the kernel takes the thread that started it for that.
    """
    try:
        return os.pidfd_open(os.getpid())
    except (AttributeError, OSError):
        return -1
