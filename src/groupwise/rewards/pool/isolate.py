"""What keeps a process that scores, and everything that it starts, from outliving or overrunning the run.

Where Linux lets us (root, or user namespaces), the first process of a PID namespace of its own stands over the one that
scores: when it ends, the kernel ends everything in the namespace, daemons included. Elsewhere on Linux the process
above adopts what is orphaned below it and kills until nothing is left. On other systems the process group is killed.
"""

import contextlib
import os
import re
import resource
import signal
import sys
import time
from enum import StrEnum
from pathlib import Path

from groupwise.core.channel import fork
from groupwise.rewards import system

#: Tasks, threads included, that one worker and all it starts may be. Above the most that sympy or numpy want, and few
#: enough that a fork bomb is over in a second.
TASKS = 320


class Isolation(StrEnum):
    """What a machine may give, the strongest first."""

    NAMESPACE = "a PID namespace"
    USER_NAMESPACE = "a user and a PID namespace"
    REAPER = "a reaper of orphans"
    GROUP = "a process group"


def enter(isolation: Isolation) -> None:
    """After it, this process's next child is the first of its own PID namespace, where `isolation` has one."""
    if isolation is Isolation.NAMESPACE:
        system.unshare(system.NEWPID | system.NEWNS)
    elif isolation is Isolation.USER_NAMESPACE:
        system.unshare_user(system.NEWPID | system.NEWNS, os.getuid(), os.getgid())


def space() -> str:
    """Which PID namespace this process is in; "" where the system does not say."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def settle(outside: str) -> None:
    """Called inside a namespace: a limit on its tasks, and a /proc that shows it. Outside of one it does nothing.

    outside  the namespace of the run, which must not be limited

    Linux before 6.14 has no limit of a namespace's own, and some containers forbid the mount: then there is neither.
    """
    if "" != space() != outside:
        with contextlib.suppress(OSError):
            if _release() >= (6, 14):  # before, it would be the whole machine's
                Path("/proc/sys/kernel/pid_max").write_text(str(TASKS))
        with contextlib.suppress(OSError):
            system.mount("", "/", "", system.MS_REC | system.MS_PRIVATE)
            system.mount("proc", "/proc", "proc", system.MS_NOSUID | system.MS_NODEV | system.MS_NOEXEC)


def _release() -> tuple[int, int]:
    major, minor = re.findall(r"\d+", os.uname().release)[:2]
    return int(major), int(minor)


def bound_resources(memory: int) -> None:
    """Limits of this process and what it starts: `memory` bytes of address space (0: none), no core files, tasks."""
    limits = {resource.RLIMIT_CORE: 0, **({resource.RLIMIT_AS: memory} if memory else {})}
    if sys.platform == "linux" and os.getuid() != 0:  # root is not counted
        limits[resource.RLIMIT_NPROC] = _tasks_of_user() + TASKS
    for which, limit in limits.items():
        with contextlib.suppress(OSError, ValueError):  # macOS refuses some
            system.lower(which, limit)


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


def find_isolation() -> Isolation:
    """The strongest that this machine gives, found by trying it in a child."""
    if sys.platform != "linux":
        return Isolation.GROUP
    return next(
        (isolation for isolation in (Isolation.NAMESPACE, Isolation.USER_NAMESPACE) if _works(isolation)),
        Isolation.REAPER,
    )


def _works(isolation: Isolation) -> bool:
    def tries() -> None:
        enter(isolation)
        first = fork(lambda: os._exit(os.getpid() != 1))
        os._exit(os.waitpid(first, 0)[1] != 0)

    return os.waitpid(fork(tries), 0)[1] == 0


def kill_below(group: int) -> None:
    """Ends and reaps every process below this one, those that left the group of the scoring process included.

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
    """Processes whose chain of parents leads to `root`; none where there is no /proc."""
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
    """What Linux says of a process: its state (R where it runs or wants to), its parent, and more. Raises OSError."""
    return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
