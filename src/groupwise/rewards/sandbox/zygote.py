"""The zygote: a pristine Python that isolates itself once and forks a fresh child for every program.

It never runs a program itself and never sees one: a program goes from the supervisor straight to its child, so nothing
of one job (a test, an expected value) is in the memory that the next is forked from. Its orders come over one channel:
    {"spawn": limits} with four descriptors (stdin, stdout, stderr, control)  ->  {"id": n}
    {"reap": n, "patience": seconds}  ->  {"status": s, "cpu": seconds, "killed": bool}
"""

import fcntl
import gc
import importlib
import os
import signal
import sys
import time

from groupwise.core.channel import Channel
from groupwise.rewards import system
from groupwise.rewards.sandbox import child, isolate, landlock, seccomp

# What programs import most, loaded once; and the modules that need a library of the system, out of reach later.
_LOADED = (
    "abc array ast asyncio bisect bz2 calendar cmath collections.abc contextlib copy csv ctypes dataclasses datetime "
    "decimal enum fractions functools hashlib heapq io itertools json lzma math numbers operator pprint queue random "
    "re statistics string struct textwrap threading time traceback types typing unicodedata uuid zlib"
)


def main(supervisor: Channel, options: dict[str, bool]) -> None:
    """options: which layers are wanted, and whether this is root."""
    del sys.path[0]  # where this package lies: no program may import it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in _LOADED.split():
        _load(name)
    try:
        spare = child.spare_user() if options["root"] else None
        own_user_namespace, own_processes = options["bubblewrap"], None
        if options["namespaces"]:
            own_user_namespace = isolate.enter_namespaces()
            _become_first(supervisor)
            own_processes = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            isolate.enter_root(isolate.library())
        uid = spare if not own_user_namespace and child.readable(isolate.library()) else None
        plan = _plan(options, uid, own_user_namespace, own_processes)
    except OSError as error:
        supervisor.send({"failed": str(error)})
        return
    supervisor.send({"layers": plan.layers})
    for name in [name for name in sys.modules if name.startswith("groupwise")]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()
    _serve(supervisor, plan)


def _load(name: str) -> None:
    try:
        importlib.import_module(name)
    except ImportError:  # an interpreter built without it
        return


def _become_first(supervisor: Channel) -> None:
    """Goes on as the first process of the new process namespace; the process before waits for it, and goes with it."""
    process = os.fork()
    if process == 0:
        system.die_with_parent()
        return
    supervisor.close()
    os.waitpid(process, 0)
    os._exit(0)


def _plan(options: dict[str, bool], uid: int | None, own_user_namespace: bool, own_processes: int | None) -> child.Plan:
    """What every child will do to itself: the layers that are wanted and possible here."""
    linux = sys.platform == "linux"
    abi = landlock.version() if linux and options["landlock"] else 0
    filtered = linux and options["seccomp"] and seccomp.supported()
    user = uid is not None or (own_user_namespace and not options["root"])
    layers = {
        "namespaces": options["namespaces"],
        "bubblewrap": options["bubblewrap"],
        "processes": own_processes is not None,
        "landlock": abi,
        "seccomp": filtered,
        "user": user,
    }
    return child.Plan(
        layers=layers,
        rules=_high(landlock.ruleset(isolate.library())) if abi else None,
        filter_code=seccomp.program(os.uname().machine, threads=user) if filtered else None,
        uid=uid,
        own_processes=own_processes,
    )


def _high(descriptor: int) -> int:
    """The same file under a number that no child puts its own files on."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 16)
    os.close(descriptor)
    return moved


def _serve(supervisor: Channel, plan: child.Plan) -> None:
    """Until the supervisor is gone. Children die with this process: each asked the kernel for that."""
    while True:
        try:
            order, descriptors = supervisor.receive_with(4)
        except (EOFError, OSError):
            return
        try:
            if "spawn" in order:
                reply = {"id": _spawn(plan, order["spawn"], descriptors)}
            else:
                reply = _reap(order["reap"], order["patience"])
        except OSError as error:
            reply = {"failed": str(error)}
        supervisor.send(reply)


def _spawn(plan: child.Plan, limits: dict[str, float], descriptors: list[int]) -> int:
    """The new child's process id here. In a process namespace of its own the child is the first process and alone."""
    if plan.own_processes is not None:
        system.unshare(system.NEWPID)
    process = os.fork()
    if process == 0:
        child.run(plan, limits, descriptors)
    if plan.own_processes is not None:
        system.setns(plan.own_processes, system.NEWPID)  # back, or the next child would be born beside this one
    for descriptor in descriptors:
        os.close(descriptor)
    return process


def _reap(process: int, patience: float) -> dict[str, float]:
    """Kills the child unless it ends by itself within `patience` seconds, and says how it ended."""
    until, ended = time.monotonic() + patience, os.wait4(process, os.WNOHANG)
    while ended[0] == 0 and time.monotonic() < until:
        time.sleep(0.0005)
        ended = os.wait4(process, os.WNOHANG)
    killed = ended[0] == 0
    for kill in (os.killpg, os.kill) if killed else ():
        try:
            kill(process, signal.SIGKILL)
        except ProcessLookupError:  # it has no group yet
            continue
    _, status, usage = os.wait4(process, 0) if killed else ended
    return {"status": status, "cpu": usage.ru_utime + usage.ru_stime, "killed": killed}
