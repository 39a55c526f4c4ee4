"""The zygote: a pristine Python that isolates itself once and forks a fresh child for every program.

It never runs a program itself and never sees one: a program goes from the supervisor straight to its child, so nothing
of one job (a test, an expected value) is in the memory that the next is forked from. It reads orders from one socket:
    {"spawn": limits} with four descriptors (stdin, stdout, stderr, control)  ->  {"id": n}
    {"reap": n, "patience": seconds}  ->  {"status": s, "cpu": seconds, "killed": bool}
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time

from groupwise.rewards.sandbox import child, isolate, landlock, seccomp, system

# What programs import most, loaded once; and the modules that need a library of the system, out of reach later.
_LOADED = (
    "abc array ast asyncio bisect bz2 calendar cmath collections.abc contextlib copy csv ctypes dataclasses datetime "
    "decimal enum fractions functools hashlib heapq io itertools json lzma math numbers operator pprint queue random "
    "re statistics string struct textwrap threading time traceback types typing unicodedata uuid zlib"
)


def main(arguments: list[str]) -> None:
    """arguments: the socket's number, a descriptor of the supervisor's process or -1, and the options as JSON."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders, parent, options = socket.socket(fileno=int(arguments[0])), int(arguments[1]), json.loads(arguments[2])
    for name in _LOADED.split():
        _load(name)
    try:
        spare = child.spare_user() if options["root"] else None
        own_user_namespace = options["bubblewrap"]
        if options["namespaces"]:
            own_user_namespace = isolate.enter_namespaces()
            _become_first(orders)
            processes = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            isolate.enter_root(isolate.library())
        own_processes = processes if options["namespaces"] else None
        uid = spare if not own_user_namespace and child.readable(isolate.library()) else None
        plan = _plan(options, uid, own_user_namespace, own_processes)
    except OSError as error:
        orders.send(json.dumps({"failed": str(error)}).encode())
        return
    orders.send(json.dumps({"layers": plan.layers}).encode())
    for name in [name for name in sys.modules if name.startswith("groupwise")]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()
    _serve(orders, parent, plan)


def _load(name: str) -> None:
    try:
        importlib.import_module(name)
    except ImportError:  # an interpreter built without it
        return


def _become_first(orders: socket.socket) -> None:
    """Goes on as the first process of the new process namespace; the process before waits for it, and goes with it."""
    process = os.fork()
    if process == 0:
        system.prctl(system.PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    orders.close()
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


def _serve(orders: socket.socket, parent: int, plan: child.Plan) -> None:
    """Until the supervisor is gone. Children die with this process: each asked the kernel for that."""
    watched = select.poll()
    for descriptor in (orders.fileno(), *([parent] if parent >= 0 else [])):
        watched.register(descriptor, select.POLLIN)
    while True:
        ready = dict(watched.poll())
        if orders.fileno() not in ready:
            return
        message, descriptors, _, _ = socket.recv_fds(orders, 65536, 4)
        if not message:
            return
        order = json.loads(message)
        try:
            if "spawn" in order:
                reply = {"id": _spawn(plan, order["spawn"], descriptors)}
            else:
                reply = _reap(order["reap"], order["patience"])
        except OSError as error:
            reply = {"failed": str(error)}
        orders.send(json.dumps(reply).encode())


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
