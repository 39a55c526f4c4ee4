"""Where rows come from: a path in a recipe -> sources of training rows, and of held-out rows where it has some."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from groupwise.core.errors import UsageError
from groupwise.tasks.data.files import Csv, JsonLines, JsonList, Source, opened
from groupwise.tasks.data.tables import Parquet, is_saved, loaded, saved

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".csv", ".tsv", ".parquet")
#: What held-out rows are called, first the one that is taken where there are several.
HELDOUT = ("heldout", "test", "validation", "valid", "val", "dev", "eval")

_ID = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.,=-]+)?")


@dataclass(frozen=True)
class Place:
    """Sources of a path: training rows, held-out rows (none: to be split off), and the names of what is not read."""

    train: Sequence[Source]
    heldout: Sequence[Source] = ()
    unread: Sequence[str] = ()


def place(key: str, path: str) -> Place:
    """The sources behind a file, a folder or a `datasets` id. Raises UsageError where there is none."""
    where = Path(path).expanduser()
    if where.is_dir():
        return _named(path, saved(where)) if is_saved(where) else _folder(key, where)
    if where.exists():
        return Place([_file(key, where)])
    if path.endswith(SUFFIXES) or not _ID.fullmatch(path):
        raise UsageError(f"{key} = {path!r}: there is no such file or folder")
    return _named(path, loaded(key, path))


def _folder(key: str, folder: Path) -> Place:
    """Files whose names begin with "train" and, say, "test" are what they say; other files are training rows all."""
    files = sorted(file for file in folder.glob("[!.]*") if file.is_file() and file.name.endswith(SUFFIXES))
    if not files:
        raise UsageError(f"{key} = {str(folder)!r}: no data file in this folder ({', '.join(SUFFIXES)})")
    words: dict[str, list[Path]] = {}
    for file in files:
        words.setdefault(re.split(r"[^a-z]", file.name.lower())[0], []).append(file)
    held = next((word for word in HELDOUT if word in words), None)
    if "train" not in words or held is None:
        return Place([_file(key, file) for file in files])
    read = words["train"] + words[held]
    return Place(
        [_file(key, file) for file in words["train"]],
        [_file(key, file) for file in words[held]],
        [str(file) for file in files if file not in read],
    )


def _named(path: str, splits: Mapping[str, Source]) -> Place:
    """The splits of a data set, by their names."""
    if len(splits) == 1:
        return Place(list(splits.values()))
    if "train" not in splits:
        raise UsageError(f"{path}: none of its splits is called train: {', '.join(splits)}; save one of them as a file")
    held = next((word for word in HELDOUT if word in splits), None)
    unread = [source.name for split, source in splits.items() if split not in ("train", held)]
    return Place([splits["train"]], _present(splits.get(held or "")), unread)


def _present(source: Source | None) -> list[Source]:
    return [] if source is None else [source]


def _file(key: str, file: Path) -> Source:
    name = file.name.lower()
    if name.endswith((".jsonl", ".jsonl.gz")):
        return JsonLines(file)
    if name.endswith((".csv", ".tsv")):
        return Csv(file)
    if name.endswith(".parquet"):
        return Parquet(file)
    if name.endswith(".json"):
        return JsonLines(file) if _begins_object(file) else JsonList(file)
    raise UsageError(f"{key} = {str(file)!r}: of no known kind; known endings: {', '.join(SUFFIXES)}")


def _begins_object(file: Path) -> bool:
    """Whether a .json file holds an object a line, as many do, and not a list."""
    with opened(file) as text:
        return text.read(1024).lstrip().startswith(b"{")


def labels(sources: Sequence[Source]) -> list[str]:
    """A name for each source that no other has: the second "test.jsonl" is "test.jsonl#2"."""
    names = [Path(source.name).name for source in sources]
    return [name if name not in names[:i] else f"{name}#{names[:i].count(name) + 1}" for i, name in enumerate(names)]
