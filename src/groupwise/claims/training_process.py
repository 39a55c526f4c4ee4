"""The process of a training run (experiments.py): it trains, or goes on where it stopped, and answers once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groupwise.claims import readings
from groupwise.commands.train.train import resume, train
from groupwise.core.channel import Channel
from groupwise.core.code.unexpected import unexpected
from groupwise.core.errors import GroupwiseError, RunError
from groupwise.journal.kept import RECIPE


def main(channel: Channel, recipe: str, settings: Mapping[str, object], folder: str) -> None:
    """Answer with what is read of the finished run, or with one line that says why there is none."""
    answer: dict[str, Any] = {"measured": {}, "error": ""}
    try:
        begun = (Path(folder) / RECIPE).exists()
        run = resume(folder) if begun else train(recipe, settings)
        if not run.finished:
            raise RunError(f"{folder}: stopped before its last step; it is gone on with the next time")
        answer["measured"] = readings.read(run.folder)
    except GroupwiseError as refused:
        answer["error"] = str(refused)
    except Exception as wrong:
        answer["error"] = unexpected(wrong, f"a run in {folder}")
    channel.send(answer)
