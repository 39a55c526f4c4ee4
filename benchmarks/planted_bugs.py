"""Small bugs planted in copies of the source, and whether a run finds them: the table of docs/concepts/checks.md.

    python benchmarks/planted_bugs.py                      # every bug that has no row yet, and the sound runs
    python benchmarks/planted_bugs.py --only "the sign of the KL" --again
    python benchmarks/planted_bugs.py --clean 1000         # sound runs, in which a check is a false alarm
    python benchmarks/planted_bugs.py --table

The bugs are data (benchmarks/bugs/): a file, a text that it has exactly once, and what is put there. Each is planted in
a copy of src of its own, and the copy makes a run of seconds that ends two steps after the bug's first effect. It is
found by a check that fails or an error; a warning of the report that the sound run of the kind does not have is a hint.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bugs.data import DATA
from bugs.kinds import CLEAN, KINDS, Bug
from bugs.models import MODELS
from bugs.updates import UPDATES

Row = dict[str, Any]

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "docs/evidence/planted-bugs.jsonl"
BUGS: Mapping[str, Bug] = {bug.name: bug for bug in (*DATA, *UPDATES, *MODELS)}
ONE_RUN = Path(__file__).parent / "bugs/one_run.py"
#: What a run imports beside groupwise, and takes most of its time.
IMPORTED = (
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.nn.attention.flex_attention",
    "transformers.modeling_layers",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen3_moe.modeling_qwen3_moe",
    "pydantic",
    "safetensors.torch",
)
#: Steps within which a bug is to be found, that of its first effect included.
STEPS = 3
#: Seconds after which a run hangs.
DEADLINE = 7200


def planted(bug: Bug | None, folder: Path, source: Path = ROOT) -> Path:
    """Copy src to a folder, with the bug if there is one -> what an interpreter finds the copy by.

    Raises ValueError if the file has the bug's old text not exactly once.
    """
    shutil.copytree(source / "src", folder / "src")  # compiled files too: their sources' times go with them
    (folder / "recipes").symlink_to(source / "recipes")
    if bug is not None:
        file = folder / "src/groupwise" / bug.file
        file.write_text(with_bug(bug, file.read_text()))
    return folder / "src"


def with_bug(bug: Bug, text: str) -> str:
    """Return the text of the bug's file with the bug. Raises ValueError if its old text is not there exactly once."""
    if (count := text.count(bug.old)) != 1:
        raise ValueError(f"{bug.name}: {bug.file} has {count} times what is to be replaced, and it must be once")
    return text.replace(bug.old, bug.new)


def run(job: Mapping[str, Any], source: Path) -> Row:
    """Make a run of the copy in a process of its own -> its outcome.

    It is forked if nothing of groupwise is here: what else a run imports takes longer than the run.
    """
    ours = "groupwise" not in sys.modules
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        argv = [str(ONE_RUN), json.dumps(job)]
        process = _forked(argv, source, out, err) if ours else _started(argv, source, out, err)
        words = f"no end in {DEADLINE} s" if process is None else err.read_text()[-500:]
        if process == 0:
            return json.loads(out.read_text().splitlines()[-1])
        by = "deadline" if process is None else "crash"
        return {"by": by, "checks": [], "words": words, "step": 0, "findings": {}, "numbers": []}


def _forked(argv: list[str], source: Path, out: Path, err: Path) -> int | None:
    for name in IMPORTED:
        importlib.import_module(name)
    process = multiprocessing.get_context("fork").Process(target=_become, args=(argv, source, out, err))
    process.start()
    process.join(DEADLINE)
    if process.is_alive():
        process.kill()
        process.join()
        return None
    return process.exitcode


def _become(argv: list[str], source: Path, out: Path, err: Path) -> None:
    for descriptor, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    os.environ["PYTHONPATH"] = str(source)
    sys.path.insert(0, str(source))
    sys.argv = argv
    runpy.run_path(argv[0], run_name="__main__")


def _started(argv: list[str], source: Path, out: Path, err: Path) -> int | None:
    environment = {**os.environ, "PYTHONPATH": str(source)}
    with out.open("w") as stdout, err.open("w") as stderr:
        try:
            command = [sys.executable, *argv]
            done = subprocess.run(command, env=environment, stdout=stdout, stderr=stderr, timeout=DEADLINE, check=False)
        except subprocess.TimeoutExpired:
            return None
    return done.returncode


def job_of(kind: str, given: Mapping[str, Any], steps: int, runs: Path) -> Row:
    """Describe a run of a kind to `one_run.py`."""
    own = {"steps": steps, "name": "run", "runs": str(runs)}
    return {
        "recipe": KINDS[kind].recipe,
        "given": {**KINDS[kind].given, **given, **own},
        "after": KINDS[kind].stop_after,
    }


def of_bug(bug: Bug, bugged: bool, cache: Path) -> Row:
    """Make the run of a bug, or the sound one of the same keys -> its outcome.

    cache  warm-started policies: a sound run leaves them there, and a run with a bug gets copies
    """
    with tempfile.TemporaryDirectory() as folder:
        source, runs = planted(bug if bugged else None, Path(folder) / "copy"), Path(folder) / "runs"
        if cache.exists():
            shutil.copytree(cache, runs / ".cache")
        found = run(job_of(bug.kind, bug.given, max(1, bug.first) + STEPS - 1, runs), source)
        if not bugged:
            shutil.copytree(runs / ".cache", cache, dirs_exist_ok=True)
        return found


def row_of_bug(bug: Bug, sound: dict[str, Row], cache: Path) -> Row:
    """Run a bug, and what it is compared with where `sound` does not have it by its keys -> the bug's row.

    A bug that a check finds is compared with nothing, if the policy of its kind is in the cache.
    """
    keys, known = json.dumps([bug.kind, bug.first, dict(bug.given)]), cache / f"{bug.kind}.sound"
    found = of_bug(bug, True, cache) if known.exists() else None
    if keys not in sound and (found is None or not found["by"]):
        sound[keys] = of_bug(bug, False, cache)
        if sound[keys]["by"]:
            sys.exit(f"the sound run of {bug.kind} ends: {sound[keys]['words']}")
        known.touch()
    found = found or of_bug(bug, True, cache)
    return row_of(bug, found, sound.get(keys, {"findings": {}, "numbers": []}))


def row_of(bug: Bug, found: Row, sound: Row) -> Row:
    """Return the row of a bug: what its run said that the sound run of its kind did not."""
    pairs = zip(found["numbers"], sound["numbers"], strict=False)
    differs = next((i for i, pair in enumerate(pairs) if unlike(*pair)), -1)
    row = {
        "bug": bug.name,
        "path": bug.path,
        "kind": bug.kind,
        "first": bug.first,
        **{name: found[name] for name in ("by", "checks", "step", "words", "cpu_seconds") if name in found},
        "findings": [] if found["by"] else sorted(found["findings"].keys() - sound["findings"].keys()),
        "differs": differs,
        "commit": commit(),
    }
    return {**row, "found": found_by(row) != ""}


def unlike(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Tell whether two rows of metrics differ in a number."""
    return any(one[k] != other[k] and one[k] == one[k] for k in one.keys() & other.keys())


def found_by(row: Row) -> str:
    """Say what found a bug; "" if nothing did.

    >>> found_by({"by": "check", "checks": ["learner = engine"], "findings": []})
    'learner = engine'
    """
    named = [*row["checks"]] or ([row["by"]] if row["by"] else [])
    return ", ".join(named or [f"finding: {name}" for name in row["findings"]])


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    return done.stdout.strip()


def finished(file: Path) -> list[Row]:
    """Read the rows so far: of a bug that was run again the last one, and every sound run."""
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return list({row.get("bug", number): row for number, row in enumerate(rows)}.values())


def add(file: Path, row: Row) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as out:
        out.write(json.dumps(row) + "\n")


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Write the rows as the tables of docs/concepts/checks.md."""
    bugs = [(BUGS[row["bug"]], row) for row in rows if row.get("bug") in BUGS]
    yield f"{sum(row['found'] for _, row in bugs)} of {len(bugs)} found.\n"
    yield "| path | bugs | found |\n|---|---|---|"
    areas: dict[str, dict[str, str]] = {}
    for bug, row in sorted(bugs, key=lambda pair: [*BUGS].index(pair[0].name)):
        areas.setdefault(bug.path, {})[bug.name] = when_found(bug, row)
    for path, found in areas.items():
        late = [f"{when}: {name}" for name, when in found.items() if when]
        yield f"| {path} | {'; '.join(found)} | {'; '.join(late) or 'at once'} |"
    clean = [row for row in rows if "bug" not in row]
    if clean:
        yield "\n| sound run | steps | checks that failed |\n|---|---|---|"
    for row in clean:
        yield f"| {row['kind']} | {row['step']} of {row['steps']} | {found_by(row) or 'none'} |"


def when_found(bug: Bug, row: Row) -> str:
    """Say when a bug was found, where that is not the step of its first effect."""
    if not row["by"]:
        return "in the report" if row["found"] else "not found"
    late = row["step"] - (bug.first or 1)
    return f"{late} step{'s' * (late > 1)} later" if late else ""


def clean_runs(steps: int, runs: Path, file: Path) -> Iterator[str]:
    """Make the sound runs that have no row, each gone on with after its last checkpoint; a line for each."""
    done = {(row["kind"], row["steps"]) for row in finished(file) if "bug" not in row}
    for name, kind in CLEAN.items():
        length = min(steps, kind.given.get("steps", steps))
        if (name, length) in done:
            continue
        own = {"steps": length, "name": f"clean-{name}-{length}", "runs": str(runs.absolute())}
        with tempfile.TemporaryDirectory() as folder:  # the source may change while it runs
            found = run({"recipe": kind.recipe, "given": {**kind.given, **own}}, planted(None, Path(folder) / "copy"))
        kept = {key: found[key] for key in ("by", "checks", "step", "words", "cpu_seconds") if key in found}
        row = {
            "kind": name,
            "steps": length,
            **kept,
            "findings": [],
            "warnings": [*found["findings"]],
            "commit": commit(),
        }
        add(file, row)
        yield f"{name}: {row['step']} of {length} steps, {found_by(row) or 'no false alarm'}"


def main(
    only: Annotated[str, typer.Option(help="Names of bugs, with a ; between them.")] = ";".join(BUGS),
    again: Annotated[bool, typer.Option(help="Run bugs that have their row too.")] = False,
    missed: Annotated[bool, typer.Option(help="Run again the bugs that were not found.")] = False,
    clean: Annotated[int, typer.Option(help="Steps of the sound runs, in place of bugs.")] = 0,
    only_table: Annotated[bool, typer.Option("--table", help="Run nothing.")] = False,
    file: Path = ROWS,
    runs: Path = ROOT / "runs/planted-bugs",
) -> None:
    """Run what has no row yet; then print the tables."""
    for line in clean_runs(clean, runs, file) if clean and not only_table else ():
        print(line, flush=True)
    sound: dict[str, Row] = {}
    done = {row["bug"]: row["found"] for row in finished(file) if "bug" in row}
    for name in only.split(";") if not (clean or only_table) else ():
        bug = BUGS[name]
        if name in done and not again and not (missed and not done[name]):
            continue
        row = row_of_bug(bug, sound, runs / ".cache")
        add(file, row)
        by = found_by(row) or "NOT FOUND"
        print(f"{name}: {by} (step {row['step']}, differs from row {row['differs']})", flush=True)
    print("\n".join(table(finished(file))))


if __name__ == "__main__":
    typer.run(main)
