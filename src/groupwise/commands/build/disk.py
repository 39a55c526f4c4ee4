"""What a run's checkpoints take of the disk, said and refused before anything is trained."""

import shutil
from dataclasses import dataclass

from torch import nn

from groupwise.config.plan import Plan
from groupwise.core.errors import UsageError
from groupwise.core.files.paths import existing_parent
from groupwise.models.adapters.targets import adapted_weights, adapter_size
from groupwise.models.precision import itemsize
from groupwise.training.checkpoint import CHECKPOINTS, steps
from groupwise.training.rollback import Guard

#: Bytes of a trained number in a checkpoint, float32: its weight, and two moments of AdamW.
BYTES = 12
REMEDY = "set checkpoint.keep lower, set runs to another disk, or free space"


@dataclass(frozen=True)
class DiskPlan:
    """A run's checkpoints, bytes.

    checkpoint  of one
    more        of those that are still to come and are there at once: those that stay, and one that is being written
    free        of the disk with the run folder
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


def disk_plan(plan: Plan, policy: nn.Module, critic: nn.Module | None) -> DiskPlan:
    """Of a run with these models; `critic` is the critic's."""
    reference, settings = plan.recipe.reference, plan.recipe.checkpoint
    checkpoint = BYTES * (policy_numbers(plan, policy) + (_trained(critic) if critic is not None else 0))
    if plan.copies_reference and reference.every:
        checkpoint += itemsize(reference.precision) * sum(p.numel() for p in policy.parameters())
    made = -(-plan.recipe.steps // settings.every) + (plan.recipe.guard is Guard.ROLLBACK)  # that one also at step 0
    count = min(settings.keep + 1, made) - len(steps(plan.folder / CHECKPOINTS))
    return DiskPlan(checkpoint, max(1, count) * checkpoint, shutil.disk_usage(existing_parent(plan.folder)).free)


def policy_numbers(plan: Plan, policy: nn.Module) -> int:
    """Numbers of the policy that train: with adapters these alone, which are not in the model yet."""
    adapter = plan.recipe.adapter
    return adapter_size(adapted_weights(policy, adapter), adapter.rank) if adapter.rank else _trained(policy)


def _trained(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def require_disk(disk: DiskPlan) -> None:
    """Raises UsageError where the checkpoints have no room."""
    if not disk.fits:
        raise UsageError(f"disk: {disk}; {REMEDY}")
