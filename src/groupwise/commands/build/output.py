"""Output of a run: its records and checkpoints, and their room on the disk, refused before anything is trained."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from groupwise.config.recipe import Recipe
from groupwise.core.errors import UsageError
from groupwise.core.files.paths import existing_parent
from groupwise.health.watch import Watch
from groupwise.journal.journal import Journal
from groupwise.journal.output import Output
from groupwise.journal.rollout_rows import Spelling
from groupwise.journal.terminal import View
from groupwise.models.adapters.settings import AdapterSettings, adapted_weights, adapter_size
from groupwise.models.precision import itemsize
from groupwise.training.checkpoint import CHECKPOINTS, steps
from groupwise.training.critic import Critic
from groupwise.training.learner import Learner
from groupwise.training.reference import Reference
from groupwise.training.rollback import Guard
from groupwise.training.state import RunState

#: Bytes of a trained number in a checkpoint, float32: its weight, and two moments of AdamW.
BYTES = 12
REMEDY = "set checkpoint.keep lower, set runs to another disk, or free space"


@dataclass(frozen=True)
class DiskPlan:
    """Bytes of a run's checkpoints.

    checkpoint  bytes of one
    more        bytes of those still to come that are there at once: those that stay, and one that is being written
    free        free bytes of the disk with the run folder
    """

    checkpoint: int
    more: int
    free: int

    def __str__(self) -> str:
        megabytes = [f"{size / 1e6:,.0f} MB" for size in (self.checkpoint, self.more, self.free)]
        return "a checkpoint takes about {}, those to come {} at once, and {} are free".format(*megabytes)

    @property
    def fits(self) -> bool:
        return self.more <= self.free


def disk_plan(
    recipe: Recipe, folder: Path, policy: nn.Module, critic: nn.Module | None, copies_reference: bool
) -> DiskPlan:
    """Plan the checkpoints of a run with these models, in its folder."""
    reference, settings = recipe.reference, recipe.checkpoint
    checkpoint = BYTES * (policy_numbers(recipe.adapter, policy) + (_trained(critic) if critic is not None else 0))
    if copies_reference and reference.every:
        checkpoint += itemsize(reference.precision) * sum(p.numel() for p in policy.parameters())
    made = -(-recipe.steps // settings.every) + (recipe.guard is Guard.ROLLBACK)  # that one also at step 0
    count = min(settings.keep + 1, made) - len(steps(folder / CHECKPOINTS))
    return DiskPlan(checkpoint, max(1, count) * checkpoint, shutil.disk_usage(existing_parent(folder)).free)


def policy_numbers(adapter: AdapterSettings, policy: nn.Module) -> int:
    """Count the numbers of the policy that train: with adapters these alone, which are not in the model yet."""
    return adapter_size(adapted_weights(policy, adapter), adapter.rank) if adapter.rank else _trained(policy)


def _trained(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def require_disk(disk: DiskPlan) -> None:
    """Raise UsageError if the checkpoints have no room."""
    if not disk.fits:
        raise UsageError(f"disk: {disk}; {REMEDY}")


def run_state(
    recipe: Recipe, folder: Path, tokenizer: Any, learner: Learner, critic: Critic | None, reference: Reference | None
) -> RunState:
    """Make what the run's checkpoints save."""
    return RunState(
        folder=folder / CHECKPOINTS,
        keep=recipe.checkpoint.keep,
        reference=reference,
        tokenizer=tokenizer,
        learner=learner,
        critic=critic,
        every=1 if recipe.guard is Guard.WARN else recipe.checkpoint.every,
    )


def run_output(
    recipe: Recipe, table: dict[str, Any], within_group: bool, tokenizer: Any, journal: Journal, view: View
) -> Output:
    """Make what keeps and shows the run's records, and watches them.

    table         the resolved recipe
    within_group  whether the algorithm compares completions inside their group
    """
    return Output(
        journal=journal,
        view=view,
        watch=Watch(table, within_group),
        token_text=Spelling(tokenizer),
        token_budget=recipe.journal.token_budget,
        measure=recipe.measure,
    )
