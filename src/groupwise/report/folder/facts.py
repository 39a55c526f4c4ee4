"""What was run: the algorithm's parts, the machine, and the recipe, as tables and texts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from groupwise.report.folder.lines import number, whole
from groupwise.report.folder.read import RunFolder
from groupwise.report.records import Table, Text

_OLD = (
    "This run is from before about.json was written: when it was started is not known, and its machine and versions "
    "are told only once it has finished."
)


def tables(run: RunFolder) -> tuple[Table, ...]:
    """The run in short, and its algorithm part by part."""
    found = (_run(run), _algorithm(run))
    return tuple(table for table in found if table.rows)


def texts(run: RunFolder) -> tuple[Text, ...]:
    """The resolved recipe as it is written in the folder."""
    return (Text("Recipe, with every default filled in", run.recipe_text),) if run.recipe_text.strip() else ()


def _run(run: RunFolder) -> Table:
    recipe, about, summary = run.recipe or {}, run.about, run.summary or {}
    versions = {**_table(summary.get("versions")), **_table(about.get("versions"))}
    facts: Sequence[tuple[str, object]] = (
        ("folder", run.folder),
        ("started", moment(about.get("started"))),
        *(("resumed", words) for words in _resumed(about)),
        ("task", about.get("task") or _table(recipe.get("task")).get("name")),
        ("model", recipe.get("model")),
        ("algorithm", _table(about.get("algorithm")).get("name") or _table(recipe.get("algorithm")).get("name")),
        ("a step", _a_step(recipe)),
        ("steps", recipe.get("steps")),
        ("seed", recipe.get("seed")),
        ("machine", about.get("machine") or summary.get("machine")),
        ("groupwise", about.get("groupwise")),
        *((str(name), version) for name, version in versions.items()),
    )
    rows = tuple((name, str(value)) for name, value in facts if value not in (None, ""))
    return Table("The run", ("", ""), rows, "" if about else _OLD)


def _a_step(recipe: Mapping[str, Any]) -> str:
    """Prompts, samples and updates of one step."""
    prompts, samples = whole(recipe.get("prompts_per_step")), whole(recipe.get("samples_per_prompt"))
    if not prompts or not samples:
        return ""
    updates, passes = whole(recipe.get("updates_per_batch")) or 1, whole(recipe.get("passes_per_batch")) or 1
    told = f"{prompts:,} prompts x {samples:,} samples, {updates * passes:,} update" + "s" * (updates * passes != 1)
    return told + (f" in {passes:,} passes" if passes > 1 else "")


def _resumed(about: Mapping[str, Any]) -> list[str]:
    """Each time that the run was gone on with, and where."""
    found = about.get("resumed")
    told = [_table(one) for one in found] if isinstance(found, list) else []
    return [_again(one) for one in told if one]


def _again(one: Mapping[str, Any]) -> str:
    step, when, machine = whole(one.get("step")), moment(one.get("started")), one.get("machine")
    words = [
        "from the start" if not step else f"after step {step:,}",
        when and f"at {when}",
        machine and f"on {machine}",
    ]
    return " ".join(str(word) for word in words if word)


def compares_within_group(about: Mapping[str, Any]) -> bool | None:
    """Whether the run's advantage compares the completions of one prompt; None where about.json does not say."""
    value = _table(about.get("algorithm")).get("compares_within_group")
    return value if isinstance(value, bool) else None


def moment(seconds: object) -> str:
    """A time in UTC; "" where there is none.

    >>> moment(1_700_000_000)
    '2023-11-14 22:13 UTC'
    """
    found = number(seconds)
    try:
        return "" if found is None else f"{datetime.fromtimestamp(found, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, OSError, ValueError):
        return ""


def _algorithm(run: RunFolder) -> Table:
    told = _table(run.about.get("algorithm"))
    parts = told.get("parts")
    if not isinstance(parts, list) or not parts:
        return _settings(_table((run.recipe or {}).get("algorithm")))
    names = ("slot", "kind", "value", "equation")
    rows = tuple(tuple(_words(_table(part).get(name)) for name in names) for part in parts)
    kept = [i for i, _ in enumerate(names) if any(row[i] for row in rows)]
    return Table(
        f"The algorithm: {_words(told.get('name'))}",
        tuple(("part", "kind", "settings", "equation")[i] for i in kept),
        tuple(tuple(row[i] for i in kept) for row in rows),
        _about_algorithm(told),
    )


def _about_algorithm(told: Mapping[str, Any]) -> str:
    """Objective, source and what to watch, in a sentence each."""
    heads = (("objective", "It maximises "), ("paper", "Source: "), ("watch", "Watch: "))
    return " ".join(f"{head}{_words(told[key]).rstrip('.')}." for key, head in heads if _words(told.get(key)))


def _settings(algorithm: Mapping[str, Any]) -> Table:
    """The parts as the recipe names them, where nobody wrote down their equations."""
    slots = {slot: table for slot, table in algorithm.items() if isinstance(table, dict)}
    rows = tuple(
        (slot, _words(table.get("kind")), ", ".join(f"{k} = {_words(v)}" for k, v in table.items() if k != "kind"))
        for slot, table in slots.items()
    )
    words = "As the recipe names its parts; `groupwise explain` has their equations."
    return Table(f"The algorithm: {_words(algorithm.get('name'))}", ("part", "kind", "settings"), rows, words)


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _words(value: object) -> str:
    """A value as a recipe would write it, without quotes."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
