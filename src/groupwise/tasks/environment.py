"""The task `environment`: each problem is an episode, of the policy's turns and an environment's answers."""

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from groupwise.core.code.user_code import NO_FILES, Files, raised, whole_use
from groupwise.core.environment import EpisodeLimits
from groupwise.core.errors import UsageError, brief, nearest
from groupwise.core.samples import Sample
from groupwise.core.task import Demonstration
from groupwise.environments.adapt import Playable, has_step
from groupwise.environments.game import Game
from groupwise.tasks.data.task import PlayedProblems

HISTORIES, FAULTS = ("refuse", "grow", "rewrite"), ("mask", "answer")


@dataclass(frozen=True, repr=False)
class EnvironmentTask(PlayedProblems):
    """Multi-turn problems from the environment's `samples(split)`, or from `path` as in the task `data`.

    use          environment class: `file.py:Class` or `package.module:Class`
    settings     arguments of the class, for each episode
    tools        functions that the policy may call, named like `use`; without `use` they are the environment
    reward       TRL reward function that reads `environments`, named like `use`, for a class with tools
    max_turns    most turns of the policy in an episode
    turn_tokens  most tokens in a turn of the policy; 0: what the episode has left
    seconds      seconds for all the environment's answers in an episode; 0: no limit
    on_fault     if the environment fails: "mask" ends the episode and leaves it out of training and baselines; "answer"
                 sends the policy the error
    history      if the chat template rewrites earlier turns: "refuse"; "grow" keeps turns as sampled; "rewrite" trains
                 each turn after the rewritten prompt
    repeats      keep rows of `path` with equal prompts as different problems
    """

    use: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    reward: str = ""
    max_turns: int = 8
    turn_tokens: int = 0
    seconds: float = 0.0
    on_fault: str = "mask"
    history: str = "refuse"
    repeats: bool = True
    files: InitVar[Files | None] = None
    game: ClassVar[Game]  # of the instance: what is played
    kind: ClassVar[str] = "environment"
    quick: ClassVar[bool] = True  # scores are what turns have brought; what is slow is played in processes

    def __post_init__(self, files: Files | None) -> None:
        if not self.use and not self.tools:
            raise UsageError('task.use is missing: an environment such as "my_env.py:GuessNumber", or task.tools')
        if self.max_turns < 1 or self.turn_tokens < 0 or self.seconds < 0:
            raise UsageError("task.max_turns must be 1 or more, task.turn_tokens and task.seconds 0 (no limit) or more")
        for key, choices in (("on_fault", FAULTS), ("history", HISTORIES)):
            if getattr(self, key) not in choices:
                near = nearest(getattr(self, key), choices)
                raise UsageError(f"task.{key} = {brief(getattr(self, key))}: there is no such choice; {near}")
        kept = files or NO_FILES

        def whole(key: str, name: str) -> str:
            return whole_use(name, f"task.{key} = {brief(name)}", kept)

        # Names of files are made whole, for use from any folder.
        object.__setattr__(self, "use", whole("use", self.use) if self.use else "")
        object.__setattr__(self, "tools", tuple(whole("tools", tool) for tool in self.tools))
        object.__setattr__(self, "reward", whole("reward", self.reward) if self.reward else "")
        scorer = self._data if self.path and self._data.has_answers else None
        game = Game.of(self.use, self.settings, self.tools, kept, scorer, self.reward)
        object.__setattr__(self, "game", game)
        if own_path := self.path and getattr(game.kind, "own_path", ""):
            raise UsageError(f"task.path: {self.use} does not read it; {own_path} names the file of its problems")
        own = callable(getattr(game.kind, "samples", None))
        what = f"{game.description} has no samples(split) of its own; set task.path to a file of problems"
        self.require_problems("" if own else f"{what}, or give the class the method")

    @property
    def in_processes(self) -> bool:
        """True if its environments do not play where the run is."""
        return not self.game.quick

    @property
    def in_parts(self) -> str:
        """Name the history that is written anew for each turn; "" for others."""
        return 'task.history = "rewrite"' if self.history == "rewrite" else ""

    @property
    def limits(self) -> EpisodeLimits:
        """The limits at which episodes end."""
        return EpisodeLimits(self.max_turns, self.turn_tokens, self.seconds, self.on_fault)  # type: ignore[arg-type]

    @property
    def alphabet(self) -> str:
        """Every character of prompts, turns and answers, where the class says so; empty if it does not."""
        alphabet = getattr(self.game.kind, "alphabet", "")
        return str(self._own.alphabet if isinstance(alphabet, property) else alphabet)

    @property
    def longest_turn(self) -> float:
        """Seconds after which the environment ends an answer itself, where it says so; else 0.0."""
        return float(self._shared.longest) if hasattr(self._shared, "longest") else 0.0

    def notes(self) -> Sequence[str]:
        """Write lines for the user, of the environment and of the file of problems. Raises UsageError if it cannot be
        played on this machine.
        """
        own = self._shared.notes() if hasattr(self._shared, "notes") else []
        return [*own, *super().notes()]

    @property
    def contents(self) -> str:
        """A hash of what its problems and demonstrations are functions of, beside what its name says: its settings, and
        what the files say that the environment and the problems are in.
        """
        files, kind = [source.sha256 for source in self.game.sources], self.game.kind
        code = "" if files or kind is None else inspect.getsource(inspect.getmodule(kind) or type(self))
        problems = self._data.contents if self.path else getattr(self._shared, "contents", "")
        return hashlib.sha256(repr((dict(self.settings), self.seed, files, code, problems)).encode()).hexdigest()

    def own_samples(self, split: str) -> Sequence[Sample]:
        """Return the problems of the environment's class."""
        return self._own.samples(split)

    def require_playable(self, sample: Sample) -> None:
        """Raise UsageError if its prompt begins the policy's turn, or it offers functions of its own."""
        if self.path and sample.prefill:
            what = f"{sample.key}: its prompt begins the policy's turn, which no environment reads"
            raise UsageError(f"{what}; take the assistant's last turn out, or name the column as task.messages")
        if sample.tools:
            what = f"{sample.key}: it has functions of its own that the policy may call, and no environment answers"
            raise UsageError(f'{what} such a call; set task.functions = "" to leave them out of prompts')

    def score(self, sample: Sample, completion: str) -> float:
        """Score an episode whose only turn is the completion."""
        playable = self._new()
        playable.reset(sample)
        return float(playable.reply(completion).reward)

    def gold(self, sample: Sample) -> str:
        """Return a first turn that should bring 1.0, as the environment's class knows one; "" if it knows none.

        Where a checker or a reward function reads the last turn, it compares it with the answer. A class that rewards
        its turns itself may keep in `answer` what it likes, such as the walls of a maze. Raises UsageError.
        """
        if not has_step(self.game.kind):
            judged = self.game.scorer is not None or self.reward
            return "" if not judged else self._data.gold(sample) if self.path else sample.answer
        show = getattr(self._own, "gold", None)
        if not callable(show):
            return ""
        try:
            text = show(sample)
        except Exception as error:
            raise raised(f"task.use = {brief(self.use)}", f"gold() of {sample.key}", error) from None
        if not isinstance(text, str):
            what = f"task.use = {brief(self.use)}: gold() of {sample.key}"
            raise UsageError(f"{what} returned {brief(text)}; it must be the text of a turn")
        return text

    def demonstrations(self, count: int, seed: int) -> Iterable[Demonstration]:
        """Return the demonstrations of the environment's class: each a turn, after all that was said before it. Raises
        UsageError.
        """
        show = getattr(self._own, "demonstrations", None)
        if show is None:
            what = f"{self.game.description} has no demonstrations(count, seed) to imitate"
            raise UsageError(f"warm_start.steps: {what}; set it to 0")
        return show(count, seed)

    @cached_property
    def _new(self) -> Callable[[], Playable]:
        """The maker of episodes in this process."""
        return self.game.load()

    @cached_property
    def _own(self) -> Any:
        """One instance, for the problems that it may have. Raises UsageError."""
        _ = self._new  # says first what is wrong with the settings' names
        try:
            return self.game.kind(**self.settings)
        except UsageError:
            raise
        except Exception as error:
            raise raised(f"task.use = {brief(self.use)}", f"making {self.game.kind.__name__}", error) from None

    @property
    def _shared(self) -> Any:
        """The instance that episodes are made from, of a class with `step` and `fresh`; None of others, whose methods
        may be tools, or called the same and mean something else.
        """
        kind = self.game.kind
        return self._own if callable(getattr(kind, "step", None)) and callable(getattr(kind, "fresh", None)) else None

    def __repr__(self) -> str:
        where = f", problems from {self.path}" if self.path else ""
        return f"environment {self.game.description}{where}, at most {self.max_turns} turns"
