"""Files and folders that appear whole or not at all, and files that are opened only where they are files."""

import errno
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from groupwise.core.errors import RunError, UsageError, disk_remedy, disk_words
from groupwise.core.files.paths import existing_parent


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file to fill beside `path`, moved there at the end of the block; if anything fails, `path` stays as it
    was.

    Raises OSError if the disk refuses.
    """
    draft = path.with_name(f".partial-{secrets.token_hex(6)}")
    try:
        with draft.open("xb") as file:
            yield file
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def temporary_folder(purpose: str, place: Path | None = None) -> Iterator[Path]:
    """Make a folder that goes at the end of the block. One that a killed process has left goes when the next for the
    same purpose is made at the same place: the kernel gives the lock on a folder back with the process that held it.

    place  where it is made; None is the system's place for temporary files
    """
    own = Path(tempfile.gettempdir())
    place, prefix = place or own, f"groupwise-{purpose}-" if place in (None, own) else f".partial-{purpose}-"
    for left in [*place.glob(f"{prefix}????????")]:
        with suppress(OSError):
            handle = _lock(left)
            shutil.rmtree(left, ignore_errors=True)
            os.close(handle)
    beside, handle = _new(place, prefix)
    with beside:
        try:
            yield Path(beside.name)
        finally:
            if handle is not None:
                os.close(handle)


def _new(place: Path, prefix: str) -> tuple[tempfile.TemporaryDirectory[str], int | None]:
    """Make a folder -> it, and the lock on it; None where the disk has no locks, and so nobody takes it for left."""
    while True:
        beside = tempfile.TemporaryDirectory(dir=place, prefix=prefix, ignore_cleanup_errors=True)
        try:
            handle = _lock(Path(beside.name))
        except (BlockingIOError, FileNotFoundError):  # another process was faster, and has taken it for left
            beside.cleanup()
        except OSError:
            return beside, None
        else:
            if os.path.isdir(beside.name):
                return beside, handle
            os.close(handle)
            beside.cleanup()


def _lock(folder: Path) -> int:
    """Lock a folder -> its descriptor. Raises BlockingIOError where another process has, OSError where none can."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


def open_regular(path: Path) -> IO[bytes]:
    """Open a file to read. Raises OSError also for a FIFO, which one would wait for, or a device, which has no end."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # a folder is refused by open
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return path.open("rb")


def open_to_append(path: Path) -> IO[bytes]:
    """Open a file to be written at its end, made if there is none.

    Raises OSError also for a link, which would lead the writing to another place, a FIFO or a device.
    """
    return open(path, "ab", opener=_open_own)


def _open_own(name: str, flags: int) -> int:
    try:
        handle = os.open(name, flags | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.EINVAL, "it is a link", name) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no regular file", name)
    return handle


def remove(path: Path) -> None:
    """Take away what is at a path, if anything is: a folder with all that is in it, or a file, link or FIFO.

    Raises OSError. shutil.rmtree opens whatever it is given as a folder, and would wait for who writes into a FIFO.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def make_folder(folder: Path, write: Callable[[Path], object], what: str) -> None:
    """Let `write` fill a folder beside its place, and move it there; a folder that exists already stays as it is.

    A kill in the middle leaves a folder of another name, until the next is made there. Raises RunError, naming `what`,
    if the disk refuses.
    """
    if folder.is_dir():
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder("groupwise", folder.parent) as beside:
            partial = beside / folder.name
            write(partial)
            # Another process may have written the same one meanwhile: the first one stays.
            if not folder.is_dir():
                shutil.move(partial, folder)
    except Exception as error:
        if not disk_words(error):
            raise
        remedy = disk_remedy(error, "take a folder that can be written to")
        raise RunError(f"{folder.parent}: {what} cannot be saved: {disk_words(error)}; {remedy}") from None


def require_place(folder: Path, size: int) -> None:
    """Raise UsageError if a folder of `size` bytes cannot be made: no place that can be written to, or no room."""
    place = existing_parent(folder)
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise UsageError(f"{folder}: cannot be made: {place} is no folder that can be written to")
    free = shutil.disk_usage(place).free
    if free < size:
        raise UsageError(f"{folder}: takes {size / 1e6:,.0f} MB, and {place} has {free / 1e6:,.0f} MB free; free space")
