"""Experiments that train: a recipe with some keys laid over it, in a process of its own; stopped ones go on."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from groupwise.claims.claim import Effort, Experiment
from groupwise.config.recipe import find
from groupwise.core.errors import RunError
from groupwise.journal.journal import read_metrics, read_summary

#: What is read of a finished run: its metrics by step and its summary -> numbers by name.
Read = Callable[[list[dict[str, Any]], dict[str, Any]], Mapping[str, Any]]


def trained(name: str, recipe: str, keys: Mapping[str, object], read: Read, seeds: Mapping[Effort, int]) -> Experiment:
    """An experiment that trains the recipe with these keys, and reads the run.

    Its fingerprint is of the recipe's text and the keys: with another recipe the older rows no longer count.
    """
    text = json.dumps(dict(keys), sort_keys=True).encode() + find(recipe).read_bytes()
    fingerprint = hashlib.sha256(text).hexdigest()[:12]
    return Experiment(name, partial(_train, name, recipe, dict(keys), fingerprint, read), fingerprint, seeds)


def _train(
    name: str, recipe: str, keys: Mapping[str, object], fingerprint: str, read: Read, seed: int, work: Path
) -> Mapping[str, Any]:
    folder = work / f"{name}-{fingerprint}-{seed}"
    command = [sys.executable, "-m", "groupwise.cli", "train"]
    if (folder / "recipe.toml").exists():
        command += ["--resume", str(folder)]
    else:
        laid = {**keys, "name": folder.name, "seed": seed, "runs": str(work)}
        settings = (f"{key}={json.dumps(value)}" for key, value in laid.items())
        command += [recipe, *(part for setting in settings for part in ("--set", setting))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError((done.stderr.strip().splitlines() or [f"the run ended with exit code {done.returncode}"])[-1])
    return read(read_metrics(folder), read_summary(folder))
