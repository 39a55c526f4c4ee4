"""Layers that a fresh child puts around itself before it runs a program. Each layer holds without the others.

Landlock: the file system but for a list, and network, signals and abstract sockets outside it. The numbers of its calls
are the same on every machine (the kernel's documentation, userspace-api/landlock).

seccomp: all system calls but for a list, on x86_64 and aarch64. All others fail with EPERM: sockets, signals, ptrace,
mounts, namespaces, new processes and programs, writing to the file system, io_uring, bpf, keys. A call of another
architecture's table kills the process (the kernel's documentation, userspace-api/seccomp_filter).
"""

import ctypes
import math
import os
import resource
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from groupwise.rewards import isolation
from groupwise.rewards.isolation import prctl, syscall
from groupwise.rewards.sandbox import inside
from groupwise.rewards.sandbox.job import REFUSED

_STACK = 64 * 2**20
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_OUT_OF_REACH = ("site-packages", "dist-packages", "test", "__pycache__")

_ARCHITECTURES = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}
_EPERM, _ENOSYS, _EACCES, _ENOTTY = 1, 38, 13, 25
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _FAIL, _KILL = 0x7FFF0000, 0x00050000, 0x80000000

# (x86_64, aarch64); None where the call is not in that table. Calls that only read, wait or touch the process itself.
_PLAIN: tuple[tuple[int | None, int | None], ...] = (
    *((0, 63), (1, 64), (19, 65), (20, 66), (3, 57), (436, 436), (8, 62), (17, 67)),  # read write readv writev close
    *((5, 80), (262, 79), (332, 291), (4, None), (6, None), (217, 61), (78, None)),  # stat, getdents
    *((79, 17), (267, 78), (89, None), (269, 48), (439, 439), (21, None), (221, 223)),  # getcwd readlink access fadvise
    *((32, 23), (33, None), (292, 24), (22, None), (293, 59)),  # dup, pipe
    *((7, None), (271, 73), (23, None), (270, 72), (213, None), (291, 20), (233, 21), (232, None), (281, 22)),  # poll
    *((441, 441), (290, 19), (284, None), (34, None)),  # epoll_pwait2 eventfd pause
    *((9, 222), (10, 226), (11, 215), (12, 214), (25, 216), (28, 233), (27, 232)),  # memory
    *((13, 134), (14, 135), (15, 139), (127, 136), (128, 137), (130, 133), (131, 132)),  # own signal handlers
    *((36, 102), (38, 103), (37, None), (35, 101), (230, 115), (228, 113), (229, 114), (96, 169), (201, None)),  # time
    *((39, 172), (110, 173), (102, 174), (107, 175), (104, 176), (108, 177), (118, 148), (120, 150), (115, 158)),  # ids
    *((121, 155), (111, None), (124, 156), (186, 178), (63, 160), (99, 179), (98, 165), (100, 153), (97, None)),
    *((204, 123), (24, 124), (219, 128), (218, 96), (273, 99), (334, 293), (202, 98), (449, 449), (309, 168)),  # tasks
    *((60, 93), (231, 94), (318, 278), (324, 283), (95, 166)),  # exit getrandom membarrier umask
    *((45, 207), (48, 210), (51, 204), (55, 209)),  # the pair of sockets that an event loop wakes itself with
)
_CLONE, _CLONE3, _OPENAT2 = (56, 220), (435, 435), (437, 437)
_FCNTL, _IOCTL, _PRLIMIT, _SOCKETPAIR, _SENDTO = (72, 25), (16, 29), (302, 261), (53, 199), (44, 206)
_OPEN, _OPENAT = (2, None), (257, 56)
_WRITING = 0o3 | 0o100 | 0o1000 | 0o2000 | 0o20000 | 0o20000000  # modes, O_CREAT O_TRUNC O_APPEND O_ASYNC O_TMPFILE
_CLONE_THREAD, _CLONE_NEW = 0x10000, 0x7E020000
_FCNTL_HARMLESS = (0, 1, 2, 3, 4, 1030, 1032)  # no owner, no signal: F_SETOWN would send one to another process
_FIONBIO, _AF_UNIX = 0x5421, 1

Instruction = tuple[int, int, int, int]


@dataclass(frozen=True)
class Plan:
    """Layers that a child puts in place; made once by the zygote.

    layers       what is in place, for the supervisor
    rules        descriptor of the Landlock ruleset
    filter_code  the seccomp filter
    uid          the user to become; None to stay
    """

    layers: dict[str, bool | int]
    rules: int | None
    filter_code: bytes | None
    uid: int | None


def spare_user() -> int | None:
    """Find a number that no account uses, which root's children can become; None where this container maps none."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            known = [range(int(first), int(first) + int(count)) for first, _, count in map(str.split, file)]
    except OSError:
        return None
    wanted = 1_700_000_000 + os.getpid() % 1_000_000
    return next((uid for uid in (wanted, 65534) if any(uid in mapped for mapped in known)), None)


def readable(folders: Sequence[str]) -> bool:
    """Tell if every user may read below the folders."""
    return all(os.stat(path).st_mode & 0o005 == 0o005 for folder in folders for path in _upward(folder))


def _upward(path: str) -> list[str]:
    return [path] if path == os.path.dirname(path) else [path, *_upward(os.path.dirname(path))]


def run(plan: Plan, limits: dict[str, float], descriptors: Sequence[int]) -> NoReturn:
    """Put every layer in place, then run what comes over the control socket. Never returns.

    descriptors  of stdin, stdout, stderr and control
    """
    try:
        os.setsid()
        for target, source in enumerate([os.dup(descriptor) for descriptor in descriptors]):
            os.dup2(source, target)  # the others are closed when the ruleset, one of them, is in force
        _limit(limits)
        _drop(plan)
    except (OSError, ValueError) as error:
        os.write(2, f"a layer of protection failed: {error}".encode())
        os._exit(REFUSED)
    inside.run(3)


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
        isolation.lower(which, limit)


def _drop(plan: Plan) -> None:
    """Give up user, capabilities, files, system calls, in the order that each still permits the next."""
    linux = os.uname().sysname == "Linux"
    if plan.uid is not None:
        os.setgroups([])
        os.setresgid(plan.uid, plan.uid, plan.uid)
        os.setresuid(plan.uid, plan.uid, plan.uid)
    if linux:
        isolation.drop_capabilities()
        isolation.die_with_parent()
        isolation.prctl(isolation.PR_SET_NO_NEW_PRIVS, 1)
    if plan.rules is not None:
        syscall("landlock", _RESTRICT, plan.rules, 0)
    os.closerange(4, 2**20)
    if plan.filter_code is not None:
        held = ctypes.create_string_buffer(plan.filter_code, len(plan.filter_code))
        header = struct.pack("HxxxxxxP", len(plan.filter_code) // 8, ctypes.addressof(held))
        prctl(isolation.PR_SET_SECCOMP, 2, ctypes.create_string_buffer(header))


class _Path(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("access", ctypes.c_uint64), ("parent", ctypes.c_int32))


def landlock_version() -> int:
    """Return the kernel's Landlock version, 0 where it has none."""
    try:
        return syscall("landlock", _CREATE, ctypes.c_void_p(None), 0, 1)
    except OSError:
        return 0


def landlock_rules(folders: Sequence[str]) -> int:
    """Make a ruleset that allows reading below `folders` but for their installed packages -> its descriptor."""
    abi = landlock_version()
    files = (1 << 13) - 1 | (abi >= 2) << 13 | (abi >= 3) << 14 | (abi >= 5) << 15
    wanted = (ctypes.c_uint64 * 3)(files, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    rules = syscall("landlock", _CREATE, wanted, size, 0)
    for folder in folders:
        for entry in os.scandir(folder):
            if entry.name not in _OUT_OF_REACH and os.path.exists(entry.path):  # a link may lead out of the small root
                _allow(rules, entry.path, _READ_FILE | (_READ_DIR if entry.is_dir() else 0))
        _allow(rules, folder, _READ_DIR)  # the finder of modules lists it
    return rules


def _allow(rules: int, path: str, access: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        syscall("landlock", _ADD, rules, 1, ctypes.byref(_Path(access, descriptor)), 0)
    finally:
        os.close(descriptor)


def seccomp_supported() -> bool:
    """Tell if the kernel takes filters and this machine's table of calls is known here."""
    known = _ARCHITECTURES.get(os.uname().machine)
    try:
        return known is not None and syscall("seccomp", known[2], 2, 0, ctypes.byref(ctypes.c_uint32(_KILL))) == 0
    except OSError:
        return False


def seccomp_filter(machine: str, threads: bool) -> bytes:
    """Return the filter for one machine; `threads`: a child may start some."""
    column, architecture, _ = _ARCHITECTURES[machine]
    code: list[Instruction] = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), _give(_KILL), (_LOAD, 0, 0, 0)]
    for numbers in _PLAIN:
        code += _when(numbers[column], [_give(_ALLOW)])
    for numbers, body in _conditional(threads):
        code += _when(numbers[column], body)
    return b"".join(struct.pack("HBBI", *instruction) for instruction in [*code, _give(_FAIL | _EPERM)])


def _conditional(threads: bool) -> list[tuple[tuple[int | None, int | None], list[Instruction]]]:
    thread_only = [_argument(0), (_ANY_BIT, 2, 0, _CLONE_NEW), (_ANY_BIT, 0, 1, _CLONE_THREAD), _give(_ALLOW)]
    return [
        (_CLONE, [*(thread_only if threads else []), _give(_FAIL | _EPERM)]),
        (_CLONE3, [_give(_FAIL | _ENOSYS)]),  # its flags lie in memory, out of a filter's sight; libc then uses clone
        (_OPENAT2, [_give(_FAIL | _ENOSYS)]),
        (_OPEN, [_argument(1), (_ANY_BIT, 0, 1, _WRITING), _give(_FAIL | _EACCES), _give(_ALLOW)]),
        (_OPENAT, [_argument(2), (_ANY_BIT, 0, 1, _WRITING), _give(_FAIL | _EACCES), _give(_ALLOW)]),
        (_FCNTL, _one_of(1, _FCNTL_HARMLESS, _EPERM)),
        (_IOCTL, _one_of(1, (_FIONBIO,), _ENOTTY)),
        (_PRLIMIT, _one_of(0, (0,), _EPERM)),  # the process itself
        (_SOCKETPAIR, _one_of(0, (_AF_UNIX,), _EPERM)),
        (_SENDTO, [_argument(4), (_EQUAL, 0, 3, 0), _argument(4, high=True), (_EQUAL, 0, 1, 0), _give(_ALLOW),
                   _give(_FAIL | _EPERM)]),
    ]  # fmt: skip


def _when(number: int | None, body: list[Instruction]) -> list[Instruction]:
    """Return the body, entered by that call only. Every body ends in a return."""
    return [] if number is None else [(_EQUAL, 0, len(body), number), *body]


def _one_of(index: int, values: tuple[int, ...], error: int) -> list[Instruction]:
    tests = [step for value in values for step in ((_EQUAL, 0, 1, value), _give(_ALLOW))]
    return [_argument(index), *tests, _give(_FAIL | error)]


def _argument(index: int, high: bool = False) -> Instruction:
    return (_LOAD, 0, 0, 16 + 8 * index + (4 if high else 0))


def _give(verdict: int) -> Instruction:
    return (_RETURN, 0, 0, verdict)
