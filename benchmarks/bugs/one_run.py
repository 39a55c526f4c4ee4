"""One run of the groupwise that this process finds: what ended it, and what it found. Given and told as JSON.

PYTHONPATH=COPY/src python benchmarks/bugs/one_run.py '{"recipe": "quickstart", "given": {"steps": 3}}'
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import groupwise
from groupwise.core.errors import CheckFailed, GroupwiseError
from groupwise.health.symptoms.base import BAD, WARN, History
from groupwise.health.watch import findings
from groupwise.journal.journal import METRICS
from groupwise.reports.folder.facts import compares_within_group
from groupwise.reports.folder.read import RunFolder, read


def outcome(job: dict[str, Any]) -> dict[str, Any]:
    """Make the run, and resume it if the job says so -> its outcome."""
    folder = Path(job["given"]["runs"]) / job["given"]["name"]
    told: dict[str, Any] = {"by": "", "checks": [], "words": ""}
    try:
        if (folder / "checkpoints").exists():
            groupwise.resume(folder, quiet=True)
        else:
            after = job.get("after", 0)
            stops = [lambda record: record.step == after] if after else []
            groupwise.train(job["recipe"], job["given"], callbacks=stops, quiet=True)
            if after:
                groupwise.resume(folder, quiet=True)
    except CheckFailed as error:
        words = str(error)
        told |= {"by": "check", "checks": re.findall(r"'([^']+)' is \S+, limit", words), "words": words}
    except GroupwiseError as error:
        told |= {"by": "error", "words": str(error)}
    except Exception as error:
        told |= {"by": "crash", "words": f"{type(error).__name__}: {error}"}
    run = read(folder) if (folder / METRICS).exists() else None
    rows = run.step_rows if run else ()
    return {
        **told,
        "step": (rows[-1]["step"] if rows else 0) + bool(told["by"]),
        "findings": warnings(run) if run else {},
        "numbers": numbers([*(row["evaluation"] for row in run.evaluation_rows[:1]), *rows]) if run else [],
    }


def warnings(run: RunFolder) -> dict[str, str]:
    """Find the warnings of a report of this run, in words by their names."""
    history = History(run.step_rows, run.evaluation_rows, run.recipe, compares_within_group(run.about))
    return {one.name: one.words for one in findings(history) if one.tone in (WARN, BAD)}


def numbers(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Return the numbers of each row that a clock has no part in, to compare with a sound run's."""
    return [{k: v for k, v in row.items() if isinstance(v, float) and "seconds" not in k} for row in rows]


if __name__ == "__main__":
    begun = time.process_time()
    print(json.dumps({**outcome(json.loads(sys.argv[1])), "cpu_seconds": round(time.process_time() - begun, 1)}))
