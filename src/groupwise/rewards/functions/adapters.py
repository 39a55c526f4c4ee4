"""Forms in which a user's function is called, those of TRL and verl among them, and what becomes of what it returns."""

import asyncio
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from groupwise.core.code.trace import own_traceback
from groupwise.core.errors import UsageError, shortened
from groupwise.core.files.json_text import writable
from groupwise.core.samples import Attempt, Cause, LoggedValue, Sample, ScoreResult
from groupwise.core.task import Starts

#: A score is not larger: the squares of larger ones, times their weights, are no longer finite where they are averaged.
LARGEST = 1e9


def score_result(value: object) -> ScoreResult:
    """Make a score of whatever a reward returned for one completion.

    Numbers, numpy and torch scalars included, are scores; infinite ones count as NaN. A string is not a number here.
    None is no fault: the reward does not vote on this completion.

    >>> score_result(True).value, score_result(None).votes, score_result("0.5").cause
    (1.0, False, <Cause.WRONG_TYPE: 'wrong type'>)
    """
    if value is None:
        return ScoreResult()
    kind = type(value).__name__
    if not hasattr(value, "__float__"):
        return ScoreResult(cause=Cause.WRONG_TYPE, detail=f"returned {kind} {value!r:.200}, not a number")
    try:
        number = float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, OverflowError) as error:
        return ScoreResult(cause=Cause.WRONG_TYPE, detail=f"returned {kind}, not one number: {error}")
    if not math.isfinite(number):
        return ScoreResult(cause=Cause.NAN, detail=f"returned {number}")
    if abs(number) > LARGEST:
        return ScoreResult(cause=Cause.TOO_LARGE, detail=f"returned {number:g}; a score lies within +-{LARGEST:g}")
    return ScoreResult(number)


def score_results(values: object, count: int) -> list[ScoreResult]:
    """Make a result for each of `count` completions of the list that a batched reward returned for them.

    Where the list itself is wrong, every result is the one that says so.

    >>> [result.value for result in score_results([1, 0.5], 2)], score_results([1.0], 2)[0].detail
    ([1.0, 0.5], 'returned 1 scores for 2 completions')
    """
    if isinstance(values, (str, bytes, Mapping)) or not hasattr(values, "__len__") or not hasattr(values, "__iter__"):
        wrong = ScoreResult(cause=Cause.WRONG_TYPE, detail=f"returned {type(values).__name__}, not a list of numbers")
        return [wrong] * count
    listed = list(values)  # pyright: ignore[reportArgumentType]
    if len(listed) != count:
        detail = f"returned {len(listed)} scores for {count} completions"
        return [ScoreResult(cause=Cause.WRONG_LENGTH, detail=detail)] * count
    return [score_result(value) for value in listed]


def list_is_wrong(results: Sequence[ScoreResult]) -> bool:
    """Tell whether the results of one call say that its list was wrong, rather than single values in it.

    >>> list_is_wrong(score_results([1.0], 2)), list_is_wrong(score_results(["1", "1"], 2))
    (True, False)
    """
    return results[0].cause is not None and all(result is results[0] for result in results)


def exhausted(result: ScoreResult) -> bool:
    """Tell whether the process ran out of memory or tasks: what it still holds would fail the next completion as well.

    >>> exhausted(ScoreResult(cause=Cause.EXCEPTION, detail="RuntimeError: can't start new thread"))
    True
    """
    last = result.detail.rpartition("\n")[2]
    spent = last.startswith("BlockingIOError") or "can't start new thread" in last or "Cannot allocate memory" in last
    return result.cause is Cause.MEMORY or (result.cause is Cause.EXCEPTION and spent)


FORMS = (
    "(sample, completion) or (attempt) -> number; (samples, completions) or (attempts) -> list of numbers; "
    "TRL's (prompts, completions, **kwargs) -> list; verl's (data_source, solution_str, ground_truth, extra_info) "
    "-> number or {'score': number}"
)
#: Names under which data sets for TRL keep the gold answer.
ANSWERS = ("answer", "solution", "ground_truth", "target", "label")

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Form:
    """One way to call a reward.

    description  for the plan
    signs        names of parameters by which it is recognised
    batched      whether one call scores many attempts
    arguments    (attempts, or one attempt in a list) -> what is passed by keyword
    scored       whether a dictionary with the key "score" is a score
    logs         whether the function is given `log_extra` and `log_metric`
    """

    description: str
    signs: tuple[str, ...]
    batched: bool
    arguments: Callable[[Sequence[Attempt]], Arguments]
    scored: bool = False
    logs: bool = False


def prompt_of(sample: Sample) -> Any:
    """Return the prompt as TRL's data sets have it: a text, or a conversation."""
    return [dict(message) for message in sample.messages] or sample.prompt


def ground_truth(sample: Sample, names: Sequence[str]) -> dict[str, Any]:
    """Return the gold answer under these names, as the data holds it; nothing if there is none.

    >>> listed, none = Sample("k", "p", '["a", "b"]', held_answer=(["a", "b"],)), Sample("k", "p", "")
    >>> ground_truth(listed, ["label"]), ground_truth(none, ["label"])
    ({'label': ['a', 'b']}, {})
    """
    known = sample.answer or sample.held_answer
    return dict.fromkeys(names, sample.ground_truth) if known else {}


def columns(sample: Sample) -> dict[str, Any]:
    """Return a row of the data set as TRL's rewards see it: its own columns first, then what the sample has besides."""
    return {**ground_truth(sample, ANSWERS), "source": sample.source, **sample.extra}


def _trl(attempts: Sequence[Attempt]) -> Arguments:
    rows = [columns(attempt.sample) for attempt in attempts]
    names = dict.fromkeys(name for row in rows for name in row)
    ids = [list(attempt.tokens) for attempt in attempts]
    return {
        **{name: [row.get(name) for row in rows] for name in names},
        "prompts": [prompt_of(attempt.sample) for attempt in attempts],
        "completions": [
            [{"role": "assistant", "content": attempt.completion}] if attempt.sample.messages else attempt.completion
            for attempt in attempts
        ],
        "completion_ids": ids,
        "completions_ids": ids,
    }


def _verl(attempts: Sequence[Attempt]) -> Arguments:
    (attempt,) = attempts
    own = attempt.sample.extra.get("extra_info")  # the column that verl's files have; else it is all other columns
    return {
        "data_source": attempt.sample.source,
        "solution_str": attempt.completion,
        **ground_truth(attempt.sample, ["ground_truth"]),
        "extra_info": dict(own if isinstance(own, Mapping) else attempt.sample.extra),
    }


def _verl_batch(attempts: Sequence[Attempt]) -> Arguments:
    rows = [_verl([attempt]) for attempt in attempts]
    return {f"{name}s": [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}


SINGLE = Form("(sample, completion), one at a time", ("sample",), False,
              lambda a: {"sample": a[0].sample, "completion": a[0].completion})  # fmt: skip
ATTEMPT = Form("(attempt), one at a time", ("attempt",), False, lambda a: {"attempt": a[0]})
SAMPLES = Form("(samples, completions), many at once", ("samples",), True,
               lambda a: {"samples": [x.sample for x in a], "completions": [x.completion for x in a]})  # fmt: skip
ATTEMPTS = Form("(attempts), many at once", ("attempts",), True, lambda a: {"attempts": list(a)})
TRL = Form("TRL reward_funcs", ("completions", "completion_ids", "completions_ids", "prompts"), True, _trl,
           logs=True)  # fmt: skip
VERL = Form("verl compute_score", ("solution_str",), False, _verl, scored=True)
VERL_BATCH = Form("verl compute_score in batches", ("solution_strs",), True, _verl_batch, scored=True)

#: The first that has a sign among the parameters is the form; SAMPLES before TRL, which has `completions` too.
KNOWN = (VERL, VERL_BATCH, SAMPLES, SINGLE, ATTEMPTS, ATTEMPT, TRL)


def playing(description: str) -> Form:
    """Make the form of what plays episodes or sessions in a process, one at a time."""
    return Form(description, (), False, ATTEMPT.arguments)


#: Columns, and metrics, that one call may log, and characters of a logged text: all of them stand in rollouts.jsonl.
MOST_NAMES, LONGEST_NAME, LONGEST_TEXT = 64, 100, 2_000


class CallLog:
    """Log of one call of a function for many completions: TRL's `log_extra` and `log_metric`.

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
        """Log a value for each completion of the call. Raises ValueError if there are more or fewer."""
        if len(values) != self.count:
            raise ValueError(f"log_extra({column!r}): {len(values)} values for {self.count} completions")
        self.columns[_name(column, self.columns)] = list(values)

    def metric(self, name: str, value: float) -> None:
        """Log a number of the whole call; under one name there may be several. Raises ValueError if it is none."""
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"log_metric({name!r}): {shortened(repr(value))} is no finite number")
        known = _name(name, self.metrics)
        self.metrics[known] = (*self.metrics.get(known, ()), number)

    def added_to(self, results: Sequence[ScoreResult]) -> list[ScoreResult]:
        """Add what the call logged to its results."""
        if not self.columns and not self.metrics:
            return list(results)
        added = []
        for place, result in enumerate(results):
            own = logged({name: given[place] for name, given in self.columns.items() if given[place] is not None})
            columns = {**result.columns, **own}
            added.append(replace(result, columns=columns, metrics=self.metrics, of_call=self.count))
        return added


def logged(values: Mapping[object, object]) -> dict[str, LoggedValue]:
    """Turn what a function logs of one completion into numbers and texts, which rollouts.jsonl can hold.

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


@dataclass(frozen=True)
class Bound:
    """A function or an instance with the form it is called in: what a worker process scores with.

    settings  passed by keyword with every call
    starts    what starts something of its own when it is called
    probe     tries, before a run, what it asks elsewhere: (name of its table); raises UsageError
    """

    function: Callable[..., Any]
    form: Form
    where: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    starts: Starts | None = None
    probe: Callable[[str], None] | None = None

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.function).parameters

    @cached_property
    def asynchronous(self) -> bool:
        call = getattr(self.function, "__call__", None)  # noqa: B004  an instance whose __call__ is a coroutine
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(call)

    @property
    def description(self) -> str:
        """Form and parameters: `TRL reward_funcs: completions, answer, **kwargs`; of what plays, its name alone."""
        if not self.form.signs:
            return self.form.description
        names = [f"**{p.name}" if p.kind is p.VAR_KEYWORD else p.name for p in self.parameters.values()]
        return f"{self.form.description}{', async' if self.asynchronous else ''}: {', '.join(names)}"

    def arguments(self, attempts: Sequence[Attempt], log: CallLog | None = None) -> Arguments:
        """Choose what the function is called with: of what the form gives, what its parameters take."""
        offered = self._offered(attempts, log)
        if any(p.kind is p.VAR_KEYWORD for p in self.parameters.values()):
            return offered
        return {name: offered[name] for name in self.parameters if name in offered}

    def _offered(self, attempts: Sequence[Attempt], log: CallLog | None = None) -> Arguments:
        log = log or CallLog(len(attempts))
        logs = {"log_extra": log.extra, "log_metric": log.metric} if self.form.logs else {}
        return {**self.form.arguments(attempts), **logs, **self.settings}

    def check(self, sample: Sample) -> None:
        """Raise UsageError if a parameter without a default has nothing to take from this sample."""
        given = self.arguments([Attempt(sample, "")])
        for name, parameter in self.parameters.items():
            plain = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            if plain and parameter.default is parameter.empty and name not in given:
                offered = [n for n in self._offered([Attempt(sample, "")]) if n != "source"]
                gold = ", or name the column of the gold answer as task.answer" * (name.removesuffix("s") in ANSWERS)
                raise UsageError(
                    f"reward {self.where}: its parameter {name!r} is nothing that sample {sample.key!r} has; "
                    f"present: {', '.join(offered)}; give {name} a default, or the data a column of that name{gold}"
                )

    def score(self, attempts: Sequence[Attempt], run: Callable[[Any], Any]) -> Iterator[list[ScoreResult]]:
        """Score attempts -> results in their order: one list a call if calls are one by one, else all in one list.

        run  (coroutine) -> its result. An exception of a call for many attempts goes through: whose it is, is unknown.
        """
        for sample in {attempt.sample.key: attempt.sample for attempt in attempts}.values():
            self.check(sample)
        if self.form.batched:
            log = CallLog(len(attempts))
            result = self.function(**self.arguments(attempts, log))
            results = self._results(run(result) if inspect.isawaitable(result) else result, len(attempts))
            yield results if list_is_wrong(results) else log.added_to(results)
        elif self.asynchronous:
            yield run(self._together(attempts))
        else:
            for attempt in attempts:
                yield [self._one(attempt)]

    def _one(self, attempt: Attempt) -> ScoreResult:
        try:
            return self._result(self.function(**self.arguments([attempt])))
        except UsageError:
            raise
        except BaseException as error:  # sys.exit and KeyboardInterrupt of a user's function are faults like others
            return fault(error)

    async def _together(self, attempts: Sequence[Attempt]) -> list[ScoreResult]:
        async def one(attempt: Attempt) -> ScoreResult:
            try:
                return self._result(await self.function(**self.arguments([attempt])))
            except UsageError:
                raise
            except BaseException as error:
                return fault(error)

        return await asyncio.gather(*(one(attempt) for attempt in attempts))

    def _result(self, value: object) -> ScoreResult:
        if isinstance(value, ScoreResult):
            return value
        if not (self.form.scored and isinstance(value, Mapping) and "score" in value):
            return score_result(value)
        others = logged({name: other for name, other in value.items() if name != "score"})
        return replace(score_result(value["score"]), columns=others)

    def _results(self, values: Any, count: int) -> list[ScoreResult]:
        if self.form.scored and isinstance(values, Sequence) and len(values) == count:
            return [self._result(value) for value in values]
        return score_results(values, count)


def fault(error: BaseException) -> ScoreResult:
    """Return a result that says what was raised, with the frames that are not ours."""
    cause = Cause.MEMORY if isinstance(error, MemoryError) else Cause.EXCEPTION
    return ScoreResult(cause=cause, detail=own_traceback(error))


def bound(function: Any, where: str, settings: Mapping[str, Any]) -> Bound:
    """Find the form of a function. Raises UsageError that lists the forms if it has none of them."""
    if not callable(function):
        raise UsageError(f"reward {where} is a {type(function).__name__}, not something to call; write one of: {FORMS}")
    try:
        names = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise UsageError(f"reward {where}: its parameters cannot be read; wrap it in a function: {FORMS}") from None
    for form in KNOWN:
        if not names.keys().isdisjoint(form.signs):
            return Bound(function, form, where, settings)
    raise UsageError(f"reward {where} takes ({', '.join(names)}), which is none of the known forms: {FORMS}")
