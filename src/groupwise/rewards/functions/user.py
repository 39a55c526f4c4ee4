"""A user's own reward: looked up by name, recognised by its parameters."""

import asyncio
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from groupwise.core.errors import UsageError, nearest
from groupwise.core.jsonl import writable
from groupwise.core.paths import location
from groupwise.core.samples import Attempt
from groupwise.core.task import ScoresLate, Starts, Task
from groupwise.rewards.functions.adapters import SINGLE, Bound, bound
from groupwise.rewards.functions.trace import own_traceback, place


@dataclass(frozen=True)
class User:
    """The reward `module:name` or `path/to/file.py:name`, a function or a class.

    use       the function or class
    settings  given to a class when it is instantiated, to a function with every call

    A class is instantiated once in every process that scores. Which forms there are: docs/rewards.md.
    """

    use: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    quick = False

    def bind(self) -> Bound:
        """The function, loaded. Raises UsageError, with the user's traceback as its note, where that cannot be done."""
        module, name = load(self.use)
        definition = _attribute(module, name, self.use)
        if not inspect.isclass(definition):
            function = bound(definition, self.use, self.settings)
            _require_known(self.settings, function.parameters, self.use)
            return function
        try:
            instance = definition(**self.settings)
        except Exception as error:
            raise raised(
                self.use, f"{name}({', '.join(f'{k}={v!r}' for k, v in self.settings.items())})", error
            ) from None
        return bound(instance, self.use, {})

    def __call__(self, attempts: Sequence[Attempt]) -> Sequence[float]:
        """Scores in this process, without a deadline; NaN where there is none."""
        with asyncio.Runner() as runner:
            calls = self.bind().score(attempts, finisher(runner))
            return [result.value for results in calls for result in results]


@dataclass(frozen=True)
class TaskScore:
    """A task's own scorer as a reward."""

    task: Task

    @property
    def late(self) -> float | None:
        """The score of a completion that has none in time; None where that is no score."""
        return self.task.late if isinstance(self.task, ScoresLate) else None

    def bind(self) -> Bound:
        starts = self.task if isinstance(self.task, Starts) else None
        return Bound(self.task.score, SINGLE, type(self.task).__name__, starts=starts)


def finisher(runner: asyncio.Runner) -> Callable[[Any], Any]:
    """(awaitable) -> its result, on the runner's own loop: a user's sessions stay bound to one."""

    async def finish(awaitable: Any) -> Any:
        return await awaitable

    return lambda awaitable: runner.run(finish(awaitable))


def load(use: str) -> tuple[ModuleType, str]:
    """`module:name` or `file.py:name` -> the module, imported, and the name in it."""
    where, colon, name = use.rpartition(":")
    if not colon or not where or not name:
        raise UsageError(f"reward {use!r}: write module:function or path/to/file.py:function")
    try:
        return (_from_file(Path(where), use) if where.endswith(".py") else _from_module(where, use)), name
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise raised(use, "importing it", error) from None


def _from_file(path: Path, use: str) -> ModuleType:
    path = location(str(path), f"reward {use}").absolute()
    if not path.is_file():
        there = [file.name for file in sorted(path.parent.glob("*.py"))] if path.parent.is_dir() else []
        raise UsageError(f"reward {use}: no file {path}" + (f"; {nearest(path.name, there)}" if there else ""))
    name = f"groupwise_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"reward {use}: {path} cannot be read as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: its dataclasses look their module up
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # for what lies beside it
    spec.loader.exec_module(module)
    return module


def _from_module(where: str, use: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{where}.".startswith(f"{error.name}."):
            raise  # it is there, and something that it imports is not
        there = sorted(file.stem for file in Path.cwd().glob("*.py"))
        hint = nearest(where, there) if there else "this folder has no .py file"
        raise UsageError(f"reward {use}: no module {error.name!r} here or installed; {hint}") from None


def _attribute(module: ModuleType, name: str, use: str) -> Any:
    owner: Any = module
    for part in name.split("."):
        if not hasattr(owner, part):
            public = [n for n, v in vars(owner).items() if callable(v) and not n.startswith("_")]
            raise UsageError(f"reward {use}: {module.__file__} has no {part!r}; {nearest(part, public)}")
        owner = getattr(owner, part)
    return owner


def _require_known(settings: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter], use: str) -> None:
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for key in settings:
        if key not in parameters:
            raise UsageError(f"reward {use}: the setting {key!r} is no parameter of it; {nearest(key, parameters)}")


def raised(use: str, what: str, error: BaseException) -> UsageError:
    """What a user's code raised when it was loaded, in a line, with its traceback as a note."""
    at = place(error)
    words = " ".join(writable(str(error)).split())
    wrong = UsageError(f"reward {use}: {what} raised {type(error).__name__}: {words}{f' ({at})' if at else ''}")
    wrong.add_note(own_traceback(error))
    return wrong
