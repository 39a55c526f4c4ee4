"""The task `verifiers`: problems and scores of an environment of that package, whose seats are the policy."""

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from groupwise.core.errors import UsageError
from groupwise.core.files.paths import expanded
from groupwise.core.samples import Sample
from groupwise.environments.verifiers import Driver, VerifiersAgent
from groupwise.tasks.agent import SessionTask, whole_word
from groupwise.tasks.settings import require_split


@dataclass(frozen=True, repr=False)
class VerifiersTask(SessionTask):
    """Environments and tasksets of the package verifiers 0.4, run by an interpreter that has it.

    env       table [env] as verifiers reads it: `taskset.id` (a name, or a file `my_taskset.py`), arguments, seats
    python    interpreter that has verifiers; "": this one
    problems  number of the first tasks that are trained on
    heldout   number of the tasks behind them that are held out
    """

    env: Mapping[str, Any] = field(default_factory=dict)
    python: str = ""
    problems: int = 64
    heldout: int = 16
    kind: ClassVar[str] = "verifiers"

    def __post_init__(self) -> None:
        super().__post_init__()
        taskset = self.env.get("taskset")
        if not isinstance(taskset, Mapping) or not isinstance(taskset.get("id"), str) or not taskset["id"]:
            raise UsageError('task.env.taskset.id is missing: a taskset such as "textarena", or "my_taskset.py"')
        if self.problems < 1 or self.heldout < 1:
            raise UsageError("task.problems and task.heldout must be 1 or more")
        env = {**self.env, "taskset": {**taskset, "id": whole_word(taskset["id"])}}
        object.__setattr__(self, "env", env)
        object.__setattr__(self, "python", whole_word(expanded(self.python)) if self.python else sys.executable)
        agent = VerifiersAgent(call_seconds=self.seconds, files={}, python=self.python, env=json.dumps(env))
        object.__setattr__(self, "agent", agent)

    @property
    def contents(self) -> str:
        """A hash of the problems."""
        return hashlib.sha256(json.dumps(self._listed, sort_keys=True).encode()).hexdigest()

    def samples(self, split: str) -> Sequence[Sample]:
        """Return the problems of "train" or "heldout"."""
        require_split(split, "verifiers")
        return self._problems[: self.problems] if split == "train" else self._problems[self.problems :]

    @cached_property
    def _listed(self) -> list[dict[str, Any]]:
        wanted = self.problems + self.heldout
        with closing(Driver(self.python, json.dumps(self.env))) as driver:
            listed = driver.problems(wanted)
        if len(listed) < wanted:
            what = f"task.problems = {self.problems} and task.heldout = {self.heldout}"
            raise UsageError(f"{what}: {self.env['taskset']['id']} has {len(listed)} tasks; set them lower")
        return listed

    @cached_property
    def _problems(self) -> list[Sample]:
        return [
            Sample(str(i), row["messages"][-1]["content"], "", extra={"name": row["name"]}, messages=row["messages"])
            for i, row in enumerate(self._listed)
        ]

    def __repr__(self) -> str:
        return (
            f"verifiers {self.env['taskset']['id']}, run by {self.python}, at most {self.max_turns} requests a session"
        )
