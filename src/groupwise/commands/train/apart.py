"""Training in a process of its own, for those who make many runs: claims and sweeps."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path

from groupwise.core.errors import RunError
from groupwise.core.peer import PeerLost
from groupwise.core.processes.children import Child

#: The module whose `main` such a process lives by; it imports torch, which this one need not.
MODULE = "groupwise.commands.train.process"


def train_apart(
    recipe: str,
    settings: Mapping[str, object],
    folder: Path,
    threads: int | None = None,
    hold: Callable[[Child], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Train a recipe in a process of its own, or resume what is in its folder, to the last step.

    settings  dotted keys; `runs` and `name` make up the folder
    threads   that the libraries of the process begin with; None leaves them as they are
    hold      entered with the process while it runs, for whoever is to send it a signal
    Raises RunError, with one line that says why, if the run is not finished.
    """
    options = {"recipe": recipe, "settings": dict(settings), "folder": str(folder)}
    environment = None if threads is None else {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with closing(Child(MODULE, options, environment=environment)) as child, hold(child):
        try:
            error = child.receive()["error"]
        except PeerLost as lost:
            error = f"{lost}; {folder} is resumed the next time"
    if error:
        raise RunError(error)
