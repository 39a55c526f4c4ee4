"""The task `agent`: each problem is a session, in which somebody's own agent asks the policy as often as it likes."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any, ClassVar

from groupwise.core.code.user_code import NO_FILES, Files, load, whole_use
from groupwise.core.environment import EpisodeLimits
from groupwise.core.errors import UsageError, brief
from groupwise.core.samples import Sample
from groupwise.core.task import Demonstration
from groupwise.environments.agent import Agent
from groupwise.tasks.data.task import PlayedProblems
from groupwise.tasks.settings import SentAsSettings


@dataclass(frozen=True, repr=False)
class SessionTask(SentAsSettings):
    """Problems each of which is a session.

    max_turns    most requests in a session
    turn_tokens  most tokens in an answer of the policy; 0: what the session has left
    seconds      time limit of a session
    sessions     sessions played at once, each in a process of its own
    patience     seconds for which a round of sampling waits for a session that does not ask; 0: no rounds, and what is
                 asked is sampled as it comes
    """

    max_turns: int = 64
    turn_tokens: int = 0
    seconds: float = 600.0
    sessions: int = 16
    patience: float = 5.0
    agent: ClassVar[Agent]  # of the instance: who plays
    kind: ClassVar[str] = "agent"
    quick: ClassVar[bool] = True  # scores are what agents return

    def __post_init__(self) -> None:
        if self.max_turns < 1 or self.turn_tokens < 0 or not 1 <= self.sessions <= 1024:
            raise UsageError("task.max_turns must be 1 or more, task.turn_tokens 0 or more, task.sessions 1 to 1024")
        if self.seconds <= 0 or self.patience < 0:
            raise UsageError("task.seconds must be more than 0, task.patience 0 or more")

    @property
    def in_parts(self) -> str:
        """Name the task: an agent may begin anew in a session."""
        return f'task.name = "{self.kind}"'

    @property
    def limits(self) -> EpisodeLimits:
        """The limits at which sessions are cut off."""
        return EpisodeLimits(self.max_turns, self.turn_tokens, self.seconds)

    @property
    def alphabet(self) -> str:
        """Return "": anything may be said."""
        return ""

    def score(self, sample: Sample, completion: str) -> float:
        """Raise UsageError: only a session has a reward."""
        raise UsageError("sessions are scored by who plays them, and no texts")


@dataclass(frozen=True, repr=False)
class AgentTask(SessionTask, PlayedProblems):
    """Problems that an agent solves, from `path` as in the task `data`, or from `samples(split)` in the agent's file.

    use      function `run(sample, base_url, key)` that returns the reward: `file.py:run` or `package.module:run`
    command  instead of `use`: a program and its arguments
    repeats  keep rows of `path` with equal prompts as different problems
    """

    use: str = ""
    command: tuple[str, ...] = ()
    check: str = "none"
    repeats: bool = True
    files: InitVar[Files | None] = None

    def __post_init__(self, files: Files | None) -> None:
        if bool(self.use) == bool(self.command):
            raise UsageError(
                'task.use is missing: a function such as "my_agent.py:run", or task.command, a program'
                if not self.use
                else "task.use and task.command are two agents; take one of them out"
            )
        SessionTask.__post_init__(self)
        kept, what = files or NO_FILES, f"task.use = {brief(self.use)}"
        # Names of files are made whole, for use from any folder.
        object.__setattr__(self, "use", whole_use(self.use, what, kept) if self.use else "")
        object.__setattr__(self, "command", tuple(map(whole_word, self.command)))
        object.__setattr__(self, "agent", Agent.of(self.use, self.command, self.seconds, kept))
        self.agent.load()
        beside = f", as {self.use} has no samples(split) beside it" if self.use else ""
        own = self._beside("samples", None) is not None
        self.require_problems("" if own else f"a file of problems{beside}")

    @property
    def alphabet(self) -> str:
        """Every character of prompts and answers, where the agent's file says so; empty if it does not."""
        return str(self._beside("alphabet", ""))

    @property
    def contents(self) -> str:
        """A hash of what the problems and demonstrations are functions of."""
        files = [source.sha256 for source in self.agent.sources]
        return hashlib.sha256(repr((files, self.seed, self._data.contents if self.path else "")).encode()).hexdigest()

    def own_samples(self, split: str) -> Sequence[Sample]:
        """Return the problems of the agent's file."""
        return self._beside("samples", None)(split)

    def demonstrations(self, count: int, seed: int) -> Iterable[Demonstration]:
        """Return the demonstrations of the agent's file, or the solutions of `path`. Raises UsageError."""
        show = self._beside("demonstrations", None)
        if show is not None:
            return show(count, seed)
        if self.path:
            return self._data.demonstrations(count, seed)
        raise UsageError(f"warm_start.steps: {self.use} has no demonstrations(count, seed) beside it; set it to 0")

    def _beside(self, name: str, default: Any) -> Any:
        """Return what the agent's file has by a name. Raises UsageError if the file cannot be loaded."""
        if not self.use:
            return default
        file = self.use.rpartition(":")[0]
        function = load(self.use, f"task.use = {brief(self.use)}", self.agent.files)
        there = name in getattr(function, "__globals__", {})
        return load(f"{file}:{name}", f"task.use = {brief(self.use)}", self.agent.files) if there else default

    def __repr__(self) -> str:
        where = f", problems from {self.path}" if self.path else ""
        return f"agent {self.agent.description}{where}, at most {self.max_turns} requests a session"


def whole_word(word: str) -> str:
    """Return a word of a command line; the name of a file that is here with its whole path."""
    path = Path(word)
    return str(path.absolute()) if path.is_file() and not path.is_absolute() else word
