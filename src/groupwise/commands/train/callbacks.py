"""Callbacks of a run: functions that see a record of each step, and may ask to stop."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from groupwise.core.code.user_code import raised
from groupwise.core.errors import UsageError, brief


@dataclass(frozen=True)
class StepRecord:
    """Copy of what there is to know of a step that has ended; nothing of the run can be changed by it.

    step        counted from 1
    steps       how many the run is to have
    metrics     the step's row of metrics.jsonl (docs/reference/metrics.md)
    evaluation  of the evaluation after this step, as in metrics.jsonl; None if there was none
    folder      the run's
    """

    step: int
    steps: int
    metrics: Mapping[str, Any]
    evaluation: Mapping[str, Any] | None
    folder: Path


#: Called after each step, before it is saved. True asks the run to stop as Ctrl-C does; None and False let it go on.
Callback = Callable[[StepRecord], bool | None]


class Callbacks:
    """Callbacks of a run, called in their order.

    One that raises, or answers with something else, is reported once, with its traceback in the log; the run goes on,
    and the callback is called again after the next step.

    say  says a line, in the log and to the person
    log  puts a line into the log alone
    """

    def __init__(
        self,
        callbacks: Sequence[Callback],
        steps: int,
        folder: Path,
        say: Callable[[str], None],
        log: Callable[[str], None],
    ) -> None:
        self.callbacks, self.steps, self.folder, self.say, self.log = callbacks, steps, folder, say, log
        self.stop = False
        self._rows: dict[str, Any] = {}
        self._told: set[int] = set()

    def hear(self, row: Mapping[str, Any]) -> None:
        """Take a row of metrics.jsonl, a step's or an evaluation's."""
        if "evaluation" in row:
            self._rows["evaluation"] = row
        else:
            self._rows = {"metrics": row}

    def after(self, step: int) -> None:
        """Call the callbacks, after a step whose rows were heard."""
        evaluation = self._rows.get("evaluation")
        record = StepRecord(
            step=step,
            steps=self.steps,
            metrics=_read_only(self._rows["metrics"]),
            evaluation=_read_only(evaluation["evaluation"]) if evaluation else None,
            folder=self.folder,
        )
        for number, callback in enumerate(self.callbacks):
            if self._answer(number, callback, record):
                self.say(f"step {step}: the callback {_name(callback)} asks to stop")
                self.stop = True

    def _answer(self, number: int, callback: Callback, record: StepRecord) -> bool:
        what, doing = f"callback {_name(callback)}", f"step {record.step}"
        try:
            answer = callback(record)
        except Exception as error:
            wrong = raised(what, doing, error)
            self._tell(number, f"{wrong}; the run goes on", getattr(wrong, "__notes__", ()))
            return False
        if answer is not None and not isinstance(answer, bool):
            words = f"{doing} returned {brief(answer)}; return True to stop, False or None to go on"
            self._tell(number, f"{what}: {words}", ())
        return answer is True

    def _tell(self, number: int, line: str, notes: Sequence[str]) -> None:
        if number not in self._told:
            self._told.add(number)
            self.say(f"{line}, and this is said once")
            for note in notes:
                for each in note.splitlines():
                    self.log(each)


def require_callbacks(callbacks: object) -> None:
    """Raise UsageError if something in the list cannot be called with a record."""
    if not isinstance(callbacks, Sequence):
        raise UsageError(f"callbacks = {brief(callbacks)}: give a list, such as callbacks=[show]")
    for number, callback in enumerate(callbacks):
        what = f"callbacks[{number}] = {brief(callback)}"
        if not callable(callback):
            raise UsageError(f"{what}: not a function; give one that takes the record of a step")
        try:
            inspect.signature(callback).bind(None)
        except TypeError:
            raise UsageError(f"{what}: cannot be called with one argument, the record of a step") from None
        except ValueError:  # one of C's own, which does not say what it takes
            continue


def _name(callback: object) -> str:
    return getattr(callback, "__name__", type(callback).__name__)


def _read_only(value: Any) -> Any:
    """Copy a value so that no table and no list in it can be changed."""
    if isinstance(value, Mapping):
        return MappingProxyType({key: _read_only(inner) for key, inner in value.items()})
    return tuple(map(_read_only, value)) if isinstance(value, (list, tuple)) else value
