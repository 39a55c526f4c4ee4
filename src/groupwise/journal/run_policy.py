"""Names of policies that runs trained: RUN and RUN:STEP."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from groupwise.core.errors import UsageError
from groupwise.journal.kept import RECIPE

_WITH_STEP = re.compile(r"(.+):([0-9]{1,15})", re.DOTALL)


@dataclass(frozen=True)
class RunPolicy:
    """The policy of a run folder after a step; None stands for its newest good checkpoint.

    A run that starts from it copies it: the other run removes its old checkpoints as it goes on.
    """

    run: Path
    step: int | None

    def __str__(self) -> str:
        return str(self.run) if self.step is None else f"{self.run}:{self.step}"


def run_policy(text: str) -> RunPolicy | None:
    """Return what RUN or RUN:STEP names; None if it is no run, but a folder of a model, a name or nothing at all."""
    if is_run(text):
        return RunPolicy(Path(text), None)
    match = _WITH_STEP.fullmatch(text)
    return RunPolicy(Path(match[1]), int(match[2])) if match and is_run(match[1]) else None


def is_run(folder: str) -> bool:
    """Return whether a folder is one of a run; "" is none, also where the current directory has a recipe.toml."""
    return (
        bool(folder)
        and os.path.lexists(os.path.join(folder, RECIPE))
        and not os.path.lexists(os.path.join(folder, "config.json"))
    )


def evaluated_run(policy: str) -> Path:
    """Return the run of a policy, which says on what the policy is evaluated. Raises UsageError if it is of no run."""
    source = run_policy(policy)
    if source is None:
        raise UsageError(f"{policy}: no run folder; to evaluate a model say on which task: --recipe RECIPE")
    return source.run
