"""What an evaluation leaves: results.json, and every completion in completions.jsonl, in a folder of its own."""

import dataclasses
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from groupwise.commands.evaluate import Difference, PolicyResult, Results
from groupwise.config.about import where
from groupwise.config.resolve import resolved_recipe
from groupwise.core.errors import RunError, UsageError
from groupwise.core.files import jsonl
from groupwise.core.files.atomic import make_folder, require_place
from groupwise.core.numbers.statistics import Interval
from groupwise.training.start.run_policy import run_policy

RESULTS, COMPLETIONS = "results.json", "completions.jsonl"
#: Where evaluations go that have no place of their own, in the current directory.
EVALUATIONS = Path("evaluations")
#: Characters of a policy in a folder's name.
LONGEST = 60


def require_place_for(out: Path | None) -> None:
    """Raises UsageError, before anything is sampled, where the folder exists or cannot be made."""
    if out is not None and os.path.lexists(out):
        raise UsageError(f"--out {out}: it exists already, and is not written over; name another folder")
    require_place(out or EVALUATIONS / "new", size=0)


def write_results(results: Results, out: Path | None) -> Path:
    """Both files in `out`, or in a new folder of EVALUATIONS -> the folder, which appears whole or not at all."""
    folder = out or _free_folder("-against-".join(_label(result.name) for result in results.policies[:2]))

    def write(place: Path) -> None:
        place.mkdir()
        (place / RESULTS).write_bytes(jsonl.encoded(_results(results), indent=True) + b"\n")
        with (place / COMPLETIONS).open("wb") as file:
            file.writelines(jsonl.encoded(row) + b"\n" for result in results.policies for row in result.rows)

    try:
        make_folder(folder, write, "the evaluation")
    except RunError:
        with suppress(OSError):  # it is of use to others where it is not empty
            EVALUATIONS.rmdir()
        raise
    return folder


def _results(results: Results) -> dict[str, Any]:
    return {
        "policies": [_policy(result) for result in results.policies],
        "differences": [_difference(apart) for apart in results.differences],
        "recipe": resolved_recipe(results.plan),
        "ended": round(time.time(), 3),
        **where(results.plan.recipe.device),
    }


def _policy(result: PolicyResult) -> dict[str, Any]:
    return {
        "name": result.name,
        **result.evaluation.row,
        "interval": _interval(result.interval),
    }


def _difference(apart: Difference) -> dict[str, Any]:
    names = {"first": apart.first, "second": apart.second}
    return {**names, **apart.change.row, "interval": _interval(apart.interval)}


def _interval(around: Interval | None) -> dict[str, Any] | None:
    return None if around is None else dataclasses.asdict(around)


def _label(name: str) -> str:
    """A policy's name as a folder's.

    >>> _label("models/smollm2/"), _label("Qwen/Qwen3-0.6B")
    ('smollm2', 'Qwen3-0.6B')
    """
    source = run_policy(name)
    text = f"{source.run.resolve().name}-step-{source.step}" if source else Path(name).resolve().name
    return re.sub(r"[^\w.+-]+", "-", text)[:LONGEST].strip(".-") or "policy"


def _free_folder(label: str) -> Path:
    """label, label-2, label-3, ...: the first that does not exist."""
    count = 1
    while os.path.lexists(folder := EVALUATIONS / (label if count == 1 else f"{label}-{count}")):
        count += 1
    return folder
