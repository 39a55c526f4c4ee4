"""A finished rlhf run in two tables: the reward model's calibration, and its score beside the truth over the steps.

groupwise train rlhf --set name=rlhf-0
python benchmarks/rlhf.py runs/rlhf-0
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from groupwise.config.plan import REWARD_MODEL
from groupwise.journal.journal import read_metrics
from groupwise.training.start.cached_reward_model import REPORT, read_report


def main(folder: Path) -> None:
    """Print both tables."""
    report = read_report(folder / REWARD_MODEL / REPORT)
    print("\n".join(" ".join(line.split()) for line in report.in_words()))
    print("\n| predicted chance that the first is preferred | observed | views |\n|---|---|---|")
    for part in report.calibration:
        if part.count:
            print(f"| {part.predicted:.3f} | {part.observed:.3f} | {part.count} |")
    rows = read_metrics(folder)
    steps = [row for row in rows if "learned_mean" in row]
    print("\n| step | learned score | of right | of wrong | true pass rate | explained variance |")
    print("|---|---|---|---|---|---|")
    for row in [*steps[:1], *steps[4::5]]:
        print(f"| {row['step']} | {' | '.join(_number(row[name]) for name in NAMES)} |")
    summary = json.loads((folder / "summary.json").read_text())
    before, after = summary["heldout_before"], summary["heldout_after"]
    print(f"\nheld out, by the task's score: {before:.3f} -> {after:.3f} in {summary['seconds_total']:.0f} s")


NAMES = ("learned_mean", "learned_right_mean", "learned_wrong_mean", "pass_rate", "explained_variance")


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
