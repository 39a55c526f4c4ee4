"""The supervisor's hold on a zygote: starting it, giving it orders, ending it."""

import os
import shutil
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from groupwise.core.errors import RunError
from groupwise.core.peer import PeerLost
from groupwise.core.processes.children import ROOT, Child
from groupwise.rewards.sandbox.outcome import Layers, Limits

_START, _ORDER = 60.0, 20.0  # seconds
#: Python with its own library alone: no site folder, no user folder, no bytecode written, UTF-8.
_FLAGS = ("-S", "-s", "-P", "-B", "-X", "utf8")
#: New namespaces and the host's files read-only; Landlock and seccomp narrow them in each child.
_BUBBLEWRAP = ("bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--cap-drop", "ALL")


class Zygote(Child):
    """A running zygote with the layers that it reported. Use `start`.

    outer    what isolates it from outside: "namespaces", "bubblewrap" or "" for neither
    without  layers to leave out

    Raises PeerLost or OSError where it cannot be started so, or not put the layers in place.
    """

    def __init__(self, outer: str, without: set[str]) -> None:
        options = {
            "namespaces": outer == "namespaces",
            "bubblewrap": outer == "bubblewrap",
            "landlock": "landlock" not in without,
            "seccomp": "seccomp" not in without,
            "root": os.getuid() == 0,
        }
        super().__init__(
            "groupwise.rewards.sandbox.zygote",
            {"options": options},
            command=[*(_BUBBLEWRAP if outer == "bubblewrap" else ()), sys.executable, *_FLAGS],
            path=[ROOT],
            environment={"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"},
            folder="/",
        )
        self._turn = threading.Lock()
        try:
            greeting = self.receive(_START)
            if "failed" in greeting:
                raise PeerLost(greeting["failed"])
        except BaseException:
            self.close()
            raise
        self.layers = Layers(**greeting["layers"])

    def spawn(self, limits: Limits, descriptors: Sequence[int]) -> int:
        """A fresh child on these four descriptors (stdin, stdout, stderr, control). Its number, for `reap`."""
        return int(self._order({"spawn": asdict(limits)}, descriptors)["id"])

    def reap(self, child: int, patience: float = 0.0) -> tuple[int, float, bool]:
        """Kills a child that does not end by itself within `patience` seconds.

        Its exit code (negative: the signal), its processor time in seconds, and whether it was killed here.
        """
        reply = self._order({"reap": child, "patience": patience})
        return os.waitstatus_to_exitcode(reply["status"]), float(reply["cpu"]), bool(reply["killed"])

    def _order(self, order: dict[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        with self._turn:
            self.send(order, descriptors, _ORDER)
            reply = self.receive(_ORDER)
        if "failed" in reply:
            raise RunError(f"sandbox: no process for a program: {reply['failed']}")
        return reply


def start(without: Iterable[str] = ()) -> Zygote:
    """A zygote with the best layers of this machine: its own namespaces, else bubblewrap's, else neither.

    without  layers to leave out, such as "namespaces": how it behaves on a machine that has none
    Raises RunError where none starts at all.
    """
    if not sys.executable:
        raise RunError("sandbox: this Python does not know its own program (sys.executable is empty)")
    left_out, failures = set(without), []
    for outer in ("namespaces", "bubblewrap", ""):
        if outer in left_out or (outer and sys.platform != "linux"):
            continue
        if outer == "bubblewrap" and shutil.which("bwrap") is None:
            continue
        try:
            return Zygote(outer, left_out)
        except (PeerLost, OSError) as failure:
            failures.append(f"{outer or 'plain'}: {failure}")
    raise RunError(f"sandbox: its process does not start ({'; '.join(failures)})")
