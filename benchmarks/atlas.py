"""The picture of docs/reference/atlas.md: each algorithm's gradient weight over the ratio.

python benchmarks/atlas.py docs/assets/atlas.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.lines import Line2D
from matplotlib.typing import LineStyleType

from groupwise.algorithms.atlas import PROBABILITIES, weight
from groupwise.algorithms.catalog import CATALOG

COLUMNS, HIGHEST = 7, 4.2
#: Sign of the advantage -> how it compares with 0, and its line.
SIGNS: dict[int, tuple[str, LineStyleType]] = {1: (">", "-"), -1: ("<", "--")}
COLORS = ("#0072b2", "#d55e00", "#009e73")


def main(file: Path) -> None:
    """Draw a panel for each algorithm, small multiples with one scale."""
    matplotlib.rcParams.update({"font.size": 8})
    ratios = torch.logspace(-1, 1, 97, base=4.0)
    rows = -(-len(CATALOG) // COLUMNS)
    figure, panels = plt.subplots(rows, COLUMNS, figsize=(14, 2 * rows), sharex=True, sharey=True, facecolor="white")
    for panel in panels.flat[len(CATALOG) :]:
        panel.set_visible(False)
    for panel, (name, row) in zip(panels.flat, CATALOG.items(), strict=False):
        for p, color, thick in zip(PROBABILITIES, COLORS, (4.5, 2.6, 1.0), strict=True):
            for sign, (_, style) in SIGNS.items():
                panel.plot(ratios, weight(row, ratios, sign, p), linestyle=style, color=color, linewidth=thick)
        panel.set_title(name, fontsize=9)
        panel.set_xscale("log", base=2)
        panel.set_xticks([0.25, 0.5, 1, 2, 4], ["1/4", "1/2", "1", "2", "4"])
        panel.set_ylim(-0.5, HIGHEST)
        panel.axhline(0, color="#bbbbbb", linewidth=0.6)
        panel.axvline(1, color="#bbbbbb", linewidth=0.6)
    shades = zip(PROBABILITIES, COLORS, strict=True)
    handles = [Line2D([], [], color=color, label=f"p = {p:g}") for p, color in shades]
    handles += [Line2D([], [], color="black", linestyle=style, label=f"A {way} 0") for way, style in SIGNS.values()]
    figure.legend(handles=handles, loc="lower center", ncol=5, frameon=False)
    figure.supxlabel("ratio pi_live / pi_old", y=0.05)
    figure.supylabel("weight of the gradient")
    figure.tight_layout(rect=(0.01, 0.06, 1, 1))
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
