"""The rows of docs/evidence/bench-trl.jsonl: a line for each finished run of one side."""

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cases import Case

Row = dict[str, Any]

#: The sides by their names in a row, and in words.
OURS, THEIRS = "ours", "theirs"
SIDES = {OURS: "groupwise", THEIRS: "TRL"}


def read(file: Path) -> list[Row]:
    """The rows so far; none where there is no file."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def append(file: Path, row: Row) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as out:
        out.write(json.dumps(row) + "\n")


def has(rows: Sequence[Row], key: Mapping[str, Any]) -> bool:
    """Whether a run of that key has its row."""
    return any(all(row.get(name) == value for name, value in key.items()) for row in rows)


@dataclass(frozen=True)
class Pair:
    """Both sides' rows of one case: those of groupwise's newest source in the file, block by block."""

    case: Case
    ours: list[Row]
    theirs: list[Row]

    def median(self, side: str, phase: str = "step") -> float:
        """Seconds of a phase of a step, over every timed step."""
        return statistics.median(self.seconds(side, phase))

    def quartiles(self, side: str) -> tuple[float, float]:
        low, _, high = statistics.quantiles(self.seconds(side, "step"), n=4)
        return low, high

    def seconds(self, side: str, phase: str) -> list[float]:
        return [step.get(phase, 0.0) for row in self.rows(side) for step in row["steps"]]

    def of(self, side: str, name: str, reduce: Callable[[list[float]], float]) -> float:
        """A number of the side's rows: their largest, their median."""
        return reduce([row[name] for row in self.rows(side)])

    def rows(self, side: str) -> list[Row]:
        return self.ours if side == OURS else self.theirs

    @property
    def ratio(self) -> float:
        """TRL's median step over groupwise's."""
        return self.median(THEIRS) / self.median(OURS)

    def block_ratios(self) -> list[float]:
        """The same in each block by itself."""
        blocks = sorted({row["block"] for row in self.ours} & {row["block"] for row in self.theirs})
        return [self.in_block(block).ratio for block in blocks]

    def in_block(self, block: int) -> "Pair":
        ours, theirs = ([row for row in rows if row["block"] == block] for rows in (self.ours, self.theirs))
        return Pair(self.case, ours, theirs)


def pairs(rows: Sequence[Row], cases: Sequence[Case]) -> Iterator[Pair]:
    """The cases of which both sides have been timed as they are now."""
    for case in cases:
        own = [row for row in rows if row["kind"] == "step" and row["digest"] == case.digest]
        own = [row for row in own if row["source"] == own[-1]["source"]]
        sides = {side: [row for row in own if row["side"] == side] for side in SIDES}
        if all(sides.values()):
            yield Pair(case, sides[OURS], sides[THEIRS])


def curves(rows: Sequence[Row]) -> list[Row]:
    """The runs of the quickstart's task: those of the newest source."""
    own = [row for row in rows if row["kind"] == "curve"]
    return [row for row in own if row["source"] == own[-1]["source"]]


def fastest_rows(rows: Sequence[Row], case: Case) -> int | None:
    """Completions at once with which TRL's trial step was fastest; None where nothing has been tried."""
    tried = [row for row in rows if row["kind"] == "tune" and row["digest"] == case.digest and "steps" in row]
    if not tried:
        return None
    return min(tried, key=lambda row: statistics.median(step["step"] for step in row["steps"]))["rows_at_once"]
