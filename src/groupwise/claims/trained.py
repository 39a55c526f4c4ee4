"""Experiments that train: a recipe with keys laid over it, in a process of its own, gone on with where it stopped."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from groupwise.claims import readings
from groupwise.claims.claim import Effort, Experiment
from groupwise.config.recipe import find
from groupwise.core.errors import RunError

#: Laid over every recipe: one thread, so that two runs side by side have the bits of one alone; no page; and as many
#: tokens a step with their columns as what is read of them needs.
USUAL: Mapping[str, object] = {"threads": 1, "journal.report": False, "journal.token_budget": 4000}


def trained(name: str, recipe: str, keys: Mapping[str, object], seeds: Mapping[Effort, int]) -> Experiment:
    """An experiment that trains the recipe with these keys, and reads the run (readings.py).

    Its fingerprint is of the recipe's text, the keys and what is read: with others the older rows no longer count.
    """
    laid = {**USUAL, **keys}
    text = json.dumps([laid, readings.VERSION], sort_keys=True).encode() + find(recipe).read_bytes()
    fingerprint = hashlib.sha256(text).hexdigest()[:12]
    return Experiment(name, partial(_train, name, recipe, laid, fingerprint), fingerprint, seeds)


def _train(
    name: str, recipe: str, keys: Mapping[str, object], fingerprint: str, seed: int, work: Path
) -> Mapping[str, Any]:
    """Train, read, and put the run's folder away: what is asked of it is in the row. One that failed stays."""
    folder = work / f"{name.replace('/', '-')}-{fingerprint}-{seed}"
    command = [sys.executable, "-m", "groupwise.cli", "train"]
    if (folder / "recipe.toml").exists():
        command += ["--resume", str(folder)]
    else:
        laid = {**keys, "name": folder.name, "seed": seed, "runs": str(work)}
        settings = (f"{key}={json.dumps(value)}" for key, value in laid.items())
        command += [recipe, *(part for setting in settings for part in ("--set", setting))]
    env = {**os.environ, "OMP_NUM_THREADS": str(keys["threads"])}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        raise RunError((done.stderr.strip().splitlines() or [f"the run ended with exit code {done.returncode}"])[-1])
    told = readings.read(folder)
    shutil.rmtree(folder)
    return told
