"""groupwise against TRL, whole steps: python benchmarks/trl/run.py docs/evidence/bench-trl.jsonl

A run is a process of its own and has a row in the file when it has finished. One that has its row is not run again, so
this can be stopped and gone on with at any time. Where groupwise's source has changed, its rows and TRL's are made
again, because both sides are timed in turns. At first TRL's learner is tried with as many completions at once as fit,
and with fewer; the fastest is what is timed. docs/findings/benchmarks_trl.md is written from the rows at the end.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import table
from cases import CASES, GROWTH, ROWS, Case, rows_at_once
from evidence import OURS, THEIRS, append, fastest_rows, has, read

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "findings" / "benchmarks_trl.md"
INTERPRETER = {OURS: Path(sys.executable), THEIRS: ROOT / ".venv-trl" / "bin" / "python"}
SEEDS = (0, 1, 2)
#: Of a model's configuration, what its operations are counted from.
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
         "head_dim", "vocab_size", "tie_word_embeddings")  # fmt: skip


@dataclass(frozen=True)
class Bench:
    """Where rows and models are, and which source of groupwise is timed."""

    file: Path
    models: Path
    source: str
    threads: int

    def run(self, key: dict[str, Any], side: str, program: str, *words: str) -> bool:
        """Add the row of one process, where it is not there -> whether there is one now."""
        if has(read(self.file), key):
            return True
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "row.json"
            command = [str(INTERPRETER[side]), str(HERE / program), words[0], str(self.models), str(out), *words[1:]]
            environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads)}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if not out.exists():
                print(f"{key}: exit code {done.returncode}\n{done.stdout[-400:]}{done.stderr[-1600:]}", file=sys.stderr)
                return False
            append(self.file, {**key, **json.loads(out.read_text())})
        print(*(value for value in key.values() if not isinstance(value, dict)), flush=True)
        return True

    def prepare(self, program: str, name: str) -> bool:
        """Make a model folder and its problems, where they are not there."""
        command = [sys.executable, str(HERE / program), name, str(self.models)]
        return subprocess.run(command, check=False).returncode == 0

    def tune(self, case: Case) -> None:
        for rows in rows_at_once(case):
            key = {
                "kind": "tune",
                "case": case.name,
                "digest": case.digest,
                "threads": self.threads,
                "rows_at_once": rows,
            }
            self.run(key, THEIRS, "theirs.py", case.name, str(rows), "short")

    def times(self, case: Case) -> bool:
        """Every block of a case: ours, theirs, theirs, ours; or each side once."""
        rows = fastest_rows(read(self.file), case) or case.completions // 4
        config = json.loads((self.models / case.model_name / "config.json").read_text())
        key = {"kind": "step", "case": case.name, "digest": case.digest, "source": self.source, "threads": self.threads}
        key |= {"config": {name: config[name] for name in SIZES if name in config}}
        key |= {"axis": case.axis, "value": case.value} if case.axis else {}
        good = True
        for block, place, side in order(case):
            words = (case.name,) if side == OURS else (case.name, str(rows))
            turn = {"side": side, "block": block, "place": place}
            good &= self.run({**key, **turn}, side, f"{side}.py", *words)
        return good

    def learns(self, seed: int) -> bool:
        """The quickstart's task by each side, from one warm-started policy."""
        key = {"kind": "curve", "source": self.source, "seed": seed}
        return all(self.run({**key, "side": side}, side, f"learn_{side}.py", str(seed)) for side in (OURS, THEIRS))


def order(case: Case) -> Iterator[tuple[int, int, str]]:
    """Block, place in it, side."""
    turns = (OURS, THEIRS, THEIRS, OURS) if case.blocks else (OURS, THEIRS)
    for block in range(case.blocks or 1):
        for place, side in enumerate(turns):
            yield block, place, side


def source() -> str:
    """The hash of groupwise's source, as it is committed."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD:src/groupwise"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def chosen(only: str) -> Sequence[Case]:
    names = only.split(",") if only else [case.name for case in (*ROWS, *GROWTH)]
    if unknown := [name for name in names if name not in CASES and name != "curves"]:
        raise typer.BadParameter(f"--only: no such case: {', '.join(unknown)}; there are {', '.join(CASES)}, curves")
    return [CASES[name] for name in names if name in CASES]


def main(
    file: Path,
    models: Path = Path("runs/bench-trl/models"),
    only: Annotated[str, typer.Option(help="Cases such as equal-48,smollm2, or curves; all without it.")] = "",
    threads: Annotated[int, typer.Option(min=1, help="Of each process.")] = os.cpu_count() or 1,
) -> None:
    """Run what has no row yet; then write the page."""
    if not INTERPRETER[THEIRS].exists():
        sys.exit("bench-trl: TRL's environment is missing; make .venv-trl/installed")
    bench, good = Bench(file, models, source(), threads), True
    for case in chosen(only):
        if not bench.prepare("prepare.py", case.name):
            print(f"{case.name}: left out, its model could not be made", file=sys.stderr)
            good = False
            continue
        if not case.axis:
            bench.tune(case)
        good &= bench.times(case)
    for seed in SEEDS if not only or "curves" in only else ():
        good &= bench.prepare("start.py", str(seed)) and bench.learns(seed)
    PAGE.write_text(table.page(read(file)))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    typer.run(main)
