"""README.md from docs/dev/readme_text.txt and the rows of docs/evidence: `make docs` writes it, a test compares it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
EVIDENCE = ROOT / "docs" / "evidence"
Row = Mapping[str, Any]


def rows(name: str) -> list[Row]:
    """Read the rows of a file of evidence."""
    return [json.loads(line) for line in (EVIDENCE / name).read_text().splitlines()]


def readme() -> str:
    """Fill the text of README with numbers."""
    text = (ROOT / "docs" / "dev" / "readme_text.txt").read_text()
    return text.format(
        speed=speed(),
        kills=kills(),
        claims=claims(),
        algorithms=algorithms(),
        others=algorithms() - 4,
        models=models(),
        quickstart=quickstart(),
        results="\n".join(results()),
    )


def speed() -> str:
    """Say how many times TRL's step a step takes, from the blocks of the table of docs/findings/benchmarks_trl.md."""
    page = (ROOT / "docs" / "findings" / "benchmarks_trl.md").read_text()
    blocks = [float(x) for line in re.findall(r"\*\*[\d.]+\*\* \(([\d., ]+)\)", page) for x in line.split(", ")]
    return f"{min(blocks):.1f} to {max(blocks):.0f} times TRL 1.16's step, on 2 CPU cores, float32, TRL with `generate`"


def kills() -> str:
    """Say how the runs of benchmarks/kills.py ended whose processes were killed."""
    ends = Counter(row["outcome"] for row in rows("kills.jsonl"))
    alone, helped = ends["same"], ends["same after its command"]
    return f"{alone} of {ends.total()} runs ended bit-identical by themselves, {helped} after"


def algorithms() -> int:
    """Count the algorithms of the catalog, as `groupwise explain` lists them."""
    return len(json.loads((ROOT / "src/groupwise/config/answers.json").read_text())["algorithms"])


def claims() -> str:
    """Count the claims on the page of verdicts."""
    return re.findall(r"(\d+) claims?", (ROOT / "docs" / "findings" / "claims.md").read_text())[0]


def models() -> str:
    """Say how many classes of language models work, as docs/reference/models.md does."""
    page = (ROOT / "docs" / "reference" / "models.md").read_text()
    known, slow = re.findall(r"(\d+ of \d+) work\*\*, (\d+) without", page)[0]
    return f"{known} model classes work, {slow} slowly"


def quickstart() -> str:
    """Say how many held-out problems the quickstart's policy answers before and after, GRPO, seed 0."""
    row = next(r for r in rows("quickstart.jsonl") if (r["algorithm"], r["seed"], r["settings"]) == ("grpo", 0, []))
    return f"{row['heldout_after']:.0%} instead of {row['heldout_before']:.0%}"


def results() -> Iterator[str]:
    """Write the table of results, the newest rows of each run as it comes."""
    yield "| run | held out before | after | training, 2 CPU cores |"
    yield "|---|---|---|---|"
    plain = [row for row in rows("quickstart.jsonl") if not row["settings"]]
    for algorithm in ("grpo", "dapo"):
        some = [row for row in plain if row["algorithm"] == algorithm]
        yield result(f"quickstart, {algorithm.upper()}, 60 steps, {len(some)} seeds", some)
    real = [row for row in rows("times-tables.jsonl") if not row["settings"]]
    newest = [row for row in real if row["commit"] == real[-1]["commit"]]
    yield result(f"times tables, SmolLM2-135M, LoRA, {len(newest)} seeds", newest)


def result(name: str, some: Sequence[Row]) -> str:
    """Write one row: means with their ranges."""
    before, after = ([row[key] for row in some] for key in ("heldout_before", "heldout_after"))
    seconds = [row["seconds_training"] for row in some]
    return f"| {name} | {spread(before)} | {spread(after)} | {min(seconds):.0f} to {max(seconds):.0f} s |"


def spread(values: Sequence[float]) -> str:
    """Write a mean and its range."""
    return f"{sum(values) / len(values):.3f} ({min(values):.3f} to {max(values):.3f})"


if __name__ == "__main__":
    (ROOT / "README.md").write_text(readme())
