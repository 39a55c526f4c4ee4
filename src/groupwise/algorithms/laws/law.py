"""A law: what holds of a part, in words, the function that looks for a batch on which it does not, and what to do then.
With it the laws that several slots share.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from groupwise.algorithms.laws.draws import Draw, draw
from groupwise.core.code.trace import place
from groupwise.core.errors import one_line
from groupwise.core.processes import codec

#: Batches that a law is tried on: seed and spread of the log-ratios.
BATCHES = ((0, 0.05), *((seed, 0.5) for seed in range(5)), (2, 2.0))
#: Rounding of float64 in sums over a batch, which another order of rows or another width may change.
ROUNDING = 1e-14
#: Log-ratios, nats: within the limit of every part, at it, and beyond.
FAR = (50.0, 60.0, 61.0, 400.0, 1e6)

Columns = Mapping[str, Tensor]
#: (part, random batch) -> what was seen that breaks a law; "" if the law holds.
Seen = Callable[[Any, Draw], str]


@dataclass(frozen=True)
class Law:
    """A property of every part of a slot.

    words   what holds
    remedy  what the author of a part that breaks it can do
    """

    words: str
    remedy: str
    seen: Seen

    def broken(self, part: Any) -> str:
        """Say what breaks the law on the first batch that does, and the remedy; "" if the law holds on all."""
        return next(filter(None, (self._tried(part, draw(seed, spread)) for seed, spread in BATCHES)), "")

    def _tried(self, part: Any, batch: Draw) -> str:
        try:
            seen = self.seen(part, batch)
        except Exception as error:
            seen = raised(error)
        return seen and f"{seen}. {self.remedy}"


def law(words: str, remedy: str) -> Callable[[Seen], Law]:
    """Make a law of the function that this decorates."""
    return partial(Law, words, remedy)


@law("it prints itself", "Leave its __repr__ to @dataclass(frozen=True).")
def prints_itself(part: Any, batch: Draw) -> str:
    text, names = repr(part), [type(part).__name__, *(f"{f.name}=" for f in dataclasses.fields(part))]
    return next((f"{text} does not name {name.rstrip('=')}" for name in names if name not in text), "")


@law("it says its equation in one line", 'Add a line such as: equation = "S = r A"')
def says_its_equation(part: Any, batch: Draw) -> str:
    equation = part.equation
    good = isinstance(equation, str) and equation.strip() and len(equation.splitlines()) == 1
    return "" if good else f"its equation is {equation!r}"


@law(
    "it is a frozen value, equal to one of the same fields",
    "Write @dataclass(frozen=True), without __eq__ or __hash__; what it computes is not kept in it.",
)
def is_a_value(part: Any, batch: Draw) -> str:
    for field in dataclasses.fields(part):
        try:
            setattr(part, field.name, getattr(part, field.name))
        except dataclasses.FrozenInstanceError:
            continue
        return f"{field.name} can be changed"
    hash(part)
    return "" if dataclasses.replace(part) == part else "one of the same fields is not equal to it"


@law("another process can have it", "Define its class at the top of the file; fields are bool, int, float or str.")
def travels(part: Any, batch: Draw) -> str:
    again = codec.unpack(codec.pack(part))
    return "" if again == part and repr(again) == repr(part) else f"it comes back as {again!r}"


#: Laws of every part, whatever its slot: it is a value that can be printed, compared and sent.
EVERY = (prints_itself, says_its_equation, is_a_value, travels)


@dataclass(frozen=True)
class Trial:
    """The way in which parts are tried that take columns and answer with columns [N,T].

    given    batch -> what the parts are given, by name; the mask is one of it
    call     (part, columns) -> the answer, which is a column or several
    answers  the names of its columns; in the first of them gradients flow, where they do
    moving   the names of what carries the policy's gradient, and moves together
    masked   what an answer holds where the mask is False
    far      (name of an input, name of another or None): log-probabilities whose difference is a log-ratio, or a
             log-ratio by itself; none: the parts take no log-ratios
    """

    given: Callable[[Draw], dict[str, Tensor]]
    call: Callable[[Any, Columns], Any]
    answers: Sequence[str]
    moving: Sequence[str] = ()
    masked: float = 0.0
    far: tuple[str, str | None] | None = None

    def tried(self, part: Any, columns: Columns) -> dict[str, Tensor]:
        """Return the answer's columns by name, and the first one's gradient if the policy's is given."""
        columns = dict(columns)
        for name in self.moving:
            columns[name] = columns[name].clone().requires_grad_(True)
        answer = self.call(part, columns)
        answers = dict(zip(self.answers, answer if isinstance(answer, tuple) else (answer,), strict=True))
        if self.moving:
            answers["gradient"] = gradient(answers[self.answers[0]].sum(), *(columns[name] for name in self.moving))
        return {name: column.detach() for name, column in answers.items()}

    def laws(self, unmasked: str = "") -> tuple[Law, ...]:
        """Make the laws of parts that are tried so; `unmasked` is the remedy of those that are given no mask."""
        unmasked = unmasked or (
            "Read columns through keep(x, mask) of groupwise.core.masked before they are added up or go into exp(), "
            f"and answer {'with keep(x, mask)' if self.masked == 0 else 'torch.where(mask, x, 1.0)'}."
        )
        return (
            *EVERY,
            Law(
                "it answers with numbers of the shape [N,T]",
                "A number a row becomes a column by x[:, None].expand_as(mask); divide by counts that are at least 1.",
                self.has_the_shape,
            ),
            Law("masked positions change nothing, NaN in them included", unmasked, self.ignores_what_is_masked),
            Law(
                "padding changes nothing",
                "Count trained tokens, mask.sum(-1), and not columns: row_mean and row_sum of groupwise.core.masked "
                "do.",
                self.ignores_padding,
            ),
            Law(
                "the order of rows and the numbers of groups change nothing",
                "Find a row's group by its id and not by its place: groupwise.core.masked has group_ids and group_sum.",
                self.ignores_the_order_of_rows,
            ),
            Law(
                "it changes no input in place, and answers the same again",
                "Write x = x * y for x *= y, clamp for clamp_; keep nothing between calls, and draw nothing at random.",
                self.leaves_its_inputs_alone,
            ),
            *([BOUNDED(partial(self.stays_finite, *self.far))] if self.far else []),
        )

    def has_the_shape(self, part: Any, batch: Draw) -> str:
        answers = self.tried(part, self.given(batch))
        for name in self.answers:
            if answers[name].shape != batch.mask.shape:
                return f"{name} has the shape {list(answers[name].shape)}; [N,T] is {list(batch.mask.shape)}"
        return first_of(*(not_finite(name, answers[name]) for name in self.answers))

    def ignores_what_is_masked(self, part: Any, batch: Draw) -> str:
        columns = self.given(batch)
        plain, mask = self.tried(part, columns), columns["mask"]
        for name, column in plain.items():
            empty = torch.full_like(column, 0.0 if name == "gradient" else self.masked)
            if seen := differs(f"masked {name}", torch.where(mask, empty, column), empty, 0):
                return seen
        by_token = {name for name, x in columns.items() if x.shape == mask.shape and x.is_floating_point()}
        for poison in (torch.nan, torch.inf, -1e30):
            spoilt = {name: torch.where(mask, x, poison) if name in by_token else x for name, x in columns.items()}
            if seen := _differ(self.tried(part, spoilt), plain, rounding=0):
                return f"with {poison} at masked positions {seen}"
        return ""

    def ignores_padding(self, part: Any, batch: Draw) -> str:
        columns = self.given(batch)
        wide = {name: _padded(column, batch) for name, column in columns.items()}
        answers = {name: column[:, : batch.mask.shape[1]] for name, column in self.tried(part, wide).items()}
        return _differ(answers, self.tried(part, columns))

    def ignores_the_order_of_rows(self, part: Any, batch: Draw) -> str:
        columns = self.given(batch)
        order = torch.randperm(len(batch.mask), generator=torch.Generator().manual_seed(1))
        moved = {name: column[order] * 31 - 5 if name == "group" else column[order] for name, column in columns.items()}
        plain = {name: column[order] for name, column in self.tried(part, columns).items()}
        return _differ(self.tried(part, moved), plain)

    def leaves_its_inputs_alone(self, part: Any, batch: Draw) -> str:
        columns = self.given(batch)
        before = {name: column.clone() for name, column in columns.items()}
        with torch.no_grad():
            first, second = self.call(part, columns), self.call(part, columns)
        changed = [name for name, column in columns.items() if not torch.equal(column, before[name])]
        pair = (first, second) if isinstance(first, tuple) else ((first,), (second,))
        again = first_of(*(differs("the second answer", b, a, 0) for a, b in zip(*pair, strict=True)))
        return f"it changes {', '.join(changed)} in place" if changed else again

    def stays_finite(self, live: str, still: str | None, part: Any, batch: Draw) -> str:
        """Try with `live` far from `still`, to both sides, mixed within completions."""
        g = torch.Generator().manual_seed(1)
        sizes = torch.tensor(FAR, dtype=torch.float64)[torch.randint(0, len(FAR), batch.mask.shape, generator=g)]
        far = sizes * torch.randn(batch.mask.shape, generator=g).sign()
        for dtype in (torch.float64, torch.float32):
            columns = {n: x.to(dtype) if x.is_floating_point() else x for n, x in self.given(batch).items()}
            base = columns[still] if still else torch.zeros_like(columns[live])
            answers = self.tried(part, {**columns, live: base + far.to(dtype)})
            if seen := first_of(*(not_finite(name, column) for name, column in answers.items())):
                return f"{seen}, in {dtype}"
        return ""


BOUNDED = law(
    "at log-ratios of +-50 and beyond, all is finite",
    "Take log-ratios through bounded() of groupwise.algorithms.parts.ratio before exp(): it clamps at +-60.",
)


def raised(error: Exception) -> str:
    """Say what a part raised, with the line of its author's file."""
    at = f" ({place(error)})" if place(error) else ""
    return f"it raised {type(error).__name__}: {one_line(error).rstrip('.')}{at}"


def differs(name: str, column: Tensor, expected: Tensor, rounding: float = ROUNDING) -> str:
    """Say how two columns differ; "" if they are equal up to rounding."""
    if column.shape != expected.shape:
        return f"{name} has the shape {list(column.shape)} instead of {list(expected.shape)}"
    column, expected = column.detach(), expected.detach()
    gap = (column - expected).abs() - rounding * (1 + expected.abs())
    same = (column == expected) | (column.isnan() & expected.isnan())  # NaN in both is what another law speaks of
    wrong = ~(gap <= 0) & ~same
    if not wrong.any():
        return ""
    first = tuple(wrong.nonzero()[0].tolist())
    here, due = float(column[first]), float(expected[first])
    if f"{here:g}" != f"{due:g}":
        return f"{name}{list(first) or ''} is {here:g} instead of {due:g}"
    return f"{name}{list(first) or ''} is {here!r} instead of {due!r}, as float32 would be: compute in the type given"


def first_of(*seen: str) -> str:
    """Return the first thing that was seen."""
    return next(filter(None, seen), "")


def not_finite(name: str, column: Tensor) -> str:
    """Say where a column is not finite; "" if all of it is."""
    wrong = ~column.isfinite()
    words = f"{int(wrong.sum())} of {column.numel()} places"
    return f"{name} is {float(column[wrong][0])} at {words}" if wrong.any() else ""


def gradient(total: Tensor, *inputs: Tensor) -> Tensor:
    """Compute d total / d inputs, added up: inputs that move together. 0 if nothing passes."""
    if not total.requires_grad:
        return torch.zeros_like(inputs[0])
    moved = torch.autograd.grad(total, inputs, allow_unused=True)
    return sum((one for one in moved if one is not None), torch.zeros_like(inputs[0]))


def _differ(answers: Columns, expected: Columns, rounding: float = ROUNDING) -> str:
    return first_of(*(differs(name, answers[name], column, rounding) for name, column in expected.items()))


def _padded(column: Tensor, batch: Draw) -> Tensor:
    if column.shape != batch.mask.shape:
        return column
    return torch.nn.functional.pad(column, (0, 3), value=torch.nan if column.is_floating_point() else False)
