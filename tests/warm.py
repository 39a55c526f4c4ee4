"""Children of the tests' own process, forked from one that has imported torch and transformers: that takes 3 to 6 s.

A child is a process like any other: this process waits for it, and it has its own command line, environment, folder,
session and descriptors. That a fresh interpreter does the same is shown wherever `Child` is used without this.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import importlib
import json
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn

import pytest
import torch

from groupwise.core.channel import Channel
from groupwise.core.processes import children

#: The modules whose children are forked: each is imported once, before the first of them.
MODULES = (
    "groupwise.engines.outside.server",
    "groupwise.commands.train.process",
    "groupwise.commands.build.learner",
    "groupwise.training.teachers.server",
    "tests.engines.outside.without_slots",
)
#: What every other process that is forked has imported.
COMMANDS = "groupwise.commands.train.train"
_SUBREAPER, _HIGH = 36, 512  # descriptors from _HIGH on are nobody's


class WarmPopen(subprocess.Popen):
    """A subprocess.Popen that forks children from a warm process: those of MODULES, and what runs a code of ours.

    codes   each is the argument of -c in a command that is forked
    forked  what each forked process would have as its command line, by its id: /proc says that of the warm process
    """

    codes: ClassVar[set[str]] = set()
    forked: ClassVar[dict[int, str]] = {}

    def _execute_child(self, args: Any, *others: Any) -> None:
        given = dict(zip(_NAMES, others, strict=True))
        module = _module(args)
        if module is None or given["preexec_fn"] or given["shell"]:
            super()._execute_child(args, *others)
            return
        ours = [given[end] for end in ("p2cread", "c2pwrite", "errwrite")]
        streams = {number: number if end == -1 else end for number, end in enumerate(ours)}
        code = args.index("-c") + 1
        self.pid = _server().start(
            {**streams, **{number: number for number in given["pass_fds"]}},
            words=["-c", *args[code + 1 :]],
            code=args[code],
            module=module,
            environment=dict(os.environ if given["env"] is None else given["env"]),
            folder=os.fspath(given["cwd"] or os.getcwd()),
            session=given["start_new_session"],
        )
        self.forked[self.pid] = " ".join(args)
        self._child_created = True
        self._close_pipe_fds(*(given[end] for end in _PIPES))


_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_NAMES = subprocess.Popen._execute_child.__code__.co_varnames[2 : subprocess.Popen._execute_child.__code__.co_argcount]


def _module(args: Any) -> str | None:
    """Find what is imported before a process of this command is forked; None of every process that is not."""
    if list(args[:2]) == [sys.executable, "-c"] and args[2] in WarmPopen.codes:
        return COMMANDS
    if list(args[:4]) != [sys.executable, "-P", "-c", children._BOOT]:
        return None
    module = json.loads(args[4])["module"]
    return module if module in MODULES else None


class _Server:
    """The process that imports modules, and forks one process at a time."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        code = f"from tests.warm import serve; serve({theirs.fileno()})"
        path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
        environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen([sys.executable, "-c", code], env=environment, pass_fds=(theirs.fileno(),))
        theirs.close()
        self._channel = Channel(ours)

    def start(self, descriptors: dict[int, int], **request: Any) -> int:
        """Fork a child that has the descriptors under the numbers of the keys -> its process id.

        The process between the server and the child ends at once: the child comes to the nearest process above that
        adopts orphans, which this one is for so long.
        """
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        try:
            self._channel.send({**request, "numbers": list(descriptors)}, list(descriptors.values()), 60)
            return self._channel.receive(60)["pid"]
        finally:
            ctypes.CDLL(None).prctl(_SUBREAPER, 0, 0, 0, 0)

    def close(self) -> None:
        self._channel.close()
        self._process.wait()


@lru_cache(maxsize=1)
def _server() -> _Server:
    """Start the one server of the tests' process, which lives as long as that."""
    server = _Server()
    atexit.register(server.close)
    return server


def serve(connection: int) -> None:
    """Fork what is asked for until the tests' process is gone."""
    channel = Channel(socket.socket(fileno=connection))
    while True:
        try:
            request, descriptors = channel.receive_with(64)
        except (EOFError, OSError):
            return
        importlib.import_module(request["module"])
        told, tells = os.pipe()
        waits, goes = os.pipe()
        if not (between := os.fork()):
            if child := os.fork():
                os.write(tells, str(child).encode())
                os._exit(0)
            os.close(goes)
            os.close(tells)
            os.read(waits, 1)
            _become(request, descriptors)
        os.close(tells)
        os.waitpid(between, 0)
        channel.send({"pid": int(os.read(told, 20))})
        for descriptor in (told, waits, goes, *descriptors):
            os.close(descriptor)


def _become(request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Live as the process that was asked for, and end it."""
    code = 1
    try:
        if request["session"]:
            os.setsid()
        held = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _HIGH) for descriptor in descriptors]
        os.closerange(3, _HIGH)
        for descriptor, number in zip(held, request["numbers"], strict=True):
            os.dup2(descriptor, number, inheritable=True)
        os.closerange(_HIGH, _HIGH + 128)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        sys.argv = request["words"]
        if threads := os.environ.get("OMP_NUM_THREADS"):
            torch.set_num_threads(int(threads))
        exec(compile(request["code"], "<string>", "exec"), {"__name__": "__main__"})
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


@contextmanager
def warm_starts() -> Iterator[None]:
    """Fork the children of MODULES for as long as this lasts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(children, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": WarmPopen}))
        yield
