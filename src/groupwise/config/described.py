"""Keys of a recipe in words: chosen by a name, written for a terminal and for a page; imports no torch."""

import dataclasses
import re
import textwrap
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
    """Keys that one object reads; `title` is its docstring's first sentence.

    alike  name of another section, which has some of these keys with the same default and meaning
    """

    name: str
    title: str
    keys: tuple[Key, ...]
    alike: str = ""

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
# Recipe keys

Look up every key of a recipe here, or a section of them in the terminal:

    groupwise keys learner

Set a key for one run with `--set learner.schedule=cosine`. A key without a default is required, unless its
meaning says what happens without it. A section such as `task.data` holds the keys of that choice.
`make docs` writes this page.
"""
#: A bar inside a cell of the table.
BAR = "\\|"
LONGEST_LINE = 110
TABLE = "| key | type | default | meaning |\n|---|---|---|---|\n"
#: A section of nothing but other defaults for another section's keys.
DEFAULTS = "| key | default |\n|---|---|\n"


def text(some: Iterable[KeySection]) -> str:
    """Write sections one after another; a key on one line, its meaning under it."""
    return "\n\n".join("\n".join([f"[{one.name}]  {one.title}", *map(_lines, one.keys)]) for one in some)


def page(every: Iterable[KeySection]) -> str:
    """Write docs/reference/keys.md."""
    sections = {one.name: one for one in every}
    return PAGE + "".join(_section(one, sections.get(one.alike)) for one in sections.values())


def _lines(key: Key) -> str:
    default = f" = {key.default}" if key.default else ""
    facts = ", ".join(filter(None, (key.kind, key.bounds)))
    return f"  {key.name}{default}{f'  ({facts})' if facts else ''}\n      {key.meaning}"


def _section(one: KeySection, alike: KeySection | None) -> str:
    """Write a section; keys that another one has with the same facts are only named."""
    known = {_facts(key) for key in alike.keys} if alike else set()
    shared = [key for key in one.keys if _facts(key) in known]
    paragraphs = [_wrapped(one.title)]
    if alike and shared:
        paragraphs.append(_wrapped(_named(one, shared, alike)))
    if own := [key for key in one.keys if key not in shared]:
        table, row = (TABLE, _row) if any(key.kind for key in own) else (DEFAULTS, _default_row)
        paragraphs.append((table + "".join(map(row, own))).rstrip())
    return f"\n## {one.name}\n\n" + "\n\n".join(paragraphs) + "\n"


def _named(one: KeySection, shared: Sequence[Key], alike: KeySection) -> str:
    """Name the keys that another section describes, or say that they are all of its keys."""
    place = f"[{alike.name}](#{alike.name.replace('.', '')})"
    if len(one.keys) > len(alike.keys) and {_last(key) for key in alike.keys} <= {_last(key) for key in one.keys}:
        return f"All keys of {place}, with these changes and additions:"
    return f"As in {place}: {', '.join(f'`{key.name}`' for key in shared)}."


def _last(key: Key) -> str:
    return key.name.rpartition(".")[2]


def _facts(key: Key) -> tuple[str, ...]:
    return (_last(key), key.kind, key.default, key.bounds, key.meaning)


def _row(key: Key) -> str:
    kind = ", ".join(filter(None, (key.kind, key.bounds)))
    return _cells(f"`{key.name}`", kind, f"`{key.default}`" if key.default else "", key.meaning)


def _default_row(key: Key) -> str:
    return _cells(f"`{key.name}`", f"`{key.default}`")


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |\n"


def _wrapped(text: str) -> str:
    """Break a paragraph into lines; none begins with a sign that Markdown would read as an item or a quotation."""
    bound = re.sub(r" ([-+*<>#=]) ", "\0\\1 ", text)
    lines = textwrap.fill(bound, LONGEST_LINE, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\0", " ")
