"""Paths that a person names: expanded once, and refused where no file can have such a name or be read to its end."""

import codecs
import os
from pathlib import Path

from groupwise.core.errors import UsageError, brief


def expanded(text: str) -> str:
    """A path with `~` expanded. Raises ValueError, in words, for one that cannot even be looked up."""
    if not text:
        raise ValueError("an empty path")
    try:
        path = os.path.expanduser(text)
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass  # whether it must be there is for others to say
    except OSError as error:  # too long, a folder without rights, links in a circle
        raise ValueError(error.strerror) from None
    if path.startswith("~"):
        raise ValueError("there is no such user; a name that begins with ~ is written ./~")
    return path


def location(path: str | os.PathLike[str], what: str = "path") -> Path:
    """The path, `expanded`. Raises UsageError, `what` first, where it cannot be."""
    try:
        return Path(expanded(os.fspath(path)))
    except TypeError:
        raise UsageError(f"{what} = {brief(path)}: this is no path") from None
    except ValueError as error:  # UnicodeEncodeError and "embedded null byte" among them
        raise UsageError(f"{what} = {brief(path)}: {error}") from None


def decoded(content: bytes) -> str:
    """The text of a person's file in UTF-8, with or without a byte order mark; lines end with a newline alone.

    Raises ValueError, in words, for UTF-16, UTF-32 and what else is not UTF-8.

    >>> decoded(b"\\xef\\xbb\\xbfsteps = 1")
    'steps = 1'
    """
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in content[:4]:
        raise ValueError("it is saved as UTF-16 or UTF-32; save it as UTF-8")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 at byte {error.start}; save it as UTF-8") from None


def existing_parent(path: Path) -> Path:
    """What exists of the folders above a path, the nearest of them."""
    return next(parent for parent in path.absolute().parents if os.path.lexists(parent))


def require_regular(path: Path, what: str) -> None:
    """Raises UsageError, `what` first, unless the path is a file: reading a pipe or a terminal could last for ever."""
    if not path.is_file():
        other = "a directory, not a file" if path.is_dir() else "not a regular file"
        raise UsageError(f"{what}: {other if path.exists() else 'there is no such file'}")
