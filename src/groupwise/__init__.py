"""groupwise: reinforcement learning for language models, each algorithm a row of small parts."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from groupwise.core.version import VERSION as __version__

if TYPE_CHECKING:
    from groupwise.algorithms.algorithm import Algorithm, LossOut
    from groupwise.algorithms.parts.gae import gae
    from groupwise.algorithms.parts.shaping import overlong_penalty
    from groupwise.algorithms.settings import algorithm
    from groupwise.commands.train import Run, train
    from groupwise.core.errors import CheckFailed, GroupwiseError, RunError, UsageError
    from groupwise.models.moe.record import record_routes
    from groupwise.models.moe.replay import replay_routes
    from groupwise.tasks.make import task

__all__ = [
    "__version__",
    "Algorithm",
    "CheckFailed",
    "GroupwiseError",
    "LossOut",
    "Run",
    "RunError",
    "UsageError",
    "algorithm",
    "gae",
    "overlong_penalty",
    "record_routes",
    "replay_routes",
    "task",
    "train",
]

_HOME = {
    "Algorithm": "algorithms.algorithm",
    "CheckFailed": "core.errors",
    "GroupwiseError": "core.errors",
    "LossOut": "algorithms.algorithm",
    "Run": "commands.train",
    "RunError": "core.errors",
    "UsageError": "core.errors",
    "algorithm": "algorithms.settings",
    "gae": "algorithms.parts.gae",
    "overlong_penalty": "algorithms.parts.shaping",
    "record_routes": "models.moe.record",
    "replay_routes": "models.moe.replay",
    "task": "tasks.make",
    "train": "commands.train",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first used: torch takes seconds, and --help should not."""
    if name not in _HOME:
        raise AttributeError(f"module 'groupwise' has no attribute {name!r}")
    return getattr(import_module(f"groupwise.{_HOME[name]}"), name)
