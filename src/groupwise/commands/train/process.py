"""Process of a training run (apart.py): it trains, or resumes the run of its folder, and answers once."""

from collections.abc import Mapping
from pathlib import Path

from groupwise.commands.train.train import resume, train
from groupwise.core.channel import Channel
from groupwise.core.code.unexpected import unexpected
from groupwise.core.errors import GroupwiseError, RunError
from groupwise.journal.kept import RECIPE


def main(channel: Channel, recipe: str, settings: Mapping[str, object], folder: str) -> None:
    """Answer with one line that says why the run is not finished; empty if it is."""
    error = ""
    try:
        begun = (Path(folder) / RECIPE).exists()
        run = resume(folder) if begun else train(recipe, settings)
        if not run.finished:
            raise RunError(f"{folder}: stopped before its last step; it is resumed the next time")
    except GroupwiseError as refused:
        error = str(refused)
    except Exception as wrong:
        error = unexpected(wrong, f"a run in {folder}")
    channel.send({"error": error})
