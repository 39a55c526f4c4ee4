"""The report of the claims, as a reader's browser shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from groupwise.claims.articles import CLAIMS
from groupwise.claims.command import current, read_rows
from groupwise.claims.page import report
from groupwise.reports.page.page import write
from tests.pages.test_report_page import check_plots

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence" / "claims.jsonl"
DESKTOP = (1280, 900)


@pytest.mark.slow
def test_every_figure_is_drawn_in_light_and_dark_over_its_own_axis(look, tmp_path):
    known = current(CLAIMS, read_rows(EVIDENCE))
    page = report(CLAIMS, known, "claims.jsonl")
    write(page, tmp_path / "claims.html")
    seen = look(tmp_path / "claims.html")
    seen.scroll()
    figures = {claim.name: claim.figure for claim in CLAIMS if claim.figure and claim.name in page.runs[0].points}
    assert seen.page.locator("[data-plot]").count() == len(figures) >= 8
    light = check_plots(seen, DESKTOP)
    for name, figure in figures.items():
        plot = seen.page.locator(f'[data-plot="{name}"]')
        assert plot.locator(".xtitle").text_content() == figure.axes[0]
        assert plot.locator(".legend button").count() == len(figure.lines)
        places = plot.evaluate("node => node.querySelector('.area').data.filter((t) => t.fill !== 'toself')[0].x")
        assert places == (list(figure.at) or page.runs[0].points[name].step)
    seen.darken()
    assert check_plots(seen, DESKTOP) != light
    text = seen.page.locator("body").inner_text()
    assert all(claim.title in text for claim in CLAIMS)
    assert "Smoothing" not in seen.page.locator("#bar").inner_text()
    assert "No numbers yet" not in text
    assert seen.complaints == []
    assert seen.requests == []
