"""Tasks that groupwise does not have: a user's own from a file, and those that installed packages offer by name.

A package offers a task as an entry point of the group `groupwise.tasks`, whose name is the task's.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.core.code.user_code import Files, entry, load, raised, require_frozen_dataclass
from groupwise.core.errors import UsageError, brief
from groupwise.core.files.plain import require_plain
from groupwise.core.samples import Sample
from groupwise.core.settings import fields_of
from groupwise.core.task import Task
from groupwise.tasks.splits import SPLITS

GROUP = "groupwise.tasks"


def own_task(use: object, keys: Mapping[str, object], files: Files) -> Task:
    """The task that `task.use` names, made. Raises UsageError where it is none, or for the first key that is wrong."""
    if not isinstance(use, str):
        raise UsageError('task.name is missing; such as name = "arithmetic" or use = "my_task.py:MyTask" under [task]')
    what = f"task.use = {brief(use)}"
    return _made(load(use, what, files), what, keys)


def offered_task(name: str, keys: Mapping[str, object]) -> Task:
    """A task that an installed package offers, made."""
    what = f"task.name = {name!r}"
    return _made(entry(GROUP, name, what), what, keys)


def _made(kind: Any, what: str, keys: Mapping[str, object]) -> Task:
    require_frozen_dataclass(kind, what)
    if Task not in kind.__mro__ or kind.samples is Task.samples or kind.score is Task.score:
        raise UsageError(f"{what}: {kind.__name__} is no task; make it a groupwise.Task with samples and score")
    try:
        task = kind(**fields_of(kind, "task", keys))
        splits = {split: task.samples(split) for split in SPLITS}
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"task.{error}") from None
    except Exception as error:
        raise raised(what, f"making {kind.__name__} and its samples", error) from None
    for field in dataclasses.fields(kind):
        require_plain(f"{what}: its field {field.name}", getattr(task, field.name))
    for split, samples in splits.items():
        _require_samples(samples, f"{what}: samples({split!r})")
    return task


def _require_samples(samples: object, what: str) -> None:
    if not isinstance(samples, Sequence) or isinstance(samples, (str, bytes)):
        raise UsageError(f"{what} is a {type(samples).__name__}; return a list or a tuple of groupwise.Sample")
    if not samples:
        raise UsageError(f"{what} is empty; a task has problems in both splits, train and heldout")
    for sample in samples:
        if not isinstance(sample, Sample):
            raise UsageError(f"{what} holds {brief(sample)}; each must be a groupwise.Sample(key, prompt, answer)")
    if len({sample.key for sample in samples}) < len(samples):
        raise UsageError(f"{what} has samples of one key; the key of each must be its own")
