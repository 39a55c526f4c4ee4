"""A folder that is there whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from groupwise.core.errors import RunError, disk_words


def make_whole(folder: Path, make: Callable[[Path], object], what: str) -> None:
    """Let `make` write a folder beside its place and move it there; one that exists already is kept as it is.

    A kill in the middle leaves a folder of another name. Raises RunError, naming `what`, where the disk refuses.
    """
    if folder.is_dir():
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".partial-") as beside:
            made = Path(beside) / folder.name
            make(made)
            # Another process may have made the same one meanwhile: keep the first.
            if not folder.is_dir():
                shutil.move(made, folder)
    except Exception as error:
        if not disk_words(error):
            raise
        raise RunError(f"{folder.parent}: {what} cannot be saved: {disk_words(error)}; free space") from None
