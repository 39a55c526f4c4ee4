"""The game that is played: a user's class, or tools alone, by name, so that any process can load it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Protocol

from groupwise.core.code.user_code import NO_FILES, Files, Source, load, source
from groupwise.core.errors import UsageError, brief
from groupwise.core.samples import Sample
from groupwise.environments.adapt import Playable, callable_tools, has_step, playable, role_of
from groupwise.environments.tools import Tool


class Scorer(Protocol):
    """A task that scores completions."""

    def score(self, sample: Sample, completion: str) -> float: ...


@dataclass(frozen=True)
class Game:
    """An environment's class as a recipe names it.

    use       `file.py:Class` or `package.module:Class`; "" where tools alone are the environment
    settings  given to the class for each episode
    tools     functions that the policy may call, named in the same way
    files     the files that they are in, as they were when the run began
    scorer    what scores the last turn of an episode that no class rewards; None where nothing does
    reward    a reward function of TRL's that reads `environments`, named in the same way; "" where there is none
    """

    use: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    files: Files = field(default_factory=dict)
    scorer: Scorer | None = None
    reward: str = ""

    @classmethod
    def of(
        cls,
        use: str,
        settings: Mapping[str, Any],
        tools: tuple[str, ...],
        files: Files = NO_FILES,
        scorer: Scorer | None = None,
        reward: str = "",
    ) -> "Game":
        """Make a game and read its files. Raises UsageError if there is no such file."""
        every = (source(name, f"{key} = {brief(name)}", files) for key, name in _names(use, tools, reward))
        return cls(use, settings, tools, {file.path: file for file in every if file is not None}, scorer, reward)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields alone: another process loads the class itself."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @property
    def sources(self) -> list[Source]:
        """The user's own files."""
        return list(self.files.values())

    @cached_property
    def kind(self) -> Any:
        """The class; None if tools alone are the environment. Raises UsageError if it is none."""
        if not self.use:
            return None
        what = f"task.use = {brief(self.use)}"
        kind = load(self.use, what, self.files)
        if not isinstance(kind, type):
            raise UsageError(f"{what}: a {type(kind).__name__}, not a class; write a class with reset and step")
        return kind

    @property
    def quick(self) -> bool:
        """True if the class says that it takes microseconds and cannot hang: then it is played in the run's process."""
        return self.kind is not None and not self.tools and bool(getattr(self.kind, "quick", False))

    @cached_property
    def functions(self) -> list[Callable[..., Any]]:
        """The tools that are no methods of the class. Raises UsageError if one cannot be loaded."""
        return [load(name, f"task.tools: {brief(name)}", self.files) for name in self.tools]

    @cached_property
    def callable_tools(self) -> tuple[Tool, ...]:
        """The tools that the policy may call; none of a class with `step`. Raises UsageError if the class has no form
        that can be played, or a tool no type hints.
        """
        return callable_tools(self.kind, self.functions)

    @cached_property
    def schemas(self) -> list[dict[str, Any]]:
        """The tools as a chat template is given them. Raises UsageError."""
        return [tool.schema() for tool in self.callable_tools]

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The names of the tools that the policy may call."""
        return tuple(tool.name for tool in self.callable_tools)

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that the environment's messages may have."""
        return (role_of(self.kind),)

    @property
    def with_special(self) -> bool:
        """True if the environment reads turns with special tokens written out: what marks a call may be one."""
        return not has_step(self.kind)

    @property
    def description(self) -> str:
        """The names of class and tools."""
        return ", ".join(name for _, name in _names(self.use, self.tools))

    def load(self) -> Callable[[], Playable]:
        """Return the maker of environments. Raises UsageError if the class is none, or does not take `settings`."""
        score = None if self.scorer is None else self.scorer.score
        reward = load(self.reward, f"task.reward = {brief(self.reward)}", self.files) if self.reward else None
        return playable(self.kind, self.settings, self.functions, score, reward)


def _names(use: str, tools: tuple[str, ...], reward: str = "") -> list[tuple[str, str]]:
    every = [("task.use", use), *(("task.tools", name) for name in tools), ("task.reward", reward)]
    return [(key, name) for key, name in every if name]
