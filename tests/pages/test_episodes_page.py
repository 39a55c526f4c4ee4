"""Episodes on the page: who spoke, what each turn brought, why it ended; nothing of it on the page of another run."""

from __future__ import annotations

import shutil
from pathlib import Path

import orjson
import pytest

import groupwise
from groupwise.reports.make import make
from tests.conftest import SMALL
from tests.pages.test_report_page import read_rows

TURN_PLOTS = ("turns-alive", "turns-passed")


@pytest.fixture(scope="module")
def episodes_folder(tmp_path_factory: pytest.TempPathFactory, warm_cache: Path) -> Path:
    runs = tmp_path_factory.mktemp("episodes")
    (runs / ".cache").symlink_to(warm_cache)
    task = {"task": {"name": "guess-number"}, "sampling.stop": ["\n"], "sampling.max_new_tokens": 48}
    more = {"runs": str(runs), "warm_start.steps": 150, "journal.report": True, "evaluation.problems": 4}
    return groupwise.train("quickstart", {**SMALL, **more, **task}).folder


def test_an_episode_is_shown_turn_by_turn(look, episodes_folder):
    rows = [row for row in read_rows(episodes_folder / "rollouts.jsonl") if row.get("updates")]
    row = next(row for row in rows if len(row["turns"]) > 2)
    group = [r for r in rows if (r["step"], r["group"]) == (row["step"], row["group"])]
    seen = look(episodes_folder / "report.html")
    seen.page.evaluate("at => { window.location.hash = at }", f"#rollout-{row['step']}-{row['group']}")
    place = f'[data-step="{row["step"]}"][data-group="{row["group"]}"] [data-row="{group.index(row)}"]'
    article = seen.page.locator(place)
    tokens = article.locator(".token")
    tokens.first.wait_for()
    assert tokens.count() == len(row["pieces"])
    answers = {i for span in row["spans"] if not span["own"] for i in range(span["start"], span["stop"])}
    shown = tokens.evaluate_all("all => all.map((token) => token.classList.contains('answer'))")
    assert {index for index, answer in enumerate(shown) if answer} == answers != set()
    sides = tokens.evaluate_all("all => all.map((token) => token.dataset.side)")
    assert {sides[index] for index in answers} == {"missing"}
    turns = article.locator('[data-field="turns"]').inner_text().split("; ")
    assert len(turns) == len(row["turns"])
    for number, (words, turn) in enumerate(zip(turns, row["turns"], strict=True), start=1):
        assert words.startswith(f"{number}: reward {turn['reward']:g}, advantage ")
        assert words.endswith(f"in state {turn['state']}")
    ended = {"done": "the environment or agent ended it", "turns": "no turn was left"}
    assert article.locator('[data-field="ended"]').inner_text() == ended[row["ended"]]
    own = sum(span["stop"] - span["start"] for span in row["spans"] if span["own"])
    assert f"of {own} " in article.locator('[data-field="clipped"]').inner_text()
    seen.scroll()
    for name in TURN_PLOTS:
        assert seen.page.locator(f'[data-plot="{name}"]').count() == 1
    assert seen.complaints == []


def test_a_session_of_several_rows_is_shown_row_by_row(look, episodes_folder, tmp_path):
    """As if the environment were an agent that begins anew before its second turn."""
    folder = tmp_path / "session"
    shutil.copytree(episodes_folder, folder)
    rows = read_rows(folder / "rollouts.jsonl")
    row = next(row for row in rows if row.get("updates") and len(row["turns"]) > 2)
    anew = next(span for span in row["spans"] if not span["own"])
    anew["anew"] = True
    (folder / "rollouts.jsonl").write_bytes(b"".join(orjson.dumps(one) + b"\n" for one in rows))
    make([folder])
    group = [r for r in rows if (r["step"], r["group"]) == (row["step"], row["group"])]
    seen = look(folder / "report.html")
    seen.page.evaluate("at => { window.location.hash = at }", f"#rollout-{row['step']}-{row['group']}")
    place = f'[data-step="{row["step"]}"][data-group="{row["group"]}"] [data-row="{group.index(row)}"]'
    article = seen.page.locator(place)
    article.locator(".token").first.wait_for()
    session = article.locator('[data-field="session"] > li')
    assert session.count() == 2
    assert session.nth(0).inner_text().startswith("row 1\n1: reward ")
    second = session.nth(1).inner_text().splitlines()
    assert second[0] == "row 2: read anew (a fork, a sub-agent or an edit)"
    assert [line.partition(":")[0] for line in second[1:]] == [str(n) for n in range(2, len(row["turns"]) + 1)]
    own = [span["stop"] - span["start"] for span in row["spans"] if span["own"]]
    assert second[1].endswith(f", {own[1]} tokens")
    assert article.locator('[data-field="turns"]').count() == 0
    assert article.locator(".token.anew").evaluate_all("all => all.map((t) => t.dataset.index)") == [str(anew["start"])]
    assert seen.complaints == []


def test_another_run_shows_nothing_of_it(look, run_folder):
    page = look(run_folder / "report.html").page
    page.locator('[data-filter="fate"]').select_option("trained")  # of those held out no token is written
    page.locator("details.group summary").first.click()
    page.locator(".token").first.wait_for()
    assert page.locator(".token.answer, [data-field=turns], [data-field=ended]").count() == 0
    for name in TURN_PLOTS:
        assert page.locator(f'[data-plot="{name}"]').count() == 0
