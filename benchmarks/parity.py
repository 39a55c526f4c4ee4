"""Each catalog row against other projects' own functions: python benchmarks/parity.py --peers PEERS/bin/python

PEERS is an environment with torch, what groupwise imports, and any of trl, verl, liger-kernel and skyrl, which may be
installed with --no-deps beside what their modules import (ray, tensordict, omegaconf, codetiming, torchdata, jaxtyping,
loguru); each that cannot be imported there is a row that says why. Rows are appended to docs/evidence/parity.jsonl, and
the newest of each comparison is a line of docs/reference/parity.md. Exit status 1: a comparison differs and no reason
is written for it.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

from groupwise.algorithms.catalog import CATALOG  # noqa: E402
from groupwise.core.files.jsonl import rows as whole_rows  # noqa: E402

Row = dict[str, Any]
EVIDENCE, PAGE = ROOT / "docs" / "evidence" / "parity.jsonl", ROOT / "docs" / "reference" / "parity.md"
#: Peer -> the module that compares with it.
PEERS = {"verl": "of_verl", "trl": "of_trl", "liger-kernel": "of_liger", "skyrl": "of_skyrl"}
#: Rows that none of them has, and what does.
ELSEWHERE = {
    "drpo": "in UniRL alone, which has no wheel",
    "topr": "in ROLL alone, which has no wheel",
    "fipo": "in ms-swift alone, whose trainer needs modelscope to be imported",
    "score-centering": "it is newer than these wheels; molt, miles, vime and NeMo-RL have it",
    "grpo-process": "the newer trainers score whole completions alone",
}
KEY = ("row", "peer", "function", "dialect")
TEXT = """\
# Parity: each algorithm against other projects' own functions

    python benchmarks/parity.py --peers PEERS/bin/python

Both sides get the same random batches: ragged masks, advantages of both signs, log-ratios with a deviation of
0.005, 0.2 and 2 nats (0.005, 0.2, 0.5 where the ratio is a whole completion's), four seeds. Each makes its
advantages and its loss. Both have the catalog's constants, unless the dialect says otherwise: the peer's own,
which are the settings beside it. The numbers are the largest absolute differences in float32: of the
advantages, of the loss, and of its gradient with respect to the log-probabilities. The same is at most 1e-6
in each, and at most 1e-6 of the largest number in float64. Empty: the peer does not make it, or writes the
same gradient as another function.

Versions: {packages}.

## The same

{same}

## Where they differ, and who is right

{differs}

## What cannot be compared

{without}
"""


def main(
    peers: Annotated[Path | None, typer.Option(help="The python of an environment with the peers.")] = None,
    file: Path = EVIDENCE,
    page: Path = PAGE,
) -> None:
    """Compare with each peer that can be imported, and write the page."""
    if peers is not None and peers.absolute() != Path(sys.executable).absolute():
        command = [str(peers), __file__, "--file", str(file), "--page", str(page)]
        raise typer.Exit(subprocess.run(command, check=False).returncode)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    made = [{**row, "commit": commit.stdout.strip()} for peer, module in PEERS.items() for row in of_peer(peer, module)]
    with file.open("a") as out:
        out.writelines(json.dumps(row) + "\n" for row in made)
    page.write_text(text(newest(list(whole_rows(file)))))
    unexplained = [row for row in made if row["verdict"] == "differs" and not row["words"]]
    for row in unexplained:
        print(f"{row['row']} and {row['peer']}'s {row['function']} ({row['dialect']}) differ, and no reason is written")
    raise typer.Exit(bool(unexplained))


def of_peer(peer: str, module: str) -> Iterator[Row]:
    """Compare each row with a peer; a row without a comparison says why."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            side = importlib.import_module(f"peers.{module}")
    except ImportError as error:
        words = f"cannot be imported: {str(error).splitlines()[0]}"
        yield {"row": "all", "peer": peer, "function": "", "dialect": "", "verdict": "not compared", "words": words}
        return
    from peers.comparing import compared

    of = {"peer": peer, "version": version(peer), "torch": version("torch")}
    for case in (*side.CASES, *side.EDGES):
        yield {**of, **compared(case)}
    nothing = {"function": "", "dialect": "", "verdict": "not compared"}
    for name in set(CATALOG) - {case.row for case in (*side.CASES, *side.EDGES)}:
        yield {**of, **nothing, "row": name, "words": side.WITHOUT.get(name, "")}


def newest(rows: list[Row]) -> list[Row]:
    """The last row of each comparison, in the catalog's order; those of other versions of a peer are left out."""
    last = {tuple(row[key] for key in KEY): row for row in rows}
    now = {row["peer"]: row.get("version") for row in rows}
    order = {name: at for at, name in enumerate((*CATALOG, "all"))}
    kept = [row for row in last.values() if row.get("version") == now[row["peer"]]]
    return sorted(kept, key=lambda row: order[row["row"]])


def text(rows: list[Row]) -> str:
    """The page of the rows."""
    packages = sorted({f"{row['peer']} {row['version']}" for row in rows if "version" in row})
    same = [row for row in rows if row["verdict"] == "same"]
    differs = [row for row in rows if row["verdict"] in ("differs", "same in float64")]
    head = "| row | peer | its functions | dialect | advantages | loss | gradient |\n|---|---|---|---|---|---|---|"
    return TEXT.format(
        packages=", ".join(packages),
        same="\n".join([head, *map(line, same)]),
        differs="\n".join([head, *map(line, differs)]),
        without="\n".join(without(rows)),
    )


def line(row: Row) -> str:
    """A comparison as a line of a table, its words below its dialect."""
    numbers = ("" if row[name] is None else f"{row[name]:.1e}" for name in ("advantage", "value", "gradient"))
    settings = ", ".join(f"`{key}={value}`" for key, value in row["settings"].items())
    verdict = row["verdict"] if row["verdict"] == "same in float64" else ""
    notes = "; ".join(filter(None, (row["dialect"], settings, row["words"], verdict)))
    return f"| {row['row']} | {row['peer']} | {row['function']} | {notes} | {' | '.join(numbers)} |"


def without(rows: list[Row]) -> Iterator[str]:
    """A line for each peer that cannot be imported, each row that no peer has, and each that one has otherwise."""
    compared_rows = {row["row"] for row in rows if row["verdict"] != "not compared"}
    for name in (*CATALOG, "all"):
        some = [row for row in rows if row["row"] == name and row["verdict"] == "not compared"]
        words = [f"{row['peer']}: {row['words']}" for row in some if row["words"]]
        if name not in compared_rows and name != "all":
            words = [f"no peer has it; {ELSEWHERE[name]}", *words]
        if words:
            yield f"- {name}: {'; '.join(words)}"


if __name__ == "__main__":
    typer.run(main)
