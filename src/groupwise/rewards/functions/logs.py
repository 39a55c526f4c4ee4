"""What a reward function logs beside its scores: a column of the completions, a number of a call."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from groupwise.core.errors import shortened
from groupwise.core.files.jsonl import writable
from groupwise.core.reward import LoggedValue, ScoreResult

#: Columns, and metrics, that one call may log, and characters of a logged text: all of them stand in rollouts.jsonl.
MOST_NAMES, LONGEST_NAME, LONGEST_TEXT = 64, 100, 2_000


class CallLog:
    """What one call of a function for many completions logs: TRL's `log_extra` and `log_metric`.

    >>> log = CallLog(2)
    >>> log.extra("guess", ["7", None]); log.metric("parsed", 0.5)
    >>> log.added_to([ScoreResult(1.0), ScoreResult(0.0)])[0].columns
    {'guess': '7'}
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.columns: dict[str, Sequence[object]] = {}
        self.metrics: dict[str, tuple[float, ...]] = {}

    def extra(self, column: str, values: Sequence[object]) -> None:
        """A value for each completion of the call. Raises ValueError where there are more or fewer."""
        if len(values) != self.count:
            raise ValueError(f"log_extra({column!r}): {len(values)} values for {self.count} completions")
        self.columns[_name(column, self.columns)] = list(values)

    def metric(self, name: str, value: float) -> None:
        """A number of the whole call; under one name there may be several. Raises ValueError where it is none."""
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"log_metric({name!r}): {shortened(repr(value))} is no finite number")
        known = _name(name, self.metrics)
        self.metrics[known] = (*self.metrics.get(known, ()), number)

    def added_to(self, results: Sequence[ScoreResult]) -> list[ScoreResult]:
        """The call's results with what it logged."""
        if not self.columns and not self.metrics:
            return list(results)
        return [
            replace(result, columns={**result.columns, **self._of(place)}, metrics=self.metrics, of_call=self.count)
            for place, result in enumerate(results)
        ]

    def _of(self, place: int) -> dict[str, LoggedValue]:
        return logged({name: values[place] for name, values in self.columns.items() if values[place] is not None})


def logged(values: Mapping[object, object]) -> dict[str, LoggedValue]:
    """What a function logs of one completion, as rollouts.jsonl can hold it: numbers as numbers, the rest as text.

    >>> logged({"acc": True, "pred": "42", "pair": (1, 2), "odd": math.nan})
    {'acc': 1.0, 'pred': '42', 'pair': '(1, 2)', 'odd': None}
    """
    columns: dict[str, LoggedValue] = {}
    for name, value in values.items():
        columns[_name(name, columns)] = _value(value)
    return columns


def _name(name: object, taken: Mapping[str, object]) -> str:
    text = writable(str(name))[:LONGEST_NAME]
    if text not in taken and len(taken) >= MOST_NAMES:
        raise ValueError(f"{text!r}: {MOST_NAMES} names are logged already")
    return text


def _value(value: object) -> LoggedValue:
    if isinstance(value, str):
        return writable(value)[:LONGEST_TEXT]
    try:
        number = float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, OverflowError):
        return None if value is None else writable(str(value))[:LONGEST_TEXT]
    return number if math.isfinite(number) else None
