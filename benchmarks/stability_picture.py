"""The pictures of docs/howto/moe.md from the rows of benchmarks/stability.py: needs chromium.

python benchmarks/stability_picture.py docs/evidence/moe-stability.jsonl \
    docs/howto/moe-stability.png docs/howto/moe-experts.png
"""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from playwright.sync_api import sync_playwright
from plotly.subplots import make_subplots

from stability import current, mean, recipes

#: The settings that are drawn, what they are called, and how: told apart without colours too.
LEVELS = (
    ([], "learning rate 1.5e-3", "#0072B2", "solid"),
    (["learner.learning_rate=1e-3"], "learning rate 1e-3", "#D55E00", "dot"),
)
LAYERS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")
DRIFT = ("grpo", "grpo-r2", "gspo", "sapo")
ACROSS = 5


def heldout(file: Path, names: Sequence[str]) -> go.Figure:
    """Held-out pass rate over steps: a panel for each recipe, a line for each seed."""
    down = math.ceil(len(names) / ACROSS)
    panels = {"shared_xaxes": True, "shared_yaxes": True, "subplot_titles": names}
    figure = make_subplots(down, ACROSS, **panels, vertical_spacing=0.1, horizontal_spacing=0.03)
    named: set[str] = set()
    for settings, words, colour, dash in LEVELS:
        for row in current(file, recipes(), settings):
            at = names.index(row["recipe"])
            steps, rates = zip(*row["heldout"], strict=True)
            first = words not in named
            named.add(words)
            line = go.Scatter(x=steps, y=rates, name=words, legendgroup=words, showlegend=first, mode="lines+markers",
                              line={"color": colour, "dash": dash, "width": 1.6}, marker={"size": 4})  # fmt: skip
            figure.add_trace(line, row=at // ACROSS + 1, col=at % ACROSS + 1)
    figure.update_yaxes(range=[0, 1], dtick=0.5)
    figure.update_layout(width=1200, height=180 * down + 70)
    return figure


def drift(file: Path) -> go.Figure:
    """Experts that changed since the old policy, by layer and number of updates; the mean over steps and seeds."""
    rows = current(file, recipes(), [])
    figure = make_subplots(1, len(DRIFT), shared_yaxes=True, subplot_titles=DRIFT)
    for at, name in enumerate(DRIFT):
        own = [row for row in rows if row["recipe"] == name]
        for layer, colour in enumerate(LAYERS):
            after = range(1, 1 + sum(key.startswith(f"layer_{layer}.") for key in own[0]["changed"]))
            share = [mean(iter([row["changed"][f"layer_{layer}.after_{n}"] for row in own])) for n in after]
            line = go.Scatter(x=[*after], y=share, name=f"layer {layer}", showlegend=at == 0, mode="lines+markers",
                              line={"color": colour}, marker={"symbol": layer, "size": 7})  # fmt: skip
            figure.add_trace(line, row=1, col=at + 1)
    figure.update_xaxes(title_text="updates on the batch", dtick=1)
    figure.update_yaxes(tickformat=".0%", rangemode="tozero")
    figure.update_layout(width=1200, height=330)
    return figure


def draw(figure: go.Figure, target: Path) -> None:
    """The figure as a browser draws it, twice as sharp as its size says."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("stability_picture: chromium is not installed")
    legend = {"orientation": "h", "x": 0, "y": 0.995, "yanchor": "top", "yref": "container"}
    margin = {"l": 50, "r": 15, "t": 60, "b": 45}
    figure.update_layout(template="plotly_white", font_size=12, margin=margin, legend=legend)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder) / "page.html"
        figure.write_html(page, include_plotlyjs=True, config={"staticPlot": True})
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        layout: Any = figure.layout  # its attributes are made when it runs
        size: Any = {"width": layout.width, "height": layout.height}
        view = browser.new_page(viewport=size, device_scale_factor=2)
        view.goto(page.as_uri())
        view.wait_for_selector(".js-plotly-plot .main-svg")
        view.locator(".js-plotly-plot").screenshot(path=str(target))
        browser.close()


if __name__ == "__main__":
    source = Path(sys.argv[1])
    draw(heldout(source, [recipe.stem for recipe in recipes()]), Path(sys.argv[2]))
    draw(drift(source), Path(sys.argv[3]))
