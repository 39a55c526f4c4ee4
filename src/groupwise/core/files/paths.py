"""Paths that a person names: expanded once, and refused where no file can have such a name or be read to its end."""

import codecs
import os
from importlib.resources import files
from pathlib import Path

from groupwise.core.errors import UsageError, brief


def expanded(text: str) -> str:
    """Return a path with `~` expanded. Raises ValueError, in words, for one that cannot even be looked up."""
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
    """Return the path, `expanded`. Raises UsageError, `what` first, if it cannot be."""
    try:
        return Path(expanded(os.fspath(path)))
    except TypeError:
        raise UsageError(f"{what} = {brief(path)}: this is no path") from None
    except ValueError as error:  # UnicodeEncodeError and "embedded null byte" among them
        raise UsageError(f"{what} = {brief(path)}: {error}") from None


def from_here(path: Path) -> Path:
    """Shorten a path that lies below the current folder to what it is from there, as a person would name it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def recipe_folder() -> Path:
    """Find where the recipes that come with groupwise lie: inside an installed package, or beside the source tree."""
    package = Path(str(files("groupwise")))
    packaged = package / "recipes"
    return packaged if packaged.is_dir() else package.parents[1] / "recipes"


def decoded(content: bytes) -> str:
    """Return the text of a person's file in UTF-8, with or without a byte order mark; lines end with a newline alone.

    Raises ValueError, in words, for UTF-16, UTF-32 and what else is not UTF-8, and for what an editor does not show: a
    NUL byte, or another byte order mark at the beginning of a line.

    >>> decoded(b"\\xef\\xbb\\xbfsteps = 1")
    'steps = 1'
    """
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in content[:4]:
        raise ValueError("it is saved as UTF-16 or UTF-32; save it as UTF-8")
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 at byte {error.start}; save it as UTF-8") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if "\0" in line:
            raise ValueError(f"line {number} holds a NUL byte (0x00); take it out")
        if line.startswith("\ufeff"):
            again = "a second" if number == 1 else "a"
            raise ValueError(f"line {number} begins with {again} byte order mark (EF BB BF); take it out")
    return text


def existing_parent(path: Path) -> Path:
    """Return what exists of the folders above a path, the nearest of them."""
    return next(parent for parent in path.absolute().parents if os.path.lexists(parent))


def require_regular(path: Path, what: str) -> None:
    """Raise UsageError, `what` first, unless the path is a file: reading a pipe or a terminal could last for ever."""
    if not path.is_file():
        other = "a directory, not a file" if path.is_dir() else "not a regular file"
        raise UsageError(f"{what}: {other if path.exists() else 'there is no such file'}")
