"""Trackers: a run's numbers in TensorBoard, trackio or W&B, where a recipe asks for it. None stops or slows a run."""

import inspect
import math
import queue
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from groupwise.core.errors import UsageError, need
from groupwise.core.files.jsonl import flat

Row = Mapping[str, Any]

#: Runs stand together under this name, where a tracker has projects.
PROJECT = "groupwise"

#: What trackers keep inside a run folder.
FOLDER = "trackers"


class Tracker(Protocol):
    """Where numbers go, one call at a time. Making one raises UsageError where its library is missing.

    start   says where to look; `after` is the step that the run goes on after: later ones will be logged again
    log     numbers by name, of the step or of the evaluation after it
    back    the run goes on after an earlier step, and logs later ones anew
    close   `summary` is None where the run did not finish
    """

    def start(self, folder: Path, name: str, recipe: Row, after: int) -> str: ...

    def log(self, numbers: Mapping[str, float], step: int) -> None: ...

    def back(self, step: int) -> None: ...

    def close(self, summary: Row | None) -> None: ...


class TensorBoard:
    """Event files in the run folder. A run that goes on hides what it had logged of the steps that it makes again."""

    def __init__(self) -> None:
        _library("tensorboard")
        self._library = _library("torch.utils.tensorboard")

    def start(self, folder: Path, name: str, recipe: Row, after: int) -> str:
        events = folder / FOLDER / "tensorboard"
        purge = None if not events.is_dir() else after + 1 if after else 0
        self._open = partial(self._library.SummaryWriter, str(events))
        self._writer = self._open(purge_step=purge)
        self._writer.add_text("recipe", "".join(f"    {key} = {value!r}\n" for key, value in flat(recipe).items()))
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


class Trackio:
    """trackio's own store on this machine. A run that goes on logs some steps twice, with the same numbers; a run that
    goes back, with other ones.
    """

    def __init__(self) -> None:
        self._library = _library("trackio")

    def start(self, folder: Path, name: str, recipe: Row, after: int) -> str:
        # A run in another folder may have the same name; the mark keeps the two apart, and finds this one again.
        called = f"{name}-{mark(folder, 'trackio')}"
        self._run = self._library.init(PROJECT, name=called, config=flat(recipe), resume="allow", embed=False)
        return f"trackio show --project {PROJECT}, run {called}"

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self._run.log(numbers, step=step)

    def back(self, step: int) -> None:
        pass

    def close(self, summary: Row | None) -> None:
        self._run.finish()


class WandB:
    """Weights & Biases, by its own settings; without a login it stays offline, in the run folder.

    Its steps never fall: of those that a run makes a second time after going back it keeps the first.
    """

    def __init__(self) -> None:
        self._library = _library("wandb")

    def start(self, folder: Path, name: str, recipe: Row, after: int) -> str:
        # Its process stays at a run's end until a server that does not answer was given up.
        settings = self._library.Settings(silent=True, console="off", init_timeout=20)
        mode = self._mode(settings)
        again = {} if mode == "offline" else {"resume": "allow"}
        place = {"project": PROJECT, "name": name, "id": mark(folder, "wandb"), "dir": str(folder / FOLDER)}
        self._run = self._library.init(**place, **again, mode=mode, config=dict(recipe), settings=settings)
        return self._run.url or f"{self._run.settings.mode}; {folder / FOLDER} has what wandb sync can send"

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self._run.log(numbers, step=step)

    def back(self, step: int) -> None:
        pass

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


#: journal.tracker of a recipe; "none" is no tracker.
TRACKERS: Mapping[str, type[Tracker]] = {"tensorboard": TensorBoard, "trackio": Trackio, "wandb": WandB}


def tracker(name: str) -> Tracker | None:
    """The tracker of that name, or None for "none". Raises UsageError where its library is missing."""
    return None if name == "none" else TRACKERS[name]()


class Sender:
    """Hands rows to a tracker from a thread of its own: whatever that one does, the run goes on as without it.

    The first error switches it off; while it hangs, at most `room` rows wait and later ones are left out. Each is one
    line to `log`, in the caller's thread. Without a tracker nothing happens.
    """

    def __init__(
        self, tracker: Tracker | None, log: Callable[[str], None], room: int = 1000, patience: float = 15.0
    ) -> None:
        self.tracker, self.log, self.patience = tracker, log, patience
        self.left_out = 0
        self._jobs: queue.Queue[Callable[[], object] | None] = queue.Queue(room)
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)
        self._closed = False

    def start(self, folder: Path, name: str, recipe: Row, after: int = 0) -> None:
        """Begin. It may take its time, such as to reach a server: rows wait."""
        if self.tracker is not None:
            start = partial(self.tracker.start, folder, name, recipe, after)
            self._jobs.put(lambda: self._lines.put(start()))
            self._thread.start()

    def metrics(self, row: Row) -> None:
        """A row of metrics.jsonl, of a step or of an evaluation."""
        self._log_lines()
        if self.tracker is None or not self._thread.is_alive():
            return
        values = evaluation_numbers(row) if "evaluation" in row else numbers(row)
        self._hand(partial(self.tracker.log, values, row["step"]), row["step"])

    def cut_back(self, step: int) -> None:
        """The rows after a step are no more: the run goes on after it."""
        if self.tracker is not None and self._thread.is_alive():
            self._hand(partial(self.tracker.back, step), step)

    def _hand(self, job: Callable[[], object], step: int) -> None:
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            if not self.left_out:
                self._lines.put(f"{self._jobs.qsize()} rows wait; those from step {step} on are left out")
            self.left_out += 1

    def close(self, summary: Row | None) -> None:
        """Send what waits, then end; after `patience` seconds it is left behind."""
        if self.tracker is not None and self._thread.is_alive() and not self._closed:
            self._closed = True
            self._end(self.tracker, summary, time.monotonic() + self.patience)
        self._log_lines()

    def _end(self, tracker: Tracker, summary: Row | None, until: float) -> None:
        with suppress(queue.Full):
            for job in (partial(tracker.close, summary), None):
                self._jobs.put(job, timeout=max(0.0, until - time.monotonic()))
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            waiting = f"{self._jobs.qsize()} calls waiting, {self.left_out} rows left out"
            self._lines.put(f"had not ended {self.patience:g} s after the run and was left behind; {waiting}")
        elif self.left_out:
            self._lines.put(f"{self.left_out} rows were left out")

    def _work(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                job()
        except BaseException as error:  # also what a library raises to end the process: it is not its process
            words = " ".join(f"{type(error).__name__}: {error}".split())
            self._lines.put(f"{words}; it is off from here on, and the run goes on")

    def _log_lines(self) -> None:
        while not self._lines.empty():
            self.log(f"tracker {type(self.tracker).__name__}: {self._lines.get()}")


def numbers(row: Row) -> dict[str, float]:
    """The finite numbers of a row but its step, by dotted name.

    >>> numbers({"step": 3, "seconds": {"update": 0.5}, "kl_mean": float("nan"), "checks": {"x": {"verdict": "pass"}}})
    {'seconds.update': 0.5}
    """
    return {name: value for name, value in flat(row).items() if name != "step" and _is_number(value)}


def evaluation_numbers(row: Row) -> dict[str, float]:
    """Those of an evaluation's row, named apart from those of the step after which it was made.

    >>> evaluation_numbers({"step": 3, "evaluation": {"avg_at_k": 0.5}, "seconds": {"evaluate": 2.0}})
    {'evaluation.avg_at_k': 0.5, 'evaluation.seconds.evaluate': 2.0}
    """
    return numbers({"evaluation": {**row["evaluation"], "seconds": row.get("seconds", {})}})


def mark(folder: Path, name: str) -> str:
    """What a tracker knows this run by: made once, kept in the run folder, found again when the run goes on."""
    path = folder / FOLDER / f"{name}.id"
    if not path.is_file() or not path.read_text().strip():  # a kill may leave it empty
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(uuid.uuid4().hex[:8])
    return path.read_text().strip()


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _library(module: str) -> Any:
    """The module, or UsageError. A tracker's own warnings while it is imported say nothing about the run."""
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
