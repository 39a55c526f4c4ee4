"""Programs that try to get out of the sandbox, to be scored right without being right, or to hang or flood it.

They lie in text files, not modules, so that nothing imports one by mistake; `### name` starts each, and `slow` at the
name's end says that it only ends at its deadline. Nothing here needs more than the standard library.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import time
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path

from groupwise.core.processes import codec
from groupwise.rewards.sandbox import Layers, Limits, Outcome, Sandbox, judge

HERE = Path(__file__).parent
MODES = {"namespaces": (), "bubblewrap": ("namespaces",), "landlock": ("namespaces", "bubblewrap")}
#: Every set of layers that may be had: those of MODES, and namespaces on a kernel without Landlock.
SETS = {**MODES, "namespaces without landlock": ("landlock",)}
ESCAPES = ("network", "files", "processes", "syscalls")
SECRET_NAME = "GROUPWISE_TEST_CANARY"
LIMITS = Limits(seconds=20.0)
SHORT = Limits(seconds=0.6)

_PREAMBLE = """
import os as _os
FILE, PORT, ABSTRACT, PARENT, HOME, SECRET_NAME, CORPUS, MACHINE = {values!r}
def hole(what): print("HOLE", what, flush=True)
def attempt(go):
    try:
        go()
    except BaseException as error:
        if not isinstance(error, Exception): raise
    else:
        hole("a call that had to fail")
def attempt_list(path):
    try:
        return _os.listdir(path)
    except OSError:
        return []
def raw(x86_64, aarch64, *arguments):
    import ctypes
    number = x86_64 if MACHINE == "x86_64" else aarch64
    if number is None: return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    if result >= 0: hole(f"system call {{number}}")
"""


@dataclass(frozen=True)
class Case:
    """One program of the corpus."""

    name: str
    slow: bool
    text: str


def offered(layers: Layers, name: str) -> bool:
    """Whether the layers are those of the set of this name."""
    return bool(getattr(layers, name.split()[0])) and not (name not in MODES and layers.landlock)


def corpus(name: str) -> list[Case]:
    """The programs of one file."""
    found = []
    for part in (HERE / f"{name}.txt").read_text().split("### ")[1:]:
        title, _, text = part.partition("\n")
        found.append(Case(title.removesuffix(" slow"), title.endswith(" slow"), text))
    return found


@dataclass
class Outside:
    """What a program must not touch: a file, three listeners, a secret in the environment."""

    folder: Path
    secret: str = field(default_factory=lambda: secrets.token_hex(12))
    number: int = field(default_factory=lambda: 10**11 + secrets.randbelow(9 * 10**11))

    def __post_init__(self) -> None:
        self.file = self.folder / "canary"
        self.file.write_text(self.secret)
        self.abstract = f"groupwise-canary-{self.secret[:8]}"
        self.listeners = [socket.socket(), socket.socket(type=socket.SOCK_DGRAM)]
        self.listeners[0].bind(("127.0.0.1", 0))
        self.port = self.listeners[0].getsockname()[1]
        self.listeners[1].bind(("127.0.0.1", self.port))
        for kind, name in ((socket.SOCK_STREAM, self.abstract), (socket.SOCK_DGRAM, self.abstract + "-datagram")):
            self.listeners.append(socket.socket(socket.AF_UNIX, kind))
            self.listeners[-1].bind("\0" + name)
        for listener in (self.listeners[0], self.listeners[2]):
            listener.listen()
        self.before = self.state()

    def state(self) -> object:
        """What a program could have changed."""
        told = self.file.stat()
        heard = select.select(self.listeners, [], [], 0)[0]
        return (
            self.file.read_text(),
            told.st_mode,
            told.st_uid,
            told.st_mtime_ns,
            sorted(os.listdir(self.folder)),
            heard,
        )

    def preamble(self) -> str:
        values = (str(self.file), self.port, self.abstract, os.getpid(), str(Path.home()), SECRET_NAME,
                  str(HERE / "files.txt"), os.uname().machine)  # fmt: skip
        return _PREAMBLE.format(values=values)

    def close(self) -> None:
        for listener in self.listeners:
            listener.close()


def escape_faults(box: Sandbox, case: Case, outside: Outside) -> tuple[list[str], Outcome]:
    """Runs the program; what it achieved (empty where nothing), and how it ended."""
    outcome = box.run(outside.preamble() + case.text, "2\n", SHORT if case.slow else LIMITS)
    return _faults(outcome, outside), outcome


def grading_faults(box: Sandbox, case: Case, outside: Outside) -> list[str]:
    """Judges the program in all three ways (one where it is slow) against a value that it cannot know."""
    kept, box.limits = box.limits, SHORT if case.slow else LIMITS
    ways = {
        "calls": judge.Call("f", ["l", 2], ["d"], outside.number),
        "asserts": judge.Asserts((f"assert f(2) == {outside.number}", f"assert {outside.number} == f(3)"), ("f",)),
        "output": judge.Stdio("2\n", f"{outside.number}\n"),
    }
    program = outside.preamble() + case.text
    try:
        right = [
            way for way, test in list(ways.items())[: 1 if case.slow else 3] if any(judge.passed(box, program, [test]))
        ]
        faults = [f"scored right by {way}" for way in right]
        return faults if case.slow else faults + _faults(box.run(program), outside)
    finally:
        box.limits = kept


def honest_faults(box: Sandbox, case: Case) -> list[str]:
    """Judges the honest program in all three ways, of which it must pass each."""
    ways = {
        "calls": (case.text, judge.Call("f", codec.encode([2]), codec.encode({}), 42)),
        "asserts": (case.text, judge.Asserts(("assert f(2) == 42",), ("f",))),
        "output": (case.text + "\nprint(f(2))", judge.Stdio("", "42")),
    }
    wrong = [way for way, (program, test) in ways.items() if not all(judge.passed(box, program, [test]))]
    return [f"scored wrong by {way}: {box.run(ways['output'][0])}" for way in wrong]


def steering_faults(box: Sandbox) -> list[str]:
    """Programs that raise instead of answering, against tests that take answers one by one; which of these they pass.

    An honest program passes them all.
    """
    tests = tuple(case.text for case in corpus("taking"))
    verdicts = {case.name: judge.passed(box, case.text, [judge.Asserts(tests, ("f",))]) for case in corpus("steering")}
    honest = judge.passed(box, "def f(x): return x + 1", [judge.Asserts(tests, ("f",))])
    names = [case.name for case in corpus("taking")]
    steered = [(name, test) for name, passes in verdicts.items() for test in compress(names, passes)]
    failed = [test for test, passes in zip(names, honest, strict=True) if not passes]
    return [f"steering: {name}: passes {test}" for name, test in steered] + [
        f"steering: an honest program: fails {test}" for test in failed
    ]


def descendants(process: int) -> list[int]:
    """The processes below this one."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            for text in Path(f"/proc/{process}/task/{thread}/children").read_text().split():
                found += [int(text), *descendants(int(text))]
    return found


def settled(process: int, expected: int, seconds: float = 5.0) -> bool:
    """Whether there are this many processes below, within the time."""
    until = time.monotonic() + seconds
    while len(descendants(process)) != expected and time.monotonic() < until:
        time.sleep(0.01)
    return len(descendants(process)) == expected


def every_fault(box: Sandbox, outside: Outside, slow: bool = False) -> list[str]:
    """The whole corpus, for a process of its own: a line for each program that achieved something."""
    told = []
    for name in (*ESCAPES, "resources", "grading", "honest"):
        for case in corpus(name):
            if case.slow and not slow:
                continue
            if name == "honest":
                faults = honest_faults(box, case)
            elif name == "grading":
                faults = grading_faults(box, case, outside)
            else:
                faults = escape_faults(box, case, outside)[0]
            told += [f"{name}: {case.name}: {fault}" for fault in faults]
    return told + steering_faults(box)


def _faults(outcome: Outcome, outside: Outside) -> list[str]:
    text = outcome.stdout + outcome.stderr + outcome.detail
    found = [line for line in text.splitlines() if "HOLE" in line and "hole(" not in line and "echo" not in line]
    found += ["it knows the secret"] if outside.secret in text or str(outside.number) in text else []
    return found + (["something outside changed"] if outside.state() != outside.before else [])
