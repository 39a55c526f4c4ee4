"""A user's own part, asked a second time: on a copy, with the random numbers of the run left as they are."""

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def is_ours(part: object) -> bool:
    """Tell whether a part is one of the catalog's, of which the witness has a definition of its own."""
    return type(part).__module__.startswith("groupwise.")


@contextmanager
def untouched() -> Iterator[None]:
    """Leave the random numbers that the run draws from as they are."""
    state, cards, plain = torch.get_rng_state(), _cards(), random.getstate()
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_rng_state(state)
        random.setstate(plain)
        if cards:
            torch.cuda.set_rng_state_all(cards)


def _cards() -> list[torch.Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


def asked_again(part: Any, ask: Callable[[Any], Any]) -> Any:
    """Ask a copy of a part twice -> its answer; None if the answers differ, so that it is no function of what it is
    given.
    """
    with untouched():
        own = copy.deepcopy(part)
        first, second = ask(own), ask(own)
    return first if _same(first, second) else None


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one.nan_to_num(), other.nan_to_num())
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
