"""A fresh child of the zygote: it gives up everything, then runs one program. Each layer holds without the others."""

import math
import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from groupwise.rewards import system
from groupwise.rewards.sandbox import inside, landlock, seccomp
from groupwise.rewards.sandbox.outcome import REFUSED

_STACK = 64 * 2**20


@dataclass(frozen=True)
class Plan:
    """What a child does to itself; made once by the zygote.

    layers         what is in place, for the supervisor
    rules          descriptor of the Landlock ruleset
    filter_code    the seccomp filter
    uid            the user to become; None to stay
    own_processes  descriptor of the zygote's process namespace, where each child gets one of its own
    """

    layers: dict[str, bool | int]
    rules: int | None
    filter_code: bytes | None
    uid: int | None
    own_processes: int | None


def spare_user() -> int | None:
    """A number that no account uses, which root's children can become; None where this container maps none."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            known = [range(int(first), int(first) + int(count)) for first, _, count in map(str.split, file)]
    except OSError:
        return None
    wanted = 1_700_000_000 + os.getpid() % 1_000_000
    return next((uid for uid in (wanted, 65534) if any(uid in mapped for mapped in known)), None)


def readable(folders: Sequence[str]) -> bool:
    """Whether every user may read below the folders."""
    return all(os.stat(path).st_mode & 0o005 == 0o005 for folder in folders for path in _upward(folder))


def _upward(path: str) -> list[str]:
    return [path] if path == os.path.dirname(path) else [path, *_upward(os.path.dirname(path))]


def run(plan: Plan, limits: dict[str, float], descriptors: Sequence[int]) -> NoReturn:
    """Puts every layer in place, then runs what comes over the control socket. Never returns."""
    try:
        os.setsid()
        _keep_only(descriptors)
        _limit(limits)
        _drop(plan)
    except (OSError, ValueError) as error:
        os.write(2, f"a layer of protection failed: {error}".encode())
        os._exit(REFUSED)
    inside.run(3)


def _keep_only(descriptors: Sequence[int]) -> None:
    """stdin, stdout, stderr and control as 0 to 3; the others are closed when the ruleset, one of them, is in force."""
    for target, source in enumerate([os.dup(descriptor) for descriptor in descriptors]):
        os.dup2(source, target)


def _limit(limits: dict[str, float]) -> None:
    seconds = math.ceil(limits["seconds"]) + 1
    wanted = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_AS: int(limits["memory"]),
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_STACK: _STACK,
        resource.RLIMIT_NPROC: int(limits["threads"]),
    }
    for which, limit in wanted.items():
        system.lower(which, limit)


def _drop(plan: Plan) -> None:
    """User, capabilities, Landlock, seccomp, in the order that each still permits the next."""
    linux = os.uname().sysname == "Linux"
    if plan.uid is not None:
        os.setgroups([])
        os.setresgid(plan.uid, plan.uid, plan.uid)
        os.setresuid(plan.uid, plan.uid, plan.uid)
    if linux:
        system.drop_capabilities()
        system.die_with_parent()
        system.prctl(system.PR_SET_NO_NEW_PRIVS, 1)
    if plan.rules is not None:
        landlock.restrict(plan.rules)
    os.closerange(4, 2**20)
    if plan.filter_code is not None:
        seccomp.install(plan.filter_code)
