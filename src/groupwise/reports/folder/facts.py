"""Facts of a run: the algorithm's parts, the machine, and the recipe, as tables and texts. Pure."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from groupwise.reports.folder.lines import count_of, number, table
from groupwise.reports.folder.lines import tables as tables_in
from groupwise.reports.folder.read import RunFolder
from groupwise.reports.folder.totals import again, totals
from groupwise.reports.records import Table, Text

#: The beginning of the names of totals.
TOTAL = "logged_total."
_OLD = (
    "This run is from before about.json was written: when it was started is not known, and its machine and versions "
    "are told only once it has finished."
)


def tables(run: RunFolder) -> tuple[Table, ...]:
    """Put the run in short, how to run it again, its algorithm part by part, its tools, what rewards logged, sums."""
    every = (_sessions(run), _run(run), again(run), _algorithm(run), _tools(run), _logged(run), totals(run))
    return tuple(each for each in every if each.rows)


def _sessions(run: RunFolder) -> Table:
    """Say what each session of an agent's does that is being played."""
    rows = [
        (
            str(row.get("problem")),
            *(f"{number(row.get(name)) or 0:,.0f}" for name in ("sample", "requests", "tokens", "seconds")),
            ", ".join(map(str, tools)) if isinstance(tools := row.get("tools"), list) else "",
            "waits for an answer" if row.get("waits") is True else "at work",
        )
        for row in run.sessions
    ]
    head = ("problem", "sample", "requests", "tokens", "seconds", "last tools", "agent")
    return Table("Sessions being played", head, tuple(rows), numbers=(1, 2, 3, 4), section="writes")


def _tools(run: RunFolder) -> Table:
    """Sum up each tool over the whole run: calls, failures by kind, seconds, and the share of episodes that call it."""
    columns = sorted(name for name in _names(run) if name.startswith("tools."))
    rows = []
    for tool in (name.removesuffix(".calls") for name in columns if name.endswith(".calls")):
        _, failed = _kinds(run, f"{tool}.failures.")
        shares = [number(row.get(f"{tool}.episodes_share")) for row in run.step_rows]
        known = [f"{share:.2f}" for share in shares if share is not None]
        calls, seconds = f"{_sum(run, f'{tool}.calls'):,.0f}", f"{_sum(run, f'{tool}.seconds'):.3g}"
        rows.append((tool.removeprefix("tools."), calls, failed, seconds, " -> ".join([*known[:1], *known[1:][-1:]])))
    stray, kinds = _kinds(run, "calls_of_no_tool.")
    rows += [("of no tool", f"{stray:,.0f}", kinds, "", "")] if stray else []
    head = ("tool", "calls", "failed", "seconds", "episodes with a call, first and last step")
    return Table("Tools in training", head, tuple(rows), numbers=(1, 3))


def _kinds(run: RunFolder, start: str) -> tuple[float, str]:
    """Add up the failures whose names begin so -> how many there are, and of which kinds."""
    sums = {name.removeprefix(start): _sum(run, name) for name in sorted(_names(run)) if name.startswith(start)}
    return math.fsum(sums.values()), ", ".join(f"{count:,.0f} {kind}" for kind, count in sums.items()) or "0"


def _names(run: RunFolder) -> set[str]:
    return {name for row in run.step_rows for name in row}


def _logged(run: RunFolder) -> Table:
    names = sorted(name for name in _names(run) if name.startswith(TOTAL))
    held = [table(table(row.get("evaluation")).get("logged_total")) for row in run.evaluation_rows]
    rows = []
    for name in (name.removeprefix(TOTAL) for name in names):
        evaluated = math.fsum(number(one.get(name)) or 0.0 for one in held)
        rows.append((name, f"{_sum(run, TOTAL + name):.6g}", f"{evaluated:.6g}"))
    head, words = ("reward and name", "in training", "in evaluations"), "A number of a call is counted once."
    return Table("Logged by rewards, added up", head, tuple(rows), words, numbers=(1, 2))


def _sum(run: RunFolder, name: str) -> float:
    return math.fsum(number(row.get(name)) or 0.0 for row in run.step_rows)


def texts(run: RunFolder) -> tuple[Text, ...]:
    """Show the resolved recipe as it is written in the folder."""
    return (Text("Recipe, with every default filled in", run.recipe_text),) if run.recipe_text.strip() else ()


def _run(run: RunFolder) -> Table:
    recipe, about, summary = run.recipe, run.about, run.summary or {}
    versions = {**table(summary.get("versions")), **table(about.get("versions"))}
    facts: Sequence[tuple[str, object]] = (
        ("folder", run.folder),
        ("started", moment(about.get("started"))),
        *(("resumed", _resumed(row)) for row in tables_in(about.get("resumed")) if row),
        *(("went back", _rolled_back(row)) for row in tables_in(about.get("rolled_back"))),
        ("task", about.get("task") or table(recipe.get("task")).get("name")),
        ("model", recipe.get("start") or recipe.get("model")),
        ("algorithm", table(about.get("algorithm")).get("name") or table(recipe.get("algorithm")).get("name")),
        *(
            ("own code", f"{row['path']}, sha256 {str(row.get('sha256'))[:16]}")
            for row in tables_in(about.get("code"))
            if row.get("path")
        ),
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
    prompts, samples = count_of(recipe.get("prompts_per_step")), count_of(recipe.get("samples_per_prompt"))
    if not prompts or not samples:
        return ""
    updates, passes = count_of(recipe.get("updates_per_batch")) or 1, count_of(recipe.get("passes_per_batch")) or 1
    words = f"{prompts:,} prompts x {samples:,} samples, {updates * passes:,} update" + "s" * (updates * passes != 1)
    return words + (f" in {passes:,} passes" if passes > 1 else "")


def _rolled_back(row: Mapping[str, Any]) -> str:
    """Tell a return from an early warning of collapse: from where to where, why, and at what learning rate."""
    at, to, factor = count_of(row.get("from_step")), count_of(row.get("to_step")), number(row.get("rate_factor"))
    if at is None or to is None or factor is None:
        return ""
    names = row.get("warnings")
    why = f": {', '.join(map(str, names))}" if isinstance(names, list) and names else ""
    return f"from step {at:,} to {to:,}{why}; the learning rate times {factor:g}"


def _resumed(row: Mapping[str, Any]) -> str:
    """Tell a resume: after which step, when, on which machine, why, and with which keys changed."""
    step, when, machine = count_of(row.get("step")), moment(row.get("started")), row.get("machine")
    words = [f"after step {step:,}" if step else "from the start", when and f"at {when}", machine and f"on {machine}"]
    lost = [f"by itself, after {row['lost']}"] if row.get("lost") else []
    pairs = table(row.get("changed")).items()
    changed = [f"{key} {pair[0]} -> {pair[1]}" for key, pair in pairs if isinstance(pair, list) and len(pair) == 2]
    return "; ".join([" ".join(str(word) for word in words if word), *lost, *changed])


def compares_within_group(about: Mapping[str, Any]) -> bool | None:
    """Tell if the run's advantage compares the completions of one prompt; None if about.json does not say."""
    value = table(about.get("algorithm")).get("compares_within_group")
    return value if isinstance(value, bool) else None


def moment(seconds: object) -> str:
    """Write a time in UTC; "" if there is none.

    >>> moment(1_700_000_000)
    '2023-11-14 22:13 UTC'
    """
    at = number(seconds)
    try:
        return "" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, OSError, ValueError):
        return ""


def _algorithm(run: RunFolder) -> Table:
    algorithm = table(run.about.get("algorithm"))
    parts = tables_in(algorithm.get("parts"))
    if not parts:
        return _settings(table(run.recipe.get("algorithm")))
    heads = (("objective", "It maximises "), ("paper", "Source: "), ("watch", "Watch: "))
    names = ("slot", "kind", "value", "equation")
    rows = tuple(tuple(_words(part.get(name)) for name in names) for part in parts)
    places = [i for i, _ in enumerate(names) if any(row[i] for row in rows)]
    return Table(
        f"The algorithm: {_words(algorithm.get('name'))}",
        tuple(("part", "kind", "settings", "equation")[i] for i in places),
        tuple(tuple(row[i] for i in places) for row in rows),
        " ".join(f"{head}{_words(algorithm[key]).rstrip('.')}." for key, head in heads if _words(algorithm.get(key))),
    )


def _settings(algorithm: Mapping[str, Any]) -> Table:
    rows = tuple(
        (slot, _words(table.get("kind")), ", ".join(f"{k} = {_words(v)}" for k, v in table.items() if k != "kind"))
        for slot, table in algorithm.items()
        if isinstance(table, dict)
    )
    words = "As the recipe names its parts; `groupwise explain` has their equations."
    return Table(f"The algorithm: {_words(algorithm.get('name'))}", ("part", "kind", "settings"), rows, words)


def _words(value: object) -> str:
    """Write a value as a recipe does, without quotes."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
