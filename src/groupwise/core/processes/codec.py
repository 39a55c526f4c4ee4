"""Codec between processes: JSON with its length before it, and arrays as raw bytes behind it.

A message is a JSON object in a frame (core/channel.py). One with arrays names each, with type and shape, under
"arrays"; their bytes follow in that order:

    {"answer": {...}, "arrays": {"tokens": ["int64", [12]], "logp_engine": ["float64", [12]]}}    then 96 + 96 bytes

A value that is more than JSON is a tree of JSON. `encode` and `decode` know plain values: None, bool, str, float and
small int as they are; a list ["l", ...], a tuple ["t", ...], a set ["s", ...], a dict ["d", [key, value], ...], a large
int ["i", hex]. A table of the standard library's is a dict there, and a frozenset a set. Other types are exact, so a
subclass with its own `__eq__` does not travel, and whatever else a tree says is refused.

`pack` and `unpack` know objects too, which only a process of one's own is sent, because whoever reads them imports and
calls what they name. An object is the call that makes it again and what it holds, as it says itself (`__reduce_ex__`,
which `copy` asks too): ["c", function, arguments, state]. A class or a function is ["n", module, name], where a file of
a user's own stands in the module's place, with its content; bytes are ["b", base64]; a tensor is ["w", its bytes, type,
shape], and comes without its gradient, on the CPU. What is held twice comes as two.

The standard library only, numpy where there are arrays: the sandbox's processes read trees where nothing is installed.
"""

import base64
import math
import re
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from operator import attrgetter
from types import BuiltinFunctionType, FunctionType, NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

from groupwise.core.channel import FrameError
from groupwise.core.peer import Transport

if TYPE_CHECKING:
    import numpy as np

Arrays = Mapping[str, "np.ndarray"]
#: Bytes of an array that are sent at once, each with all the time there is: what is large may take long.
PART = 1 << 24
#: Bytes of the arrays of one message, and how many of them, unless the reader says otherwise.
LARGEST, MOST_ARRAYS = 1 << 36, 1 << 16
#: What the numbers of an array may be.
DTYPES = frozenset(
    f"{kind}{bits}"
    for kind, sizes in {"int": (8, 16, 32, 64), "uint": (8, 16, 32, 64), "float": (16, 32, 64), "bool": ("",)}.items()
    for bits in sizes
)
#: Values inside one another in a tree of plain values, and in one with objects, which are made of some.
DEPTH, OBJECT_DEPTH = 64, 128
_MOST_AXES = 32
_SMALL = 2**63
_HEX = re.compile(r"-?[0-9a-f]+")
_SEQUENCES = {list: "l", tuple: "t", set: "s"}
#: What travels as what it is nearest to.
_ALIKE: dict[type, type] = {frozenset: set, **dict.fromkeys((Counter, OrderedDict, defaultdict), dict)}
_UNCHANGED = frozenset((NoneType, bool, str, float))
_SCALARS = _UNCHANGED | {int}

#: (value, depth left) -> its tree; (tree, depth left) -> its value. For what is not plain; each raises NotPlain.
Others = Callable[[Any, int], Any]


class NotPlain(Exception):
    """A value that is not plain data, or not within the limits."""


class Message(NamedTuple):
    """A JSON object, and the arrays that came behind it."""

    content: dict[str, Any]
    arrays: Arrays


def send(
    line: Transport,
    content: Mapping[str, Any],
    arrays: Arrays,
    seconds: float | None = None,
    descriptors: Sequence[int] = (),
) -> None:
    """Send a message with arrays; `seconds` may pass without progress. Raises as the line does."""
    named = {name: [array.dtype.name, list(array.shape)] for name, array in arrays.items()}
    line.send({**content, "arrays": named}, descriptors, seconds)
    for array in arrays.values():
        data = (array if array.flags.c_contiguous else array.copy()).reshape(-1).view("uint8").data
        for begin in range(0, len(data), PART):
            line.send_raw(data[begin : begin + PART], seconds)


def receive(line: Transport, seconds: float | None = None) -> Message:
    """Receive the next message. Raises FrameError where its arrays cannot be, and else as the line does."""
    content = line.receive(seconds)
    return Message(content, arrays_behind(line, content, seconds))


def arrays_behind(
    line: Transport, content: dict[str, Any], seconds: float | None = None, most: int = LARGEST
) -> dict[str, "np.ndarray"]:
    """Receive the arrays of a message, whose names are taken out of its JSON: `most` bytes together.

    Raises FrameError before anything is read where what is said of one cannot be, and else as the line does.
    """
    said = content.pop("arrays", {})
    if not said:
        return {}
    import numpy as np

    if not isinstance(said, dict) or len(said) > MOST_ARRAYS:
        raise FrameError("arrays that are no table of at most 65,536")
    layouts = {name: _layout(name, array) for name, array in said.items()}
    sizes = {name: np.dtype(dtype).itemsize * math.prod(shape) for name, (dtype, shape) in layouts.items()}
    if sum(sizes.values()) > most:
        raise FrameError(f"arrays above {most} bytes")
    arrays = {}
    for name, (dtype, shape) in layouts.items():
        arrays[name] = np.frombuffer(line.receive_raw(sizes[name], seconds), dtype).reshape(shape)
    return arrays


def _layout(name: str, said: Any) -> tuple[str, list[int]]:
    match said:
        case [str(dtype), list(shape)] if (
            dtype in DTYPES and len(shape) <= _MOST_AXES and all(type(n) is int and 0 <= n < _SMALL for n in shape)
        ):
            return dtype, shape
    raise FrameError(f"an array {name!r:.40} of no known type and shape: {said!r:.80}")


def encode(value: Any, depth: int = DEPTH, others: Others | None = None) -> Any:
    """Return the tree of a plain value. Raises NotPlain for nesting deeper than `depth`, and for any other type unless
    `others` has a tree for it.

    >>> encode({"a": (1, 2.5)})
    ['d', ['a', ['t', 1, 2.5]]]
    """
    kind = type(value)
    if kind in _UNCHANGED:
        return value
    if kind is int:
        return value if -_SMALL < value < _SMALL else ["i", f"{value:x}"]
    if depth == 0:
        raise NotPlain("a value with too many others inside one another")
    kind = _ALIKE.get(kind, kind)
    if kind in _SEQUENCES:
        return [_SEQUENCES[kind], *_encoded(value, depth - 1, others)]
    if kind is dict:
        pairs = ([encode(key, depth - 1, others), encode(item, depth - 1, others)] for key, item in value.items())
        return ["d", *pairs]
    if others is None:
        raise NotPlain(f"a value of type {kind.__name__}")
    return others(value, depth - 1)


def decode(tree: Any, depth: int = DEPTH, others: Others | None = None) -> Any:
    """Return the value of a tree. Raises NotPlain where it is none, nor one that `others` knows.

    >>> decode(encode({"a": (1, {2}), "b": 2**70})) == {"a": (1, {2}), "b": 2**70}
    True
    """
    if type(tree) in _SCALARS:
        return tree
    if type(tree) is not list or not tree or depth == 0:
        raise NotPlain("a malformed value")
    tag, items = tree[0], tree[1:]
    try:
        match tag:
            case "i":
                return int(items[0], 16)
            case "d":
                return {decode(key, depth - 1, others): decode(item, depth - 1, others) for key, item in items}
            case "l":
                return list(_decoded(items, depth - 1, others))
            case "t":
                return tuple(_decoded(items, depth - 1, others))
            case "s":
                return set(_decoded(items, depth - 1, others))
    except (TypeError, ValueError, IndexError):
        if others is None:
            raise NotPlain("a malformed value") from None
        raise  # by whatever is made while an object is read
    if others is None:
        raise NotPlain("a malformed value")
    return others(tree, depth - 1)


def validate(tree: Any, depth: int = DEPTH) -> None:
    """Raise NotPlain unless the tree is one that `encode` makes. Nothing is hashed."""
    if type(tree) in _SCALARS:
        return
    if type(tree) is not list or not tree or depth == 0:
        raise NotPlain("a malformed value")
    kind, items = tree[0], tree[1:]
    if kind == "i":
        good = len(items) == 1 and type(items[0]) is str and _HEX.fullmatch(items[0]) is not None
    elif kind == "d":
        good = all(type(pair) is list and len(pair) == 2 for pair in items)
        items = [side for pair in items for side in pair] if good else []
    else:
        good = type(kind) is str and kind in ("l", "t", "s")
    if not good:
        raise NotPlain("a malformed value")
    for item in items if kind != "i" else ():
        validate(item, depth - 1)


def _encoded(values: Iterable[Any], depth: int, others: Others | None) -> Iterable[Any]:
    """Return the trees of several values; numbers and texts, of which there may be many, are looked at all at once."""
    values, kinds = list(values), set(map(type, values))
    if kinds <= _UNCHANGED or (kinds == {int} and min(values) > -_SMALL and max(values) < _SMALL):
        return values
    return [encode(value, depth, others) for value in values]


def _decoded(trees: list[Any], depth: int, others: Others | None) -> Iterable[Any]:
    return trees if set(map(type, trees)) <= _SCALARS else [decode(tree, depth, others) for tree in trees]


def pack(value: Any) -> Any:
    """Return the tree of a value that may be, or hold, objects.

    Raises NotPlain, in words, where another process cannot have the value; what a user's object raises comes through.
    """
    return encode(value, OBJECT_DEPTH, _tree)


def unpack(tree: Any) -> Any:
    """Return the value that was packed. What an import or a user's object raises comes through."""
    return decode(tree, OBJECT_DEPTH, _value)


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
    from groupwise.core.code.user_code import Source  # more than the standard library

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
    if state is not None and hasattr(made, "__setstate__"):
        made.__setstate__(state)
        return
    for fields in state if isinstance(state, tuple) else (state,):
        for name, value in (fields or {}).items():
            object.__setattr__(made, name, value)
