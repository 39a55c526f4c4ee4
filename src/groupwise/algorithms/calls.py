"""Parts that are not groupwise's own, called: what one answers is looked at before it trains anything."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from groupwise.algorithms.parts import Signal
from groupwise.core.code.trace import own_traceback, place
from groupwise.core.code.user_code import use_of
from groupwise.core.errors import GroupwiseError, RunError


def call(slot: str, part: Any, *given: Any) -> Any:
    """Call a part with what its slot gives, and look at the answer. A part of groupwise is called as it is.

    Raises RunError that names the part, its slot and what to do, if another one raises, or answers with another
    shape, a number that is not finite, or a column that is detached from the policy.
    """
    kind = type(part)
    if kind.__module__.startswith("groupwise."):
        return part(*given)
    what, remedy = f"algorithm.{slot}: {kind.__name__}", f"try: groupwise laws {use_of(kind)}"
    try:
        answer = part(*given)
    except GroupwiseError:
        raise
    except Exception as error:
        at = f" ({place(error)})" if place(error) else ""
        stopped = RunError(f"{what} raised {type(error).__name__}: {error}{at}; {remedy}")
        stopped.add_note(own_traceback(error))
        raise stopped from None
    if wrong := ANSWERS[slot](answer, *given):
        raise RunError(f"{what} {wrong}; {remedy}")
    return answer


def _of_filter(answer: Any, group: Any) -> str:
    pair = isinstance(answer, tuple) and len(answer) == 2
    good = pair and isinstance(answer[0], bool) and isinstance(answer[1], Signal)
    return "" if good else f"returned {answer!r}; a groupwise.Verdict(bool, Signal) is due"


def _of_trust(answer: Any, log_ratio: Tensor, advantage: Tensor, live: Tensor, mask: Tensor) -> str:
    if wrong := _pair(("value", "share"), answer, mask):
        return wrong
    value, share = answer
    outside = bool(((share < 0) | (share > 1))[mask].any())
    return _detached("value", value, log_ratio, live) or ("returned a share outside of 0 to 1" if outside else "")


def _of_mismatch(answer: Any, old: Tensor, engine: Tensor, mask: Tensor) -> str:
    if wrong := _column("correction", answer, mask):
        return wrong
    return "returned a correction with a gradient; detach it" if answer.requires_grad else ""


def _of_rejection(answer: Any, old: Tensor, engine: Tensor, mask: Tensor) -> str:
    if wrong := _of_mismatch(answer, old, engine, mask):
        return wrong
    return "" if bool(((answer == 0) | (answer == 1))[mask].all()) else "accepted a token by a number other than 0 or 1"


def _pair(names: tuple[str, str], answer: Any, mask: Tensor) -> str:
    if not isinstance(answer, tuple) or len(answer) != 2:
        return f"returned a {type(answer).__name__}; {names[0]} and {names[1]}, [N,T] each, are due"
    return next(filter(None, (_column(name, one, mask) for name, one in zip(names, answer, strict=True))), "")


def _column(name: str, column: Any, mask: Tensor) -> str:
    """Say what is wrong with a column that must be numbers of the mask's shape, finite where the mask is True."""
    if not isinstance(column, Tensor):
        return f"returned a {type(column).__name__} as its {name}; a tensor [N,T] is due"
    if column.shape != mask.shape:
        return f"returned a {name} of shape {list(column.shape)}; [N,T] is {list(mask.shape)}"
    if not column.is_floating_point():
        return f"returned a {name} of {column.dtype}; floating-point numbers are due"
    broken = int((~column.detach()[mask].isfinite()).sum())
    return f"returned a {name} that is not finite at {broken} of {int(mask.sum())} trained tokens" if broken else ""


def _detached(name: str, column: Tensor, *inputs: Tensor) -> str:
    if column.requires_grad or not torch.is_grad_enabled() or not any(one.requires_grad for one in inputs):
        return ""
    return f"returned a {name} that is detached from the policy: nothing would train; leave out detach() and no_grad()"


#: By slot: (answer, what the part was given) -> what is wrong with the answer, in words; "" if nothing is.
ANSWERS: Mapping[str, Callable[..., str]] = {
    # A row without a score may hold anything.
    "shaping": lambda answer, batch: _column("reward", answer, batch.mask & ~batch.score.isnan()[:, None]),
    "filter": _of_filter,
    "advantage": lambda answer, reward, value, mask, *rest: _pair(("advantage", "returns"), answer, mask),
    "ratio": lambda answer, live, old, mask: _column("log_ratio", answer, mask) or _detached("log_ratio", answer, live),
    "trust": _of_trust,
    "mismatch": _of_mismatch,
    "rejection": _of_rejection,
    "kl": lambda answer, live, *rest: (
        _column("kl", answer, torch.ones_like(live, dtype=torch.bool)) or _detached("kl", answer, live)
    ),
    "aggregate": lambda answer, mask, totals: _column("weight", answer, mask),
}
