"""Folders that one run makes and others read: complete or not at all, each file as its hash says."""

import shutil
from collections.abc import Callable
from pathlib import Path

from groupwise.core.errors import RunError, disk_words
from groupwise.core.files.atomic import make_folder
from groupwise.training.checkpoint import damaged, seal


def cached_folder(folder: Path, write: Callable[[Path], object], what: str, note: Callable[[str], None]) -> None:
    """Let `write` fill a folder that is not there yet; one that does not match its hashes is made again, with a `note`.

    Raises RunError, naming `what`, where the disk refuses.
    """
    if folder.is_dir() and (damage := damaged(folder, needed=())):
        note(f"cache        {what} in {folder} is damaged ({damage}); it is made again")
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise RunError(f"{folder}: {what} cannot be removed: {disk_words(error)}; remove the folder") from None

    def sealed(target: Path) -> None:
        write(target)
        seal(target)

    make_folder(folder, sealed, what)
