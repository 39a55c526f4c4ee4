"""Plain values as what crosses the border of the sandbox: data in frames of JSON (groupwise.core.channel).

A value becomes a tree of JSON: None, bool, str, float and small int as they are; a list ["l", ...], a tuple ["t", ...],
a set ["s", ...], a dict ["d", [key, value], ...], a large int ["i", hex]. Types are exact, so a subclass with its own
`__eq__` does not travel. The supervisor compares trees and never builds sets or dicts from a child's data: keys chosen
to collide would cost it quadratic time.
"""

import json
import re
from collections import Counter, OrderedDict, defaultdict
from typing import Any

DEPTH = 64
_SMALL = 2**63
_HEX = re.compile(r"-?[0-9a-f]+")
_SEQUENCES = {list: "l", tuple: "t", set: "s", frozenset: "s"}
_MAPPINGS = (dict, Counter, OrderedDict, defaultdict)


class NotPlain(Exception):
    """A value that is not plain data, or not within the limits."""


def encode(value: Any, depth: int = DEPTH) -> Any:
    """The tree of a plain value. Raises NotPlain for any other type and for nesting deeper than `depth`.

    >>> encode({"a": (1, 2.5)})
    ['d', ['a', ['t', 1, 2.5]]]
    """
    kind = type(value)
    if value is None or kind in (bool, str, float):
        return value
    if kind is int:
        return value if -_SMALL < value < _SMALL else ["i", f"{value:x}"]
    if depth == 0:
        raise NotPlain(f"a value nested deeper than {DEPTH} levels")
    if kind in _SEQUENCES:
        return [_SEQUENCES[kind], *(encode(item, depth - 1) for item in value)]
    if kind in _MAPPINGS:
        return ["d", *([encode(key, depth - 1), encode(item, depth - 1)] for key, item in value.items())]
    raise NotPlain(f"a value of type {kind.__name__}")


def decode(tree: Any, depth: int = DEPTH) -> Any:
    """The value of a tree. Raises NotPlain where it is none.

    >>> decode(encode({"a": (1, {2}), "b": 2**70})) == {"a": (1, {2}), "b": 2**70}
    True
    """
    if tree is None or type(tree) in (bool, str, float, int):
        return tree
    if type(tree) is not list or not tree or depth == 0:
        raise NotPlain("a malformed value")
    tag, items = tree[0], tree[1:]
    try:
        if tag == "i":
            return int(items[0], 16)
        if tag == "d":
            return {decode(key, depth - 1): decode(item, depth - 1) for key, item in items}
        return {"l": list, "t": tuple, "s": set}[tag](decode(item, depth - 1) for item in items)
    except (KeyError, TypeError, ValueError, IndexError):
        raise NotPlain("a malformed value") from None


def equal(value: Any, expected: Any, depth: int = DEPTH) -> bool:
    """Whether two trees mean the same value, the second being trusted.

    A bool is no number, a float equals the int of its value, NaN equals nothing. A tuple equals a list where the
    expected value is a list: JSON has no tuples.

    >>> equal(["t", 1, 2.0], ["l", 1, 2]), equal(True, 1), equal(float("nan"), float("nan"))
    (True, False, False)
    """
    value, expected = _number(value), _number(expected)
    if type(expected) in (int, float):
        return type(value) in (int, float) and value == expected
    if type(expected) is not list or type(value) is not list:
        return type(value) is type(expected) and value == expected
    if len(value) != len(expected) or depth == 0:
        return False
    kind = expected[0]
    if value[0] != kind and not (kind == "l" and value[0] == "t"):
        return False
    if kind == "d":
        pairs = zip(*(sorted(tree[1:], key=lambda pair: _key(pair[0])) for tree in (value, expected)), strict=True)
        return all(equal(a[0], b[0], depth - 1) and equal(a[1], b[1], depth - 1) for a, b in pairs)
    sides = (sorted(tree[1:], key=_key) if kind == "s" else tree[1:] for tree in (value, expected))
    return all(equal(a, b, depth - 1) for a, b in zip(*sides, strict=True))


def validate(tree: Any, depth: int = DEPTH) -> None:
    """Raises NotPlain unless the tree is one that `encode` makes. Nothing is hashed."""
    if tree is None or type(tree) in (bool, str, float, int):
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


def _number(tree: Any) -> Any:
    """A large int as the int it is, anything else as it came."""
    return int(tree[1], 16) if type(tree) is list and tree[0] == "i" else tree


def _key(tree: Any) -> str:
    """A text that is the same for equal members of a set, or keys of a dict: 2.0 is 2."""
    return json.dumps(_with_ints(tree))


def _with_ints(tree: Any) -> Any:
    """The tree with every float that is an int as that int."""
    if type(tree) is list:
        return [_with_ints(item) for item in tree]
    return int(tree) if type(tree) is float and tree.is_integer() else tree
