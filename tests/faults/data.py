"""Mutants of data files: rows, whole files, and what stands where a file should."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from tests.faults.ground import DATA, RECIPE, ROWS, Ground, toml
from tests.faults.mutant import NO_FILES, Content, Mutant, as_json, damaged, odd_json, one, text
from tests.faults.recipes import merged

ENDINGS = (".jsonl", ".json", ".csv", ".tsv", ".jsonl.gz", ".parquet")
#: Other ways to read the rows.
READINGS: list[dict[str, Any]] = [
    {},
    {},
    {"prompt": "{question} {kind}"},
    {"solution": "solution"},
    {"source": "kind"},
    {"filter": {"level": {"min": 1}}},
    {"filter": {"kind": "sum"}},
    {"solution": "solution", "solution_without": "so"},
    {"answer": "solution", "answer_after": "so"},
    {"instruction": " now"},
    {"check": "numeric"},
]


@st.composite
def data(draw: st.DrawFn, ground: Ground) -> Mutant:
    return draw(st.one_of(_rows(), _rows(), _bytes(), _columns(), _files(), _trained()))


def written(rows: Sequence[Any], ending: str) -> bytes:
    if ending == ".json":
        return as_json(list(rows))
    if ending in (".csv", ".tsv"):
        out = io.StringIO()
        lines = csv.writer(out, delimiter="\t" if ending == ".tsv" else ",")
        lines.writerow(rows[0])
        lines.writerows(row.values() for row in rows)
        return out.getvalue().encode("utf-8", "surrogatepass")
    if ending == ".parquet":
        return _parquet(rows)
    lines = b"".join(as_json(row) + b"\n" for row in rows)
    return gzip.compress(lines, mtime=0) if ending == ".jsonl.gz" else lines


def _parquet(rows: Sequence[Any], **types: Any) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    out = pa.BufferOutputStream()
    parquet.write_table(pa.Table.from_pylist(list(rows)), out)
    return out.getvalue().to_pybytes()


def _mutant(
    what: str, ending: str, content: Content, reading: dict[str, Any], kind: str = "data", **known: Any
) -> Mutant:
    task = {**DATA, **reading, "path": f"mutant{ending}"}
    recipe = merged(
        json.loads(json.dumps(RECIPE)), {"task": task, "model": "tiny-bytes", "evaluation": {"problems": 1}}
    )
    recipe["sampling"] = {"max_new_tokens": 64}
    words = ("check", "recipe.toml", "--no-model")
    return Mutant(
        kind, f"{ending}: {what}", words, (("recipe.toml", toml(recipe)), (f"mutant{ending}", content)), **known
    )


@st.composite
def _rows(draw: st.DrawFn) -> Mutant:
    ending = draw(one(".jsonl", ".json", ".jsonl.gz"))
    reading = draw(st.sampled_from(READINGS))
    rows: list[Any] = [dict(row) for row in ROWS]
    at, column = draw(st.integers(0, len(rows) - 1)), draw(st.sampled_from(list(ROWS[0])))
    how = draw(one("a value", "a value", "a value", "a missing column", "no object", "a further column"))
    value = draw(odd_json())
    read = {
        "question",
        *reading.get("filter", {}),
        reading.get("answer", "answer"),
        reading.get("solution", "question"),
    }
    read |= {reading["source"]} if "source" in reading else {"kind"} if "{kind}" in reading.get("prompt", "") else set()
    if how == "a missing column":
        del rows[at][column]
        wrong = column in read
    elif how == "no object":
        rows[at] = value
        wrong = not isinstance(value, dict) or not value or "question" not in value
    elif how == "a further column":
        rows[at][draw(text())] = value
        wrong = value in ("@digits5000", "@deep")
    else:
        rows[at][column] = value
        no_text = not isinstance(value, str) or value in (
            "@digits400", "@digits5000", "@deep", "@nan", "@inf", "@-inf", "@date", "\ud800",
        )  # fmt: skip
        no_answer = value is None or isinstance(value, (bool, list, dict))
        left_out = "level" in reading.get("filter", {}) and rows[at]["level"] == 0
        wrong = value in ("@digits5000", "@deep") or (not left_out and (
            (column == "question" and "prompt" not in reading and (no_text or not str(value).strip()))
            or (column == "answer" == reading.get("answer", "answer") and no_answer)
        ))  # fmt: skip
    expects = "refuse" if wrong else "either"
    return _mutant(how, ending, written(rows, ending), reading, expects=expects, rows=None if wrong else len(rows))


@st.composite
def _bytes(draw: st.DrawFn) -> Mutant:
    """A file whose bytes were damaged; what a plain reader of its kind refuses is known to be wrong."""
    ending = draw(st.sampled_from(ENDINGS))
    how, content = draw(damaged(written(ROWS, ending)))
    try:
        count = len(_read(content, ending))
    except Exception:  # whatever the plain reader raises
        return _mutant(how, ending, content, {}, expects="refuse" if ending != ".parquet" else "either")
    return _mutant(how, ending, content, {}, expects="either" if count else "refuse", rows=count or None)


def _read(content: bytes, ending: str) -> list[Any]:
    """The rows as the standard library reads them. Raises where it cannot, or where a row lacks a problem."""
    if ending == ".parquet":
        import pyarrow as pa
        from pyarrow import parquet

        return parquet.read_table(pa.BufferReader(content)).to_pylist()
    content = gzip.decompress(content) if ending == ".jsonl.gz" else content
    words = content.removeprefix(b"\xef\xbb\xbf").decode()
    if ending in (".csv", ".tsv"):
        records = list(
            csv.reader(io.StringIO(words, newline=""), delimiter="\t" if ending == ".tsv" else ",", strict=True)
        )
        header, *rows = [record for record in records if record]
        return [dict(zip(header, record, strict=True)) for record in rows if all(record[:1])]
    if ending == ".json" and not content.lstrip().startswith(b"{"):
        rows = json.loads(words)
        assert isinstance(rows, list)
    else:
        lines = [line.strip(" \t\r\n\v\f") for line in words.split("\n")]
        rows = [json.loads(line) for line in lines if line]
    for row in rows:
        assert isinstance(row["question"], str)
        assert row["question"].strip()
        row["answer"]
    return rows


@st.composite
def _columns(draw: st.DrawFn) -> Mutant:
    """Tables with odd headers, widths, types and time zones; texts that no row should hold."""
    how = draw(one("a header", "a width", "a type", "a text", "no rows"))
    ending = draw(one(".csv", ".tsv")) if how in ("a header", "a width") else draw(st.sampled_from(ENDINGS))
    if how == "a type":
        return _mutant("a type", ".parquet", _parquet_of(draw), {}, expects="either")
    if how == "a text":
        rows = [dict(row) for row in ROWS]
        odd = draw(text())
        rows[draw(st.integers(0, len(rows) - 1))][draw(one("question", "solution", "kind"))] = odd
        return _mutant(how, ending, written(rows, ending), draw(st.sampled_from(READINGS)), expects="either")
    if how == "no rows":
        empty = {
            ".json": b"[]",
            ".csv": b"question,answer\n",
            ".tsv": b"question\tanswer\n",
            ".jsonl.gz": gzip.compress(b""),
        }
        return _mutant(how, ending, empty.get(ending, b""), {}, expects="refuse")
    lines = written(ROWS, ending).decode().splitlines()
    mark = "\t" if ending == ".tsv" else ","
    if how == "a header":
        lines[0] = draw(
            one(
                "",
                mark * 4,
                mark.join(["question"] * 5),
                lines[0] + mark,
                lines[0].replace("answer", "ansver"),
                '"' + lines[0],
            )
        )
    else:
        lines[draw(st.integers(1, len(lines) - 1))] += draw(one(mark, mark * 300, mark + "x"))
    return _mutant(how, ending, "\n".join(lines).encode(), {}, expects="refuse")


def _parquet_of(draw: st.DrawFn) -> bytes:
    """A Parquet table with a further column of a type that Python has no value for, or has one that is odd."""
    import pyarrow as pa
    from pyarrow import parquet

    count = len(ROWS)
    columns = [
        pa.array([0] * count, pa.int64()).cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us", "Mars/Olympus")),
        pa.array([2**62] * count, pa.timestamp("ns")),
        pa.array([2**62] * count, pa.int64()).cast(pa.timestamp("ms")),
        pa.array([2**62] * count, pa.duration("s")),
        pa.array([b"\xff"] * count, pa.binary()),
        pa.array([[(1, 2)]] * count, pa.map_(pa.int32(), pa.int32())),
        pa.array([float("nan")] * count),
        pa.array([None] * count),
        pa.array([2**31 - 1] * count, pa.int32()).cast(pa.date32()),
    ]
    name = draw(one("more", "answer", "question", "level"))
    table = pa.Table.from_pylist(ROWS)
    column = draw(st.sampled_from(columns))
    table = (
        table.set_column(table.column_names.index(name), name, column)
        if name in table.column_names
        else table.append_column(name, column)
    )
    out = pa.BufferOutputStream()
    parquet.write_table(table, out)
    return out.getvalue().to_pybytes()


@st.composite
def _files(draw: st.DrawFn) -> Mutant:
    """No file that can be read where one should be; a folder of files; an ending that says another kind."""
    ending = draw(st.sampled_from(ENDINGS))
    how = draw(one("no file", "no file", "another kind", "a folder with a FIFO"))
    if how == "no file":
        return _mutant(how, ending, draw(one(*NO_FILES, None)), {}, expects="refuse")
    if how == "another kind":
        other = draw(st.sampled_from([e for e in ENDINGS if e != ending]))
        content = written(ROWS, other)
        same = {ending, other} <= {".json", ".jsonl"} and other == ".jsonl"
        return _mutant(f"{how}, {other}", ending, content, {}, expects="either" if same else "refuse")
    mutant = _mutant(how, "", None, {}, expects="either")
    files = (
        *mutant.files[:1],
        ("mutant/train.jsonl", written(ROWS, ".jsonl")),
        (f"mutant/test{ending}", draw(st.sampled_from(NO_FILES))),
    )
    return Mutant("data", how, mutant.words, files, "either")


@st.composite
def _trained(draw: st.DrawFn) -> Mutant:
    rows = [
        {"question": draw(text())[:400] + f" {i}", "answer": draw(text()) or "1", "solution": draw(text())}
        for i in range(8)
    ]
    mutant = _mutant("trained on odd texts", ".jsonl", written(rows, ".jsonl"), {})
    recipe = mutant.files[0][1]
    assert isinstance(recipe, bytes)
    recipe = recipe.replace(b"max_new_tokens = 64", b"max_new_tokens = 4").replace(
        b"report = false", draw(one(b"report = false", b"report = false", b"report = true"))
    )
    return Mutant("data", mutant.what, ("train", "recipe.toml"), (("recipe.toml", recipe), mutant.files[1]))


#: Bytes of texts of a file in memory above which it is refused, and below which it is not.
TOO_MUCH, MODERATE = 1 << 29, 1 << 24


@st.composite
def parquet(draw: st.DrawFn, ground: Ground) -> Mutant:
    """Small files that hold much: one value that comes often, in columns of every make; and damage to such a file."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet as library

    size, count = draw(one(1, 10, 10**3, 10**5, 10**6)), draw(one(1, 10, 10**3, 10**5, 10**6))
    place = draw(one("a prompt", "a column", "a list", "records", "bytes", "bytes of one size", "numbers"))
    if place == "bytes of one size":
        count = max(1, min(count, (1 << 24) // size))  # the library that writes unpacks them
    value: Any = b"7" * size if "bytes" in place else 7 if place == "numbers" else "7" * size
    kind = pa.binary(size) if place == "bytes of one size" else None
    column: Any = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int8)), pa.array([value], kind))
    rows = count if place in ("a prompt", "a column", "bytes", "bytes of one size") else 12
    if place == "records":
        column = pa.StructArray.from_arrays([column], ["content"])
    if place in ("a list", "records", "numbers"):
        column = pa.ListArray.from_arrays(pa.array([0] + [count] * rows, pa.int32()), column)
    other = [f"{i}+2=" for i in range(rows)] if rows <= 1000 else ["1+2="]
    prompts: Any = pa.DictionaryArray.from_arrays(pa.array(np.arange(rows) % len(other), pa.int32()), pa.array(other))
    table = {"question": column if place == "a prompt" else prompts, "answer": prompts}
    table |= {} if place == "a prompt" else {"more": column}
    out = pa.BufferOutputStream()
    library.write_table(
        pa.table(table), out, compression=draw(one("none", "zstd", "snappy", "gzip")), store_schema=draw(st.booleans()),
        row_group_size=draw(one(None, 1000, 10**5)) if rows < 10**6 else None,
        data_page_version=draw(one("1.0", "2.0")),
    )  # fmt: skip
    content, held = out.getvalue().to_pybytes(), count * (size if place != "numbers" else 8) + 512 * rows
    if draw(st.integers(0, 2)) == 0:
        return _mutant("damaged", ".parquet", draw(damaged(content))[1], {}, "parquet", expects="either")
    much = held > max(TOO_MUCH, 400 * len(content))
    reading = {"limit": 100} if rows > 100 else {}
    known: dict[str, Any] = {"expects": "refuse"} if much else {"expects": "either"}
    return _mutant(f"{place}, {'much' if much else 'moderate' if held < MODERATE else 'some'}", ".parquet", content,
                   reading, "parquet", **known)  # fmt: skip
