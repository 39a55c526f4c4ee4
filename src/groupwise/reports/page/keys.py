"""The keys of metrics that a picture is drawn from, and what each of them is."""

import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

from groupwise.reports.records import Key, Series

#: What stands before the keys of a table that is not the steps': evaluation.avg_at_k, as a run's metrics name it.
BEFORE = {"evaluations": "evaluation.", "points": "rollouts."}


@cache
def meanings() -> dict[str, str]:
    """Read what each key is; a star in a key stands for any name."""
    return tomllib.loads(files("groupwise.reports.page").joinpath("meanings.toml").read_text(encoding="utf-8"))


def keys_of(lines: Iterable[Series], table: str) -> tuple[Key, ...]:
    """Name the keys of a picture's lines, each once: of names that a run chose, the key with a star.

    >>> [key.name for key in keys_of([Series("a", "rewards.a.mean"), Series("b", "rewards.b.mean")], "steps")]
    ['rewards.*.mean']
    >>> [key.name for key in keys_of([Series("held-out", "avg_at_k", "low", "high")], "evaluations")]
    ['evaluation.avg_at_k']
    """
    names = (
        BEFORE.get(line.table or table, "") + column
        for line in lines
        for column in ((line.column,) if line.column else (line.low, line.high))
    )
    return tuple(Key(name, meanings().get(name, "")) for name in dict.fromkeys(map(pattern, names)))


def pattern(name: str) -> str:
    """Find the key that a name belongs to: itself, or one with a star.

    >>> pattern("seconds.load weights"), pattern("by nobody")
    ('seconds.*', 'by nobody')
    """
    if name in meanings():
        return name
    starred = (key.partition("*") for key in meanings() if "*" in key)
    fitting = (f"{before}*{after}" for before, _, after in starred if _fits(name, before, after))
    return max(fitting, key=len, default=name)


def _fits(name: str, before: str, after: str) -> bool:
    return name.startswith(before) and name.endswith(after) and len(name) > len(before) + len(after)
