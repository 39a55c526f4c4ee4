"""Experiments that train: a recipe with keys laid over it, in a process of its own, gone on with where it stopped."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from groupwise.claims import readings
from groupwise.claims.claim import Effort, Experiment
from groupwise.config.recipe import recipe_folder
from groupwise.core.children import Child
from groupwise.core.errors import RunError
from groupwise.core.peer import PeerLost

#: Laid over every recipe: one thread, so that two runs side by side have the bits of one alone; no page; and as many
#: tokens a step with their columns as what is read of them needs.
USUAL: Mapping[str, object] = {"threads": 1, "journal.report": False, "journal.token_budget": 4000}
#: What of a run's numbers the machine decides (readings.of_machine).
COSTS = frozenset({"seconds_training", "seconds_generate", "seconds_update", "memory_peak_mib"})


def trained(name: str, recipe: str, keys: Mapping[str, object], seeds: Mapping[Effort, int]) -> Experiment:
    """An experiment that trains the recipe with these keys, and reads the run (readings.py).

    Its fingerprint is of the recipe's text, the keys and what is read: with others the older rows no longer count.
    """
    laid, file = {**USUAL, **keys}, recipe_file(recipe)
    text = json.dumps([laid, readings.VERSION], sort_keys=True).encode() + file.read_bytes()
    fingerprint = hashlib.sha256(text).hexdigest()[:12]
    measure = partial(_train, name, file, laid, fingerprint)
    return Experiment(name, measure, fingerprint, seeds, own_process=True, costs=COSTS)


def recipe_file(recipe: str) -> Path:
    """Of a recipe that comes with groupwise, whatever lies in the folder where the command is given."""
    return recipe_folder() / f"{recipe}.toml"


def _train(
    name: str, recipe: Path, keys: Mapping[str, object], fingerprint: str, seed: int, work: Path
) -> Mapping[str, Any]:
    """Train, read, and put the run's folder away: what is asked of it is in the row. One that failed stays."""
    folder = work / f"{name.replace('/', '-')}-{fingerprint}-{seed}"
    settings = {**keys, "name": folder.name, "seed": seed, "runs": str(work)}
    options = {"recipe": str(recipe), "settings": settings, "folder": str(folder)}
    threads = {**os.environ, "OMP_NUM_THREADS": str(keys["threads"])}
    with closing(Child("groupwise.claims.training_process", options, environment=threads)) as child:
        try:
            answer = child.receive()
        except PeerLost as lost:
            raise RunError(f"{lost}; {folder} is gone on with the next time") from None
    if answer["error"]:
        raise RunError(answer["error"])
    shutil.rmtree(folder)
    return answer["measured"]
