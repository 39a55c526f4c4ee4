"""groupwise: reinforcement learning for language models, each algorithm a row of small parts."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from groupwise.algo import Algorithm, LossOut
    from groupwise.catalog import algorithm
    from groupwise.errors import CheckFailed, GroupwiseError, RunError, UsageError
    from groupwise.models.routing import record_routes, replay_routes
    from groupwise.parts.advantage import gae
    from groupwise.parts.shaping import overlong_penalty
    from groupwise.run import Run, train
    from groupwise.tasks import task

__version__ = "0.1.0"

__all__ = [
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
    "Algorithm": "algo",
    "CheckFailed": "errors",
    "GroupwiseError": "errors",
    "LossOut": "algo",
    "Run": "run",
    "RunError": "errors",
    "UsageError": "errors",
    "algorithm": "catalog",
    "gae": "parts.advantage",
    "overlong_penalty": "parts.shaping",
    "record_routes": "models.routing",
    "replay_routes": "models.routing",
    "task": "tasks",
    "train": "run",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first used: torch takes seconds, and --help should not."""
    if name not in _HOME:
        raise AttributeError(f"module 'groupwise' has no attribute {name!r}")
    return getattr(import_module(f"groupwise.{_HOME[name]}"), name)
