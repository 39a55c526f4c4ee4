"""The policy from which both sides learn the quickstart's task: python benchmarks/trl/start.py SEED MODELS"""

import sys
from pathlib import Path

from groupwise.config import recipe
from groupwise.config.resolve import resolve
from groupwise.models.load import save_policy
from groupwise.training.optimizer import silent
from groupwise.training.start.initial_policy import starting_policy


def folder(models: Path, seed: int) -> Path:
    return models / f"quickstart-{seed}"


def main(seed: int, models: Path) -> None:
    """Warm-start the quickstart's policy as the recipe says, once."""
    target = folder(models, seed)
    if (target / "config.json").exists():
        return
    plan = resolve(recipe.load("quickstart", {"seed": seed, "runs": str(models)}))
    chosen = plan.recipe
    policy = starting_policy(
        chosen.model, plan.task, chosen.warm_start, seed=seed, cache=plan.cache, device="cpu", on_step=silent
    )
    save_policy(policy.model, policy.tokenizer, target)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
