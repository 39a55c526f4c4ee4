"""Keys of recipes as text for a terminal, and as docs/keys.md."""

import sys
from collections.abc import Iterable

from groupwise.config.keys import Key, KeySection, sections

PAGE = """\
# The keys of a recipe

`make docs` writes this page from the objects that read the keys; `groupwise keys` prints it, `groupwise keys learner`
one section. Where no default stands, a key is needed, or the last column says what happens without it. A key is laid
over a recipe with `--set learner.schedule=cosine`. Bounds of tasks, rewards and parts are said in words.
"""
TABLE = "| key | type | default | bounds | meaning |\n|---|---|---|---|---|\n"


def text(some: Iterable[KeySection]) -> str:
    """Write sections one after another; a key on one line, its meaning under it."""
    return "\n\n".join("\n".join([f"[{one.name}]  {one.title}", *map(_lines, one.keys)]) for one in some)


def page() -> str:
    """Write docs/keys.md."""
    return PAGE + "".join(_section(one) for one in sections())


def _lines(key: Key) -> str:
    default = f" = {key.default}" if key.default else ""
    facts = ", ".join(filter(None, (key.kind, key.bounds)))
    return f"  {key.name}{default}{f'  ({facts})' if facts else ''}\n      {key.meaning}"


def _section(one: KeySection) -> str:
    rows = "".join(f"| {' | '.join(map(_cell, _cells(key)))} |\n" for key in one.keys)
    return f"\n## {one.name}\n\n{one.title}\n\n{TABLE}{rows}"


def _cells(key: Key) -> tuple[str, ...]:
    return (f"`{key.name}`", key.kind, f"`{key.default}`" if key.default else "", key.bounds, key.meaning)


def _cell(words: str) -> str:
    return words.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
