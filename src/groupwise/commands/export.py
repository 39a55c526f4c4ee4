"""A run's policy as a folder of its own: copied, or with its adapters merged into the base's weights."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from groupwise.commands.policies import checkpoint_of, checkpoint_policy
from groupwise.config import recipe
from groupwise.config.resolve import resolve
from groupwise.core.atomic import make_folder
from groupwise.core.errors import UsageError
from groupwise.journal.recipe_file import whole_recipe
from groupwise.models.adapters.files import holds_adapters
from groupwise.models.load import save_policy
from groupwise.training import checkpoint


def export(run: Path, folder: Path, step: int | None, note: Callable[[str], None]) -> int:
    """Writes the policy after `step` (None: the newest checkpoint's) into `folder`, whole or not at all -> the step.

    `from_pretrained` loads it, without peft. Raises UsageError where the folder exists, or there is no such policy.
    """
    table = whole_recipe(run)
    if os.path.lexists(folder):
        raise UsageError(f"{folder}: it exists already, and is not written over; name another folder")
    source = checkpoint_of(run, step, note)

    def write(place: Path) -> None:
        if not holds_adapters(source / checkpoint.POLICY):
            shutil.copytree(source / checkpoint.POLICY, place)
            return
        plan = resolve(recipe.parse(recipe.read_table(table), str(table)), place=Path(os.path.realpath(run)))
        policy = checkpoint_policy(plan, source, note)
        save_policy(policy.model, policy.tokenizer, place)

    make_folder(folder, write, "the policy")
    return int(checkpoint.read_state(source)["step"])
