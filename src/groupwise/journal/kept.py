"""The recipe and the user's own code that a run folder keeps, each with a hash of itself.

recipe.toml         written whole; the hash stands in its last line, because two files cannot be written at the same
                    moment and a kill between the two would look like an edit
.recipe.toml        a copy, which only serves to say what was edited
code/my_parts.py    a file of the user's as it was
code/files.json     of each: its name here, the path that the recipe names, and the SHA-256 of its content
"""

import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError

from groupwise.core.code.live_code import WRITTEN
from groupwise.core.code.user_code import LARGEST_FILE, NO_FILES, Files, Source
from groupwise.core.errors import UsageError
from groupwise.core.files.atomic import open_regular, whole_file
from groupwise.core.settings import Settings

#: The copy is what a recipe that was edited by hand is compared with.
RECIPE, COPY = "recipe.toml", ".recipe.toml"
#: The first and the last line: a recipe that lost its end would have defaults for it.
FIRST, LAST = "# All that this run goes by, down to the line: # end of the recipe\n", "# end of the recipe"
_HASH = f"{LAST}, sha256 "


def create_recipe(folder: Path, recipe: str) -> None:
    """Write recipe.toml of a new run folder, from a TOML text, with its copy. Raises OSError if the disk refuses."""
    body = FIRST + recipe
    text = f"{body}{_HASH}{_hash(body)}\n".encode()
    for name in (COPY, RECIPE):  # the recipe comes last: a kill between the two leaves one that knows its own hash
        with whole_file(folder / name) as file:
            file.write(text)


def replace_recipe(folder: Path, recipe: str, remark: str = "") -> None:
    """Write another recipe in the place of the run's, under the comment that it had, to which a remark is added.

    Raises OSError if the disk refuses.
    """
    before = (folder / RECIPE).read_text(encoding="utf-8-sig").removeprefix(FIRST).splitlines(keepends=True)
    comment = "".join(itertools.takewhile(lambda line: line.startswith("#"), before))
    create_recipe(folder, comment + (f"# {remark}\n" if remark else "") + recipe)


def whole_recipe(folder: Path) -> Path:
    """Find the recipe of a run folder. Raises UsageError if there is none, or if it is cut off."""
    path = folder / RECIPE
    try:
        text = _text(path, "utf-8-sig")  # edited by hand, it may begin with a byte order mark
    except OSError as error:
        raise UsageError(f"{folder}: not a run folder (no {RECIPE}: {error.strerror})") from None
    if text.startswith(FIRST) and LAST not in text.removeprefix(FIRST):
        raise UsageError(
            f"{path}: cut off, its last line is missing; a run would go on with other settings. Restore it"
        )
    return path


def as_written(path: Path) -> bool:
    """Tell if a recipe.toml is, to the byte, what groupwise wrote."""
    body, hashed, digest = _text(path).rpartition(_HASH)
    return bool(hashed) and digest == f"{_hash(body)}\n"


def _hash(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def _text(path: Path, encoding: str = "utf-8") -> str:
    with open_regular(path) as file:
        return file.read().decode(encoding, errors="replace")


CODE, LIST = "code", "files.json"


class KeptFile(Settings):
    """A line of files.json."""

    file: str
    path: str
    sha256: str


_LIST = TypeAdapter(list[KeptFile])


def written(sources: Sequence[Source]) -> dict[str, bytes]:
    """List what a run folder keeps of its code: content by name, below the folder `code`; nothing if there is none."""
    named = _named(sources)
    rows = [KeptFile(file=name, path=str(one.path), sha256=one.sha256).model_dump() for name, one in named.items()]
    listed = {LIST: orjson.dumps(rows, option=orjson.OPT_INDENT_2)} if rows else {}
    return {**{name: one.content for name, one in named.items()}, **listed}


def kept_code(folder: Path) -> Files:
    """Read the files that a run folder keeps, by the path that its recipe names.

    Raises UsageError if one is missing, or is not the one that the run began with.
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
    """Tell, a line each, which of the user's files are gone from where they were, or were changed there."""
    lines = []
    for path, source in kept_code(folder).items():
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
    """Give the files names of their own: my_parts.py, and my_parts-2.py if another folder has one too.

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
    """Tell if groupwise wrote the file, of a function that was in none."""
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
