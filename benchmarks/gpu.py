"""What a GPU does with groupwise, in about nine minutes: python benchmarks/gpu.py

    python benchmarks/gpu.py                          every part that has no row yet, then docs/findings/gpu.md's tables
    python benchmarks/gpu.py --only decode,update     these parts alone
    python benchmarks/gpu.py --device cpu --small     the same lines on two processor cores, in five minutes
    python benchmarks/gpu.py --only "" --rows FILE    the tables of a file, nothing measured

Needs torch, transformers and what groupwise imports; groupwise itself need not be installed, and TRL's part is left out
where TRL is not. Each part is a process of its own with a limit of time, and compares the fast path with the plain one
before it times anything. A figure is a line of the file as soon as it is measured; one that has its line, of the same
card and source, is not measured again, so that this can be killed at any moment and goes on where it was. What a
processor measures goes to runs/gpu, never to docs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import os
import platform
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
#: What a part imports: groupwise, the parts, and what they share with the benchmark against TRL.
PATHS = (SOURCE, ROOT / "benchmarks", ROOT / "benchmarks" / "trl")
sys.path[:0] = [str(path) for path in PATHS]

from gpu_parts import table  # noqa: E402  # found by what stands above
from gpu_parts.measuring import ROW, Context  # noqa: E402
from groupwise.core.files.jsonl import rows as whole_rows  # noqa: E402
from groupwise.rewards.isolation import die_with_parent  # noqa: E402
from process import machine as processor  # noqa: E402

Row = dict[str, Any]
CHILD = "--child"


@dataclass(frozen=True)
class Part:
    """A part's module in gpu_parts, and the seconds that it may take on a GPU and, small, on a CPU."""

    name: str
    seconds: int
    seconds_small: int


#: In order of worth: what time does not suffice for is at the end.
PARTS = (
    Part("ceilings", 20, 15),
    Part("decode", 130, 90),
    Part("update", 100, 45),
    Part("step", 100, 40),
    Part("trl_step", 70, 40),
    Part("load", 30, 30),
    Part("runs", 100, 110),
    Part("several", 30, 20),
)
#: Parts whose figures are shares of what the first part measures.
NEED_CEILINGS = ("decode", "update")
NAMES = [part.name for part in PARTS]


@dataclass(frozen=True)
class Bench:
    """Where rows go, and what each one says of its machine."""

    file: Path
    machine: Mapping[str, Any]
    context: Context
    trl_python: Path

    def rows(self) -> list[Row]:
        """Those of this card, this source and these amounts."""
        own = (self.machine["card"], self.machine["source"], self.context.small)
        every = whole_rows(self.file) if self.file.exists() else ()
        return [row for row in every if (row["machine"]["card"], row["machine"]["source"], row["small"]) == own]

    def ceilings(self) -> dict[str, float]:
        """What was measured of them, a second."""
        found = [row for row in self.rows() if row["part"] == "ceilings" and "failed" not in row]
        return {row["key"]["of"]: row["per_second"] for row in found}

    def add(self, row: Row) -> None:
        """A line of the file, on the disk before the next figure begins."""
        at = datetime.now(UTC).isoformat(timespec="seconds")
        text = json.dumps({**row, "small": self.context.small, "at": at, "machine": dict(self.machine)})
        torn = self.file.exists() and not self.file.read_bytes().endswith(b"\n")
        with self.file.open("a") as out:
            out.write("\n" * torn + text + "\n")
            out.flush()
            os.fsync(out.fileno())

    def measure(self, part: Part) -> bool:
        """Run a part -> whether it ended by itself and each of its figures was measured."""
        limit = part.seconds_small if self.context.small else part.seconds
        begun, failed, log = time.monotonic(), 0, self.file.with_suffix(f".{part.name}.log")
        with log.open("w") as errors, self._started(part, errors) as child:
            for text in lines(child, begun + limit):
                if text.startswith(ROW):
                    row = json.loads(text.removeprefix(ROW))
                    self.add({"part": part.name, **row})
                    failed += "failed" in row
                    print(f"  {table.named(row['key'])}: {row.get('failed', 'measured')}", flush=True)
                else:
                    errors.write(text)
                    errors.flush()
            late = child.poll() is None and time.monotonic() >= begun + limit
            end(child)
        took = time.monotonic() - begun
        how = f"ended at its limit of {limit} s" if late else f"{took:.0f} s"
        if not late and child.returncode:
            how += f", exit code {child.returncode}: {last_words(log)}"
        print(f"{part.name}: {how}", flush=True)
        return not (late or child.returncode or failed)

    def _started(self, part: Part, errors: Any) -> subprocess.Popen[str]:
        """The part's process, which ends with this one."""
        have = [row["key"] for row in self.rows() if row["part"] == part.name and "failed" not in row]
        told = dataclasses.replace(self.context, have=have, ceilings=self.ceilings())
        before = os.environ.get("PYTHONPATH")
        paths = os.pathsep.join([*map(str, PATHS), *([before] if before else [])])
        child = subprocess.Popen(
            [str(self.trl_python if part.name == "trl_step" else sys.executable), __file__, CHILD, part.name],
            env={**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        assert child.stdin is not None
        child.stdin.write(told.written())
        child.stdin.close()
        return child


def lines(child: subprocess.Popen[str], until: float) -> Iterator[str]:
    """What the child prints, line by line, until it ends or the time is over."""
    assert child.stdout is not None
    with selectors.DefaultSelector() as ready:
        ready.register(child.stdout, selectors.EVENT_READ)
        while ready.select(max(0.0, until - time.monotonic())):
            line = child.stdout.readline()
            if not line:
                return
            yield line


def end(child: subprocess.Popen[str]) -> None:
    """End the child with all that it started, and wait for it."""
    try:
        child.wait(timeout=0 if child.poll() is None else None)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def last_words(log: Path) -> str:
    said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return said[-1].strip()[:300] if said else "it said nothing"


def machine(device: str, commit: str) -> dict[str, Any]:
    """The card, the versions, and what is measured: a hash of groupwise's source, and its commit where git knows it."""
    import torch

    source = hashlib.sha256()
    for path in sorted((SOURCE / "groupwise").rglob("*.py")):
        source.update(path.relative_to(SOURCE).as_posix().encode() + path.read_bytes())
    return {
        "card": torch.cuda.get_device_name() if device != "cpu" else processor(),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers")},
        "cores": os.cpu_count(),
        "source": source.hexdigest()[:12],
        "commit": commit or head(),
    }


def head() -> str:
    """The commit that is checked out; "" where this is no checkout."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def require_device(device: str, small: bool) -> None:
    """Raises BadParameter for a device that is not there, and for a processor that would take days."""
    import torch

    if device not in ("cpu", "cuda"):
        raise typer.BadParameter(f"--device {device}: give cuda or cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("--device cuda: torch finds no GPU here; --device cpu --small runs the same lines")
    if device == "cpu" and not small:
        raise typer.BadParameter("--device cpu: a processor would take days; add --small")


def with_trl(given: Path | None) -> Path:
    """The interpreter that has TRL: the one given, that of make bench-trl, or this one."""
    made = ROOT / ".venv-trl" / "bin" / "python"
    return given or (made if made.exists() else Path(sys.executable))


def main(
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    small: Annotated[
        bool, typer.Option("--small", help="Tiny models and few tokens: it shows that all of it works.")
    ] = False,
    only: Annotated[str | None, typer.Option(help=f"Some of {', '.join(NAMES)}.")] = None,
    rows: Annotated[Path | None, typer.Option(help="docs/evidence/gpu.jsonl; of a CPU runs/gpu/cpu.jsonl.")] = None,
    page: Annotated[Path | None, typer.Option(help="docs/findings/gpu.md; of a CPU runs/gpu/cpu.md.")] = None,
    models: Annotated[Path, typer.Option(help="Where models are made.")] = Path("runs/gpu/models"),
    smollm2: Annotated[Path, typer.Option(help="The real model's folder.")] = Path("models/smollm2"),
    trl_python: Annotated[
        Path | None, typer.Option(help="An interpreter that has TRL; .venv-trl's without it.")
    ] = None,
    commit: Annotated[str, typer.Option(help="What is measured, where there is no git.")] = "",
) -> None:
    """Measure what has no row yet; then write the tables."""
    names = NAMES if only is None else [name for name in only.split(",") if name]
    if unknown := [name for name in names if name not in NAMES]:
        raise typer.BadParameter(f"--only: no part {', '.join(unknown)}; there are {', '.join(NAMES)}")
    folder, stem = (ROOT / "docs" / "evidence", "gpu") if device != "cpu" else (Path("runs/gpu"), "cpu")
    file = rows or folder / f"{stem}.jsonl"
    told = page or (ROOT / "docs" / "findings" / "gpu.md" if device != "cpu" else folder / "cpu.md")
    good = True
    if names:
        require_device(device, small)
        file.parent.mkdir(parents=True, exist_ok=True)
        models.mkdir(parents=True, exist_ok=True)
        context = Context(device=device, small=small, models=models.resolve(), smollm2=smollm2.resolve())
        bench = Bench(file, machine(device, commit), context, with_trl(trl_python))
        if not bench.ceilings() and set(names) & set(NEED_CEILINGS):
            names = ["ceilings", *names]
        for part in (part for part in PARTS if part.name in names):
            good &= bench.measure(part)
    table.into_page(told, list(whole_rows(file)) if file.exists() else [])
    print(f"rows: {file}; tables: {told}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        importlib.import_module(f"gpu_parts.{sys.argv[2]}").measure(Context.read(sys.stdin.read()))
    else:
        typer.run(main)
