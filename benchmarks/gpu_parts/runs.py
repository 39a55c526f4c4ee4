"""Whole runs as a person starts them: the quickstart, a real model, and the faults that a run must find."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from gpu_parts.measuring import Context
from groupwise.rewards.isolation import die_with_parent

BENCHMARKS = Path(__file__).parents[1]
FAULTS = (
    "temperature off by 0.1",
    "top-p not told",
    "weights one update old",
    "another template",
    "a wrong position",
    "one layer's weights not loaded",
)
CLEAN = "clean"


def measure(context: Context) -> None:
    amounts = context.amounts
    context.measure({"run": "quickstart"}, partial(trained, context, "quickstart", amounts.quickstart))
    real = {**amounts.real, "model": str(context.smollm2)}
    context.measure({"run": "times-tables"}, partial(trained, context, "times-tables", real))
    context.measure({"run": "planted faults"}, partial(faults, context))
    shared = {} if context.device == "cpu" else {"placement.share_cards": "true"}
    two = {**amounts.quickstart, "steps": amounts.clean_steps // 8 + 1, "learner.ranks": 2, **shared}
    context.measure({"run": "quickstart, two ranks on one card"}, partial(trained, context, "quickstart", two))


def trained(context: Context, recipe: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """`groupwise train`: seconds from start to report, and the summary. Raises RuntimeError where it fails."""
    if not Path(settings.get("model", ".")).exists():
        raise RuntimeError(f"left out: there is no {settings['model']}; make real puts it there")
    with tempfile.TemporaryDirectory() as runs:
        every = {**settings, "runs": runs, "name": "measured", "device": context.device}
        words = [word for key, value in every.items() for word in ("--set", f"{key}={value}")]
        begun = time.perf_counter()
        finish([sys.executable, "-m", "groupwise.cli", "train", recipe, *words])
        took = time.perf_counter() - begun
        summary = json.loads((Path(runs) / "measured" / "summary.json").read_text())
        rows = [json.loads(line) for line in (Path(runs) / "measured" / "metrics.jsonl").open()]
    failed = {name for row in rows for name, check in row.get("checks", {}).items() if check["verdict"] == "fail"}
    told = ("heldout_before", "heldout_after", "seconds_training", "steps")
    return {"seconds": took, **{name: summary[name] for name in told}, "failed_checks": sorted(failed)}


def faults(context: Context) -> dict[str, Any]:
    """How many planted faults runs of the tiny policy found, and whether a clean one gave a false alarm.

    The runs are side by side: nothing of them is timed.
    """
    amounts, program = context.amounts, str(BENCHMARKS / "planted_faults.py")
    chosen = (*FAULTS[: amounts.faults], CLEAN)
    steps = ("--steps", "20", "--clean", str(amounts.clean_steps), "--precisions", "fp32")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2)) as pool:
        files = {fault: Path(folder) / f"{number}.jsonl" for number, fault in enumerate(chosen)}
        commands = [
            [sys.executable, program, str(file), "--faults", fault, "--runs", f"{file}.runs", *steps]
            for fault, file in files.items()
        ]
        list(pool.map(partial(finish, visible=context.device != "cpu"), commands))
        rows = {fault: json.loads(file.read_text().splitlines()[-1]) for fault, file in files.items()}
    clean = rows.pop(CLEAN)
    return {
        "found": sum(bool(row["found_at"]) for row in rows.values()),
        "planted": len(rows),
        "missed": [fault for fault, row in rows.items() if not row["found_at"]],
        "false_alarms": clean["by"],
        "clean_steps": clean["steps"],
    }


def finish(command: Sequence[str], visible: bool = True) -> None:
    """Run a program that ends with this one. Raises RuntimeError with its last words where it fails."""
    environment = dict(os.environ) if visible else {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, preexec_fn=die_with_parent
    )
    if ended.returncode:
        last = (ended.stderr.strip() or ended.stdout.strip()).splitlines()[-1:]
        raise RuntimeError(f"exit code {ended.returncode}: {' '.join(last)}")
