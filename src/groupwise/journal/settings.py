"""Settings of the section [journal]."""

import json
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from groupwise.core.errors import brief, nearest
from groupwise.core.settings import Changeable, Settings
from groupwise.journal.trackers import TRACKERS

#: How a recipe names that it has no tracker.
NONE = "none"


def _known_trackers(value: object) -> object:
    """Take a name, names with commas between, or a list. Raises ValueError for a name that is none, or is there twice.

    >>> _known_trackers("wandb"), _known_trackers("wandb,mlflow"), _known_trackers([])
    ('wandb', ('wandb', 'mlflow'), ())
    """
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)):
        raise ValueError('a name is expected, such as "wandb", or a list of names')
    names = [name.strip() if isinstance(name, str) else name for name in names]
    for name in names:
        if name == NONE and len(names) > 1:
            raise ValueError(f'"{NONE}" stands alone; take it out, or the others')
        if name not in [NONE, *TRACKERS]:
            raise ValueError(f"there is no tracker {brief(name)}; {nearest(str(name), [NONE, *TRACKERS])}")
        if names.count(name) > 1:
            raise ValueError(f"{brief(name)} is there twice")
    alone = isinstance(value, str) and len(names) == 1
    return names[0] if alone else () if names == [NONE] else tuple(names)


def _one_line(text: str) -> str:
    """Raise ValueError for a name with line breaks or other characters that do not show."""
    if not text.isprintable() or text != text.strip():
        raise ValueError("a name is expected, with no space at its ends and no line break")
    return text


def _listed(tags: object) -> object:
    """Raise ValueError for one text, which would be read as its characters."""
    if isinstance(tags, str):
        raise ValueError(f"a list is expected, such as [{json.dumps(tags)}]")
    return tags


TrackerName = Literal["tensorboard", "trackio", "wandb", "mlflow"]
Trackers = Annotated[Literal["none"] | TrackerName | tuple[TrackerName, ...], BeforeValidator(_known_trackers)]
Tags = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_one_line)], ...],
    Field(strict=False, max_length=32),
    BeforeValidator(_listed),
]


class JournalSettings(Settings):
    """Report, per-token columns and trackers.

    token_budget  completion tokens per step, in whole groups, with columns per token; 0: none
    report        write a report when the run finishes
    tracker       tracker that gets the metrics too, or a list such as ["wandb", "mlflow"]
    project       project in W&B and trackio, experiment in MLflow
    group         group of runs in W&B, trackio and MLflow; "": none
    tags          tags of the run in W&B and MLflow
    completions   completions per step sent to trackers; 0: no prompts or texts leave this machine
    """

    token_budget: Changeable[int] = Field(default=200_000, ge=0)
    report: Changeable[bool] = True
    tracker: Changeable[Trackers] = "none"
    project: Changeable[Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_one_line)]] = "groupwise"
    group: Changeable[Annotated[str, Field(max_length=128), AfterValidator(_one_line)]] = ""
    tags: Changeable[Tags] = ()
    completions: Changeable[int] = Field(default=0, ge=0, le=100)

    @property
    def trackers(self) -> tuple[str, ...]:
        """List the trackers by name; empty if there is none."""
        if isinstance(self.tracker, str):
            return () if self.tracker == NONE else (self.tracker,)
        return self.tracker
