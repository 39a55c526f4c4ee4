"""The runs of docs/moe.md that claims read: recipes of the folder moe-stability, at its two learning rates."""

from functools import cache

from groupwise.claims.claim import Effort, Experiment
from groupwise.claims.trained import trained

#: The recipes' own learning rate, and the lower one that was added.
RATES = (1.5e-3, 1e-3)
SEEDS = {Effort.STANDARD: 3, Effort.FULL: 5}


@cache
def run(recipe: str, rate: float) -> Experiment:
    """A recipe of the folder, such as "grpo-r2", at a learning rate."""
    return trained(f"moe/{recipe}@{rate:g}", f"moe-stability/{recipe}", {"learner.learning_rate": rate}, SEEDS)
