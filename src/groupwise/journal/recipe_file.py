"""recipe.toml of a run folder: written whole, with a hash of itself in its last line, and a copy beside it."""

import hashlib
import itertools
from pathlib import Path

from groupwise.core.errors import UsageError
from groupwise.core.files.atomic import open_regular, whole_file

#: The copy is what a recipe that was edited by hand is compared with.
RECIPE, COPY = "recipe.toml", ".recipe.toml"
#: The first and the last line: a recipe that lost its end would have defaults for it.
FIRST, LAST = "# All that this run goes by, down to the line: # end of the recipe\n", "# end of the recipe"
_HASH = f"{LAST}, sha256 "


def create_recipe(folder: Path, recipe: str) -> None:
    """recipe.toml of a new run folder, from a TOML text, with its copy. Raises OSError where the disk refuses."""
    text = _whole(recipe)
    for name in (COPY, RECIPE):  # the recipe comes last: a kill between the two leaves one that knows its own hash
        with whole_file(folder / name) as file:
            file.write(text)


def replace_recipe(folder: Path, recipe: str, remark: str = "") -> None:
    """Another recipe in the place of the run's, under the comment that it had, to which a remark is added.

    Raises OSError where the disk refuses.
    """
    before = (folder / RECIPE).read_text(encoding="utf-8-sig").removeprefix(FIRST).splitlines(keepends=True)
    comment = "".join(itertools.takewhile(lambda line: line.startswith("#"), before))
    create_recipe(folder, comment + (f"# {remark}\n" if remark else "") + recipe)


def whole_recipe(folder: Path) -> Path:
    """The recipe of a run folder. Raises UsageError where there is none, or where it is cut off."""
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
    """Whether a recipe.toml is, to the byte, what groupwise wrote."""
    body, hashed, digest = _text(path).rpartition(_HASH)
    return bool(hashed) and digest == f"{_hash(body)}\n"


def _whole(recipe: str) -> bytes:
    body = FIRST + recipe
    return f"{body}{_HASH}{_hash(body)}\n".encode()


def _hash(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def _text(path: Path, encoding: str = "utf-8") -> str:
    with open_regular(path) as file:
        return file.read().decode(encoding, errors="replace")
