"""A folder that appears complete or not at all."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from groupwise.core.errors import RunError, disk_words


def make_folder(folder: Path, write: Callable[[Path], object], what: str) -> None:
    """Let `write` fill a folder beside its place, and move it there; a folder that exists already stays as it is.

    A kill in the middle leaves a folder of another name. Raises RunError, naming `what`, where the disk refuses.
    """
    if folder.is_dir():
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".partial-") as beside:
            partial = Path(beside) / folder.name
            write(partial)
            # Another process may have written the same one meanwhile: the first one stays.
            if not folder.is_dir():
                shutil.move(partial, folder)
    except Exception as error:
        if not disk_words(error):
            raise
        raise RunError(f"{folder.parent}: {what} cannot be saved: {disk_words(error)}; free space") from None
