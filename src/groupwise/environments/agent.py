"""An agent that plays sessions: a user's function or a command line, in a process that plays one session at a time.

    run(sample, base_url, key) -> reward          a function, `async` or not
    ["python", "agent.py"]                        a program, in a folder of its own, which has sample.json

A program is told where the policy is by the variables that OpenAI's and Anthropic's libraries read. Its reward is what
it writes into reward.txt, else the last line that it prints.
"""

import asyncio
import inspect
import json
import os
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from threading import Thread
from typing import IO, Any

from groupwise.core.code.user_code import NO_FILES, Files, Source, load, source
from groupwise.core.environment import ENVIRONMENT, MODEL, Visit
from groupwise.core.errors import UsageError, brief
from groupwise.core.samples import Cause, ScoreResult
from groupwise.rewards.functions.adapters import Bound, playing, score_result

#: Files in a program's folder: what it is given, and what it may write.
SAMPLE, REWARD = "sample.json", "reward.txt"
#: Variables from which programs read a model's name, for large tasks and small ones.
MODELS = (
    "OPENAI_MODEL", "ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL",
)  # fmt: skip
#: The last lines of what a program prints are kept, of so many characters at most.
_LINES, _LONGEST_LINE = 20, 2_000


@dataclass(frozen=True)
class Agent:
    """An agent as a recipe names it.

    use           `file.py:function` or `package.module:function`; "" of a command
    command       program and its arguments
    call_seconds  after which a session is a fault
    files         the file that the function is in, as it was when the run began
    """

    use: str = ""
    command: tuple[str, ...] = ()
    call_seconds: float = 600.0
    files: Files = field(default_factory=lambda: NO_FILES)

    @classmethod
    def of(cls, use: str, command: tuple[str, ...], seconds: float, files: Files = NO_FILES) -> "Agent":
        """Make an agent and read its file. Raises UsageError if there is no such file."""
        file = source(use, f"task.use = {brief(use)}", files) if use else None
        return cls(use, command, seconds, {} if file is None else {file.path: file})

    @property
    def sources(self) -> list[Source]:
        """The user's own file."""
        return list(self.files.values())

    @property
    def description(self) -> str:
        """Name of the function, or the command line."""
        return self.use or " ".join(self.command)

    def load(self) -> Callable[[Visit], Any]:
        """Return what plays a session -> its reward. Raises UsageError if the function cannot be loaded or called."""
        if self.command:
            return lambda visit: _of_command(self.command, visit)
        what = f"task.use = {brief(self.use)}"
        function = load(self.use, what, self.files)
        try:
            inspect.signature(function).bind(None, "", "")
        except TypeError:
            raise UsageError(f"{what}: must be a function run(sample, base_url, key) that returns a reward") from None
        return lambda visit: _of_function(function, visit)

    def bind(self) -> Bound:
        """Make what plays in a process of the pool."""
        return Bound(partial(_rewarded, self.load()), playing(self.description), ENVIRONMENT)


def _rewarded(play: Callable[[Visit], Any], attempt: Visit) -> ScoreResult:
    result = play(attempt)
    result = result if isinstance(result, ScoreResult) else score_result(result)
    if result.cause is None and not result.votes:
        return ScoreResult(cause=Cause.WRONG_TYPE, detail="its reward: None, no number")
    return result


def _of_function(function: Callable[..., Any], visit: Visit) -> Any:
    result = function(visit.sample, visit.base_url, visit.key)
    if not inspect.isawaitable(result):
        return result

    async def finish() -> Any:
        return await result

    return asyncio.run(finish())


def _of_command(command: Sequence[str], visit: Visit) -> ScoreResult:
    """Run a program for a session -> its reward, or the fault that it ended with."""
    told = {
        "OPENAI_BASE_URL": visit.base_url, "OPENAI_API_KEY": visit.key,
        "ANTHROPIC_BASE_URL": visit.base_url.removesuffix("/v1"), "ANTHROPIC_API_KEY": visit.key,
        **dict.fromkeys(MODELS, MODEL),
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="agent-", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        (folder / SAMPLE).write_text(json.dumps(asdict(visit.sample), default=str))
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **told}, text=True, errors="replace", stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        printed, wrong = Tail(process.stdout), Tail(process.stderr)
        if code := process.wait():
            detail = "\n".join([*wrong.lines(), f"{command[0]} ended with exit code {code}"])
            return ScoreResult(cause=Cause.EXCEPTION, detail=detail)
        lines, where = printed.lines(), "the last line that it prints"
        words = lines[-1] if lines else ""
        if (folder / REWARD).is_file():
            with (folder / REWARD).open(errors="replace") as file:
                words, where = file.read(_LONGEST_LINE).strip(), REWARD
    with suppress(ValueError):
        return score_result(float(words))
    return ScoreResult(cause=Cause.WRONG_TYPE, detail=f"{where} is {words[:200]!r}, not a number, its reward")


class Tail:
    """Reads all that a stream brings, and keeps its last lines."""

    def __init__(self, stream: IO[str] | None) -> None:
        assert stream is not None
        self._stream, self._kept = stream, deque[str](maxlen=_LINES)
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while line := self._stream.readline(_LONGEST_LINE):
            if line.strip():
                self._kept.append(line.strip())

    def lines(self) -> list[str]:
        """Return the last lines; what a program left running still writes is not waited for long."""
        self._thread.join(1.0)
        return list(self._kept)
