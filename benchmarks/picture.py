"""A picture of a report's plots, as a browser draws them, for a README: needs chromium.

python benchmarks/picture.py runs/comparison.html docs/comparison.png pass-rate length
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

#: CSS pixels; twice as many dots, so that it stays sharp on a fine screen.
WIDTH, HEIGHT, DOTS, MARGIN = 1280, 900, 2, 12


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
        # The bar stays on top of what scrolls; in a picture it would cover the plots.
        view.add_style_tag(content="#bar { position: static !important } .plot .head button { display: none }")
        view.evaluate("groupwise.plots.drawAll()")
        for name in plots:
            view.wait_for_selector(f'[data-plot="{name}"][data-drawn="true"]')
        boxes = [view.locator(f'[data-plot="{name}"]').bounding_box() for name in plots]
        sides = [box for box in boxes if box is not None]
        left, top = min(b["x"] for b in sides) - MARGIN, min(b["y"] for b in sides) - MARGIN
        right = max(b["x"] + b["width"] for b in sides) + MARGIN
        bottom = max(b["y"] + b["height"] for b in sides) + MARGIN
        clip = {"x": left, "y": top, "width": right - left, "height": bottom - top}
        view.screenshot(path=str(target), clip=clip, full_page=True)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
