"""A run as a program holds it: its folder, how it ended, its metrics and its policy."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from groupwise.commands.policies import policy_after
from groupwise.config.recipe import read_table
from groupwise.core.paths import location
from groupwise.core.terminal import Terminal
from groupwise.journal.journal import read_metrics, read_summary
from groupwise.journal.metric_columns import metric_columns
from groupwise.journal.recipe_file import whole_recipe
from groupwise.models.load import Policy


@dataclass(frozen=True)
class Run:
    """A run: one that has ended, or `Run.open(folder)` of any. It stands for its folder wherever a path does.

    summary     also summary.json in the folder; empty where the run has not come to its last step
    stopped_by  the signal that stopped it early; 0 where none did
    """

    folder: Path
    summary: dict[str, Any]
    stopped_by: int = 0

    def __fspath__(self) -> str:
        return str(self.folder)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Self:
        """The run of a folder, which may go on meanwhile. Raises UsageError where it is none."""
        path = location(folder, "run")
        steps, summary = read_table(whole_recipe(path)).get("steps"), read_summary(path)
        return cls(path, summary if summary.get("steps") == steps else {})

    @property
    def finished(self) -> bool:
        """Whether it came to its last step; one that did not goes on with groupwise.resume."""
        return bool(self.summary)

    def metrics(self) -> dict[str, list[Any]]:
        """metrics.jsonl as it is now, as columns: `pandas.DataFrame(run.metrics())`.

        A row a step, step 0 that of the first evaluation; None where a step has no such number. Tables are names with
        dots: `loss`, `seconds.update`, `evaluation.avg_at_k`. What each is: docs/metrics.md.
        """
        return metric_columns(read_metrics(self.folder))

    def policy(self, step: int | None = None, device: str | None = None) -> Policy:
        """The policy after a step, from its checkpoint; None is the newest good one's. `.model` and `.tokenizer`.

        An ordinary model of transformers, in evaluation mode; adapters are merged into its weights.

        device  "cpu" or "cuda"; None is the run's own
        Raises UsageError where there is no such checkpoint, or it does not load.
        """
        return policy_after(self.folder, step, Terminal(stderr=True).print, device).policy
