"""Options of TRL and verl by their own names, and what they are here, from elsewhere.toml; imports no torch."""

import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from groupwise.core.errors import UsageError

#: First lines of a table on the page.
HEAD = "| option | groupwise | note |\n|---|---|---|\n"


@dataclass(frozen=True)
class Option:
    """Option of another project.

    project  "" of a guess, which is no project's
    name     with its sections; one that ends with * stands for all that begin so
    here     the recipe's keys, or a command; empty if there is none
    words    what differs, or why it is not here; empty if the key says it all
    example  a value that the first key may have; "" if the table has none
    """

    project: str
    name: str
    here: tuple[str, ...]
    words: str
    example: str = ""

    def __str__(self) -> str:
        place = f"{'here it is' if self.here else 'not here:'} {self.answer}"
        such = f"; such as --set {self.here[0]}={self.example}" if self.example else ""
        whose = f"a name of {self.project}'s" if self.project else "there is no such key"
        return f"{whose}; {place}{such}"

    @property
    def answer(self) -> str:
        """Keys and words; one of them alone if the other is empty.

        >>> Option("TRL", "top_k", ("sampling.top_k",), "0 keeps all").answer
        'sampling.top_k: 0 keeps all'
        """
        return ": ".join(filter(None, (" and ".join(self.here), self.words)))

    def covers(self, name: str) -> bool:
        """Tell whether this is the option of that name.

        >>> Option("TRL", "vllm_*", (), "...").covers("vllm_mode")
        True
        """
        return name.startswith(self.name[:-1]) if self.name.endswith("*") else name == self.name


@dataclass(frozen=True)
class Chapter:
    """Group of options of one project."""

    project: str
    title: str
    options: tuple[Option, ...]


@cache
def chapters() -> tuple[Chapter, ...]:
    """Read elsewhere.toml."""
    text = (files("groupwise.config") / "elsewhere.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    return tuple(_chapter(section, table["examples"]) for section in table["section"])


def option_of(name: str) -> Option | None:
    """Find the option of a name, with its sections if it has some; the first that covers it.

    >>> option_of("beta").here, option_of("actor_rollout_ref.actor.kl_loss_coef").here, option_of("seed")
    (('algorithm.kl.beta',), ('algorithm.kl.beta',), None)
    """
    return next((option for one in chapters() for option in one.options if option.covers(name)), None)


def require_own_names(table: Mapping[str, Any], known: Mapping[str, Any], where: str) -> None:
    """Raise UsageError for the first key that is another project's name.

    known  the recipe's own: name -> the names inside it, or an empty table if these are not for us to judge
    """
    for name in _names(table, "", known):
        option = option_of(name) or option_of(name.rpartition(".")[2])
        if option:
            raise UsageError(f"{where}: {name}: {option}")


def with_lists(page: str) -> str:
    """Rewrite the tables of docs/reference/from-trl-and-verl.md, which follow its prose.

    >>> with_lists("# Prose").splitlines()[:2]
    ['# Prose', '## TRL: GRPOConfig: model and data']
    """
    tables = (
        f"\n## {chapter.project}: {chapter.title}\n\n{HEAD}" + "".join(_rows(chapter.options))
        for chapter in chapters()
        if chapter.project
    )
    return page.partition("\n## TRL: ")[0] + "".join(tables)


def _rows(options: Iterable[Option]) -> Iterator[str]:
    """List options as rows of a table; options with one answer share a row."""
    names: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for option in options:
        names.setdefault((option.here, option.words), []).append(option.name)
    for (here, words), theirs in names.items():
        ours = ", ".join(f"`{key}`" for key in here) or "-"
        note = words.replace("*", "\\*").replace("<", "\\<").replace("|", "\\|")
        yield f"| {', '.join(f'`{name}`' for name in theirs)} | {ours} | {note} |\n"


def _chapter(section: Mapping[str, Any], examples: Mapping[str, str]) -> Chapter:
    project, prefix = section["project"], section.get("prefix", "")
    options = []
    for name, (here, words) in section["options"].items():
        keys = tuple(filter(None, here.split(", ")))
        options.append(Option(project, prefix + name, keys, words, examples.get(keys[0], "") if keys else ""))
    return Chapter(project, section["title"], tuple(options))


def _names(table: Mapping[str, Any], prefix: str, known: Mapping[str, Any]) -> Iterator[str]:
    """List dotted names of values under keys that are not known, tables inside one another gone through."""
    for key, value in table.items():
        inner = known.get(key.partition(".")[0])  # a program may write dotted keys inside a section
        if inner is None and isinstance(value, Mapping) and value:
            yield from _names(value, f"{prefix}{key}.", {})
        elif inner is None:
            yield f"{prefix}{key}"
        elif isinstance(value, Mapping) and inner:
            yield from _names(value, f"{prefix}{key}.", inner)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.write_text(with_lists(place.read_text(encoding="utf-8")), encoding="utf-8")
