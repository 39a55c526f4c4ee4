"""Landlock: a process gives up the file system but for a list, and network, signals and abstract sockets outside it.

Source: the kernel's documentation, userspace-api/landlock. The numbers of its calls are the same on every machine.
"""

import ctypes
import os
from collections.abc import Sequence

from groupwise.rewards.system import syscall

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_HIDDEN = ("site-packages", "dist-packages", "test", "__pycache__")


class _Path(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("access", ctypes.c_uint64), ("parent", ctypes.c_int32))


def version() -> int:
    """The kernel's Landlock version, 0 where it has none."""
    try:
        return syscall("landlock", _CREATE, ctypes.c_void_p(None), 0, 1)
    except OSError:
        return 0


def ruleset(folders: Sequence[str]) -> int:
    """A ruleset that allows reading below `folders` (their installed packages aside) and nothing else; a descriptor."""
    abi = version()
    files = (1 << 13) - 1 | (abi >= 2) << 13 | (abi >= 3) << 14 | (abi >= 5) << 15
    wanted = (ctypes.c_uint64 * 3)(files, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    rules = syscall("landlock", _CREATE, wanted, size, 0)
    for folder in folders:
        for entry in os.scandir(folder):
            if entry.name not in _HIDDEN and os.path.exists(entry.path):  # a link may lead out of the small root
                _allow(rules, entry.path, _READ_FILE | (_READ_DIR if entry.is_dir() else 0))
        _allow(rules, folder, _READ_DIR)  # the finder of modules lists it
    return rules


def restrict(rules: int) -> None:
    """The calling process obeys the ruleset from here on; it needs no_new_privs."""
    syscall("landlock", _RESTRICT, rules, 0)


def _allow(rules: int, path: str, access: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        syscall("landlock", _ADD, rules, 1, ctypes.byref(_Path(access, descriptor)), 0)
    finally:
        os.close(descriptor)
