"""The outputs of a run: its folder, the terminal, and warnings as they become true."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.core.numbers.measure import Measure
from groupwise.core.records import Batch, Evaluation, Group
from groupwise.core.stream import RolloutResult
from groupwise.health.symptoms.base import Finding
from groupwise.health.watch import Watch
from groupwise.journal.journal import ABOUT, LOG, Journal, read_about, sound_metrics
from groupwise.journal.lines import Checked
from groupwise.journal.per_token import PerToken
from groupwise.journal.rollout_rows import Spell, heldout_rows, rollout_rows
from groupwise.journal.terminal import View


@dataclass(frozen=True)
class Output:
    """The run folder, the view of the terminal, and the watch over the run's health.

    token_text    the text of each token, for the columns per token
    token_budget  completion tokens a step whose columns per token are written
    measure       what completions are judged by
    """

    journal: Journal
    view: View
    watch: Watch
    token_text: Spell
    token_budget: int
    measure: Measure = Measure()

    @property
    def log(self) -> Path:
        return self.journal.folder / LOG

    def say(self, step: int, line: str, shown: str = "") -> None:
        """Write a line to the log, and to the terminal the same or, if `shown` is given, that one."""
        self.journal.log(f"step {step}: {line}")
        self.view.note(shown or f"step {step}: {line}")

    def faults(self, step: int, lines: Sequence[str]) -> None:
        """Write the first scoring fault of each kind."""
        for line in lines:
            self.say(step, line, shown=f"step {step}: first of its kind: {line}")

    def checks(self, step: int, checks: Sequence[Checked]) -> None:
        """Write each check into the log, and in short how many hold."""
        for check in checks:
            self.journal.log(f"step {step}: {check}")
        self.view.checks(checks)

    def columns(self, batch: Batch) -> PerToken:
        """Begin to gather the columns per token of a batch while it trains."""
        return PerToken(batch, self.token_budget)

    def rollouts(self, step: int, result: RolloutResult, batch: Batch, columns: PerToken) -> None:
        """Write every completion of the step, and show the first."""
        self.journal.rollouts(rollout_rows(step, result, batch, columns, self.token_text, self.measure))
        for group in result.groups[:1]:
            one = group.completions[0]
            self.view.completion(group.prompt.sample.prompt, one.text, self.measure.value(one))

    def step(self, row: Mapping[str, Any], machine: Mapping[str, Any] | None = None) -> None:
        """Write a step's row of metrics.jsonl, and each warning that is true for the first time; `machine` is what
        the step's line of machine.jsonl has besides.
        """
        self.journal.metrics(row)
        self.journal.machine(row["step"], machine or {})
        self.view.step(row)
        for finding in self.watch(row):
            self.say(row["step"], f"warning, {finding.name}: {finding.words} Try: {finding.advice}.")

    def alarms(self) -> tuple[Finding, ...]:
        """Look for the early warnings of collapse that begin with the step whose row was the last."""
        return self.watch.begun()

    def cut_back(self, step: int) -> float:
        """Take out all rows after a step, as if it were the last that was made -> the seconds that they took."""
        rows = sound_metrics(self.journal.folder)
        self.journal.cut_back(step)
        self.view.cut_back(step)
        self.know([row for row in rows if row["step"] <= step])
        return math.fsum(value for row in rows if row["step"] > step for value in row.get("seconds", {}).values())

    def know(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take in the rows of metrics.jsonl so far, if the run did not begin with this process or this step."""
        self.watch.restart([row for row in rows if "evaluation" not in row])

    def rolled_back(self, rollbacks: Sequence[Mapping[str, Any]]) -> None:
        """Write each return of the run so far into about.json."""
        self.journal.replace(ABOUT, {**read_about(self.journal.folder), "rolled_back": rollbacks})

    def evaluation(
        self, step: int, evaluation: Evaluation, groups: Sequence[Group], seconds: Mapping[str, float]
    ) -> None:
        """Write an evaluation's completions, problems, and row of metrics.jsonl: seconds since the row before."""
        self.journal.heldout(heldout_rows(step, groups, self.measure))
        self.journal.problems(step, evaluation.by_problem)
        self.journal.metrics({"step": step, "evaluation": evaluation.row, "seconds": seconds})
        self.view.evaluation(step, evaluation)
