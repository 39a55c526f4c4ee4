"""The laws that every part of a slot obeys, as data and functions: the tests hold the catalog's parts to them, and
`groupwise laws` a user's own. Random batches in float64 try a law; what breaks it is said in words.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from groupwise.algorithms.laws import credit, loss
from groupwise.algorithms.laws.draws import Draw, draw
from groupwise.algorithms.laws.law import EVERY, Law, Trial, raised
from groupwise.algorithms.own_parts import BASES, slot_of

LAWS: Mapping[str, tuple[Law, ...]] = {
    "shaping": credit.SHAPING_LAWS,
    "filter": credit.FILTER_LAWS,
    "advantage": credit.ADVANTAGE_LAWS,
    "ratio": loss.RATIO_LAWS,
    "trust": loss.TRUST_LAWS,
    "mismatch": loss.MISMATCH_LAWS,
    "rejection": loss.REJECTION_LAWS,
    "kl": loss.KL_LAWS,
    "aggregate": loss.AGGREGATE_LAWS,
}
TRIALS: Mapping[str, Trial] = {
    "shaping": credit.SHAPING,
    "advantage": credit.ADVANTAGE,
    "ratio": loss.RATIO,
    "trust": loss.TRUST,
    "mismatch": loss.MISMATCH,
    "rejection": loss.MISMATCH,
    "kl": loss.KL,
    "aggregate": loss.AGGREGATE,
}


def tried(part: Any) -> Iterator[tuple[Law, str]]:
    """Try each law of the part's slot -> the law, and what was seen that breaks it; "" if it holds.

    If the answer is none of the slot's, the law that says so is broken, and those after it are not tried.
    """
    slot = slot_of(type(part))
    of_all, (first, *others) = LAWS[slot][: len(EVERY)], LAWS[slot][len(EVERY) :]
    yield from ((law, law.broken(part)) for law in of_all)
    undue = _undue(slot, part, first.remedy) if slot in TRIALS else ""
    yield first, undue or first.broken(part)
    later = f"not tried. Mend what breaks this first: {first.words}."
    yield from ((law, later if undue else law.broken(part)) for law in others)


def _undue(slot: str, part: Any, remedy: str) -> str:
    """Say why a part cannot be tried, with what to do: it takes other arguments, or its answer is of another kind."""
    trial, batch = TRIALS[slot], draw(0, 0.05)
    try:
        answer = trial.call(part, trial.given(batch))
    except Exception as error:
        names = ", ".join(list(inspect.signature(BASES[slot].__call__).parameters)[1:])
        return f"{raised(error)}. It is called as part({names}), on batches of any size: mend the line that raises."
    several = answer if isinstance(answer, tuple) else (answer,)
    if not all(isinstance(one, Tensor) for one in several) or len(several) != len(trial.answers):
        kinds = ", ".join(type(one).__name__ for one in several)
        return f"it answers with {kinds}. Return {', '.join(trial.answers)}: tensors [N,T] of floating-point numbers."
    return _other_column(trial.answers, several, batch, remedy)


def _other_column(names: Sequence[str], columns: Sequence[Tensor], batch: Draw, remedy: str) -> str:
    for name, column in zip(names, columns, strict=True):
        if column.shape != batch.mask.shape:
            return f"{name} has the shape {list(column.shape)}; [N,T] is {list(batch.mask.shape)}. {remedy}"
        if not column.is_floating_point():
            return f"{name} is of {column.dtype}; floating-point numbers are due. Write mask.to(log_ratio.dtype), say."
    return ""
