"""The pictures of docs/findings/benchmarks_trl.md: needs chromium.

python benchmarks/trl_pictures.py docs/evidence/bench-trl.jsonl docs
"""

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from stability_picture import draw
from sweep import finished

Row = dict[str, Any]

#: A side: what it is called, and how it is drawn, told apart without colours too.
SIDES = {"ours": ("groupwise", "#0072B2", "solid"), "theirs": ("TRL", "#D55E00", "dot")}
#: The axes of growth, and what is written over each.
AXES = {
    "group size": "completions a prompt (128 in all)",
    "completion length": "tokens a completion",
    "vocabulary": "vocabulary",
    "width": "parameters",
}


def growth(rows: Sequence[Row]) -> go.Figure:
    """Median seconds of a step along each axis, both axes logarithmic."""
    figure = make_subplots(1, len(AXES), subplot_titles=list(AXES.values()), horizontal_spacing=0.05)
    for at, axis in enumerate(AXES):
        for side, (name, colour, dash) in SIDES.items():
            points = sorted((place(row, axis), seconds(row)) for row in newest(rows, axis, side))
            line = go.Scatter(x=[x for x, _ in points], y=[y for _, y in points], name=name, mode="lines+markers",
                              showlegend=at == 0, line={"color": colour, "dash": dash})  # fmt: skip
            figure.add_trace(line, row=1, col=at + 1)
    figure.update_xaxes(type="log")
    figure.update_yaxes(type="log")
    figure.update_yaxes(title_text="seconds a step", col=1)
    figure.update_layout(width=1300, height=340)
    return figure


def newest(rows: Sequence[Row], axis: str, side: str) -> list[Row]:
    """The last run of each point of an axis."""
    points = {row["value"]: row for row in rows if row.get("axis") == axis and row["side"] == side}
    return [*points.values()]


def place(row: Row, axis: str) -> float:
    """Where a point stands on its axis."""
    return parameters(row["config"]) if axis == "width" else row["value"]


def parameters(config: dict[str, Any]) -> float:
    """Weights of all matrices, embedding and head included."""
    width, heads = config["hidden_size"], config["num_attention_heads"] + config["num_key_value_heads"]
    layer = width * (2 * heads * config["head_dim"] + 3 * config["intermediate_size"])
    return config["num_hidden_layers"] * layer + 2 * config["vocab_size"] * width


def seconds(row: Row) -> float:
    return statistics.median(step["step"] for step in row["steps"])


def learning(rows: Sequence[Row]) -> go.Figure:
    """The mean score of each step's completions, a line for each seed, and the held-out pass rate at the end."""
    figure, own = go.Figure(), [row for row in rows if row["kind"] == "curve"]
    last = [row for row in own if row["source"] == own[-1]["source"]]
    for side, (name, colour, dash) in SIDES.items():
        for number, row in enumerate(row for row in last if row["side"] == side):
            steps = [*range(1, len(row["scores"]) + 1)]
            line = go.Scatter(x=steps, y=row["scores"], name=name, legendgroup=name, showlegend=number == 0,
                              line={"color": colour, "dash": dash, "width": 1.6})  # fmt: skip
            end = go.Scatter(x=[len(steps) + 1.5], y=[row["heldout_after"]], name=f"{name}, held out at the end",
                             mode="markers", legendgroup=name, showlegend=number == 0,
                             marker={"color": colour, "symbol": "diamond-open", "size": 9})  # fmt: skip
            figure.add_traces([line, end])
    figure.update_xaxes(title_text="step")
    figure.update_yaxes(title_text="mean score", range=[0, 1])
    figure.update_layout(width=900, height=420)
    return figure


if __name__ == "__main__":
    everything, folder = finished(Path(sys.argv[1])), Path(sys.argv[2])
    if any(row.get("axis") for row in everything):
        draw(growth(everything), folder / "bench-trl-growth.png")
    if any(row["kind"] == "curve" for row in everything):
        draw(learning(everything), folder / "bench-trl-curves.png")
