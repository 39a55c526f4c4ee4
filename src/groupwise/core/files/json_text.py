"""JSON and text that a person wrote or a program made: read whole, or refused in one line that names its place."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from groupwise.core.errors import UsageError, brief, one_line

#: Lists and objects inside one another, at most.
DEEPEST = 100


def decoded(line: bytes, where: str) -> str:
    """Return the text of a line. Raises UsageError naming the first byte that is not UTF-8.

    >>> decoded(b"caf\\xc3\\xa9", "a.csv, line 1")
    'café'
    """
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{where}: byte {error.start + 1} (0x{line[error.start]:02x}) is not UTF-8; save the file as UTF-8"
        ) from None


def json_value(text: bytes, where: str) -> Any:
    """Read what a JSON text says. Raises UsageError if it is none, or says a key twice."""
    try:
        value = json.loads(decoded(text, where), object_pairs_hook=_distinct)
        if text.count(b"[") + text.count(b"{") > DEEPEST and _depth(value) > DEEPEST:
            raise ValueError(f"more than {DEEPEST} lists and objects inside one another")
        return value
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, " if error.lineno > 1 else ""
        what = error.msg.removesuffix(" at")
        raise UsageError(f"{where}: not JSON: {what} at {place}column {error.colno}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise UsageError(f"{where}: JSON that cannot be read: {one_line(error)}") from None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these keys and values. Raises ValueError if a key comes twice: one value would be lost."""
    table = dict(pairs)
    if len(table) < len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {brief(key)} comes twice")
    return table


def _depth(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


def encoded(text: str, where: str) -> bytes:
    """Encode the text. Raises UsageError for half of a surrogate pair, which JSON can spell and no text can hold."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{where}: half of a surrogate pair (\\ud800 to \\udfff), which is no character") from None


def writable(value: Any) -> Any:
    """Return the value with every text encodable: half a surrogate pair becomes the replacement character."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {writable(k): writable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [writable(v) for v in value]
    return value
