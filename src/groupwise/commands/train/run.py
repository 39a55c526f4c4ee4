"""Run as a program holds it: its folder, how it ended, its metrics and its policy."""

import os
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Self

from groupwise.commands.build.policy import policy_after
from groupwise.config.recipe import read_table
from groupwise.core.errors import GroupwiseError, UsageError, brief
from groupwise.core.files import jsonl
from groupwise.core.files.paths import from_here, location
from groupwise.core.machine.terminal import Terminal
from groupwise.journal.journal import ROLLOUTS, metric_columns, read_metrics, read_summary, sound_metrics
from groupwise.journal.kept import whole_recipe
from groupwise.journal.terminal import curve
from groupwise.models.load import Policy


@dataclass(frozen=True)
class Run:
    """Run that has ended, or `Run.open(folder)` of any. It stands for its folder wherever a path does.

    folder      absolute, so that it is found whatever folder the program goes to
    summary     also summary.json in the folder; empty if the run has not come to its last step
    stopped_by  the signal that stopped it early; 0 if none did
    """

    folder: Path
    summary: dict[str, Any]
    stopped_by: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", self.folder.absolute())

    def __fspath__(self) -> str:
        return str(self.folder)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Self:
        """Open the run of a folder, which may go on meanwhile. Raises UsageError if the folder is none."""
        path = location(folder, "run")
        steps, summary = read_table(whole_recipe(path)).get("steps"), read_summary(path)
        return cls(path, summary if summary.get("steps") == steps else {})

    @property
    def finished(self) -> bool:
        """Whether the run came to its last step; one that did not is resumed with groupwise.resume."""
        return bool(self.summary)

    def metrics(self) -> dict[str, list[Any]]:
        """Read metrics.jsonl as it is now, as columns: `pandas.DataFrame(run.metrics())`.

        A row a step, step 0 that of the first evaluation; None if a step has no such number. Tables are names with
        dots: `loss`, `seconds.update`, `evaluation.avg_at_k`. What each is: docs/metrics.md.
        """
        return metric_columns(read_metrics(self.folder))

    def rollouts(self, step: int | None = None) -> list[dict[str, Any]]:
        """Read rollouts.jsonl as it is now, or its rows of one step: `pandas.DataFrame(run.rollouts(step=1))`.

        A row a completion, with its prompt, answer, text, score and advantage. What else there is: docs/metrics.md.
        Raises UsageError if there are none.
        """
        path = whole_recipe(self.folder).with_name(ROLLOUTS)
        rows = list(jsonl.rows(path, step)) if path.is_file() else []
        if not rows:
            which = "" if step is None else f" of step {brief(step)}"
            steps = [row["step"] for row in sound_metrics(self.folder) if row["step"]]
            have = f"it has trained steps {steps[0]} to {steps[-1]}" if steps else "it has trained no step"
            raise UsageError(f"{path} has no rollouts{which}; {have}")
        return rows

    def policy(self, step: int | None = None, device: str | None = None) -> Policy:
        """Load the policy after a step, from its checkpoint; None is the newest good one's. `.model` and `.tokenizer`.

        An ordinary model of transformers, in evaluation mode; adapters are merged into its weights.

        device  "cpu" or "cuda"; None is the run's own
        Raises UsageError if there is no such checkpoint, or it does not load.
        """
        return policy_after(self.folder, step, Terminal(stderr=True).print, device).policy

    def _repr_html_(self) -> str:
        """Show the run in a notebook: how far it came, and what was measured on the way."""
        try:
            about = self._facts()
        except GroupwiseError as error:  # the folder was moved, or is damaged
            about = {"cannot be read": str(error)}
        left = 'style="text-align: left"'
        cells = "".join(
            f"<tr><th {left}>{escape(name)}</th><td {left}>{escape(value)}</td></tr>" for name, value in about.items()
        )
        folder = escape(str(from_here(self.folder)))
        return f"<table><tr><th {left}>run</th><th {left}>{folder}</th></tr>{cells}</table>"

    def _facts(self) -> dict[str, str]:
        recipe, s = read_table(whole_recipe(self.folder)), self.summary
        rows = [row for row in sound_metrics(self.folder) if isinstance(row.get("reward_mean"), float)]
        done = f"{rows[-1]['step'] if rows else 0} of {recipe.get('steps')} steps"
        facts = {
            "algorithm": str(recipe.get("algorithm", {}).get("name", "")),
            "model": str(recipe.get("model", "")),
            "trained": done + ("" if s else "; it goes on, or stopped: groupwise.resume(run)"),
        }
        if rows:
            rewards = [row["reward_mean"] for row in rows]
            facts["reward in training"] = f"{rewards[0]:.3f} -> {rewards[-1]:.3f}  {curve(rewards, 40)}"
        if "heldout_after" in s:
            facts[f"held-out {s['heldout_measure']}"] = (
                f"{s['heldout_before']:.3f} -> {s['heldout_after']:.3f} on {s['heldout_problems']} problems x "
                f"{s['heldout_samples']} samples"
            )
            facts["mean length"] = f"{s['length_before']:.1f} -> {s['length_after']:.1f} tokens"
        if "seconds_total" in s:
            facts["time"] = f"{s['seconds_training']:.0f} s of training, {s['seconds_total']:.0f} s in all"
        return facts
