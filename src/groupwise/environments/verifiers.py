"""Environments of the package verifiers, in an interpreter of their own, because it pins another openai than this one.

A process that plays sessions keeps a process of that interpreter, which runs verifiers_driver.py. Seats ask with
verifiers' client for chat: it hands on what the harness says, and the run turns that into ids and keeps the sampled
ones. Its client for ids would need the policy's tokenizer in a folder, and write ids by a template code of its own.
"""

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groupwise.core.environment import Visit
from groupwise.core.errors import UsageError, brief
from groupwise.environments.agent import Agent, Tail

_INSTALL = "make one: python3.11 -m venv .venv-verifiers && .venv-verifiers/bin/python -m pip install verifiers==0.4.0"
_DRIVER = Path(__file__).with_name("verifiers_driver.py")


@dataclass(frozen=True)
class VerifiersAgent(Agent):
    """An environment of verifiers that plays.

    python  the interpreter that has verifiers
    env     the environment, as JSON of the table [env] that verifiers reads
    """

    python: str = ""
    env: str = "{}"

    @property
    def description(self) -> str:
        """The environment's own name."""
        return f"of verifiers, {self.env}"

    def load(self) -> Callable[[Visit], Any]:
        """Return what plays a session -> its reward."""
        return Driver(self.python, self.env).play


@dataclass
class Driver:
    """Process of the other interpreter: begun when it is first asked, and ended when nobody holds this."""

    python: str
    env: str
    _process: subprocess.Popen[str] | None = field(default=None, init=False)

    def play(self, visit: Visit) -> float:
        """Play a session -> its reward. Raises RuntimeError if it failed."""
        url = f"{visit.base_url.removesuffix('/v1')}/s/{visit.key}/v1"
        return self._asked(task=int(visit.sample.key), url=url)["reward"]

    def problems(self, count: int) -> list[dict[str, Any]]:
        """List so many problems at most. Raises UsageError if the environment cannot be made."""
        try:
            return self._asked(count=count)["problems"]
        except OSError as error:
            raise UsageError(f"task.python = {brief(self.python)}: {error.strerror}; {_INSTALL}") from None
        except RuntimeError as error:
            what = "task.python" if str(error).startswith(self.python) else "task.env"
            raise UsageError(f"{what}: {error}{f'; {_INSTALL}' if what == 'task.python' else ''}") from None

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.communicate()  # it ends when nobody can ask any more

    def _asked(self, **what: Any) -> dict[str, Any]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [self.python, str(_DRIVER), self.env], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            self._wrong = Tail(self._process.stderr)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline())
        except (BrokenPipeError, ValueError):
            last = self._wrong.lines()[-1:] or ["it said nothing"]
            raise RuntimeError(f"{self.python} has ended: {last[0]}") from None
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer
