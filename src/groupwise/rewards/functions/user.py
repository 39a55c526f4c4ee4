"""A user's own reward: looked up by name, recognised by its parameters."""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from groupwise.core.code.user_code import NO_FILES, Files, Source, load, raised, source
from groupwise.core.errors import UsageError, nearest
from groupwise.core.samples import Attempt
from groupwise.core.task import ScoresLate, Starts, Task
from groupwise.rewards.functions.adapters import SINGLE, Bound, bound


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

    def bind(self, files: Files = NO_FILES) -> Bound:
        """Load the function. Raises UsageError, with the user's traceback as its note, where that cannot be done."""
        definition = load(self.use, f"reward {self.use}", files)
        if not inspect.isclass(definition):
            function = bound(definition, self.use, self.settings)
            _require_known(self.settings, function.parameters, self.use)
            return function
        try:
            instance = definition(**self.settings)
        except Exception as error:
            constructor = f"{self.use.rpartition(':')[2]}({', '.join(f'{k}={v!r}' for k, v in self.settings.items())})"
            raise raised(f"reward {self.use}", constructor, error) from None
        return bound(instance, self.use, {})

    def __call__(self, attempts: Sequence[Attempt]) -> Sequence[float]:
        """Score in this process, without a deadline; NaN if there is none."""
        return _scores(self.bind(), attempts)


@dataclass(frozen=True, repr=False)
class FromFile:
    """A user's reward with its file as it was when the run began: what the processes that score are sent."""

    reward: User
    source: Source
    quick = False

    @property
    def use(self) -> str:
        """Name of the reward, its file named from the root on."""
        return f"{self.source.path}:{self.reward.use.rpartition(':')[2]}"

    def bind(self) -> Bound:
        return replace(self.reward, use=self.use).bind({self.source.path: self.source})

    def __call__(self, attempts: Sequence[Attempt]) -> Sequence[float]:
        return _scores(self.bind(), attempts)

    def __repr__(self) -> str:
        return repr(self.reward)


def with_file(reward: User, files: Files = NO_FILES) -> User | FromFile:
    """Read the file of a reward; a reward of a module stays as it is. Raises UsageError if there is no such file."""
    file = source(reward.use, f"reward {reward.use}", files)
    return FromFile(reward, file) if file else reward


@dataclass(frozen=True)
class TaskScore:
    """A task's own scorer as a reward."""

    task: Task

    @property
    def late(self) -> float | None:
        """Score of a completion that has none in time; None if that is no score."""
        return self.task.late if isinstance(self.task, ScoresLate) else None

    def bind(self) -> Bound:
        starts = self.task if isinstance(self.task, Starts) else None
        return Bound(self.task.score, SINGLE, type(self.task).__name__, starts=starts)


def _scores(bound: Bound, attempts: Sequence[Attempt]) -> list[float]:
    with asyncio.Runner() as runner:
        calls = bound.score(attempts, finisher(runner))
        return [result.value for results in calls for result in results]


def finisher(runner: asyncio.Runner) -> Callable[[Any], Any]:
    """Make (awaitable) -> its result, on the runner's own loop: a user's sessions stay bound to one."""

    async def finish(awaitable: Any) -> Any:
        return await awaitable

    return lambda awaitable: runner.run(finish(awaitable))


def _require_known(settings: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter], use: str) -> None:
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for key in settings:
        if key not in parameters:
            raise UsageError(f"reward {use}: the setting {key!r} is no parameter of it; {nearest(key, parameters)}")
