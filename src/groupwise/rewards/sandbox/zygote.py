"""Zygote of the sandbox (rewards/zygote.py): a pristine Python that isolates itself once, then makes a child for
every program.

It never sees a program, which goes from the supervisor straight to its child: nothing of one job (a test, an expected
value) is in the memory that the next is forked from. Its isolation is stronger than that of the pool, whose workers
need the libraries, the files and the network of the run, so the two share how namespaces are made, how children are
born and how they end (rewards/isolation.py), and no more.
"""

import contextlib
import fcntl
import gc
import importlib
import os
import signal
import sys
import tempfile
from collections.abc import Sequence

from groupwise.core.channel import Channel
from groupwise.rewards import isolation
from groupwise.rewards.sandbox import layers
from groupwise.rewards.zygote import make_children

# What programs import most, loaded once; and the modules that need a library of the system, out of reach later.
_LOADED = (
    "abc array ast asyncio bisect bz2 calendar cmath collections.abc contextlib copy csv ctypes dataclasses datetime "
    "decimal enum fractions functools hashlib heapq io itertools json lzma math numbers operator pprint queue random "
    "re statistics string struct textwrap threading time traceback types typing unicodedata uuid zlib"
)
_HIDDEN = ("site-packages", "dist-packages")
# (a mount's option as statvfs returns it, as mount takes it): in a user namespace those of the source must stay set
_INHERITED = ((2, isolation.MS_NOSUID), (4, isolation.MS_NODEV), (8, isolation.MS_NOEXEC), (1024, isolation.MS_NOATIME),
         (2048, isolation.MS_NODIRATIME), (4096, isolation.MS_RELATIME))  # fmt: skip


def main(supervisor: Channel, options: dict[str, bool]) -> None:
    """Put the outer layers in place, then make children.

    options  which layers are wanted, and whether this is root
    """
    del sys.path[0]  # where this package lies: no program may import it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in _LOADED.split():
        with contextlib.suppress(ImportError):  # an interpreter built without it
            importlib.import_module(name)
    try:
        spare = layers.spare_user() if options["root"] else None
        own_user_namespace, home = options["bubblewrap"], None
        if options["namespaces"]:
            own_user_namespace = _enter_namespaces()
            isolation.become_first()
            home = isolation.own_processes()
            _enter_root(_library())
        uid = spare if not own_user_namespace and layers.readable(_library()) else None
        plan = _plan(options, uid, own_user_namespace, home is not None)
    except OSError as error:
        supervisor.send({"failed": str(error)})
        return
    supervisor.send({"layers": plan.layers})
    for name in [name for name in sys.modules if name.startswith("groupwise")]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()
    make_children(supervisor, lambda limits, descriptors: layers.run(plan, limits, descriptors), home)


def _enter_namespaces() -> bool:
    """Enter mount, network, IPC and host-name namespaces of its own, and one of processes from the next fork on -> if a
    user namespace was needed too. Raises OSError where the system refuses.
    """
    wanted = isolation.NEWNS | isolation.NEWNET | isolation.NEWIPC | isolation.NEWUTS | isolation.NEWPID
    try:
        isolation.unshare(wanted)
    except OSError:
        isolation.unshare_user(wanted, user=0, group=0)
        return True
    return False


def _enter_root(folders: Sequence[str]) -> None:
    """Make a root with the folders in it, all read-only, their installed packages hidden. The old root is gone."""
    base = tempfile.gettempdir()
    isolation.mount("", "/", "", isolation.MS_REC | isolation.MS_PRIVATE)
    isolation.mount("tmpfs", base, "tmpfs", isolation.MS_NOSUID | isolation.MS_NODEV, "mode=755,size=1m")
    os.chdir(base)
    os.mkdir("old")
    isolation.pivot_root(".", "old")
    os.chdir("/")
    for folder in folders:
        _bind("/old" + os.path.realpath(folder), folder)
    isolation.unmount("/old")
    os.rmdir("/old")
    _read_only("/")


def _bind(source: str, target: str) -> None:
    os.makedirs(target, exist_ok=True)
    isolation.mount(source, target, "", isolation.MS_BIND | isolation.MS_REC)
    for name in _HIDDEN:
        path = os.path.join(target, name)
        if os.path.isdir(path):
            isolation.mount("tmpfs", path, "tmpfs", isolation.MS_RDONLY | isolation.MS_NOSUID, "mode=755,size=4k")
    _read_only(target)


def _read_only(path: str) -> None:
    options = os.statvfs(path).f_flag
    inherited = sum(flag for option, flag in _INHERITED if options & option) | isolation.MS_NOSUID | isolation.MS_NODEV
    isolation.mount("", path, "", isolation.MS_REMOUNT | isolation.MS_BIND | isolation.MS_RDONLY | inherited)


def _library() -> list[str]:
    folders = [path for path in sys.path if os.path.isdir(path)]
    return [f for f in folders if not any(f != g and f.startswith(g + os.sep) for g in folders)]


def _plan(options: dict[str, bool], uid: int | None, own_user_namespace: bool, own_processes: bool) -> layers.Plan:
    linux = sys.platform == "linux"
    abi = layers.landlock_version() if linux and options["landlock"] else 0
    filtered = linux and options["seccomp"] and layers.seccomp_supported()
    user = uid is not None or (own_user_namespace and not options["root"])
    return layers.Plan(
        layers={
            "namespaces": options["namespaces"],
            "bubblewrap": options["bubblewrap"],
            "processes": own_processes,
            "landlock": abi,
            "seccomp": filtered,
            "user": user,
        },
        rules=_high(layers.landlock_rules(_library())) if abi else None,
        filter_code=layers.seccomp_filter(os.uname().machine, threads=user) if filtered else None,
        uid=uid,
    )


def _high(descriptor: int) -> int:
    """Duplicate a file under a number that no child puts its own files on."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 16)
    os.close(descriptor)
    return moved
