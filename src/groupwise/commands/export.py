"""A run's policy as a folder of its own: copied, or with its adapters merged into the base's weights."""

import os
from collections.abc import Callable
from pathlib import Path

from groupwise.commands.build.policies import checkpoint_of, write_policy
from groupwise.core.errors import UsageError
from groupwise.journal.recipe_file import whole_recipe
from groupwise.training import checkpoint


def export(run: Path, folder: Path, step: int | None, note: Callable[[str], None]) -> int:
    """Writes the policy after `step` (None: the newest checkpoint's) into `folder`, whole or not at all -> the step.

    `from_pretrained` loads it, without peft. Raises UsageError where the folder exists, or there is no such policy.
    """
    whole_recipe(run)
    if os.path.lexists(folder):
        raise UsageError(f"{folder}: it exists already, and is not written over; name another folder")
    source = checkpoint_of(run, step, note)
    write_policy(run, source, folder, note)
    return int(checkpoint.read_state(source)["step"])
