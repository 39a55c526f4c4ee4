"""The costly isolation, done once by the zygote: namespaces, and a root folder that holds Python's library alone."""

import os
import sys
import tempfile
from collections.abc import Sequence

from groupwise.rewards import system

_HIDDEN = ("site-packages", "dist-packages")
# (a mount's option as statvfs returns it, as mount takes it): in a user namespace those of the source must stay set
_INHERITED = ((2, system.MS_NOSUID), (4, system.MS_NODEV), (8, system.MS_NOEXEC), (1024, system.MS_NOATIME),
         (2048, system.MS_NODIRATIME), (4096, system.MS_RELATIME))  # fmt: skip


def library() -> list[str]:
    """The folders of the standard library, outermost only."""
    folders = [path for path in sys.path if os.path.isdir(path)]
    return [f for f in folders if not any(f != g and f.startswith(g + os.sep) for g in folders)]


def enter_namespaces() -> bool:
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


def enter_root(folders: Sequence[str]) -> None:
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
