"""The zygote: a pristine Python that isolates itself once and forks a fresh child for every program.

It never runs a program itself and never sees one: a program goes from the supervisor straight to its child, so nothing
of one job (a test, an expected value) is in the memory that the next is forked from. Its orders come over one channel:
    {"spawn": limits} with four descriptors (stdin, stdout, stderr, control)  ->  {"id": n}
    {"reap": n, "patience": seconds}  ->  {"status": s, "cpu": seconds, "killed": bool}
"""

import contextlib
import fcntl
import gc
import importlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from groupwise.core.channel import Channel, fork, serve
from groupwise.rewards import system
from groupwise.rewards.sandbox import child, landlock, seccomp

# What programs import most, loaded once; and the modules that need a library of the system, out of reach later.
_LOADED = (
    "abc array ast asyncio bisect bz2 calendar cmath collections.abc contextlib copy csv ctypes dataclasses datetime "
    "decimal enum fractions functools hashlib heapq io itertools json lzma math numbers operator pprint queue random "
    "re statistics string struct textwrap threading time traceback types typing unicodedata uuid zlib"
)
_HIDDEN = ("site-packages", "dist-packages")
# (a mount's option as statvfs returns it, as mount takes it): in a user namespace those of the source must stay set
_INHERITED = ((2, system.MS_NOSUID), (4, system.MS_NODEV), (8, system.MS_NOEXEC), (1024, system.MS_NOATIME),
         (2048, system.MS_NODIRATIME), (4096, system.MS_RELATIME))  # fmt: skip


def main(supervisor: Channel, options: dict[str, bool]) -> None:
    """options: which layers are wanted, and whether this is root."""
    del sys.path[0]  # where this package lies: no program may import it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in _LOADED.split():
        with contextlib.suppress(ImportError):  # an interpreter built without it
            importlib.import_module(name)
    try:
        spare = child.spare_user() if options["root"] else None
        own_user_namespace, own_processes = options["bubblewrap"], None
        if options["namespaces"]:
            own_user_namespace = _enter_namespaces()
            _become_first(supervisor)
            own_processes = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            _enter_root(_library())
        uid = spare if not own_user_namespace and child.readable(_library()) else None
        plan = _plan(options, uid, own_user_namespace, own_processes)
    except OSError as error:
        supervisor.send({"failed": str(error)})
        return
    supervisor.send({"layers": plan.layers})
    for name in [name for name in sys.modules if name.startswith("groupwise")]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()

    def do(order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        try:
            if "spawn" in order:
                return {"id": _spawn(plan, order["spawn"], descriptors)}
            return _reap(order["reap"], order["patience"])
        except OSError as error:
            return {"failed": str(error)}

    serve(supervisor, 4, do)  # children die with this process: each asked the kernel for that


def _enter_namespaces() -> bool:
    """Own mount, network, IPC and host-name namespaces, own processes from the next fork on.

    Whether a user namespace was needed too. Raises OSError where the system refuses.
    """
    wanted = system.NEWNS | system.NEWNET | system.NEWIPC | system.NEWUTS | system.NEWPID
    try:
        system.unshare(wanted)
    except OSError:
        system.unshare_user(wanted, user=0, group=0)
        return True
    return False


def _become_first(supervisor: Channel) -> None:
    """Goes on as the first process of the new process namespace; the process before waits for it, and goes with it."""
    process = os.fork()
    if process == 0:
        system.die_with_parent()
        return
    supervisor.close()
    os.waitpid(process, 0)
    os._exit(0)


def _enter_root(folders: Sequence[str]) -> None:
    """A read-only root with the folders in it, read-only, their installed packages hidden. The old root is gone."""
    base = tempfile.gettempdir()
    system.mount("", "/", "", system.MS_REC | system.MS_PRIVATE)
    system.mount("tmpfs", base, "tmpfs", system.MS_NOSUID | system.MS_NODEV, "mode=755,size=1m")
    os.chdir(base)
    os.mkdir("old")
    system.pivot_root(".", "old")
    os.chdir("/")
    for folder in folders:
        _bind("/old" + os.path.realpath(folder), folder)
    system.unmount("/old")
    os.rmdir("/old")
    _read_only("/")


def _bind(source: str, target: str) -> None:
    os.makedirs(target, exist_ok=True)
    system.mount(source, target, "", system.MS_BIND | system.MS_REC)
    for name in _HIDDEN:
        path = os.path.join(target, name)
        if os.path.isdir(path):
            system.mount("tmpfs", path, "tmpfs", system.MS_RDONLY | system.MS_NOSUID, "mode=755,size=4k")
    _read_only(target)


def _read_only(path: str) -> None:
    options = os.statvfs(path).f_flag
    inherited = sum(flag for option, flag in _INHERITED if options & option) | system.MS_NOSUID | system.MS_NODEV
    system.mount("", path, "", system.MS_REMOUNT | system.MS_BIND | system.MS_RDONLY | inherited)


def _library() -> list[str]:
    """The folders of the standard library, outermost only."""
    folders = [path for path in sys.path if os.path.isdir(path)]
    return [f for f in folders if not any(f != g and f.startswith(g + os.sep) for g in folders)]


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
        rules=_high(landlock.ruleset(_library())) if abi else None,
        filter_code=seccomp.program(os.uname().machine, threads=user) if filtered else None,
        uid=uid,
        own_processes=own_processes,
    )


def _high(descriptor: int) -> int:
    """Duplicate a file under a number that no child puts its own files on."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 16)
    os.close(descriptor)
    return moved


def _spawn(plan: child.Plan, limits: dict[str, float], descriptors: list[int]) -> int:
    """The new child's process id here. In a process namespace of its own the child is the first process and alone."""
    if plan.own_processes is not None:
        system.unshare(system.NEWPID)
    process = fork(lambda: child.run(plan, limits, descriptors))
    if plan.own_processes is not None:
        system.setns(plan.own_processes, system.NEWPID)  # back, or the next child would be born beside this one
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
