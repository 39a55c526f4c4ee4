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
    from groupwise.commands.evaluation import evaluate
    from groupwise.commands.train.callbacks import StepRecord
    from groupwise.commands.train.run import Run
    from groupwise.commands.train.train import resume, train
    from groupwise.config.recipe import Recipe
    from groupwise.core.errors import CheckFailed, GroupwiseError, RunError, UsageError
    from groupwise.core.records import Batch, Completion, Group
    from groupwise.core.samples import Attempt, Sample
    from groupwise.core.task import Task
    from groupwise.models.moe.record import record_routes
    from groupwise.models.moe.replay import replay_routes
    from groupwise.reports.make import report
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
    "Estimator",
    "Filter",
    "Group",
    "GroupwiseError",
    "LossOut",
    "Mismatch",
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

_HOME = {
    "Advantage": "algorithms.parts.advantage",
    "Aggregate": "algorithms.parts.aggregate",
    "Algorithm": "algorithms.algorithm",
    "Attempt": "core.samples",
    "Batch": "core.records",
    "CheckFailed": "core.errors",
    "Completion": "core.records",
    "Estimator": "algorithms.parts.kl",
    "Filter": "algorithms.parts.filters",
    "Group": "core.records",
    "GroupwiseError": "core.errors",
    "LossOut": "algorithms.algorithm",
    "Mismatch": "algorithms.parts.mismatch",
    "Ratio": "algorithms.parts.ratio",
    "Recipe": "config.recipe",
    "Rejection": "algorithms.parts.rejection",
    "Run": "commands.train.run",
    "RunError": "core.errors",
    "Sample": "core.samples",
    "Shaping": "algorithms.parts.shaping",
    "Signal": "algorithms.parts.filters",
    "StepRecord": "commands.train.callbacks",
    "Surrogate": "algorithms.parts.trust",
    "Task": "core.task",
    "Totals": "algorithms.parts.aggregate",
    "Trust": "algorithms.parts.trust",
    "UsageError": "core.errors",
    "Verdict": "algorithms.parts.filters",
    "algorithm": "algorithms.settings",
    "check": "commands.check.check",
    "evaluate": "commands.evaluation",
    "gae": "algorithms.parts.gae",
    "overlong_penalty": "algorithms.parts.shaping",
    "record_routes": "models.moe.record",
    "replay_routes": "models.moe.replay",
    "report": "reports.make",
    "resume": "commands.train.train",
    "task": "tasks.make",
    "train": "commands.train.train",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first used: torch takes seconds, and --help should not."""
    if name not in _HOME:
        raise AttributeError(f"module 'groupwise' has no attribute {name!r}")
    return getattr(import_module(f"groupwise.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """The public names, imported or not."""
    return sorted(__all__)
