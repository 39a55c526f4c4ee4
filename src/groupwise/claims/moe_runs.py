"""The runs of docs/moe.md that claims read: recipes of the folder moe-stability, at its two learning rates."""

import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from groupwise.claims.claim import Effort, Experiment
from groupwise.claims.measurements import Row
from groupwise.claims.readings import taken_over
from groupwise.claims.trained import trained
from groupwise.config.recipe import find

#: The recipes' own learning rate, and the lower one that was added.
RATES = (1.5e-3, 1e-3)
#: What benchmarks/stability.py was told for each.
SETTINGS = {(): RATES[0], ("learner.learning_rate=1e-3",): RATES[1]}
RECIPES = ("grpo", "grpo-r2", "gspo", "gspo-r2", "sapo", "sapo-r2")
SEEDS = {Effort.STANDARD: 3, Effort.FULL: 5}


@cache
def run(recipe: str, rate: float) -> Experiment:
    """A recipe of the folder, such as "grpo-r2", at a learning rate."""
    return trained(f"moe/{recipe}@{rate:g}", f"moe-stability/{recipe}", {"learner.learning_rate": rate}, SEEDS)


def finished(path: Path) -> Iterator[Row]:
    """The runs of docs/evidence/moe-stability.jsonl that claims read, as rows of theirs: recipes as they are today."""
    for line in path.read_text().splitlines():
        row = json.loads(line)
        rate = SETTINGS.get(tuple(row["settings"]))
        if rate and row["recipe"] in RECIPES and row["digest"] == digest(row["recipe"]):
            experiment = run(row["recipe"], rate)
            yield Row(
                experiment=experiment.name,
                seed=row["seed"],
                fingerprint=experiment.fingerprint,
                measured={} if row["stopped"] else taken_over(row),
                error=row["stopped"],
                seconds=row["seconds"],
                made_by=f"benchmarks/stability.py at {row['commit']}",
            )


def digest(recipe: str) -> str:
    """Tells a recipe of the folder from the same one before it was changed, as benchmarks/stability.py does."""
    return hashlib.sha256(find(f"moe-stability/{recipe}").read_bytes()).hexdigest()[:12]
