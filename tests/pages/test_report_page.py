"""The page of a run, as a reader's browser shows it."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from groupwise.reports.make import make
from tests.laws.recompute import log_ratio
from tests.pages.conftest import DESKTOP, PHONE

QUESTIONS = (
    "Did it learn?",
    "On what?",
    "Is it healthy?",
    "Why are some groups not training?",
    "What would I try next?",
)


@pytest.mark.parametrize(
    "size", [pytest.param(DESKTOP, id="desktop"), pytest.param(PHONE, id="phone", marks=pytest.mark.slow)]
)
def test_every_plot_is_drawn_in_light_and_dark_and_nothing_is_asked_of_the_network(size, look, run_folder):
    seen = look(run_folder / "report.html", size)
    seen.page.evaluate("document.querySelectorAll('section > details').forEach((part) => { part.open = true })")
    seen.scroll()
    assert seen.page.locator("[data-plot]").count() >= 15
    light = check_plots(seen, size)
    seen.darken()
    assert check_plots(seen, size) != light
    assert seen.complaints == []
    assert seen.requests == []


def check_plots(seen: Any, size: tuple[int, int]) -> str:
    """All of them drawn, with something in them, and no wider than the screen -> the page's background."""
    undrawn = seen.page.locator('[data-plot]:not([data-drawn="true"])')
    assert [undrawn.nth(i).get_attribute("data-plot") for i in range(undrawn.count())] == []
    drawn = "card => card.area.data.some(one => one.yaxis !== 'y2' && one.y.length)"  # y2 has the marks of events
    assert seen.page.evaluate(f"[...groupwise.plots.cards.values()].every({drawn})")
    empty = "e => !e.querySelector('.scatterlayer path, .scatterlayer .point, .js-fill')"
    assert seen.page.evaluate(f"[...document.querySelectorAll('[data-plot]')].filter({empty}).length") == 0
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= size[0]
    return seen.page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_the_page_answers_the_five_questions_first(look, run_folder):
    page = look(run_folder / "report.html").page
    cards = page.locator(".answers > li")
    assert [card.split("\n")[0] for card in cards.all_inner_texts()] == list(QUESTIONS)
    assert all(len(answer) > 20 for answer in cards.locator("p").all_inner_texts())
    assert page.locator(".answers").bounding_box()["y"] < DESKTOP[1]
    assert "live = old on the first update" in page.locator("body").inner_text()


def test_the_heat_map_tells_the_numbers_of_rollouts_jsonl(look, run_folder):
    rows = read_rows(run_folder / "rollouts.jsonl")
    draw = random.Random(7)
    seen = look(run_folder / "report.html")
    for _ in range(5):
        row = draw.choice([row for row in rows if row.get("updates")])
        group = [r for r in rows if (r["step"], r["group"]) == (row["step"], row["group"])]
        token = draw.randrange(row["tokens"])
        seen.page.evaluate("at => { window.location.hash = at }", f"#rollout-{row['step']}-{row['group']}")
        place = f'[data-step="{row["step"]}"][data-group="{row["group"]}"] [data-row="{group.index(row)}"]'
        seen.page.locator(f'{place} [data-index="{token}"]').hover()
        last = row["updates"][-1]
        ratios = log_ratio(row, last["update"]).tolist()
        for name, column in {"log_ratio": ratios, "share": last["share"], **row["per_token"]}.items():
            wanted = column[token] if isinstance(column, list) else column
            shown = seen.page.locator(f'.rollouts-numbers[data-index="{token}"] [data-column="{name}"]')
            assert float(shown.inner_text().replace("−", "-")) == pytest.approx(wanted, rel=1e-5, abs=1e-12), name
    assert seen.complaints == []


def test_the_browser_of_rollouts_filters_and_opens(look, run_folder):
    seen = look(run_folder / "report.html")
    rows = [row for name in ("rollouts", "heldout") for row in read_rows(run_folder / f"{name}.jsonl")]
    count = seen.page.locator(".rollouts .count")
    assert int(count.get_attribute("data-completions")) == len(rows)
    prompt = rows[0]["prompt"]
    seen.page.locator('[data-filter="search"]').fill(prompt)
    holds = [r for r in rows if prompt in r["prompt"] + r["completion"] + r["answer"] + r["key"]]
    seen.page.wait_for_function(
        f"document.querySelector('.rollouts .count').dataset.completions === '{len(holds)}'", timeout=5000
    )
    seen.page.locator('[data-filter="reset"]').click()
    seen.page.locator('[data-filter="kind"]').select_option("mixed")
    shown = int(count.get_attribute("data-groups"))
    assert 0 < shown < len({(r["fate"], r["step"], r["group"]) for r in rows})
    seen.page.locator('[data-filter="fate"]').select_option("trained")  # of those held out there are two a problem
    first = seen.page.locator(".rollouts [data-step]").first
    first.locator("summary").first.click()
    first.locator("[data-row]").first.wait_for()  # a browser tells of an opened part in its own time
    assert first.locator("[data-row]").count() == 4
    assert first.locator("[data-row] [data-index]").count() > 4
    assert seen.complaints == []


HOSTILE = "<script>window.hit=1</script><img src=x onerror='window.hit=1'></script>\u2028\u202e\x00\x1b[31m&lt;b&gt;"


def test_nothing_in_a_prompt_is_executed(look, run_folder, tmp_path):
    folder = tmp_path / "hostile"
    shutil.copytree(run_folder, folder)
    rows = read_rows(folder / "rollouts.jsonl")
    for row in rows:
        row |= {"prompt": HOSTILE, "completion": HOSTILE, "answer": HOSTILE, "key": HOSTILE}
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    make([folder])
    seen = look(folder / "report.html")
    seen.draw()
    seen.page.locator(".rollouts [data-step] summary").first.click()
    assert "window.hit=1" in seen.page.locator(".rollouts").inner_text()
    assert seen.page.evaluate("window.hit") is None
    assert seen.page.locator(".rollouts img, .rollouts script").count() == 0
    assert seen.complaints == []


def test_numbers_that_are_none_leave_gaps_and_a_page_that_works(look, run_folder, tmp_path):
    folder = tmp_path / "gaps"
    shutil.copytree(run_folder, folder)
    rows = read_rows(folder / "metrics.jsonl")
    for row in rows[1:]:
        row |= dict.fromkeys(("entropy_mean", "loss", "pass_rate"), None)
    text = "".join(json.dumps(row) + "\n" for row in rows).replace('"gradient_norm": ', '"gradient_norm": NaN, "was": ')
    (folder / "metrics.jsonl").write_text(text + '{"step": 5, "pass_ra')
    (folder / "summary.json").unlink()
    make([folder])
    seen = look(folder / "report.html")
    seen.draw()
    assert "cut" in seen.page.locator("body").inner_text()
    assert seen.page.locator('[data-plot]:not([data-drawn="true"])').count() == 0
    assert seen.complaints == []


def test_runs_side_by_side_share_their_plots(look, run_folder, tmp_path):
    folders = [_like(run_folder, tmp_path / f"{name}-{seed}", name, seed) for name in ("a", "b") for seed in (0, 1, 2)]
    made = make(folders, tmp_path / "comparison.html")
    seen = look(made.path)
    seen.draw()
    text = seen.page.locator("body").inner_text()
    assert "Final scores" in text
    assert "algorithm.kl.beta" in text
    assert "3 seeds" in text
    assert seen.page.locator('[data-plot]:not([data-drawn="true"])').count() == 0
    assert seen.complaints == []
    assert seen.requests == []


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _like(folder: Path, to: Path, name: str, seed: int) -> Path:
    """A run as if of another recipe and seed, its numbers moved a little."""
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("checkpoints", "report.html"))
    recipe = (to / "recipe.toml").read_text().replace("seed = 0", f"seed = {seed}", 1)
    (to / "recipe.toml").write_text(recipe.replace("beta = 0.04", f"beta = {0.01 if name == 'a' else 0.04}"))
    rows = read_rows(to / "metrics.jsonl")
    noise = np.random.default_rng(seed)
    for row in rows:
        told: dict[str, Any] = row.get("evaluation", row)
        for key in ("pass_rate", "avg_at_k", "entropy_mean"):
            if key in told:
                told[key] = float(np.clip(told[key] + noise.normal(0, 0.02), 0, 1))
    (to / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return to
