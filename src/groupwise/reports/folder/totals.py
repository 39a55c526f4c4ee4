"""Sums over a whole run, and how to run it again, as tables. Pure."""

import math
import re
import shlex
from collections.abc import Mapping
from typing import Any

from groupwise.reports.folder.columns import evaluations
from groupwise.reports.folder.lines import count_of, number, table, tables
from groupwise.reports.folder.read import RECIPE, RunFolder
from groupwise.reports.folder.state import in_words
from groupwise.reports.records import Table

#: Of a recipe.toml that a run wrote: what it was made from.
_ORIGIN = re.compile(r"^# from (.+)$", re.MULTILINE)
#: Seconds from which on a time is given in hours too.
HOURS = 360
_SUMS = (
    ("completions sampled", "generated_completions"),
    ("tokens sampled", "generated_tokens"),
    ("tokens trained", "trained_tokens"),
)


def totals(run: RunFolder) -> Table:
    """Add up completions, tokens and time over the run; a number that no step has is left out."""
    sums = [(name, _sum(run.step_rows, column)) for name, column in _SUMS]
    rows = [("steps", f"{len(run.step_rows):,}")] if run.step_rows else []
    rows += [(name, f"{total:,.0f}") for name, total in sums if total]
    if held := sum(_asked(row) for row in run.evaluation_rows):
        rows.append(("held-out completions", f"{held:,}"))
    seconds = _seconds(run)
    if seconds:
        rows.append(("time", in_words(seconds) + (f" ({seconds / 3600:.2f} hours)" if seconds >= HOURS else "")))
        ranks = count_of(table(run.recipe.get("learner")).get("ranks")) or 1
        if ranks > 1:
            rows.append(("time of all ranks", f"{seconds * ranks / 3600:.3g} hours ({ranks} ranks)"))
    words = "The time is that of the clock, evaluations and start included." if seconds else ""
    return Table("In total", ("", ""), tuple(rows), words, numbers=(1,), section="cost")


def again(run: RunFolder) -> Table:
    """Tell how to run it again: the command, where its recipe is from, the commit, code of a user's own, versions."""
    if not run.recipe:
        return Table("How to run it again", ("", ""), ())
    about = run.about
    origin = _ORIGIN.search(run.recipe_text)
    versions = [f"groupwise {about['groupwise']}"] if about.get("groupwise") else []
    versions += [f"{name} {version}" for name, version in table(about.get("versions")).items()]
    rows = (
        ("command", f"groupwise train {shlex.quote(str(run.folder / RECIPE))}"),
        ("recipe", f"made from {origin[1]}" if origin else ""),
        ("commit", str(about.get("commit") or "")),
        *(("own code", f"{row['path']}, sha256 {str(row.get('sha256'))[:16]}") for row in _code(about)),
        ("with", ", ".join(versions)),
    )
    exact = versions and run.recipe.get("deterministic") is True
    same = "On the same machine, with these versions and files, it gives the same numbers." if exact else ""
    changed = any(table(row.get("changed")) for row in tables(about.get("resumed")))
    note = "Keys were changed where the run was resumed: the recipe has the last values." if changed else same
    return Table("How to run it again", ("", ""), tuple(row for row in rows if row[1]), note)


def _code(about: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [row for row in tables(about.get("code")) if row.get("path")]


def _asked(row: Mapping[str, Any]) -> int:
    """Count the completions of an evaluation."""
    evaluation = table(row.get("evaluation"))
    return (count_of(evaluation.get("problems")) or 0) * (count_of(evaluation.get("samples")) or 0)


def _seconds(run: RunFolder) -> float:
    """Add up the time of the run: what its summary says, or that of all rows so far."""
    told = number((run.summary or {}).get("seconds_total"))
    if told:
        return float(told)
    steps = (value for row in run.step_rows for value in table(row.get("seconds")).values())
    held = (value for value in evaluations(run.evaluation_rows).columns.get("seconds_total", ()))
    return math.fsum(number(value) or 0.0 for value in (*steps, *held))


def _sum(rows: list[dict[str, Any]], name: str) -> float:
    return math.fsum(number(row.get(name)) or 0.0 for row in rows)
