"""Trackers: a run's numbers in TensorBoard, trackio, W&B or MLflow, where its recipe asks for it."""

import inspect
import json
import logging
import re
import shlex
import time
import uuid
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from groupwise.core.errors import UsageError, need
from groupwise.core.files.jsonl import flat
from groupwise.health.symptoms.base import is_number

Row = Mapping[str, Any]

#: What trackers keep inside a run folder.
FOLDER = "trackers"
#: The name of a table of completions.
COMPLETIONS = "completions"


@dataclass(frozen=True)
class Tracked:
    """Run as a tracker hears of it at its start.

    recipe  resolved
    after   the step that the run goes on after: later ones will be logged again
    project, group, tags  names under which the library files the run; a library without one of them leaves it out
    """

    folder: Path
    name: str
    recipe: Row
    after: int = 0
    project: str = "groupwise"
    group: str = ""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """Completions of a step: the cells of each row are texts, finite numbers or None."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[str | float | None]]


class Tracker(Protocol):
    """A library that keeps numbers, one call at a time. Making one raises UsageError if the library is missing.

    start   says where to look
    log     numbers by name, of the step or of the evaluation after it
    table   completions of the step; nothing in a library without tables
    back    the run goes on after an earlier step, and logs later ones anew; a library may have no word for that
    close   `summary` is None if the run did not finish
    """

    def start(self, run: Tracked) -> str: ...

    def log(self, numbers: Mapping[str, float], step: int) -> None: ...

    def table(self, completions: Table, step: int) -> None:
        pass

    def back(self, step: int) -> None:
        pass

    def close(self, summary: Row | None) -> None: ...


class TensorBoard(Tracker):
    """Event files in the run folder. A run that goes on hides what it had logged of the steps that it makes again."""

    def __init__(self) -> None:
        _library("tensorboard")
        self._library = _library("torch.utils.tensorboard")

    def start(self, run: Tracked) -> str:
        events = run.folder / FOLDER / "tensorboard"
        purge = None if not events.is_dir() else run.after + 1 if run.after else 0
        self._open = partial(self._library.SummaryWriter, str(events))
        self._writer = self._open(purge_step=purge)
        self._writer.add_text("recipe", "".join(f"    {key} = {value!r}\n" for key, value in flat(run.recipe).items()))
        return f"tensorboard --logdir {events}"

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def back(self, step: int) -> None:
        self._writer.close()
        self._writer = self._open(purge_step=step + 1)

    def close(self, summary: Row | None) -> None:
        self._writer.close()


class Trackio(Tracker):
    """trackio's own store on this machine. A run that goes on logs some steps twice, with the same numbers; a run that
    goes back, with other ones.
    """

    def __init__(self) -> None:
        self._library = _library("trackio")

    def start(self, run: Tracked) -> str:
        # A run in another folder may have the same name; the mark keeps the two apart, and finds this one again.
        called = f"{run.name}-{mark(run.folder, 'trackio')}"
        self._run = self._library.init(
            run.project, name=called, group=run.group or None, config=flat(run.recipe), resume="allow", embed=False
        )
        return f"trackio show --project {shlex.quote(run.project)}, run {called}"

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self._run.log(numbers, step=step)

    def table(self, completions: Table, step: int) -> None:
        rows = [dict(zip(completions.columns, row, strict=True)) for row in completions.rows]
        self._run.log({COMPLETIONS: self._library.Table(data=rows)}, step=step)

    def close(self, summary: Row | None) -> None:
        self._run.finish()


class WandB(Tracker):
    """Weights & Biases, by its own settings; without a login it stays offline, in the run folder.

    Its steps never fall: of those that a run makes a second time after going back it keeps the first.
    """

    def __init__(self) -> None:
        self._library = _library("wandb")

    def start(self, run: Tracked) -> str:
        # Its process stays at a run's end until a server that does not answer was given up.
        settings = self._library.Settings(silent=True, console="off", init_timeout=20)
        mode = self._mode(settings)
        again = {} if mode == "offline" else {"resume": "allow"}
        place = {"id": mark(run.folder, "wandb"), "dir": str(run.folder / FOLDER)}
        filed = {"project": run.project, "name": run.name, "group": run.group or None, "tags": run.tags or None}
        self._run = self._library.init(**place, **filed, **again, mode=mode, config=dict(run.recipe), settings=settings)
        return self._run.url or f"{self._run.settings.mode}; {run.folder / FOLDER} has what wandb sync can send"

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self._run.log(numbers, step=step)

    def table(self, completions: Table, step: int) -> None:
        made = self._library.Table(columns=list(completions.columns), data=[list(row) for row in completions.rows])
        self._run.log({COMPLETIONS: made}, step=step)

    def close(self, summary: Row | None) -> None:
        if summary is not None:
            self._run.summary.update({f"summary.{name}": value for name, value in flat(summary).items()})
        self._run.finish(exit_code=0 if summary is not None else 1)

    def _mode(self, settings: Any) -> str | None:
        """None leaves it to wandb's settings. With no account it would stop and ask for one: not here."""
        if self._library.setup(settings).settings.mode != "online":
            return None
        if "prompt" in inspect.signature(self._library.login).parameters:
            known = self._library.login(prompt=False, verify=False)
        else:  # before wandb 0.31
            known = self._library.api.api_key
        return None if known else "offline"


class MLflow(Tracker):
    """MLflow, by its own settings; where they name no server, a database in the run folder.

    The parameters are those that the run began with. A step that is made a second time is there twice.
    """

    def __init__(self) -> None:
        self._library = _library("mlflow")

    def start(self, run: Tracked) -> str:
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it says each table that it makes
        own = run.folder.absolute() / FOLDER / "mlflow"
        given = self._library.get_tracking_uri() if self._library.is_tracking_uri_set() else ""
        if not given:
            own.mkdir(parents=True, exist_ok=True)
        where = given or f"sqlite:///{own / 'mlflow.db'}"
        self._client = self._library.MlflowClient(tracking_uri=where)
        project = self._project(run.project, None if given else (own / "artifacts").as_uri())
        self._run = self._known_or_made(project, run)
        self._client.update_run(self._run, status="RUNNING")
        return f"{given}, run {self._run}" if given else f"mlflow ui --backend-store-uri {shlex.quote(where)}"

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        now, of_library = int(time.time() * 1000), self._library.entities.Metric
        metrics = [of_library(_plain_name(name), float(value), now, step) for name, value in numbers.items()]
        for first in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._run, metrics=metrics[first : first + MOST_METRICS])

    def table(self, completions: Table, step: int) -> None:
        path = f"{COMPLETIONS}/step-{step:06d}.json"
        self._client.log_dict(self._run, {"columns": completions.columns, "data": completions.rows}, path)
        # Its pages show as a table what this tag names; a tag that named every step would grow past its limit.
        self._client.set_tag(self._run, "mlflow.loggedArtifacts", json.dumps([{"path": path, "type": "table"}]))

    def close(self, summary: Row | None) -> None:
        if summary is not None:
            last = {f"summary.{name}": value for name, value in numbers(summary).items()}
            self.log(last, int(summary.get("steps", 0)))
        self._client.set_terminated(self._run, "KILLED" if summary is None else "FINISHED")

    def _project(self, name: str, artifacts: str | None) -> str:
        """Return the id of MLflow's experiment of that name, which is made if there is none."""
        known = self._client.get_experiment_by_name(name)
        return known.experiment_id if known else self._client.create_experiment(name, artifact_location=artifacts)

    def _known_or_made(self, project: str, run: Tracked) -> str:
        """Return the id of the run that bears the folder's mark, in any project; else of one made anew."""
        own = mark(run.folder, "mlflow")
        known = self._client.search_runs([project], f"tags.`{MARK}` = '{own}'", max_results=1)
        if known:
            return known[0].info.run_id
        tags = {MARK: own, **({"group": run.group} if run.group else {}), **dict.fromkeys(run.tags, "true")}
        made = self._client.create_run(project, run_name=run.name, tags=tags).info.run_id
        entity = self._library.entities.Param
        params = [entity(_plain_name(key), str(value)) for key, value in flat(run.recipe).items()]
        for first in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(made, params=params[first : first + MOST_PARAMS])
        return made


#: The tag of MLflow by which a run that goes on is found again.
MARK = "groupwise.run"
#: What MLflow takes in one call.
MOST_METRICS, MOST_PARAMS = 1000, 100


def _plain_name(name: str) -> str:
    """Replace the characters that MLflow has in no name.

    >>> _plain_name("logged.mine.a/b@k")
    'logged.mine.a_b_k'
    """
    return re.sub(r"[^\w.\- ]", "_", name)[:250]


#: journal.tracker of a recipe; "none" is no tracker.
TRACKERS: Mapping[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": WandB,
    "mlflow": MLflow,
}


def made_trackers(names: Sequence[str]) -> tuple[Tracker, ...]:
    """Make the trackers of these names. Raises UsageError if the library of one is missing."""
    return tuple(TRACKERS[name]() for name in names)


def numbers(row: Row) -> dict[str, float]:
    """Choose the finite numbers of a row but its step, by dotted name.

    >>> numbers({"step": 3, "seconds": {"update": 0.5}, "kl_mean": float("nan"), "checks": {"x": {"verdict": "pass"}}})
    {'seconds.update': 0.5}
    """
    return {name: value for name, value in flat(row).items() if name != "step" and is_number(value)}


def evaluation_numbers(row: Row) -> dict[str, float]:
    """Choose the numbers of an evaluation's row, named apart from those of the step after which it was made.

    >>> evaluation_numbers({"step": 3, "evaluation": {"avg_at_k": 0.5}, "seconds": {"evaluate": 2.0}})
    {'evaluation.avg_at_k': 0.5, 'evaluation.seconds.evaluate': 2.0}
    """
    return numbers({"evaluation": {**row["evaluation"], "seconds": row.get("seconds", {})}})


def mark(folder: Path, name: str) -> str:
    """Make the mark by which a tracker knows this run: kept in the run folder, found again when the run goes on."""
    path = folder / FOLDER / f"{name}.id"
    if not path.is_file() or not path.read_text().strip():  # a kill may leave it empty
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(uuid.uuid4().hex[:8])
    return path.read_text().strip()


def _library(module: str) -> Any:
    """Import a module, or raise UsageError. A tracker's own warnings meanwhile say nothing about the run."""
    name = module.rpartition(".")[2]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return import_module(module) if module != name else need(name, "trackers", f'journal.tracker = "{name}"')
    except UsageError:
        raise
    except Exception as error:  # it is there and broken, such as by a version of something that it needs
        words = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f'journal.tracker = "{name}": {name} cannot be imported: {words}') from None
