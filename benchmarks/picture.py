"""The picture of README: pass rate and completion length over the steps of runs, a line a seed, their mean in bold.

python benchmarks/picture.py docs/quickstart.svg runs/sweep/quickstart-*
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")
from matplotlib import pyplot as plt

from groupwise.journal import read_metrics
from groupwise.run import summary_of

# Two colours that colour-blind eyes tell apart, on white and on black.
COLOURS = ("#0072b2", "#d55e00")
PANELS = (("pass_rate", "pass rate while training"), ("length_mean", "completion length, tokens"))


def main(target: Path, folders: list[Path]) -> None:
    """Draw every run's curves, grouped by algorithm."""
    runs: dict[str, list[Path]] = defaultdict(list)
    for folder in folders:
        runs[summary_of(folder)["algorithm"]].append(folder)
    figure, axes = plt.subplots(1, len(PANELS), figsize=(9, 3.2), layout="constrained")
    for (name, own), colour in zip(sorted(runs.items(), reverse=True), COLOURS, strict=False):
        rows = [[r for r in read_metrics(folder) if "pass_rate" in r] for folder in sorted(own)]
        for axis, (key, title) in zip(axes, PANELS, strict=True):
            curves = [[r[key] for r in run] for run in rows]
            for curve in curves:
                axis.plot(range(1, len(curve) + 1), curve, color=colour, alpha=0.25, linewidth=0.8)
            mean = [sum(values) / len(values) for values in zip(*curves, strict=True)]
            axis.plot(range(1, len(mean) + 1), mean, color=colour, linewidth=2, label=f"{name}, {len(own)} seeds")
            axis.set(title=title, xlabel="step")
    axes[0].legend(frameon=False, loc="lower right")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.2)
    figure.savefig(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(p) for p in sys.argv[2:]])
