"""Lines of JSON as a run left them: whole rows, halves, and what other tools wrote. What is odd is counted and said."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from groupwise.core.files.atomic import open_regular
from groupwise.core.files.json_text import writable
from groupwise.core.files.jsonl import STEP, shallow
from groupwise.health.symptoms.base import is_number
from groupwise.reports.records import Number

Row = dict[str, Any]

#: Every kind of oddity in words; {one|many} is said of one and of several, and # is their number.
ODD = {
    "cut": "the last line is cut off and was left out",
    "broken": "{1 line is|# lines are} cut off or damaged; only what is whole in {it|them} was kept",
    "foreign": "{1 line has|# lines have} bytes that are not UTF-8; they are shown as \ufffd",
    "no object": "{1 line is|# lines are} JSON but no object and {was|were} left out",
    "no table": "{1 row has|# rows have} a text or a number where a table belongs; that was left out",
    "no step": "{1 row has|# rows have} no whole number as {its|their} step and {was|were} left out",
    "twice": "{1 row is of a step|# rows are of steps} that {was|were} there already; the later row {|of each }is kept",
    "no number": "{1 value is|# values are} written as NaN or Infinity; {it is a gap|they are gaps} here",
}

_LARGEST_STEP = 2**53


def oddities(name: str, odd: Counter[str]) -> list[str]:
    """Tell the oddities of a file, a line for each kind.

    >>> oddities("metrics.jsonl", Counter({"no step": 2}))
    ['metrics.jsonl: 2 rows have no whole number as their step and were left out']
    """
    counts = [(odd[kind], words) for kind, words in ODD.items() if odd[kind]]
    chosen = [re.sub(r"\{(.*?)\|(.*?)\}", r"\1" if count == 1 else r"\2", words) for count, words in counts]
    return [f"{name}: {words.replace('#', f'{count:,}')}" for (count, _), words in zip(counts, chosen, strict=True)]


def table(value: object) -> dict[str, Any]:
    """Take a table as it is, and everything else as an empty one."""
    return value if isinstance(value, dict) else {}


def tables(value: object) -> list[dict[str, Any]]:
    """Take the entries of a list, each as a table; none if it is no list."""
    return [table(entry) for entry in value] if isinstance(value, list) else []


def number(value: object) -> Number:
    """Take a number as it is; everything else, such as truth values and what is too large to be measured, as None.

    >>> number(0.5), number(float("nan")), number("0.5"), number(True)
    (0.5, None, None, None)
    """
    if not is_number(value):
        return None
    return float(value) if abs(value) > _LARGEST_STEP else value


def count_of(value: object) -> int | None:
    """Take a number that counts something: 0, 1, 2, ..., also if it is written 2.0."""
    count = number(value)
    if count is None or count < 0 or count != int(count) or count > _LARGEST_STEP:
        return None
    return int(count)


def parsed(text: bytes, odd: Counter[str]) -> Any:
    """Read one JSON value. Raises ValueError if the text is none."""
    try:
        return shallow(orjson.loads(text))
    except ValueError:
        return _foreign(text, odd)


def rows_of(line: bytes, odd: Counter[str]) -> list[Row]:
    """Read the rows of one line: one as a rule, none if it holds no object, and what is whole in a damaged line."""
    if not line.strip():
        return []
    try:
        value = parsed(line, odd)
    except ValueError:
        return _rescued(line, odd)
    if isinstance(value, dict):
        return [value]
    odd["no object"] += 1
    return []


def all_rows(path: Path, odd: Counter[str]) -> tuple[list[Row], str]:
    """Read every row of a file as it is now -> the rows, and why the file cannot be read, in the system's words."""
    try:
        with open_regular(path) as file:
            *lines, half = file.read().split(b"\n")
    except FileNotFoundError:
        return [], ""
    except OSError as error:
        return [], error.strerror or str(error)
    rows = [row for line in lines for row in rows_of(line, odd)]
    try:
        last = parsed(half, odd) if half.strip() else None
    except ValueError:
        last = ()
    if isinstance(last, dict):  # whole but for the end of the line
        rows.append(last)
    elif last is not None:
        odd["cut"] += 1
    return rows, ""


def by_step(rows: Iterable[Row], odd: Counter[str]) -> list[Row]:
    """Put rows in the order of their steps; of a step that is there twice, the later row is kept."""
    found: dict[int, Row] = {}
    for row in rows:
        step = count_of(row.get("step"))
        if step is None:
            odd["no step"] += 1
        else:
            odd["twice"] += step in found
            found[step] = {**row, "step": step}
    return [found[step] for step in sorted(found)]


def _foreign(text: bytes, odd: Counter[str]) -> Any:
    """Read what another tool wrote: NaN as a word, bytes that are not UTF-8, halves of surrogate pairs."""
    text = text.removeprefix(b"\xef\xbb\xbf")
    words = text.decode("utf-8", errors="replace")
    gaps: list[str] = []
    try:
        # As orjson does: an integer that is too long becomes a float, which may be infinite.
        value = json.loads(words, parse_constant=gaps.append, parse_int=lambda n: int(n) if len(n) < 19 else float(n))
        value = shallow(writable(value))
    except RecursionError:
        raise ValueError("nested too deep") from None
    odd["no number"] += len(gaps)
    odd["foreign"] += words.encode() != text
    return value


def _rescued(line: bytes, odd: Counter[str]) -> list[Row]:
    """Read the rows in a damaged line: a killed run leaves half a line, and the next row may stand right behind it."""
    odd["broken"] += 1
    rows: list[Row] = []
    for piece in line.split(STEP)[1:]:
        with suppress(ValueError):
            rows.append(parsed(STEP + piece, odd))
    return rows
