"""A mutant: one damaged input and the command that meets it; and the damage that all kinds share."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

#: bytes: a file. None: nothing. "fifo", "socket", "folder", "link TARGET", "move TO": that.
Content = bytes | str | None


@dataclass(frozen=True)
class Mutant:
    """One command over a box whose files were changed.

    kind     of hunt.KINDS
    what     the mutation in words, without its details: failures are counted by it
    words    the command line after `groupwise`
    files    what is laid over the box, in this order
    expects  refuse: known to be wrong, so that exit 0 is silent acceptance; same: what was changed is not read, so that
             an accepted one must give the undamaged result; either: neither is known
    asked    the keys that a run must have taken over, where it is known
    rows     the rows that a reader must have counted, where it is known
    disk     bytes that a file may grow to, where the disk is full
    wire     what the other end of a connection does, where the command has one
    """

    kind: str
    what: str
    words: tuple[str, ...]
    files: tuple[tuple[str, Content], ...] = ()
    expects: str = "either"
    asked: Mapping[str, Any] | None = None
    rows: int | None = None
    disk: int | None = None
    wire: Any = None

    @property
    def key(self) -> str:
        return hashlib.blake2b(repr(self).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()

    def lay(self, box: Path) -> None:
        for name, content in self.files:
            path = box / name
            if not (isinstance(content, str) and content.startswith("move ")):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
            if content is None:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            elif content == "folder":
                path.mkdir()
            elif content in ("fifo", "socket"):
                os.mknod(path, 0o600 | (stat.S_IFIFO if content == "fifo" else stat.S_IFSOCK))
            elif content.startswith("link "):
                path.symlink_to(content.removeprefix("link "))
            else:
                path.rename(box / content.removeprefix("move "))


#: Written as a text and put into TOML and JSON as these bare words: what no library writes.
RAW = {
    "@digits400": "7" * 400,
    "@digits5000": "7" * 5000,
    "@deep": "[" * 3000 + "]" * 3000,
    "@nan": "nan",
    "@inf": "inf",
    "@-inf": "-inf",
    "@date": "1979-05-27",
}
JSON_RAW = {**RAW, "@nan": "NaN", "@inf": "Infinity", "@-inf": "-Infinity", "@date": "1e400"}

#: Texts that terminals, file systems, encodings and templates trip over.
TEXTS = [
    "", " ", ".", "..", "-", "--", "[/x]", "[bold]x[/bold]", "a b", "ä\u202eö", "\x1b[31mred\x07", "two\nlines", "\r\b",
    "\x7f", "\x00", "a\x00b", "~nobody/x", "~", "$HOME", "%s%n{0}", "{", "}}{{", "{x.__class__}", "'; drop", "NaN",
    "1e999", "\ufeff", "x" * 300, "x" * 5000, "no/such/" * 700, "\U0001f4a5", "٣", "null", "None",
]  # fmt: skip


def one(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


def text() -> st.SearchStrategy[str]:
    """A hostile text, or any; never with a slash of its own, so that no path leaves the box."""
    anything = st.text(max_size=30).map(lambda s: s.replace("/", "∕"))
    return st.sampled_from(TEXTS) | anything.map(lambda s: s.encode("utf-8", "replace").decode())


def word() -> st.SearchStrategy[str]:
    """What a shell can pass: no NUL; a byte that is no UTF-8 comes as half a surrogate pair."""
    return (text() | st.just("a\udcff")).map(lambda s: s.replace("\x00", "0"))


def odd_json() -> st.SearchStrategy[Any]:
    """A JSON value that hardly ever belongs where it is put."""
    numbers = [0, 1, -1, 2, 10**6, 2**31, 2**53, 2**63, 2**64, 0.5, -0.5, 1e308, 5e-324, "@digits400", "@digits5000"]
    others = [None, True, False, "@nan", "@inf", "@-inf", "@date", [], [[]], {}, {"a": None}, "@deep", "\ud800", ["x"]]
    return one(*numbers, *others) | text()


def as_json(value: Any, **options: Any) -> bytes:
    """JSON with the words of JSON_RAW as they stand there."""
    out = json.dumps(value, **options)
    for mark, raw in JSON_RAW.items():
        out = out.replace(json.dumps(mark), raw)
    return out.encode()


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> tuple[str, bytes]:
    """Bytes that were cut, flipped, doubled or written into, and which of it."""
    how = draw(one("emptied", "cut", "flipped", "written into", "doubled"))
    at = draw(st.integers(0, max(0, len(data) - 1)))
    if how == "emptied" or not data:
        return "emptied", b""
    if how == "cut":
        return how, data[:at]
    if how == "doubled":
        return how, data[:at] + data[at : at + draw(st.integers(1, 64))] + data[at:]
    if how == "written into":
        piece = st.binary(max_size=12) | one(b"\xff\xfe", b"\x00" * 64, b'{"step":', b"\n\n", b"\x1b[2J")
        return how, data[:at] + draw(piece) + data[at:]
    changed = bytearray(data)
    for place in [at, *draw(st.lists(st.integers(0, len(data) - 1), max_size=6))]:
        changed[place] ^= draw(st.integers(1, 255))
    return how, bytes(changed)


@st.composite
def odd_table(draw: st.DrawFn, table: Any) -> tuple[str, Any]:
    """A JSON document with one value replaced, taken out or added; and the dotted path of it."""
    path = draw(st.sampled_from(list(paths(table))))
    changed = json.loads(json.dumps(table))
    inner = changed
    for part in path[:-1]:
        inner = inner[part]
    how = draw(one("set", "set", "set", "gone", "added"))
    if how == "gone":
        del inner[path[-1]]
    elif how == "added" and isinstance(inner, dict):
        inner[draw(text())] = draw(odd_json())
    else:
        inner[path[-1]] = draw(odd_json())
    return f"{how} {'.'.join(map(str, path))}", changed


def paths(table: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    entries = table.items() if isinstance(table, dict) else enumerate(table) if isinstance(table, list) else ()
    for key, value in entries:
        yield (*before, key)
        yield from paths(value, (*before, key))


def too_deep(table: Any, most: int = 100) -> bool:
    """Whether tables and lists stand inside one another deeper than Python's own `repr` goes."""
    level = [table]
    for _ in range(most):
        level = [inner for value in level if isinstance(value, (dict, list)) for inner in _inside(value)]
    return bool(level)


def _inside(value: dict[str, Any] | list[Any]) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


#: What may stand where a file is expected, and hangs or misleads whoever opens it.
NO_FILES = ["fifo", "socket", "folder", "link nowhere", "link /dev/zero", "link ."]
