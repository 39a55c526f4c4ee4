"""Isolation of processes, of those that score and of programs that are not trusted.

First stand the calls of Linux that Python does not wrap, through libc: each raises OSError where the system refuses.
Then what is made of them: namespaces, limits of resources, and the end of whatever a process has started.

Where Linux lets us (root, or user namespaces), the first process of a PID namespace of its own stands over all that is
started: when it ends, the kernel ends everything in the namespace, daemons included. Elsewhere on Linux the process
above adopts what is orphaned below it and kills until nothing is left. On other systems the process group is killed.

The standard library only: the sandbox's processes use this too, where nothing else is installed.
"""

import contextlib
import ctypes
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from groupwise.core.channel import fork

#: Constants of the system, by the names that it gives them.
NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_NOATIME, MS_NODIRATIME, MS_BIND, MS_REC, MS_PRIVATE, MS_RELATIME = 1024, 2048, 4096, 16384, 1 << 18, 1 << 21
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, PR_SET_CHILD_SUBREAPER = 1, 24, 22, 38, 36

#: Tasks, threads included, that one worker and all it starts may be. Above the most that sympy or numpy want, and few
#: enough that a fork bomb is over in a second. Numbers below RESERVED are given once: when Linux has come to the end it
#: begins again there.
TASKS, RESERVED = 320, 300

#: Seconds in which the last process of a trial of isolation ends, how often a trial is made, and the exit code of one
#: that is late.
TRIAL, TRIALS, LATE = 5.0, 3, 3

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _checked(name: str, result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def syscall(name: str, number: int, *arguments: object) -> int:
    """Make a system call by number; integers go as 64 bits."""
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _checked(name, _libc.syscall(ctypes.c_long(number), *wide))


def prctl(option: int, second: int = 0, third: object = 0) -> int:
    wide = ctypes.c_ulong(third) if isinstance(third, int) else third
    return _checked(
        f"prctl {option}", _libc.prctl(option, ctypes.c_ulong(second), wide, ctypes.c_ulong(0), ctypes.c_ulong(0))
    )


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Let the kernel send this process the signal when its parent's thread ends, however that ends. On Linux only."""
    if sys.platform == "linux":
        prctl(PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Make processes below this one whose parent ends children of this one. On Linux only."""
    if sys.platform == "linux":
        prctl(PR_SET_CHILD_SUBREAPER, 1)


def unshare(flags: int) -> None:
    _checked("unshare", _libc.unshare(flags))


def unshare_user(flags: int, user: int, group: int) -> None:
    """Unshare in a user namespace of its own, where this process goes on as this user and group."""
    outer_user, outer_group = os.getuid(), os.getgid()
    unshare(flags | NEWUSER)
    maps = {"setgroups": "deny", "uid_map": f"{user} {outer_user} 1", "gid_map": f"{group} {outer_group} 1"}
    for name, text in maps.items():
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def lower(which: int, limit: int) -> None:
    """Let this process, and what it starts, use at most `limit` of a resource, less where it is less by now."""
    hard = resource.getrlimit(which)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(which, (limit, limit))


def setns(descriptor: int, kind: int) -> None:
    _checked("setns", _libc.setns(descriptor, kind))


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    words = [text.encode() or None for text in (source, target, kind)]
    _checked(f"mount {target}", _libc.mount(*words, ctypes.c_ulong(flags), options.encode() or None))


def unmount(target: str) -> None:
    """Detach the mount now; it goes when nothing uses it."""
    _checked(f"umount {target}", _libc.umount2(target.encode(), 2))


def pivot_root(new: str, old: str) -> None:
    number = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
    syscall("pivot_root", number, ctypes.c_char_p(new.encode()), ctypes.c_char_p(old.encode()))


def drop_capabilities() -> None:
    """Drop every capability of this process; none can come back."""
    for number in range(64):
        try:
            prctl(PR_CAPBSET_DROP, number)
        except OSError:  # a number that this kernel does not know, or no right to drop: the sets below go either way
            break
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _checked("capset", _libc.capset(header, (ctypes.c_uint32 * 6)()))


class Isolation(StrEnum):
    """Isolation that a machine may give, the strongest first."""

    NAMESPACE = "a PID namespace"
    USER_NAMESPACE = "a user and a PID namespace"
    REAPER = "a reaper of orphans"
    GROUP = "a process group"


def enter(isolation: Isolation) -> int | None:
    """Prepare this process for children in PID namespaces of their own -> its own namespace, to which it comes back
    after each, as a descriptor; None where `isolation` has no namespaces.

    In a user namespace it goes on in a new process, because only there it may come back.
    """
    if isolation not in (Isolation.NAMESPACE, Isolation.USER_NAMESPACE):
        return None
    if isolation is Isolation.USER_NAMESPACE:
        unshare_user(NEWPID, os.getuid(), os.getgid())
        become_first()
    return own_processes()


def become_first() -> None:
    """Go on as the first process of the PID namespace that was unshared; the process before waits for it, and ends."""
    process = os.fork()
    if process == 0:
        die_with_parent()
        return
    os._exit(max(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), -1) & 0xFF)


def own_processes() -> int:
    """Open the PID namespace of this process: a descriptor."""
    return os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)


def born(begin: Callable[[], object], home: int | None) -> int:
    """Fork a process that lives as long as the call of `begin`: the first of a PID namespace of its own if this process
    has one to come back to, which is `home`.
    """
    if home is None:
        return fork(begin)
    unshare(NEWPID)
    try:
        return fork(begin)
    finally:
        setns(home, NEWPID)  # or the next child would be born beside this one


def find_isolation() -> Isolation:
    """Find the strongest isolation that this machine gives, by trying it in a child."""
    if sys.platform != "linux":
        return Isolation.GROUP
    found = (isolation for isolation in (Isolation.NAMESPACE, Isolation.USER_NAMESPACE) if works(isolation))
    return next(found, Isolation.REAPER)


def works(isolation: Isolation) -> bool:
    """Try an isolation in a child; again if it does not end, as one that was stopped from outside."""

    def first() -> None:
        die_with_parent()
        os._exit(os.getpid() != 1)

    def tries() -> None:
        die_with_parent()
        os._exit(_ended(born(first, enter(isolation)), TRIAL))

    for _ in range(TRIALS):
        if (code := _ended(fork(tries), 2 * TRIAL)) != LATE:
            return code == 0
    return False


def _ended(process: int, seconds: float) -> int:
    """Wait for a child's end -> 0, 1 for any other exit, or LATE where it is killed after so many seconds."""
    until = time.monotonic() + seconds
    while not (ended := os.waitpid(process, os.WNOHANG))[0]:
        if time.monotonic() > until:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return LATE
        time.sleep(0.0005)
    code = os.waitstatus_to_exitcode(ended[1])
    return code if code in (0, LATE) else 1


def space() -> str:
    """Return which PID namespace this process is in; "" where the system does not say."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def settle(outside: str) -> None:
    """Limit the tasks of a PID namespace and mount a /proc that shows it; outside of one, do nothing.

    outside  the namespace of the run, which must not be limited

    Linux before 6.14 has no limit of a namespace's own, and some containers forbid the mount: then there is neither.
    """
    if "" != space() != outside:
        with contextlib.suppress(OSError):
            if release() >= (6, 14):  # before, it would be the whole machine's
                Path("/proc/sys/kernel/pid_max").write_text(str(RESERVED + TASKS - 1))  # and the worker
                Path("/proc/sys/kernel/ns_last_pid").write_text(str(RESERVED))  # so that as many may be at first
        with contextlib.suppress(OSError):
            unshare(NEWNS)
            mount("", "/", "", MS_REC | MS_PRIVATE)
            mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def release() -> tuple[int, int]:
    """Return the version of this machine's Linux."""
    major, minor = re.findall(r"\d+", os.uname().release)[:2]
    return int(major), int(minor)


def bound_resources(memory: int) -> None:
    """Limit this process and what it starts: `memory` bytes of address space (0: none), no core files, tasks."""
    limits = {resource.RLIMIT_CORE: 0, **({resource.RLIMIT_AS: memory} if memory else {})}
    if sys.platform == "linux" and os.getuid() != 0:  # root is not counted
        limits[resource.RLIMIT_NPROC] = _tasks_of_user() + TASKS
    for which, limit in limits.items():
        with contextlib.suppress(OSError, ValueError):  # macOS refuses some
            lower(which, limit)


def _tasks_of_user() -> int:
    user, count = os.getuid(), 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == user:
                count += len(os.listdir(folder / "task"))
    return count


def yield_to_others() -> None:
    """Run only where nothing else wants the core: generation's threads wait for each other, and the slowest decides."""
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def kill_below(group: int) -> None:
    """End and reap every process below this one, those that left the group of the scoring process included.

    Called where there is no namespace. It returns when this process has no child; new ones that are born meanwhile
    are adopted and killed too.
    """
    while True:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
        for process in below(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def below(root: int) -> list[int]:
    """List the processes whose chain of parents leads to `root`; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if sys.platform == "linux" else []:
        if name.isdigit():
            with contextlib.suppress(OSError):
                children.setdefault(int(stat_fields(name)[1]), []).append(int(name))
    descendants, front = [], [root]
    while front:
        front = [child for parent in front for child in children.get(parent, [])]
        descendants += front
    return descendants


def stat_fields(process: int | str) -> list[str]:
    """Return what Linux says of a process: its state (R if it runs or wants to), its parent, ... Raises OSError."""
    return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
