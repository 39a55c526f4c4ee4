"""The rows of metrics.jsonl in which symptoms are looked for, and the sentences that say them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, median
from typing import Any, NamedTuple, TypeGuard

Row = Mapping[str, Any]

#: How a sentence is meant: nothing to say, well, to be looked at, wrong.
NEUTRAL, GOOD, WARN, BAD = "neutral", "good", "warn", "bad"
#: Steps that "now" is made of: enough for chance to average out, few enough to warn in time.
RECENT = 10
#: Nothing that a run measures is as large; twice this squared, or summed over all rows, is still finite.
LARGEST = 1e100
#: From this pass rate on a task counts as solved: what is left is too little to warn about.
SOLVED = 0.9


#: The metric of a run that is measured by the task's score.
CORRECTNESS = "correctness"
#: Names of a metric that are not a reward's own.
WORDS: Mapping[str, str] = {CORRECTNESS: "score", "reward": "reward", "learned": "learned score"}


class Measured(NamedTuple):
    """A measure of a run.

    words            "pass rate", "reward", "learned score", "reward mine"
    column           of an evaluation's row
    training_column  of a step's row
    """

    words: str
    column: str
    training_column: str


PASS_RATE = Measured("pass rate", "avg_at_k", "pass_rate")


def measured(metric: str, has_mark: bool) -> Measured:
    """Choose the measure by the metric of [evaluation]: the pass rate if the metric has a pass mark.

    >>> measured("reward", has_mark=False).words, measured("mine", has_mark=False).words, measured("mine", True).words
    ('reward', 'reward mine', 'pass rate')
    """
    if has_mark:
        return PASS_RATE
    return Measured(WORDS.get(metric, f"reward {metric}"), "measured_mean", "measured_mean")


@dataclass(frozen=True)
class Finding:
    """Something seen in the metrics: what it is, what it means, and what one would try."""

    name: str
    tone: str
    words: str
    advice: str = ""


class Seen(NamedTuple):
    """A sentence of a symptom that was found."""

    words: str
    advice: str = ""
    tone: str = WARN


@dataclass(frozen=True)
class History:
    """The steps of a run that are known, in order; its evaluations; its recipe; what its machine did.

    A number that is missing, null, not finite or absurdly large is a gap: it is left out of every mean.

    machine                rows of machine.jsonl, if they are known
    compares_within_group  its advantage compares the completions of one prompt, so that a group of equal rewards has
                           advantages of 0; None if that is not known
    """

    rows: Sequence[Row]
    evaluations: Sequence[Row] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)
    compares_within_group: bool | None = None
    machine: Sequence[Row] = ()

    @property
    def more_samples(self) -> str:
        """Twice as many samples of a prompt, as a recipe has it."""
        return f"samples_per_prompt = {2 * self.setting('samples_per_prompt', 8)}"

    def counts(self, start: str, rows: Sequence[Row]) -> dict[str, float]:
        """Add up the metrics whose names begin so, over `rows`: the rest of the name -> how many, the most first."""
        totals = {name.removeprefix(start): self.total(name, rows) for name in self.names(start, rows)}
        return dict(sorted(((name, count) for name, count in totals.items() if count), key=lambda pair: -pair[1]))

    @property
    def recent(self) -> Sequence[Row]:
        return self.rows[-RECENT:]

    @cached_property
    def over(self) -> str:
        """The steps of `recent` in words."""
        n = len(self.recent)
        return f"step {self.rows[-1].get('step', n)}" if n == 1 else f"the last {n} steps"

    @property
    def step(self) -> int:
        return int(self.rows[-1].get("step", 0)) if self.rows else 0

    def setting(self, key: str, default: Any = None) -> Any:
        """Look up the recipe's value under a dotted key; a default that is a number or a table takes the like alone."""
        value: Any = self.recipe
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        wrong = isinstance(default, (int, float)) and not is_number(value)
        wrong = wrong or (isinstance(default, Mapping) and not isinstance(value, Mapping))
        return default if value is None or wrong else value

    @property
    def supervised_alone(self) -> bool:
        """True if the run trains on supervised rows alone: its recipe has no algorithm."""
        return self.setting("mix.reinforced", 1) == 0 and "algorithm" not in self.recipe

    def numbers(self, name: str, rows: Sequence[Row] | None = None) -> list[float]:
        """Gather the metric's numbers in `rows` (the recent ones by default), gaps left out."""
        return numbers(name, self.recent if rows is None else rows)

    def mean(self, name: str, rows: Sequence[Row] | None = None) -> float | None:
        values = self.numbers(name, rows)
        return fmean(values) if values else None

    def median(self, name: str, rows: Sequence[Row] | None = None) -> float | None:
        """Take the middle of the numbers: one odd step does not move it."""
        values = self.numbers(name, rows)
        return median(values) if values else None

    def total(self, name: str, rows: Sequence[Row] | None = None) -> float:
        return math.fsum(self.numbers(name, self.rows if rows is None else rows))

    def names(self, start: str, rows: Sequence[Row] | None = None) -> list[str]:
        """Name the metrics of `rows` (the recent ones by default) whose names begin so."""
        rows = self.recent if rows is None else rows
        return list(dict.fromkeys(name for row in rows for name in row if name.startswith(start)))

    @property
    def evaluated(self) -> list[Row]:
        """The evaluations that have a number of what is measured."""
        tables = [row for row in self.evaluations if isinstance(row.get("evaluation"), Mapping)]
        return [row for row in tables if numbers(self.measured.column, [row["evaluation"]])]

    @cached_property
    def measured(self) -> Measured:
        """The measure of the run, in words and by its columns; without a recipe, that of its evaluations."""
        evaluations = [row["evaluation"] for row in self.evaluations if isinstance(row.get("evaluation"), Mapping)]
        rates, means = (numbers(name, evaluations) for name in ("avg_at_k", "measured_mean"))
        metric = self.setting("evaluation.metric", "reward" if means and not rates else CORRECTNESS)
        has_mark = metric == CORRECTNESS or self.setting("evaluation.pass_at") is not None
        return measured(str(metric), has_mark)

    @property
    def has_scale(self) -> bool:
        """True if what is measured is a share, so that its size means something; a reward may have any scale."""
        return self.measured is PASS_RATE

    def measure(self, rows: Sequence[Row] | None = None) -> list[float]:
        """Gather the numbers of what is measured in training, over `rows` (the recent ones by default)."""
        return self.numbers(self.measured.training_column, rows)

    @cached_property
    def solved(self) -> bool:
        rate = self.mean("pass_rate")
        return rate is not None and rate >= SOLVED

    @cached_property
    def moving(self) -> bool:
        """True if the problems change under the pass rate: a curriculum has raised a level."""
        levels = (name for name in self.names("sources.") if name.endswith(".level"))
        return any(len(set(self.numbers(name, self.rows))) > 1 for name in levels)

    @property
    def by_score(self) -> bool:
        """True if the task's own score is all that trains."""
        answers = self.setting("task.check") not in ("none", "learned")
        return answers and not self.setting("preference") and self.rewards.keys() <= {"task"}

    @property
    def rewards(self) -> Mapping[str, float]:
        """The weights of the recipe's rewards that train; those that only watch have none."""
        return {name: weight for name, weight in self._weights.items() if weight}

    @property
    def watchers(self) -> Sequence[str]:
        """The names of the recipe's rewards that only watch."""
        return [name for name, weight in self._weights.items() if not weight]

    @property
    def _weights(self) -> Mapping[str, float]:
        tables = {name: table for name, table in self.setting("rewards", {}).items() if isinstance(table, Mapping)}
        weights = {name: table.get("weight", 1.0) for name, table in tables.items()}
        return {name: weight for name, weight in weights.items() if is_number(weight)}

    @property
    def drops(self) -> bool:
        """True if a filter replaces groups without signal."""
        return self.setting("algorithm.filter.kind", "none") != "none" or bool(self.setting("algorithm.filter.use"))

    @property
    def kl_in_reward(self) -> bool:
        return self.setting("algorithm.kl.place") == "reward" and self.setting("algorithm.kl.beta", 0) > 0

    @property
    def tied_train_nothing(self) -> bool:
        """True if completions of groups that are all right or all wrong have advantages of 0, but for the KL in them.

        Half of them at least, by what the rows measured; by the recipe if they measured nothing, or had no such group.
        """
        shaped = any(self.setting(f"algorithm.shaping.{key}", 0) for key in ("overlong_cache", "step_scale"))
        by_recipe = self.by_score and not shaped and bool(self.compares_within_group)
        silent = self.mean("zero_advantage_share")
        if silent is None or self.drops or (by_recipe and self.kl_in_reward):
            return by_recipe
        tied = sum(self.mean(f"groups_all_{kind}_share") or 0.0 for kind in ("right", "wrong"))
        return self.by_score and silent >= tied / 2


@dataclass(frozen=True)
class Symptom:
    """A thing to look for.

    name   the finding's, in words
    look   History with at least one row -> what there is to say, or None
    limit  when it speaks, with its thresholds
    live   a run also says it while it goes on, when it first becomes true
    early  it comes before a collapse, so that a run's guard acts on it
    """

    name: str
    look: Callable[[History], Seen | None]
    limit: str
    live: bool
    early: bool


def symptom(
    limit: str, live: bool = True, early: bool = False, name: str = ""
) -> Callable[[Callable[[History], Seen | None]], Symptom]:
    """Make a Symptom of the function that looks for it; `name` is given if the function's own is not the finding's."""
    return lambda look: Symptom(name or look.__name__.replace("_", " "), look, limit, live, early)


def numbers(name: str, rows: Iterable[Row]) -> list[float]:
    """Gather the numbers under `name`, in order."""
    values = (row.get(name) for row in rows)
    return [x for x in values if is_number(x)]


def is_number(x: object) -> TypeGuard[float]:
    """Tell if a number may have been measured: it is finite, no truth value, not absurdly large."""
    return isinstance(x, (int, float)) and not isinstance(x, bool) and -LARGEST < x < LARGEST


def percent(share: float) -> str:
    """Write a share for a sentence.

    >>> percent(0.623), percent(0.0042), percent(0.9996)
    ('62 %', '0.4 %', '99.96 %')
    """
    x = 100 * share
    near = round(min(abs(x), abs(100 - x)), 9)
    if near >= 1 or near == 0:
        return f"{x:.0f} %"
    digits = 1 if near >= 0.1 else 2
    return f"{x:.{digits}f} %"


def short(x: float) -> str:
    """Write a number for a sentence.

    >>> short(0.97314), short(12.19), short(3e-4), short(20480)
    ('0.973', '12.2', '0.0003', '20480')
    """
    return f"{x:.0f}" if abs(x) >= 100 else f"{x:.3g}"


def many(count: float, thing: str) -> str:
    """Write a count with its noun.

    >>> many(1, "update"), many(3, "update")
    ('1 update', '3 updates')
    """
    return f"{count:.0f} {thing}{'' if count == 1 else 's'}"


def averages_tokens(h: History) -> bool:
    """Tell if the recipe's log-ratio is a mean over the tokens of a completion or a turn."""
    return h.setting("algorithm.ratio.level") in ("sequence", "sequence-token", "turn")


def smaller_updates(h: History, lead: str = "") -> str:
    """Advise, as keys of this recipe, on updates that go too far."""
    several = h.setting("updates_per_batch", 1) * h.setting("passes_per_batch", 1) > 1
    return lead + lower_rate(h) + (", or fewer updates_per_batch or passes_per_batch" if several else "")


def lower_rate(h: History) -> str:
    """Write a third of this recipe's learning rate, as one would type it."""
    rate = h.setting("learner.learning_rate", 0)
    return f"learner.learning_rate = {rate / 3:.0e} (it is {rate:g})" if rate else "a lower learner.learning_rate"
