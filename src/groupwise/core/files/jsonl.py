"""Files of one JSON row a line: rows are written whole, read where they are whole, and cut by step without parsing."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from groupwise.core.errors import RunError
from groupwise.core.files.atomic import open_regular, whole_file
from groupwise.core.files.json_text import writable

OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS

#: How a row begins that belongs to a step; these bytes stand nowhere inside a text, where quotes are escaped.
STEP = b'{"step":'
BEGINNING = re.compile(rb'\{"step": ?(\d{1,15})[,}]')


def encoded(row: Any, indent: bool = False) -> bytes:
    """Return a row as JSON. A number that is not finite becomes null, half a surrogate pair the replacement character.

    >>> encoded({"a": float("nan"), "b": "1" + chr(0xD800)}).decode()
    '{"a":null,"b":"1\ufffd"}'
    """
    options = OPTIONS | orjson.OPT_INDENT_2 if indent else OPTIONS
    try:
        return orjson.dumps(row, option=options)
    except orjson.JSONEncodeError:
        return orjson.dumps(writable(row), option=options)


def rows(path: Path, step: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file, or of a step; what is no whole row, as a killed process leaves it, is passed over."""
    with open_regular(path) as file:
        for line in file:
            row = _parsed(line) if step is None or step_of(line) == step else None
            if row is not None:
                yield row


def steps(path: Path) -> Iterator[int]:
    """Yield the step of each whole row of a file that has one."""
    with open_regular(path) as file:
        yield from (step for line in file if (step := step_of(line)) is not None)


def step_of(line: bytes) -> int | None:
    """Return the step of a line that is a whole row; None if it is not, or has no step.

    >>> step_of(b'{"step":3,"loss":0.5}\\n'), step_of(b'{"step":3,"lo'), step_of(b'{"step":3,"lo{"step":4}\\n')
    (3, None, None)
    """
    beginning = BEGINNING.match(line)
    if beginning and line.endswith(b"}\n") and line.find(STEP, 1) < 0:
        return int(beginning[1])
    step = (_parsed(line) or {}).get("step")
    return step if isinstance(step, int) and not isinstance(step, bool) else None


def cut(path: Path, last: int) -> None:
    """Take out lines after step `last`, and those that are not whole. Raises RunError if the disk refuses."""
    try:
        with open_regular(path) as old, whole_file(path) as new:
            for line in old:
                step = step_of(line)
                if step is not None and step <= last:
                    new.write(line if line.endswith(b"\n") else line + b"\n")
    except OSError as error:
        raise RunError(f"{path}: cannot be written anew: {error.strerror}") from None


def flat(table: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Flatten nested tables: dotted key -> value.

    >>> flat({"seed": 0, "algorithm": {"kl": {"beta": 0.04}}})
    {'seed': 0, 'algorithm.kl.beta': 0.04}
    >>> flat({"pass_at_k": {1: 0.5}})
    {'pass_at_k.1': 0.5}
    """
    values: dict[str, Any] = {}
    for key, value in table.items():
        values |= flat(value, f"{path}{key}.") if isinstance(value, Mapping) else {f"{path}{key}": value}
    return values


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = shallow(orjson.loads(line))
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def shallow(value: Any) -> Any:
    """Return the value. Raises ValueError if JSON cannot hold it again: nested too deep, an integer beyond 64 bits."""
    try:
        orjson.dumps(value, option=OPTIONS)
    except TypeError as error:
        raise ValueError(str(error)) from None
    return value
