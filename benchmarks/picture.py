"""A picture of a report's plots, as a browser draws them, for a README: needs chromium.

python benchmarks/picture.py runs/comparison.html docs/howto/comparison.png pass-rate length
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

#: CSS pixels; twice as many dots, so that it stays sharp on a fine screen.
WIDTH, HEIGHT, DOTS, MARGIN = 1280, 900, 2, 12

#: What a picture leaves out: everything but the legend of runs and the plots.
ALONE = """
header, footer, .places, .choice, .place-answers, .place-tables, .place-findings, .place-notes,
section h2, section .lead, .extra, .tables, .plot .head button { display: none !important }
#bar { position: static !important; border: 0 !important }
section { margin: 0 !important }
"""
HIDE = "plot => { if (!names.includes(plot.dataset.plot)) plot.style.display = 'none' }"


def main(page: Path, target: Path, plots: list[str]) -> None:
    """Draw `page` in light colours and keep what surrounds the named plots, and the legend of runs above them."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("picture: chromium is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        view = browser.new_page(
            viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=DOTS, color_scheme="light"
        )
        view.goto(page.resolve().as_uri())
        view.add_style_tag(content=ALONE)
        view.evaluate("names => document.querySelectorAll('[data-plot]').forEach(" + HIDE + ")", plots)
        view.evaluate("groupwise.plots.drawAll()")
        for name in plots:
            view.wait_for_selector(f'[data-plot="{name}"][data-drawn="true"]')
        kept = [".runs", *(f'[data-plot="{name}"]' for name in plots)]
        boxes = [view.locator(one).first.bounding_box() for one in kept if view.locator(one).count()]
        sides = [box for box in boxes if box is not None]
        left, top = min(b["x"] for b in sides) - MARGIN, min(b["y"] for b in sides) - MARGIN
        right = max(b["x"] + b["width"] for b in sides) + MARGIN
        bottom = max(b["y"] + b["height"] for b in sides) + MARGIN
        view.screenshot(
            path=str(target),
            clip={"x": left, "y": top, "width": right - left, "height": bottom - top},
            full_page=True,
        )
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
