"""A command in a fork of this process: with a deadline, limits, and its own streams; nothing of it is left afterwards.

The process that forks has imported everything and has no other thread, so that a command costs what it does and no
more. Linux only.
"""

from __future__ import annotations

import ctypes
import http.client
import mmap
import os
import re
import resource
import selectors
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_DEATH_SIGNAL, _SUBREAPER = 1, 36
_MOST_OUTPUT = 4 << 20
_GRACE = 2.0  # seconds for processes that a command started to end after it
_ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)(/[\w-]+/)")


@dataclass(frozen=True)
class Limits:
    """What a command may take.

    seconds  of wall time
    memory   bytes that it may grow by, resident; its address space by twice as many
    file     bytes of the largest file that it may write
    """

    seconds: float = 20.0
    memory: int = 1 << 30
    file: int = 256 << 20


@dataclass(frozen=True)
class Outcome:
    """What became of a command.

    code     its exit code; negative where a signal killed it
    late     it was killed at the deadline
    grown    bytes of resident memory beyond those of the process that was forked
    left     processes that it left behind
    replies  what `watch` answered to a browser: status and text
    """

    code: int
    out: str
    err: str
    seconds: float
    late: bool = False
    grown: int = 0
    left: tuple[str, ...] = ()
    replies: tuple[tuple[int, str], ...] = ()


def command() -> None:
    from groupwise.cli.__main__ import main

    main()


def command_words(words: Sequence[str]) -> tuple[str, ...]:
    """A command line from its verb on: a `--` before it ends the options before it, of which there are none."""
    return tuple(words[1:] if words[:1] == ("--",) else words)


def run(words: Sequence[str], folder: Path, limits: Limits = Limits(), entry: Callable[[], Any] = command) -> Outcome:
    """Run `entry` in a fork whose command line is `words` and whose working folder is `folder`."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)  # what the command leaves behind becomes a child of this process
    before, begins = _children(), mmap.mmap(-1, 8)  # shared with the fork: its resident memory at its beginning
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    sys.stdout.flush()
    began = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside the threads of whoever runs the tests
        pid = os.fork()
    if pid == 0:
        _become(words, folder, limits, out_end, err_end, begins, entry)
    for end in (out_end, err_end):
        os.close(end)
    texts, late, replies = _follow(pid, out, err, began + limits.seconds, command_words(words)[:1] == ("watch",))
    _, status, usage = os.wait4(pid, 0)
    seconds = time.monotonic() - began
    for stream, text in texts.items():
        text += _rest(stream)
        os.close(stream)
    grown = max(0, usage.ru_maxrss * 1024 - int.from_bytes(begins[:], "little"))
    said = [texts[stream].decode("utf-8", "surrogateescape") for stream in (out, err)]
    left = _reap(before)
    ctypes.CDLL(None).prctl(_SUBREAPER, 0, 0, 0, 0)
    return Outcome(os.waitstatus_to_exitcode(status), *said, seconds, late, grown, left, replies)


def _become(
    words: Sequence[str], folder: Path, limits: Limits, out: int, err: int, begins: mmap.mmap, entry: Callable[[], Any]
) -> None:
    code = 70
    try:
        begins[:] = _resident().to_bytes(8, "little")
        os.setsid()
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        os.chdir(folder)
        for number, stream in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
            os.dup2(stream, number)
        os.closerange(3, 1024)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        (folder / "tmp").mkdir(exist_ok=True)
        os.environ.update(HOME=str(folder / "home"), TMPDIR=str(folder / "tmp"), COLUMNS="80")
        tempfile.tempdir = None
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        space = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (space + 2 * limits.memory,) * 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file, limits.file))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.argv = ["groupwise", *words]
        code = _called(entry)
        sys.stdout.flush()
        threading._shutdown()  # type: ignore[attr-defined]  as the interpreter does: a thread that goes on holds it
    except BaseException:
        with suppress(BaseException):
            traceback.print_exc()
    finally:
        os._exit(code & 0xFF)


def _called(entry: Callable[[], Any]) -> int:
    try:
        entry()
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        print(leaving.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _follow(
    pid: int, out: int, err: int, deadline: float, watched: bool
) -> tuple[dict[int, bytearray], bool, tuple[tuple[int, str], ...]]:
    """Read what the child says until it ends or is late; a page that it serves is looked at once, then Ctrl-C."""
    texts, replies = {out: bytearray(), err: bytearray()}, ()
    ended = os.pidfd_open(pid)
    with selectors.DefaultSelector() as selector:
        for stream in (out, err, ended):
            os.set_blocking(stream, False)
            selector.register(stream, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            ready = [key.fd for key, _ in selector.select(left)]
            for stream in ready:
                if stream == ended:
                    os.close(ended)
                    return texts, False, replies
                piece = os.read(stream, 1 << 16)
                if not piece:
                    selector.unregister(stream)
                if len(texts[stream]) < _MOST_OUTPUT:
                    texts[stream] += piece
            if watched and not replies and (address := _ADDRESS.search(texts[out].decode("utf-8", "replace"))):
                replies = _visit(int(address[1]), address[2])
                os.kill(pid, signal.SIGINT)
    os.close(ended)
    os.killpg(pid, signal.SIGKILL)
    return texts, True, replies


def _visit(port: int, root: str) -> tuple[tuple[int, str], ...]:
    replies = []
    for target in (root, f"{root}fresh?step=-1&evaluation=-1&rollout=-1"):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=15)
            connection.request("GET", target)
            reply = connection.getresponse()
            replies.append((reply.status, reply.read().decode("utf-8", "replace")))
        except (OSError, http.client.HTTPException) as error:
            replies.append((0, f"{type(error).__name__}: {error}"))
    return tuple(replies)


def _rest(stream: int) -> bytes:
    with suppress(BlockingIOError):
        return os.read(stream, _MOST_OUTPUT)
    return b""


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _children() -> set[int]:
    return {int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def _reap(before: set[int]) -> tuple[str, ...]:
    """Wait for what the command left behind; what stays is killed, and named."""
    until, names = time.monotonic() + _GRACE, []
    while left := _children() - before:
        for pid in left:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > until:
            for pid in left:
                with suppress(OSError):
                    names.append(
                        Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:100]
                    )
                    os.kill(pid, signal.SIGKILL)
            until = time.monotonic() + _GRACE
        time.sleep(0.002)
    return tuple(names)
