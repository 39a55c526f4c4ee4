"""Laws of the slots whose parts take columns and answer with columns [N,T]."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from groupwise.algorithms.laws.draws import Draw
from groupwise.algorithms.laws.law import ROUNDING, Law, differs, first_of, gradient, not_finite

Columns = Mapping[str, Tensor]


@dataclass(frozen=True)
class Trial:
    """The way in which the parts of a slot are tried.

    given    (part, batch) -> what they are given, by name; the mask is one of it
    call     (part, columns) -> the answer, which is a column or several
    answers  the names of its columns; in the first of them gradients flow, where they do
    moving   the names of what carries the policy's gradient, and moves together
    masked   what an answer holds where the mask is False
    """

    given: Callable[[Any, Draw], dict[str, Tensor]]
    call: Callable[[Any, Columns], Any]
    answers: Sequence[str]
    moving: Sequence[str] = ()
    masked: float = 0.0

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


def has_the_shape(trial: Trial, part: Any, batch: Draw) -> str:
    """[N,T], finite."""
    answers = trial.tried(part, trial.given(part, batch))
    for name in trial.answers:
        if answers[name].shape != batch.mask.shape:
            return f"{name} has the shape {list(answers[name].shape)}; [N,T] is {list(batch.mask.shape)}"
    return first_of(*(not_finite(name, answers[name]) for name in trial.answers))


def ignores_what_is_masked(trial: Trial, part: Any, batch: Draw) -> str:
    """Whatever stands at masked positions, the answer is the same, and has nothing there."""
    columns = trial.given(part, batch)
    plain, mask = trial.tried(part, columns), columns["mask"]
    for name, column in plain.items():
        empty = torch.full_like(column, 0.0 if name == "gradient" else trial.masked)
        if seen := differs(f"masked {name}", torch.where(mask, empty, column), empty, 0):
            return seen
    for poison in (torch.nan, torch.inf, -1e30):
        spoilt = {name: _spoilt(column, mask, poison) for name, column in columns.items()}
        seen = _differ(trial.tried(part, spoilt), plain, rounding=0)
        if seen:
            return f"with {poison} at masked positions {seen}"
    return ""


def ignores_padding(trial: Trial, part: Any, batch: Draw) -> str:
    """More columns on the right change nothing."""
    columns = trial.given(part, batch)
    wide = {name: _padded(column, batch) for name, column in columns.items()}
    answers = {name: column[:, : batch.mask.shape[1]] for name, column in trial.tried(part, wide).items()}
    return _differ(answers, trial.tried(part, columns))


def ignores_the_order_of_rows(trial: Trial, part: Any, batch: Draw) -> str:
    """Rows in another order, groups by other numbers: the same answers, in that order."""
    columns = trial.given(part, batch)
    order = torch.randperm(len(batch.mask), generator=torch.Generator().manual_seed(1))
    moved = {name: column[order] * 31 - 5 if name == "group" else column[order] for name, column in columns.items()}
    plain = {name: column[order] for name, column in trial.tried(part, columns).items()}
    return _differ(trial.tried(part, moved), plain)


def leaves_its_inputs_alone(trial: Trial, part: Any, batch: Draw) -> str:
    """Demand that no input is changed in place, and that the same inputs give the same answer."""
    columns = trial.given(part, batch)
    before = {name: column.clone() for name, column in columns.items()}
    with torch.no_grad():
        first, second = trial.call(part, columns), trial.call(part, columns)
    changed = [name for name, column in columns.items() if not torch.equal(column, before[name])]
    pair = (first, second) if isinstance(first, tuple) else ((first,), (second,))
    again = first_of(*(differs("the second answer", b, a, 0) for a, b in zip(*pair, strict=True)))
    return f"it changes {', '.join(changed)} in place" if changed else again


def laws(trial: Trial, unmasked: str = "") -> tuple[Law, ...]:
    """Make the laws of every slot with such a trial; `unmasked` is the remedy of one whose parts are given no mask."""
    unmasked = unmasked or (
        "Read columns through keep(x, mask) of groupwise.core.masked before they are added up or go into exp(), and "
        + ("answer with keep(x, mask)." if trial.masked == 0 else "answer torch.where(mask, x, 1.0).")
    )
    return (
        Law(
            "it answers with numbers of the shape [N,T]",
            partial(has_the_shape, trial),
            "A number a row becomes a column by x[:, None].expand_as(mask); divide by counts that are at least 1.",
        ),
        Law("masked positions change nothing, NaN in them included", partial(ignores_what_is_masked, trial), unmasked),
        Law(
            "padding changes nothing",
            partial(ignores_padding, trial),
            "Count trained tokens, mask.sum(-1), and not columns: row_mean and row_sum of groupwise.core.masked do.",
        ),
        Law(
            "the order of rows and the numbers of groups change nothing",
            partial(ignores_the_order_of_rows, trial),
            "Find a row's group by its id and not by its place: groupwise.core.masked has group_ids and group_sum.",
        ),
        Law(
            "it changes no input in place, and answers the same again",
            partial(leaves_its_inputs_alone, trial),
            "Write x = x * y for x *= y, clamp for clamp_; keep nothing between calls, and draw nothing at random.",
        ),
    )


def _differ(answers: Columns, expected: Columns, rounding: float = ROUNDING) -> str:
    return first_of(*(differs(name, answers[name], column, rounding) for name, column in expected.items()))


def _spoilt(column: Tensor, mask: Tensor, poison: float) -> Tensor:
    by_token = column.shape == mask.shape and column.is_floating_point()
    return torch.where(mask, column, poison) if by_token else column


def _padded(column: Tensor, batch: Draw) -> Tensor:
    if column.shape != batch.mask.shape:
        return column
    return torch.nn.functional.pad(column, (0, 3), value=torch.nan if column.is_floating_point() else False)
