"""Keys of a recipe in words: chosen by a name, written for a terminal and for a page; imports no torch."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from groupwise.config.elsewhere import option_of
from groupwise.core.errors import UsageError, brief, nearest


@dataclass(frozen=True)
class Key:
    """Key with what may be said of it. `default` is as TOML has it; empty if there is none."""

    name: str
    kind: str
    default: str
    bounds: str
    meaning: str


@dataclass(frozen=True)
class KeySection:
    """Keys that one object reads; `title` is its docstring's first line."""

    name: str
    title: str
    keys: tuple[Key, ...]

    def only(self, key: str) -> "KeySection":
        """Leave out all keys but one."""
        return dataclasses.replace(self, keys=tuple(one for one in self.keys if one.name == key))


def chosen(every: Sequence[KeySection], section: str | None) -> Sequence[KeySection]:
    """Choose all sections, or that of a name with those inside it; for a key's name the key alone, in its section.

    Raises UsageError if there is none.
    """
    if section is None:
        return every
    some = [s for s in every if s.name == section or s.name.startswith(f"{section}.")]
    some = some or [s for one in every if (s := one.only(section)).keys]
    if not some:
        inside = [s.name for s in every if s.name.endswith(f".{section}")]
        names = [*(s.name for s in every), *([key.name for s in every for key in s.keys] if "." in section else [])]
        words = option_of(section) or f"there is no such section or key; {nearest(section, names, inside)}"
        raise UsageError(f"keys {brief(section)}: {words}")
    return some


PAGE = """\
# The keys of a recipe

`make docs` writes this page from the objects that read the keys; `groupwise keys` prints it, `groupwise keys learner`
one section. Where no default stands, a key is needed, or the last column says what happens without it. A key is laid
over a recipe with `--set learner.schedule=cosine`. Bounds of tasks, rewards and parts are said in words.
"""
#: A bar inside a cell of the table.
BAR = "\\|"
TABLE = "| key | type | default | bounds | meaning |\n|---|---|---|---|---|\n"


def text(some: Iterable[KeySection]) -> str:
    """Write sections one after another; a key on one line, its meaning under it."""
    return "\n\n".join("\n".join([f"[{one.name}]  {one.title}", *map(_lines, one.keys)]) for one in some)


def page(every: Iterable[KeySection]) -> str:
    """Write docs/reference/keys.md."""
    return PAGE + "".join(map(_section, every))


def _lines(key: Key) -> str:
    default = f" = {key.default}" if key.default else ""
    facts = ", ".join(filter(None, (key.kind, key.bounds)))
    return f"  {key.name}{default}{f'  ({facts})' if facts else ''}\n      {key.meaning}"


def _section(one: KeySection) -> str:
    rows = ""
    for key in one.keys:
        default = f"`{key.default}`" if key.default else ""
        cells = (f"`{key.name}`", key.kind, default, key.bounds, key.meaning)
        rows += f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |\n"
    return f"\n## {one.name}\n\n{one.title}\n\n{TABLE}{rows}"
