"""Objects on their way to a process of one's own: what it scores with, and what it scores.

An object goes as the call that makes it again, as its own `__reduce_ex__` says (which `copy` asks too): ["c", function,
arguments, state, items, pairs]. A second mention of it is ["r", number]; a class or a function is ["n", module, name],
where a file of a user's own stands in the module's place, with its content; bytes are ["b", base64], and many int
["q", whether a tuple, base64]. An array of numpy is an object too; a tensor is ["w", its bytes as one, type, shape],
and comes without its gradient, on the CPU.

Whoever reads this imports and calls what it names. So a run sends it to processes that it has started, and reads none:
what comes back is JSON and plain trees (core/processes/codec.py).
"""

import base64
import copyreg
import sys
from array import array
from collections.abc import Mapping, Sequence
from importlib import import_module
from operator import attrgetter
from types import BuiltinFunctionType, FunctionType
from typing import Any

from groupwise.core.code.user_code import Source
from groupwise.core.processes.codec import NotPlain, decode, encode

#: Values inside one another: an object is made of some.
DEPTH = 128


def pack(value: Any) -> Any:
    """The tree of a value. Raises NotPlain, in words, where another process cannot have the value; what a user's object
    raises comes through.
    """
    return encode(value, DEPTH, _Packing())


def unpack(tree: Any) -> Any:
    """The value that was packed. What an import or a user's object raises comes through."""
    return decode(tree, DEPTH, _Unpacking())


class _Packing:
    """Trees of what is not plain."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        self._held: list[Any] = []  # or a number of `_known` could be another object's

    def __call__(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind in (list, tuple):
            return _numbers(value)
        if kind is bytes:
            return ["b", base64.b64encode(value).decode()]
        if isinstance(value, (type, FunctionType, BuiltinFunctionType)):
            return self._named(value, depth)
        if kind.__module__ == "torch" and kind.__name__ == "Tensor":
            return self._tensor(value, depth)
        if id(value) in self._known:
            return ["r", self._known[id(value)]]
        return self._call(value, kind, depth)

    def _call(self, value: Any, kind: type, depth: int) -> Any:
        how = copyreg.dispatch_table.get(kind, lambda one: one.__reduce_ex__(2))
        try:
            made: Any = how(value)
        except TypeError:  # of a lock, a socket, a generator
            raise NotPlain(f"a value of type {kind.__name__}; hold text, numbers, lists or tables instead") from None
        if isinstance(made, str):  # the name of a constant of its module
            return self._named(value, depth, made)
        parts: tuple[Any, ...] = (*made, None, None, None)
        function, arguments, state, items, pairs = parts[:5]
        begun = [encode(part, depth, self) for part in (function, tuple(arguments))]
        self._known[id(value)] = len(self._held)
        self._held.append(value)
        rest = (state, None if items is None else list(items), None if pairs is None else [list(p) for p in pairs])
        return ["c", *begun, *(encode(part, depth, self) for part in rest)]

    def _named(self, value: Any, depth: int, name: str = "") -> Any:
        name = name or value.__qualname__
        module = sys.modules.get(value.__module__ or "")
        try:
            found = attrgetter(name)(module)
        except AttributeError:
            found = None
        if module is None or found is not value:
            raise NotPlain(f"{value.__module__}.{name} is not found by this name; define it at the top of a file")
        loader = getattr(module, "__loader__", None)
        return ["n", encode(loader, depth, self) if isinstance(loader, Source) else module.__name__, name]

    def _tensor(self, value: Any, depth: int) -> Any:
        import torch

        if value.layout is not torch.strided or value.is_quantized:
            raise NotPlain(f"a tensor of the layout {value.layout}; make it dense")
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return ["w", encode(data, depth, self), str(value.dtype).removeprefix("torch."), list(value.shape)]


def _numbers(values: Sequence[Any]) -> Any:
    """The tree of many int; None of anything else. As text they would take ten times as long."""
    if set(map(type, values)) != {int}:
        return None
    try:
        data = array("q", values).tobytes()
    except OverflowError:
        return None
    return ["q", isinstance(values, tuple), base64.b64encode(data).decode()]


class _Unpacking:
    """Values of such trees."""

    def __init__(self) -> None:
        self._made: list[Any] = []

    def __call__(self, tree: Any, depth: int) -> Any:
        match tree:
            case ["b", str(text)]:
                return base64.b64decode(text)
            case ["q", bool(fixed), str(text)]:
                numbers = array("q", base64.b64decode(text))
                return tuple(numbers) if fixed else numbers.tolist()
            case ["r", int(number)]:
                return self._made[number]
            case ["w", data, str(dtype), list(shape)]:
                import torch

                return torch.from_numpy(decode(data, depth, self)).view(getattr(torch, dtype)).reshape(shape)
            case ["n", where, str(name)]:
                module = import_module(where) if isinstance(where, str) else decode(where, depth, self).module()
                return attrgetter(name)(module)
            case ["c", function, arguments, state, items, pairs]:
                value = decode(function, depth, self)(*decode(arguments, depth, self))
                self._made.append(value)
                _finish(value, *(decode(part, depth, self) for part in (state, items, pairs)))
                return value
        raise NotPlain("a malformed value")


def _finish(value: Any, state: Any, items: list[Any] | None, pairs: list[Any] | None) -> None:
    """Gives a value that was made what it held."""
    for item in items or ():
        value.append(item)
    for key, item in pairs or ():
        value[key] = item
    if state is None:
        return
    if hasattr(value, "__setstate__"):
        value.__setstate__(state)
        return
    fields, slots = state if isinstance(state, tuple) else (state, None)
    vars(value).update(fields or {})
    for name, one in (slots if isinstance(slots, Mapping) else {}).items():
        setattr(value, name, one)
