"""What groupwise does with every language model class of transformers: the table of docs/reference/models.md.

    python benchmarks/models.py                       # every kind that has no row for this transformers yet
    python benchmarks/models.py --only gemma3,lfm2 --again
    python benchmarks/models.py --table               # write the page from the rows, run nothing

A kind is tried in a process of its own, forked from one that has imported what all of them need: what one breaks is its
own. The rows are in docs/evidence/models.jsonl; of a kind that was tried again the last one counts.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
import typer

from architectures.build import kinds
from architectures.page import page
from architectures.trial import Trial
from groupwise.core.files import jsonl
from groupwise.core.files.atomic import whole_file

Row = dict[str, Any]

ROOT = Path(__file__).parents[1]
ROWS, PAGE = ROOT / "docs/evidence/models.jsonl", ROOT / "docs/reference/models.md"
#: What trials import late.
IMPORTED = (
    "peft",
    "torch._inductor.compile_fx",
    "torch.distributed.fsdp",
    "torch.nn.attention.flex_attention",
    "groupwise.commands.check.check",
    "groupwise.commands.train.train",
    "groupwise.diagnostics.witness.witness",
    "groupwise.models.adapters.lora",
    "groupwise.reports.make",
)
#: Seconds of a trial after which it hangs.
DEADLINE = 300


def tried(kind: str, class_name: str) -> Row:
    """Try a kind in a process of its own -> its row."""
    with tempfile.TemporaryDirectory() as place:
        process = multiprocessing.get_context("fork").Process(target=_try, args=(kind, class_name, Path(place)))
        process.start()
        process.join(DEADLINE)
        if process.is_alive():
            process.kill()
            process.join()
        row = Path(place) / "row.json"
        if row.exists():
            return json.loads(row.read_text())
        end = f"no end in {DEADLINE} s" if process.exitcode == -9 else f"the process ended with {process.exitcode}"
        return {"kind": kind, "class": class_name, "stages": {"builds": "", "checks": end}, "seconds": DEADLINE}


def _try(kind: str, class_name: str, place: Path) -> None:
    os.chdir(place)
    said = os.open(place / "said", os.O_WRONLY | os.O_CREAT)
    for descriptor in (1, 2):
        os.dup2(said, descriptor)
    row = Trial(kind, class_name, place).run()
    (place / "row.json").write_text(json.dumps(row))


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    return done.stdout.strip()


def newest(file: Path) -> dict[str, Row]:
    """Read the rows of this transformers: of each kind the last one."""
    rows = jsonl.rows(file) if file.exists() else []
    return {row["kind"]: row for row in rows if row["transformers"] == transformers.__version__}


def compacted(file: Path) -> None:
    """Keep of each kind and transformers the last row."""
    rows = {(row["transformers"], row["kind"]): row for row in jsonl.rows(file)}
    text = "".join(json.dumps(rows[key]) + "\n" for key in sorted(rows))
    with whole_file(file) as out:
        out.write(text.encode())


def missing(names: Mapping[str, str], rows: Mapping[str, Row], only: Sequence[str], again: bool) -> Iterator[str]:
    """List the kinds to try."""
    if unknown := {*only} - {*names}:
        sys.exit(f"no kinds of this transformers: {', '.join(sorted(unknown))}")
    return (kind for kind in (only or names) if again or kind not in rows)


def main(
    only: Annotated[str, typer.Option(help="Kinds, with a , between them.")] = "",
    again: Annotated[bool, typer.Option(help="Try kinds that have their row too.")] = False,
    failed: Annotated[bool, typer.Option(help="Try again the kinds of which a stage failed.")] = False,
    only_table: Annotated[bool, typer.Option("--table", help="Try nothing.")] = False,
    file: Path = ROWS,
    out: Path = PAGE,
) -> None:
    """Try what has no row yet; then write the page."""
    torch.set_num_threads(1)
    for name in IMPORTED:
        importlib.import_module(name)
    names, rows = kinds(), newest(file)
    asked = [kind for kind in only.split(",") if kind]
    if failed:
        asked = [kind for kind, row in rows.items() if any(row["stages"].values()) and (not asked or kind in asked)]
    for kind in [] if only_table else missing(names, rows, asked, again or failed):
        row = tried(kind, names[kind])
        row |= {"transformers": transformers.__version__, "torch": torch.__version__, "commit": commit()}
        with file.open("a") as lines:
            lines.write(json.dumps(row) + "\n")
        said = "; ".join(f"{stage}: {words[:150]}" for stage, words in row["stages"].items() if words)
        print(f"{kind} ({row['seconds']} s): {said or 'all'}", flush=True)
    compacted(file)
    out.write_text(page(out.read_text(), newest(file)))


if __name__ == "__main__":
    typer.run(main)
