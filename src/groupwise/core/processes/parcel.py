"""Objects that a run gives its own processes to score with, and what samples hold beside text and numbers, as trees.

An object is the call that makes it again and what it holds, as it says itself (`__reduce_ex__`, which `copy` asks too):
["c", function, arguments, state]. A class or a function is ["n", module, name], where a file of a user's own stands in
the module's place, with its content; bytes are ["b", base64]; a tensor is ["w", its bytes, type, shape], and comes
without its gradient, on the CPU. Nothing else is an object: a table or a list of a class of its own is refused, and
what is held twice comes as two.

A recipe's settings would not do in place of objects: a task that is made again reads its files again, as they are now.

Whoever reads this imports and calls what it names. So a run sends it to processes that it has started, and reads none:
what comes back is JSON and plain trees (core/processes/codec.py).
"""

import base64
import sys
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
    return encode(value, DEPTH, _tree)


def unpack(tree: Any) -> Any:
    """The value that was packed. What an import or a user's object raises comes through."""
    return decode(tree, DEPTH, _value)


def _tree(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind is bytes:
        return ["b", base64.b64encode(value).decode()]
    if isinstance(value, (type, FunctionType, BuiltinFunctionType)):
        return _named(value, depth)
    if (kind.__module__, kind.__name__) == ("torch", "Tensor"):
        import torch

        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return ["w", encode(data, depth, _tree), str(value.dtype).removeprefix("torch."), list(value.shape)]
    try:
        made: Any = value.__reduce_ex__(2)
    except TypeError:  # of a lock, a socket, a generator
        made = ""
    function, arguments, state, *items = (*made, None) if isinstance(made, tuple) else (None, (), None, value)
    if any(item is not None for item in items):
        raise NotPlain(f"a value of type {kind.__name__}; hold text, numbers, lists or tables instead")
    return ["c", *(encode(part, depth, _tree) for part in (function, tuple(arguments), state))]


def _named(value: Any, depth: int) -> list[Any]:
    module, name = sys.modules.get(value.__module__ or ""), value.__qualname__
    try:
        found = attrgetter(name)(module)
    except AttributeError:
        found = None
    if module is None or found is not value:
        raise NotPlain(f"{value.__module__}.{name} is not found by this name; define it at the top of a file")
    if value.__module__ == "__main__":
        raise NotPlain(f'{name} is of the program; write it to a file and name it, such as use = "my_file.py:{name}"')
    loader = getattr(module, "__loader__", None)
    return ["n", encode(loader, depth, _tree) if isinstance(loader, Source) else module.__name__, name]


def _value(tree: Any, depth: int) -> Any:
    match tree:
        case ["b", str(text)]:
            return base64.b64decode(text)
        case ["w", data, str(dtype), list(shape)]:
            import numpy as np
            import torch

            numbers = np.frombuffer(bytearray(decode(data, depth, _value)), np.uint8)
            return torch.from_numpy(numbers).view(getattr(torch, dtype)).reshape(shape)
        case ["n", where, str(name)]:
            module = import_module(where) if isinstance(where, str) else decode(where, depth, _value).module()
            return attrgetter(name)(module)
        case ["c", function, arguments, state]:
            made = decode(function, depth, _value)(*decode(arguments, depth, _value))
            _give(made, decode(state, depth, _value))
            return made
    raise NotPlain("a malformed value")


def _give(made: Any, state: Any) -> None:
    """Gives an object that was made what it held."""
    if state is not None and hasattr(made, "__setstate__"):
        made.__setstate__(state)
        return
    for fields in state if isinstance(state, tuple) else (state,):
        for name, value in (fields or {}).items():
            object.__setattr__(made, name, value)
