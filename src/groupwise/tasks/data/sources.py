"""The sources of rows: a path in a recipe -> sources of training rows, and of held-out rows if it has some."""

import re
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.core.errors import UsageError, brief, listed, need, one_line
from groupwise.core.files.json_text import json_value
from groupwise.core.files.paths import location, require_regular
from groupwise.core.files.plain import require_plain
from groupwise.core.machine.hub import caches_alone_if_unreachable, unreachable_words
from groupwise.tasks.data.formats import (
    LARGEST_LIST,
    Csv,
    JsonLines,
    JsonList,
    Source,
    numbered_lines,
    open_bytes,
    rows_inside,
)
from groupwise.tasks.data.tables import Dataset, Parquet

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".csv", ".tsv", ".parquet")
#: Names of held-out rows, first the one that is taken if there are several.
HELDOUT = ("heldout", "test", "validation", "valid", "val", "dev", "eval")
#: Data files of a folder, at most.
MOST_FILES = 10_000

_ID = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.,=-]+)?")


@dataclass(frozen=True)
class Sources:
    """Sources of training rows, of held-out rows (none: to be split off), and the names of what is not read.

    sets  of each held-out source the name of its set; empty where there is one set without a name
    """

    train: Sequence[Source]
    heldout: Sequence[Source] = ()
    unread: Sequence[str] = ()
    sets: Sequence[str] = ()


def sources_of(path: str, heldout: Mapping[str, str]) -> Sources:
    """Find the sources of both splits; held-out sets that the recipe names come before one that the path has.

    Raises UsageError if there is none.
    """
    train = sources_at("task.path", path)
    if not heldout:
        return train
    keys = {name: f"task.heldout_sets.{name}" if name else "task.heldout" for name in heldout}
    others = {name: sources_at(keys[name], place) for name, place in heldout.items()}
    chosen = [(name, source) for name, other in others.items() for source in other.heldout or other.train]
    unread = [*train.unread, *(source.name for source in train.heldout)]
    unread += [name for other in others.values() for name in other.unread]
    return Sources(
        train.train,
        [source for _, source in chosen],
        [name for name in unread if name not in heldout.values()],
        [name for name, _ in chosen],
    )


def sources_at(key: str, path: str) -> Sources:
    """Find the sources behind a file, a folder or a `datasets` id. `key` is the recipe's, for messages."""
    place = location(path, key)
    if place.is_dir():
        return _dataset(path, saved_splits(place)) if is_saved_dataset(place) else _folder(key, place)
    if place.exists():
        return Sources([_file(key, place)])
    if path.endswith(SUFFIXES) or not _ID.fullmatch(path):
        raise UsageError(f"{key} = {brief(path)}: there is no such file or folder")
    return _dataset(path, hub_splits(key, path))


def _folder(key: str, folder: Path) -> Sources:
    """Sort files by their names: those in which "train" or, say, "test" is the first such word are what they say, if
    both are there; else all files are training rows.
    """
    files = sorted(file for file in folder.glob("[!.]*") if not file.is_dir() and file.name.endswith(SUFFIXES))
    if not files:
        inside = sorted(one for one in folder.glob("[!.]*/*") if one.name.endswith(SUFFIXES))
        there = f"; {key} = {str(inside[0].parent)!r} has some" if inside else ""
        raise UsageError(f"{key} = {brief(str(folder))}: no data file in this folder ({', '.join(SUFFIXES)}){there}")
    if len(files) > MOST_FILES:
        raise UsageError(f"{key} = {brief(str(folder))}: {len(files)} data files; {MOST_FILES} are the most: join some")
    words: dict[str, list[Path]] = {}
    for file in files:
        named = [word for word in re.split(r"[^a-z]+", file.name.lower()) if word in ("train", *HELDOUT)]
        words.setdefault(named[0] if named else "", []).append(file)
    heldout = next((word for word in HELDOUT if word in words), None)
    if "train" not in words or heldout is None:
        return Sources([_file(key, file) for file in files])
    read = words["train"] + words[heldout]
    return Sources(
        [_file(key, file) for file in words["train"]],
        [_file(key, file) for file in words[heldout]],
        [str(file) for file in files if file not in read],
    )


def _dataset(path: str, splits: Mapping[str, Source]) -> Sources:
    if len(splits) == 1:
        return Sources(list(splits.values()))
    if "train" not in splits:
        raise UsageError(f"{path}: none of its splits is called train: {listed(splits)}; save one of them as a file")
    heldout = [name for name in HELDOUT if name in splits][:1]
    unread = [source.name for name, source in splits.items() if name not in ("train", *heldout)]
    return Sources([splits["train"]], [splits[name] for name in heldout], unread)


def _file(key: str, file: Path) -> Source:
    name, path = file.name.lower(), str(file)
    require_plain(key, path)
    require_regular(file, f"{key} = {brief(path)}")
    if name.endswith((".jsonl", ".jsonl.gz")):
        return JsonLines(path)
    if name.endswith((".csv", ".tsv")):
        return Csv(path)
    if name.endswith(".parquet"):
        return Parquet(path)
    if name.endswith(".json"):
        return JsonLines(path) if _object_a_line(file) else JsonList(path)
    raise UsageError(f"{key} = {brief(path)}: of no known kind; known endings: {', '.join(SUFFIXES)}")


def _object_a_line(file: Path) -> bool:
    """Tell if a .json file holds an object a line, as many do, and not a list or one object of all rows."""
    with open_bytes(file) as text:
        lines = (line for _, _, line in numbered_lines(text, lambda number: f"{file}, line {number}") if line.strip())
        line, alone = next(lines, b""), next(lines, None) is None
    if not line.lstrip().startswith(b"{"):
        return False
    row = _value_or_none(line)
    if row is None and file.stat().st_size <= LARGEST_LIST:  # one object over many lines, or a line that is damaged
        return _value_or_none(file.read_bytes().removeprefix(BOM_UTF8)) is None
    return not (alone and isinstance(row, dict) and rows_inside(row))


def _value_or_none(text: bytes) -> Any:
    try:
        return json_value(text, "")
    except UsageError:
        return None


#: Files that `save_to_disk` leaves in a folder.
_SAVED = ("dataset_dict.json", "dataset_info.json")


def is_saved_dataset(folder: Path) -> bool:
    """Tell if `save_to_disk` of the library wrote the folder."""
    return any((folder / name).is_file() for name in _SAVED)


def saved_splits(folder: Path) -> dict[str, Dataset]:
    """Return the splits of a folder written by `save_to_disk`; one named "" if it has none."""
    library = need("datasets", "tasks", f"{folder}: a folder that `save_to_disk` made")
    return _splits(str(folder), lambda: library.load_from_disk(str(folder)))


def hub_splits(key: str, name: str) -> dict[str, Dataset]:
    """Return the splits of the data set `name` or `name:config`, from the hub or the library's cache."""
    library = need("datasets", "tasks", f"{key} = {name!r}: no such file or folder, so a data set's id, which")
    repository, _, config = name.partition(":")
    missing = f"{key} = {name!r}: no such file"
    with caches_alone_if_unreachable():
        try:
            return _splits(name, lambda: library.load_dataset(repository, config or None), f"{missing}; ")
        except UsageError:
            if not (unreachable := unreachable_words()):
                raise
            what = f"{missing} or folder, and no data set of that id can be downloaded: {unreachable}"
            raise UsageError(f"{what}; set {key} to a file or a folder, see docs/howto/data.md") from None


def _splits(name: str, load: Callable[[], Any], before: str = "") -> dict[str, Dataset]:
    try:
        data = load()
    except Exception as error:  # the library raises its own, the hub's, Arrow's and plain OSError
        raise UsageError(f"{before}datasets cannot load {name!r}: {one_line(error)}") from None
    if isinstance(data, Mapping):
        return {split: Dataset(f"{name}, {split}", dataset) for split, dataset in data.items()}
    return {"": Dataset(name, data)}
