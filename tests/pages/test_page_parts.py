"""Parts of the page that a reader uses: keys, the crosshair, the table of numbers, the menu of a phone."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from groupwise.reports.make import as_csv
from tests.pages.conftest import DESKTOP, PHONE, until


def numbers(text: str) -> list[dict[str, float | None]]:
    rows = csv.DictReader(io.StringIO(text))
    return [{name: float(cell) if cell else None for name, cell in row.items()} for row in rows]


def test_the_button_saves_the_numbers_that_the_command_prints(look, run_folder, tmp_path):
    seen = look(run_folder / "report.html")
    with seen.page.expect_download() as saving:
        seen.page.locator("button.csv").click()
    path = tmp_path / saving.value.suggested_filename
    saving.value.save_as(path)
    assert path.name == f"{run_folder.name}.csv"
    assert numbers(path.read_text()) == numbers(as_csv([run_folder]))
    assert seen.complaints == []


def test_what_is_hovered_on_one_chart_is_shown_on_the_others_and_goes_again(look, run_folder):
    seen = look(run_folder / "report.html")
    seen.draw()
    plots = seen.page.locator("#learned [data-plot]")
    plots.first.scroll_into_view_if_needed()
    until(seen.page, "[...groupwise.plots.cards.values()].filter((card) => card.visible).length > 1")
    area = plots.first.locator(".nsewdrag").first.bounding_box()
    seen.page.mouse.move(area["x"] + area["width"] / 2, area["y"] + area["height"] / 2)
    until(seen.page, "[...document.querySelectorAll('#learned .cross')].filter((line) => !line.hidden).length >= 1")
    assert plots.first.locator(".cross").get_attribute("hidden") is not None, "it has a line of its own"
    places = seen.page.evaluate(
        """[...groupwise.plots.cards.values()].filter((card) => !card.cross.hidden).map((card) =>
            card.area._fullLayout.xaxis.p2d(parseFloat(card.cross.style.left) - card.area._fullLayout.xaxis._offset))"""
    )
    assert all(step == pytest.approx(round(places[0]), abs=0.01) for step in places)
    assert seen.page.locator(".legend .last.at").count() > 1
    seen.page.mouse.move(5, 5)
    until(seen.page, "[...document.querySelectorAll('.cross')].every((line) => line.hidden)")
    assert seen.page.locator(".legend .last.at").count() == 0
    assert seen.complaints == []


def test_marks_of_evaluations_and_checkpoints_are_on_every_chart_over_steps(look, run_folder):
    seen = look(run_folder / "report.html")
    seen.draw()
    marked = seen.page.evaluate(
        """[...groupwise.plots.cards.values()].filter((card) => card.plot.kind !== 'points').map((card) =>
            card.area.data.filter((trace) => trace.yaxis === 'y2').map((trace) => [trace.text[0], [...trace.x]]))"""
    )
    assert marked[0][0] == ["evaluation", [0, 2, 4]]
    assert [words.partition(":")[0] for words, _ in marked[0]] == ["evaluation", "checkpoint", "warning"]
    assert all(marks == marked[0] for marks in marked)


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_key_says_what_it_is_and_leads_to_the_list(size, look, run_folder):
    seen = look(run_folder / "report.html", size)
    key = seen.page.locator('[data-plot="pass-rate"] .keys a').first
    assert key.inner_text() == "evaluation.avg_at_k"
    meaning = key.get_attribute("title")
    key.click()
    until(seen.page, "document.getElementById('keys').open")
    entry = seen.page.locator('[id="key-evaluation.avg_at_k"]')
    assert meaning in entry.inner_text()
    until(seen.page, "document.getElementById('key-evaluation.avg_at_k').getBoundingClientRect().top < innerHeight")
    assert seen.complaints == []


def test_on_a_phone_the_header_is_one_line_and_sections_are_folded(look, run_folder):
    seen = look(run_folder / "report.html", PHONE)
    header = seen.page.locator("#header").bounding_box()
    assert header["height"] <= 50
    assert seen.page.locator(".answers").bounding_box()["y"] < 80
    assert seen.page.locator(".tools").is_hidden()
    seen.page.locator(".menu summary").click()
    assert seen.page.locator(".tools").is_visible()
    seen.page.locator('.places a[data-place="healthy"]').click()
    until(seen.page, "document.querySelector('#healthy details').open")
    assert seen.page.locator(".tools").is_hidden()
    opened = seen.page.evaluate("[...document.querySelectorAll('section > details')].map((part) => part.open)")
    assert opened.count(True) == 2
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
    assert seen.complaints == []


def test_the_first_answer_has_a_curve_and_the_rollouts_open_with_first_and_last(look, run_folder):
    seen = look(run_folder / "report.html")
    seen.page.locator(".answers > li").first.locator(".spark svg path").first.wait_for()
    label = seen.page.locator(".spark svg").get_attribute("aria-label")
    assert label.startswith("held-out from ")
    assert "training from " in label
    first = seen.page.locator("#writes .contrast").first
    assert [words.split(",")[1].split("\n")[0].strip() for words in first.locator(".when").all_inner_texts()] == [
        "step 0",
        "step 4",
    ]
    assert seen.page.locator(".answers > li .spark").count() == 1


def test_a_link_to_a_group_opens_the_section_it_is_in(look, run_folder):
    seen = look(Path(f"{run_folder}/report.html").resolve().as_uri() + "#rollout-1-0", PHONE)
    until(seen.page, "document.querySelector('#writes details').open")
    place = 'document.querySelector(\'[data-step="1"][data-group="0"]\').getBoundingClientRect()'
    until(seen.page, f"{place}.height > 0 && {place}.top < innerHeight && {place}.top > -400")
