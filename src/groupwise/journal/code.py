"""The user's own code in a run folder: a copy of each file that the run began with, and a hash of it.

code/my_parts.py    the file as it was
code/files.json     of each: its name here, the path that the recipe names, and the SHA-256 of its content
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError

from groupwise.core.code.live_code import WRITTEN
from groupwise.core.code.user_code import LARGEST_FILE, NO_FILES, Files, Source
from groupwise.core.errors import UsageError
from groupwise.core.files.atomic import open_regular
from groupwise.core.settings import Settings

CODE, LIST = "code", "files.json"


class KeptFile(Settings):
    """A line of files.json."""

    file: str
    path: str
    sha256: str


_LIST = TypeAdapter(list[KeptFile])


def written(sources: Sequence[Source]) -> dict[str, bytes]:
    """What a run folder keeps of its code: content by name, below the folder `code`; nothing where there is none."""
    named = _named(sources)
    rows = [KeptFile(file=name, path=str(one.path), sha256=one.sha256).model_dump() for name, one in named.items()]
    listed = {LIST: orjson.dumps(rows, option=orjson.OPT_INDENT_2)} if rows else {}
    return {**{name: one.content for name, one in named.items()}, **listed}


def kept(folder: Path) -> Files:
    """The files that a run folder keeps, by the path that its recipe names.

    Raises UsageError where one is missing, or is not the one that the run began with.
    """
    place = folder / CODE
    if not place.is_dir():
        return NO_FILES
    try:
        rows = _LIST.validate_json(_read(place / LIST))
    except ValidationError:
        raise UsageError(f"{place / LIST}: damaged; without it the run's own code is not known. Restore it") from None
    return {Path(row.path): _kept(place, row) for row in rows}


def differences(folder: Path) -> list[str]:
    """A line for each of the user's files that is gone from where it was, or was changed there."""
    lines = []
    for path, source in kept(folder).items():
        if _is_ours(source):
            continue
        try:
            with open_regular(path) as file:
                differs = "was changed" if file.read(LARGEST_FILE + 1) != source.content else ""
        except OSError:
            differs = "is no longer there"
        if differs:
            lines.append(f"{path} {differs} since the run began; the run keeps to its own copy in {folder / CODE}")
    return lines


def _named(sources: Sequence[Source]) -> dict[str, Source]:
    """The files by names of their own: my_parts.py, and my_parts-2.py where another folder has one too.

    What groupwise wrote comes first: its place is the one that it has here.
    """
    named: dict[str, Source] = {}
    for source in sorted(sources, key=_is_ours, reverse=True):
        name, number = source.path.name, 1
        while name in named:
            number += 1
            name = f"{source.path.stem}-{number}.py"
        named[name] = source
    return named


def _is_ours(source: Source) -> bool:
    """Whether groupwise wrote the file, of a function that was in none."""
    return source.content.startswith(WRITTEN.encode())


def _kept(place: Path, row: KeptFile) -> Source:
    content = _read(place / Path(row.file).name)
    if hashlib.sha256(content).hexdigest() != row.sha256:
        raise UsageError(
            f"{place / row.file}: it is not the file that the run began with: its hash differs. Restore it"
        )
    return Source(Path(row.path), content)


def _read(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}; it is code of the run. Restore it") from None
