"""Sandbox that runs programs that are not trusted, with nothing to reach."""

import contextlib
import os
import secrets
import shutil
import sys
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

from groupwise.core.errors import RunError, UsageError
from groupwise.core.peer import PeerLost
from groupwise.core.processes import codec
from groupwise.core.processes.children import ROOT
from groupwise.core.task import Starting
from groupwise.rewards.sandbox.job import Job, Kind, Layers, Limits, Outcome
from groupwise.rewards.zygote import Zygote

ACCEPTED = "i accept that completions run unprotected"
#: Python with its own library alone: no site folder, no user folder, no bytecode written, UTF-8.
_FLAGS = ("-S", "-s", "-P", "-B", "-X", "utf8")
#: New namespaces and the host's files read-only; Landlock and seccomp narrow them in each child.
_BUBBLEWRAP = ("bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--cap-drop", "ALL")
_START = 60.0  # seconds

# Runs once in every new sandbox: each line that succeeds is a hole.
_PROBE = """
import os, socket
def network(): socket.create_connection(("127.0.0.1", 9), 1)
def sockets(): socket.socket()
def processes(): os.fork() or os._exit(0)
def signals(): os.kill(os.getppid(), 0)
def accounts(): open("/etc/passwd").read()
def folders(): os.listdir("/")[0] and open("/canary", "w")
def limits(): bytearray(2**45)
for attempt in (network, sockets, processes, signals, accounts, folders, limits):
    try:
        attempt()
    except ConnectionError:
        print(attempt.__name__)
    except (OSError, MemoryError, IndexError):
        continue
    else:
        print(attempt.__name__)
"""


@dataclass(frozen=True)
class Reply:
    """Answer of a called function: a tree of the codec, or the name and traceback of the exception that it raised."""

    value: Any = None
    error: str = ""
    traceback: str = ""


class Session(contextlib.AbstractContextManager["Session"]):
    """A program that was loaded and answers calls. A context manager."""

    def __init__(self, job: Job, nonce: str) -> None:
        self._job = job
        self.loaded = self._read(nonce, job.exchange())

    def call(self, name: str, args: Any = ("t",), kwargs: Any = ("d",)) -> Reply | None:
        """Return the function's answer to trees of arguments; None where the program is at its end, or did not load."""
        if self.loaded is None or self.loaded.error:
            return None
        nonce = secrets.token_hex(16)
        return self._read(nonce, self._job.exchange({"nonce": nonce, "call": name, "args": args, "kwargs": kwargs}))

    def close(self) -> Outcome:
        """End the program -> how it ended, where that was before this call."""
        return self._job.stop()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read(self, nonce: str, message: dict[str, Any] | None) -> Reply | None:
        """Return the reply to the question with this nonce. Anything else ends the program: it forges its answers."""
        if message is None:
            return None
        try:
            if message.get("nonce") != nonce:
                raise codec.NotPlain("a message without the question's nonce")
            if "error" in message:
                return Reply(error=str(message["error"])[:200], traceback=str(message.get("traceback", ""))[:4000])
            codec.validate(message.get("value"))
        except codec.NotPlain as fault:
            self._job.ended = (Kind.CRASH, f"it sent {fault}")
            self._job.stop()
            return None
        return Reply(value=message.get("value"))


class Sandbox(contextlib.AbstractContextManager["Sandbox"]):
    """Runs programs, each in a fresh process that can reach nothing. A context manager; starts at the first program.

    limits       of every program
    accept_risk  run also where this machine has too few layers of protection; without it that is a UsageError
    without      layers to leave out, of "namespaces", "bubblewrap", "landlock", "seccomp"

    >>> with Sandbox() as box:
    ...     print(box.run("print(int(input()) + 1)", "41").stdout.strip())
    42
    """

    def __init__(self, limits: Limits | None = None, accept_risk: bool = False, without: Collection[str] = ()) -> None:
        self.limits, self._accept_risk, self._without = limits or Limits(), accept_risk, frozenset(without)
        self._zygote: Zygote | None = None
        self._layers = Layers()
        self.starting: Starting = contextlib.nullcontext  # entered while the sandbox starts
        self.struck = 0  # programs that were ended from outside

    @property
    def layers(self) -> Layers:
        """Layers in place here. Starts the sandbox."""
        self._ready()
        return self._layers

    def run(self, program: str, stdin: str = "", limits: Limits | None = None) -> Outcome:
        """Run the program as a script with this input, to its end."""
        return self._job({"mode": "run", "program": program}, stdin, limits).finish()

    def session(self, program: str, limits: Limits | None = None) -> Session:
        """Load the program, to call its functions."""
        nonce = secrets.token_hex(16)
        return Session(self._job({"mode": "calls", "program": program, "nonce": nonce}, "", limits), nonce)

    def tester(self, tests: list[str], names: list[str], limits: Limits | None = None) -> tuple[Job, str]:
        """Start a process that runs the tests and asks for calls of the names -> it, and its verdict's nonce."""
        nonce = secrets.token_hex(16)
        return self._job({"mode": "tests", "tests": tests, "names": names, "nonce": nonce}, "", limits), nonce

    def close(self) -> None:
        """End every process of the sandbox. It starts again when it is next used."""
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None

    def __exit__(self, *error: object) -> None:
        self.close()

    def _job(self, first: dict[str, Any], stdin: str, limits: Limits | None) -> Job:
        try:
            with contextlib.suppress(PeerLost):  # killed from outside since the last program
                return Job(self._ready(), limits or self.limits, first, stdin, self._count_struck)
            return Job(self._ready(), limits or self.limits, first, stdin, self._count_struck)
        except PeerLost as lost:
            raise RunError(f"sandbox: the process that starts programs is lost twice: {lost}") from None

    def _count_struck(self) -> None:
        self.struck += 1

    def _ready(self) -> Zygote:
        if self._zygote is None or not self._zygote.usable:
            with self.starting():
                self.close()
                self._zygote, self._layers = _start(self._without)
                if not self._accept_risk:
                    self._require_layers(self._zygote)
        return self._zygote

    def _require_layers(self, zygote: Zygote) -> None:
        """Raise unless the layers are enough, and hold: a program that tries each way out finds all of them shut."""
        if not self._layers.enough:
            self.close()
            raise UsageError(
                f"completions cannot be run safely here: this machine lacks {self._layers.missing}; "
                f'to run them nevertheless write task.sandbox = "{ACCEPTED}"'
            )
        job = partial(Job, zygote, Limits(seconds=20), {"mode": "run", "program": _PROBE}, "", self._count_struck)
        struck, probe = self.struck, job().finish()
        if self.struck > struck:
            struck, probe = self.struck, job().finish()
        if self.struck > struck:
            self.close()
            raise RunError(f"sandbox ({self._layers}): the program that tries its layers was killed from outside twice")
        if probe.kind is not Kind.FINISHED or probe.stdout:
            self.close()
            holes = probe.stdout.split() or f"{probe.kind}: {probe.detail}"
            raise RunError(f"sandbox ({self._layers}): a program that tries to get out succeeds: {holes}")


def _start(without: Collection[str]) -> tuple[Zygote, Layers]:
    """Start a zygote with the best layers of this machine: its own namespaces, else bubblewrap's, else neither.

    without  layers to leave out, such as "namespaces": how it behaves on a machine that has none
    Raises RunError if none starts at all.
    """
    if not sys.executable:
        raise RunError("sandbox: this Python does not know its own program (sys.executable is empty)")
    failures = []
    for outer in ("namespaces", "bubblewrap", ""):
        if outer in without or (outer and sys.platform != "linux"):
            continue
        if outer == "bubblewrap" and shutil.which("bwrap") is None:
            continue
        try:
            return _started(outer, without)
        except (PeerLost, OSError) as failure:
            failures.append(f"{outer or 'plain'}: {failure}")
    raise RunError(f"sandbox: its process does not start ({'; '.join(failures)})")


def _started(outer: str, without: Collection[str]) -> tuple[Zygote, Layers]:
    """Start a zygote isolated from outside by `outer` -> it, and the layers that it reports.

    Raises PeerLost or OSError if it cannot be started so, or not put the layers in place.
    """
    options = {
        "namespaces": outer == "namespaces",
        "bubblewrap": outer == "bubblewrap",
        "landlock": "landlock" not in without,
        "seccomp": "seccomp" not in without,
        "root": os.getuid() == 0,
    }
    zygote = Zygote(
        "groupwise.rewards.sandbox.zygote",
        {"options": options},
        "sandbox: no process for a program",
        command=[*(_BUBBLEWRAP if outer == "bubblewrap" else ()), sys.executable, *_FLAGS],
        path=[ROOT],
        environment={"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"},
        folder="/",
    )
    try:
        greeting = zygote.receive(_START)
        if "failed" in greeting:
            raise PeerLost(greeting["failed"])
    except BaseException:
        zygote.close()
        raise
    return zygote, Layers(**greeting["layers"])
