"""Metrics of sound runs, kept whole: no look at any of their prefixes may find anything wrong.

    groupwise train quickstart
    groupwise train times-tables
    python benchmarks/sound_runs.py docs/evidence/sound-runs.jsonl runs/quickstart runs/times-tables

Each run is one line; what tests/health/test_sound_prefixes.py asks of them is in that file.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Annotated, Any

import typer

from groupwise.reports.folder.facts import compares_within_group
from groupwise.reports.folder.read import read

#: Digits that are kept of a number: a thousandth of what any threshold asks for.
DIGITS = 6


def main(
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    runs: Annotated[list[Path], typer.Argument(help="Run folders, each of a recipe as it is.")],
) -> None:
    """Keep the metrics of sound runs."""
    command = ["git", "-C", str(file.parent), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    rows = [{"commit": commit, **kept(folder)} for folder in runs]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    typer.echo(f"{file}: {', '.join(row['recipe']['name'] for row in rows)}")


def kept(folder: Path) -> dict[str, Any]:
    """What a look at a run reads, but for where it lies and what its machine did."""
    run = read(folder)
    recipe = {key: value for key, value in run.recipe.items() if key not in ("runs", "model")}
    return {
        "recipe": recipe,
        "compares_within_group": compares_within_group(run.about),
        "steps": rounded(run.step_rows),
        "evaluations": rounded(run.evaluation_rows),
    }


def rounded(value: Any) -> Any:
    """The same value with DIGITS digits of each number."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


if __name__ == "__main__":
    typer.run(main)
