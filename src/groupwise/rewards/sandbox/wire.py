"""Plain values as they cross the border of the sandbox: trees of core/processes/codec.py, and when two are equal.

The supervisor compares trees and never builds sets or dicts from a child's data: keys chosen to collide would cost it
quadratic time.
"""

import json
from typing import Any

from groupwise.core.processes.codec import DEPTH, NotPlain, decode, encode, validate

__all__ = ["NotPlain", "decode", "encode", "equal", "validate"]


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
