"""Whether a run grows: what the process, its children and its folder hold over 10,000 steps of the tiniest policy.

    nice python benchmarks/endurance.py docs/evidence/endurance.jsonl docs/concepts/endurance.svg
    python benchmarks/endurance.py docs/evidence/endurance.jsonl docs/concepts/endurance.svg --steps 300 --loops 4

A row every 100 steps. A run that was cut off goes on after its last checkpoint, in a new process whose number stands
in its rows; rows that are there are not written again. With --loops that many busy loops run beside it. Then the
picture is drawn from the rows of the run without loops, and what the log says of checks, deadlines and processes is
printed; a run beside loops has the bits of one without, so that its warnings are compared with those of the other's
same steps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import groupwise
from groupwise.commands.train.callbacks import StepRecord
from sweep import finished

Row = dict[str, Any]

EVERY, MIB = 100, 2**20
RECIPE: Mapping[str, object] = {
    "model": "tiny-dense",
    "task.name": "arithmetic",
    "algorithm.name": "grpo",
    "prompts_per_step": 2,
    "samples_per_prompt": 2,
    "task.operands": [2, 2],
    "sampling.max_new_tokens": 8,
    "warm_start.steps": 300,
    "learner.learning_rate": 1e-5,
    "evaluation.every": 500,
    "evaluation.problems": 4,
    "evaluation.samples": 1,
    "checkpoint.every": 500,
    "checkpoint.keep": 2,
    "threads": 1,
    "journal.report": False,
}
#: Beside busy loops the engine is a process of its own, whose deadlines they could make pass.
CHILD: Mapping[str, object] = {"engine.process": "child"}
TROUBLE = (": fail", "deadline", "lost", "restart", "Traceback")
#: Of each panel of the picture: the column, and what its axis says.
PANELS = (
    ("resident", "resident memory, MiB"),
    ("descriptors", "open descriptors"),
    ("threads", "threads"),
    ("children", "child processes"),
    ("milliseconds", "milliseconds a step"),
    ("folder", "run folder without checkpoints, MiB"),
    ("checkpoints", "checkpoints, MiB"),
)
WIDTH, HEIGHT, LEFT, GAP = 560, 96, 58, 34


def size_of(folder: Path) -> float:
    """MiB of the files of a folder, as many as stay there while they are counted."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()] if folder.exists() else []
    return sum(sizes) / MIB


def children() -> int:
    """Processes that this one, or a process below it, started and that are there."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # ended meanwhile
    below, found = {os.getpid()}, set[int]()
    while below:
        below = {pid for pid, parent in parents.items() if parent in below}
        found |= below
    return len(found)


class Meter:
    """A callback that writes a row every 100 steps."""

    def __init__(self, file: Path, loops: int, process: int) -> None:
        self.file, self.loops, self.process = file, loops, process
        self.known = {row["step"] for row in finished(file) if row["loops"] == loops}
        self.since, self.counted = time.perf_counter(), 0

    def __call__(self, record: StepRecord) -> None:
        self.counted += 1
        if record.step % EVERY:
            return
        seconds = (time.perf_counter() - self.since) / self.counted
        checkpoints = size_of(record.folder / "checkpoints")
        row = {
            "step": record.step,
            "loops": self.loops,
            "process": self.process,
            "resident": round(
                int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / MIB, 2
            ),
            "descriptors": len(os.listdir("/proc/self/fd")) - 1,  # without the one that lists them
            "threads": len(os.listdir("/proc/self/task")),
            "children": children(),
            "milliseconds": round(1000 * seconds, 3),
            "folder": round(size_of(record.folder) - checkpoints, 3),
            "checkpoints": round(checkpoints, 3),
        }
        if record.step not in self.known:
            with self.file.open("a") as out:
                out.write(json.dumps(row) + "\n")
        self.since, self.counted = time.perf_counter(), 0


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """That many processes that do nothing but count."""
    each = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in each:
            process.kill()
            process.wait()


def panel(rows: Sequence[Row], column: str, words: str, top: float) -> str:
    """A panel: a line of a column over steps, from 0; a gap where a process ended and the next went on."""
    steps, most = max(row["step"] for row in rows), max(max(row[column] for row in rows), 1) * 1.15
    at = [(row["process"], LEFT + WIDTH * row["step"] / steps, top + HEIGHT * (1 - row[column] / most)) for row in rows]
    lines = [
        f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for number, x, y in at if number == process)}"/>'
        for process in sorted({row["process"] for row in rows})
    ]
    first, last = rows[0][column], rows[-1][column]
    return (
        f'<text x="{LEFT}" y="{top - 8}" class="name">{words}: {first:g} at step {rows[0]["step"]}, {last:g} at step '
        f'{rows[-1]["step"]:,}</text><path d="M{LEFT},{top}V{top + HEIGHT}H{LEFT + WIDTH}"/>'
        f'<text x="{LEFT - 6}" y="{top + HEIGHT}" class="end">0</text>'
        f'<text x="{LEFT - 6}" y="{top + 10}" class="end">{most:.3g}</text>' + "".join(lines)
    )


def picture(rows: Sequence[Row]) -> str:
    """The page: a panel for each column."""
    height = len(PANELS) * (HEIGHT + GAP) + 24
    style = (
        "text{font-family:sans-serif;font-size:11px;fill:#1f2328}.name{font-size:13px;font-weight:bold}"
        ".end{text-anchor:end}path{fill:none;stroke:#8c959f}polyline{fill:none;stroke:#0072B2;stroke-width:1.8}"
    )
    size = f'width="{LEFT + WIDTH + 20}" height="{height}"'
    panels = [panel(rows, *named, GAP + i * (HEIGHT + GAP)) for i, named in enumerate(PANELS)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} {height}" {size}>'
    return "\n".join([head, f'<style>{style}</style><rect {size} style="fill:#ffffff"/>', *panels, "</svg>\n"])


def main(
    file: Path,
    drawn: Path,
    steps: int = 10_000,
    loops: int = 0,
    runs: Annotated[Path, typer.Option(help="where the run's folder is")] = Path("docs/evidence/runs"),
) -> None:
    """Run what has no row yet, then draw the picture and print what the run said of itself."""
    folder = runs / (f"endurance-{loops}-loops" if loops else "endurance")
    done = [row for row in finished(file) if row["loops"] == loops]
    if not done or done[-1]["step"] < steps:
        meter = Meter(file, loops, process=done[-1]["process"] + 1 if done else 1)
        with busy(loops):
            if (folder / "recipe.toml").exists():
                groupwise.resume(folder, {"steps": steps}, callbacks=[meter], quiet=True)
            else:
                own = {"runs": str(runs), "steps": steps, **(CHILD if loops else {})}
                groupwise.train({**RECIPE, **own}, {"name": folder.name}, callbacks=[meter], quiet=True)
    if alone := [row for row in finished(file) if row["loops"] == 0]:
        drawn.write_text(picture(alone))
    said, beside = warnings(folder, steps), warnings(runs / "endurance", steps)
    trouble = [line for line in lines(folder) if any(word in line for word in TROUBLE)]
    print("\n".join([f"{folder.name}: {len(trouble)} lines of failed checks, deadlines, lost processes", *trouble]))
    print("\n".join([f"{len(said)} warnings, of which the run without loops has not", *sorted(said - beside)]))


def lines(folder: Path) -> list[str]:
    """The log of a run."""
    log = folder / "log.txt"
    return log.read_text().splitlines() if log.exists() else []


def warnings(folder: Path, last: int) -> set[str]:
    """The warnings that a run has said up to a step."""
    found = (line for line in lines(folder) if "warning, " in line)
    return {line for line in found if int(line.removeprefix("step ").partition(":")[0]) <= last}


if __name__ == "__main__":
    typer.run(main)
