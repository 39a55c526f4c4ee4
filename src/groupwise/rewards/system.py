"""The calls of Linux that Python does not wrap, through libc. Each raises OSError where the system refuses."""

import ctypes
import os
import resource
import signal
import sys

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_NOATIME, MS_NODIRATIME, MS_BIND, MS_REC, MS_PRIVATE, MS_RELATIME = 1024, 2048, 4096, 16384, 1 << 18, 1 << 21
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, PR_SET_CHILD_SUBREAPER = 1, 24, 22, 38, 36

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
    """This process, and what it starts, may use no more of a resource, or what it might before where that is less."""
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
