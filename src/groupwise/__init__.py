"""groupwise: reinforcement learning for language models, each algorithm a row of small parts."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from groupwise.core import VERSION as __version__

if TYPE_CHECKING:
    from groupwise.algorithms.algorithm import Algorithm, LossOut
    from groupwise.algorithms.parts.advantage import Advantage
    from groupwise.algorithms.parts.aggregate import Aggregate, Totals
    from groupwise.algorithms.parts.filters import Filter, Signal, Verdict
    from groupwise.algorithms.parts.gae import gae
    from groupwise.algorithms.parts.kl import Estimator
    from groupwise.algorithms.parts.mismatch import Mismatch
    from groupwise.algorithms.parts.ratio import Ratio
    from groupwise.algorithms.parts.rejection import Rejection
    from groupwise.algorithms.parts.shaping import Shaping, overlong_penalty
    from groupwise.algorithms.parts.trust import Surrogate, Trust
    from groupwise.algorithms.settings import algorithm
    from groupwise.commands.check.check import check
    from groupwise.commands.evaluate import evaluate
    from groupwise.commands.train.callbacks import StepRecord
    from groupwise.commands.train.run import Run
    from groupwise.commands.train.train import resume, train
    from groupwise.config.recipe import Recipe
    from groupwise.core.errors import CheckFailed, GroupwiseError, RunError, UsageError
    from groupwise.core.records import Batch, Completion, Group
    from groupwise.core.samples import Attempt, Sample
    from groupwise.core.task import Demonstration, Task
    from groupwise.models.moe.record import record_routes
    from groupwise.models.moe.replay import replay_routes
    from groupwise.reports.make import report
    from groupwise.rewards.verifiers.answers import Numeric
    from groupwise.tasks.make import task

__all__ = [
    "__version__",
    "Advantage",
    "Aggregate",
    "Algorithm",
    "Attempt",
    "Batch",
    "CheckFailed",
    "Completion",
    "Demonstration",
    "Estimator",
    "Filter",
    "Group",
    "GroupwiseError",
    "LossOut",
    "Mismatch",
    "Numeric",
    "Ratio",
    "Recipe",
    "Rejection",
    "Run",
    "RunError",
    "Sample",
    "Shaping",
    "Signal",
    "StepRecord",
    "Surrogate",
    "Task",
    "Totals",
    "Trust",
    "UsageError",
    "Verdict",
    "algorithm",
    "check",
    "evaluate",
    "gae",
    "overlong_penalty",
    "record_routes",
    "replay_routes",
    "report",
    "resume",
    "task",
    "train",
]

#: Where each public name lives: torch takes seconds to import, and --help should not.
_HOME = {
    name: module
    for module, names in {
        "algorithms.algorithm": ("Algorithm", "LossOut"),
        "algorithms.parts.advantage": ("Advantage",),
        "algorithms.parts.aggregate": ("Aggregate", "Totals"),
        "algorithms.parts.filters": ("Filter", "Signal", "Verdict"),
        "algorithms.parts.gae": ("gae",),
        "algorithms.parts.kl": ("Estimator",),
        "algorithms.parts.mismatch": ("Mismatch",),
        "algorithms.parts.ratio": ("Ratio",),
        "algorithms.parts.rejection": ("Rejection",),
        "algorithms.parts.shaping": ("Shaping", "overlong_penalty"),
        "algorithms.parts.trust": ("Surrogate", "Trust"),
        "algorithms.settings": ("algorithm",),
        "commands.check.check": ("check",),
        "commands.evaluate": ("evaluate",),
        "commands.train.callbacks": ("StepRecord",),
        "commands.train.run": ("Run",),
        "commands.train.train": ("resume", "train"),
        "config.recipe": ("Recipe",),
        "core.errors": ("CheckFailed", "GroupwiseError", "RunError", "UsageError"),
        "core.records": ("Batch", "Completion", "Group"),
        "core.samples": ("Attempt", "Sample"),
        "core.task": ("Demonstration", "Task"),
        "models.moe.record": ("record_routes",),
        "models.moe.replay": ("replay_routes",),
        "reports.make": ("report",),
        "rewards.verifiers.answers": ("Numeric",),
        "tasks.make": ("task",),
    }.items()
    for name in names
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _HOME:
        raise AttributeError(f"module 'groupwise' has no attribute {name!r}")
    return getattr(import_module(f"groupwise.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted(__all__)
