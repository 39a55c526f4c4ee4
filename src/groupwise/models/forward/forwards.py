"""Modules of a model that run by another function for a while."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def replaced(forwards: Iterable[tuple[nn.Module, Callable[..., Any]]]) -> Iterator[None]:
    """Inside, each module runs by its function; afterwards as before, by its class's forward or one of its own."""
    pairs = list(forwards)
    own = [vars(module).get("forward") for module, _ in pairs]
    try:
        for module, forward in pairs:
            vars(module)["forward"] = forward
        yield
    finally:
        for (module, _), before in zip(pairs, own, strict=True):
            vars(module).pop("forward")
            if before is not None:
                vars(module)["forward"] = before
