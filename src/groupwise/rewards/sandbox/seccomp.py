"""The list of system calls that a child may make, as a filter for the kernel.

All others fail with EPERM: sockets, signals, ptrace, mounts, namespaces, new processes and programs, writing to the
file system, io_uring, bpf, keys. A call of another architecture's table kills the process. On x86_64 and aarch64.
Source: the kernel's documentation, userspace-api/seccomp_filter.
"""

import ctypes
import os
import struct

from groupwise.rewards.system import PR_SET_SECCOMP, prctl, syscall

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


def supported() -> bool:
    """Whether the kernel takes filters and this machine's table of calls is known here."""
    known = _ARCHITECTURES.get(os.uname().machine)
    try:
        return known is not None and syscall("seccomp", known[2], 2, 0, ctypes.byref(ctypes.c_uint32(_KILL))) == 0
    except OSError:
        return False


def program(machine: str, threads: bool) -> bytes:
    """The filter for one machine; `threads` says whether a child may start any."""
    column, architecture, _ = _ARCHITECTURES[machine]
    code: list[Instruction] = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), _give(_KILL), (_LOAD, 0, 0, 0)]
    for numbers in _PLAIN:
        code += _when(numbers[column], [_give(_ALLOW)])
    for numbers, body in _conditional(threads):
        code += _when(numbers[column], body)
    return b"".join(struct.pack("HBBI", *instruction) for instruction in [*code, _give(_FAIL | _EPERM)])


def install(filter_code: bytes) -> None:
    """The calling process obeys the filter from here on; it needs no_new_privs."""
    held = ctypes.create_string_buffer(filter_code, len(filter_code))
    length = len(filter_code) // 8
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", length, ctypes.addressof(held)))
    prctl(PR_SET_SECCOMP, 2, header)


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
    """The body, entered by that call only. Every body ends in a return."""
    return [] if number is None else [(_EQUAL, 0, len(body), number), *body]


def _one_of(index: int, values: tuple[int, ...], error: int) -> list[Instruction]:
    tests = [step for value in values for step in ((_EQUAL, 0, 1, value), _give(_ALLOW))]
    return [_argument(index), *tests, _give(_FAIL | error)]


def _argument(index: int, high: bool = False) -> Instruction:
    return (_LOAD, 0, 0, 16 + 8 * index + (4 if high else 0))


def _give(verdict: int) -> Instruction:
    return (_RETURN, 0, 0, verdict)
