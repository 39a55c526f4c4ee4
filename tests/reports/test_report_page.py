"""The page as a file: nothing in the data can run or end it, its policy allows its own scripts only, no empty plots."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest

from groupwise.diagnostics.step import WORK
from groupwise.reports.page import page as pages
from groupwise.reports.page.plots import DASHES, PLOTS, SECTIONS, plots_for, static_columns
from groupwise.reports.records import Curves, Live, Number, Page, Plot, RunPage, Series, Status, Text

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
HOSTILE = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(1)> & \u2028 \u2029 {{data}} {{scripts}}"
#: Made from metrics by columns.py, not written by a run: rates, shares, and the interval of a pass rate.
DERIVED = {
    "dropped_tokens_share",
    "generate_tokens_per_second",
    "train_tokens_per_second",
    "memory_peak_mib",
    "device_memory_peak_mib",
    *(f"timeline.{work}.{end}" for work in {*WORK.values()} for end in ("begin", "end")),
    "low",
    "high",
}


class Reader(HTMLParser):
    """What a browser finds in the file: scripts that run, the data element, the policy, and what it would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.scripts: list[str] = []
        self.data: list[str] = []
        self.policy, self.title, self.inside = "", "", ""
        self.fetched: list[str] = []
        self.handlers: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.inside = tag
        self.handlers += [name for name in found if name.startswith("on")]
        self.fetched += [found[name] for name in ("src", "href") if not found.get(name, "#").startswith(("#", "data:"))]
        if tag == "script":
            (self.data if found.get("type") else self.scripts).append("")
            self.inside = "data" if found.get("type") else "script"
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"]

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts[-1] += data
        elif self.inside == "data":
            self.data[-1] += data
        elif self.inside == "title":
            self.title += data


def made(title: str = "a run", text: str = "", live: Live | None = None, steps: int = 3) -> Page:
    columns: dict[str, list[Number]] = {"pass_rate": [0.1] * steps, "seconds.update": [1.0] * steps}
    curves = Curves(list(range(1, steps + 1)), columns)
    run = RunPage("r", title, Status("going", "step 3 of 9"), steps=curves, texts=(Text(title, text),))
    return Page(title, "now", SECTIONS, plots_for(columns, {}, []), (run,), live=live)


def known(*names: str) -> dict[str, list[float]]:
    """Columns of these names with a number in each."""
    return {name: [1.0] for name in names}


def ids(plots: tuple[Plot, ...]) -> list[str]:
    return [plot.id for plot in plots]


def test_nothing_in_the_data_can_end_it_or_run() -> None:
    page = made(HOSTILE, HOSTILE)
    text = pages.html(page)
    found = Reader(text)
    assert len(found.data) == 1
    assert not re.search(r"[<>&\u2028\u2029]", found.data[0])
    assert json.loads(found.data[0])["runs"][0]["texts"][0]["text"] == HOSTILE
    assert found.title == HOSTILE
    assert len(found.scripts) == len(Reader(pages.html(made())).scripts)
    assert found.handlers == []


def test_the_policy_allows_exactly_the_scripts_of_the_page() -> None:
    found = Reader(pages.html(made()))
    allowed = re.findall(r"'sha256-([^']+)'", found.policy)
    inside = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in found.scripts]
    assert allowed == inside
    assert "unsafe-eval" not in found.policy
    script_rule = next(rule for rule in found.policy.split("; ") if rule.startswith("script-src"))
    assert "unsafe-inline" not in script_rule
    assert found.policy.startswith("default-src 'none'")


def test_the_page_fetches_nothing() -> None:
    found = Reader(pages.html(made()))
    assert found.fetched == []
    assert "connect-src 'none'" in found.policy


def test_a_watched_page_asks_its_own_server_only() -> None:
    found = Reader(pages.html(made(live=Live("/fresh", 2.0))))
    assert "connect-src 'self';" in found.policy


def test_the_policy_comes_before_the_first_script() -> None:
    text = pages.html(made())
    assert text.index("Content-Security-Policy") < text.index("<script")
    assert text.index('charset="utf-8"') < 1024


def test_gaps_are_null_and_half_characters_are_repaired() -> None:
    curves = Curves([1, 2], {"loss": [float("nan"), None]})
    run = RunPage("r", "half \ud83d", Status("failed", "\udc80"), steps=curves)
    found = json.loads(Reader(pages.html(Page("half \ud83d", "", SECTIONS, (), (run,)))).data[0])
    assert found["runs"][0]["steps"]["columns"]["loss"] == [None, None]
    assert found["runs"][0]["label"] == "half ?"


def test_every_field_of_the_records_reaches_the_page() -> None:
    page = made()
    told = json.loads(pages.embedded(page))
    assert told == json.loads(json.dumps(dataclasses.asdict(page)))


def test_a_page_is_written_in_one_move(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("before")
    pages.write(made(), path)
    assert path.read_text(encoding="utf-8") == pages.html(made())
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]


def test_without_data_the_page_is_little_more_than_plotly() -> None:
    assert len(pages.html(made())) < len(pages.plotly()) + 200_000
    assert len(pages.html(made(steps=20_000))) < 6_000_000


def test_every_asset_is_part_of_the_page() -> None:
    names = {asset.name for asset in files("groupwise.reports.page").joinpath("assets").iterdir()}
    assert names - {*pages.SCRIPTS, *pages.STYLES} == {"page.html"}


def test_no_script_makes_markup_from_text() -> None:
    folder = files("groupwise.reports.page").joinpath("assets")
    scripts = {asset.name: asset.read_text("utf-8") for asset in folder.iterdir() if asset.name.endswith(".js")}
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|\.cssText|srcdoc"
    assert {name: re.findall(forbidden, text) for name, text in scripts.items() if re.search(forbidden, text)} == {}


@pytest.mark.parametrize("text", ["a </script> b", "a </SCRIPT> b", "<!-- a"])
def test_a_script_that_would_end_itself_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        pages._script(text)


def test_every_column_of_the_catalog_is_documented() -> None:
    text = re.sub(r"NAME|CAUSE", "*", DOCS.read_text()).replace("faults.* in *", "faults.*")
    undocumented = {column for column in static_columns() - DERIVED if not documented(column, text)}
    assert undocumented == set()


def documented(column: str, text: str) -> bool:
    """By its full name, or by its last part where it belongs to a table: `seconds`, `pass_at_k`, `by_source`."""
    whole, star, _ = column.partition(".*")
    return column in text or (star != "" and re.search(rf"\b{re.escape(whole)}\b", text) is not None)


def test_plots_without_numbers_are_left_out() -> None:
    assert ids(plots_for({}, {}, [])) == []
    assert ids(plots_for({"loss": [None, 1.0], "kl_mean": [None, None]}, {}, {})) == ["loss"]
    assert ids(plots_for(known("no_such_metric"), known("nor_this"), [])) == []


def test_lines_without_numbers_are_left_out() -> None:
    (plot,) = plots_for(known("pass_rate"), {}, [])
    assert [series.column for series in plot.series] == ["pass_rate"]
    (plot,) = plots_for({}, known("avg_at_k"), [])
    assert [(series.low, series.high) for series in plot.series] == [("", "")]
    (plot,) = plots_for({}, known("avg_at_k", "low", "high"), [])
    assert [(series.low, series.high) for series in plot.series] == [("low", "high")]


def test_stars_are_filled_in() -> None:
    columns = ["seconds.other", "seconds.update", "seconds.generate", "seconds_total"]
    columns += ["rewards.a.b.mean", "rewards.a.b.spread_within_groups"]
    by_id = {plot.id: plot for plot in plots_for(known(*columns), {}, [])}
    assert [series.name for series in by_id["seconds"].series] == ["generate", "update", "other"]
    assert [(series.name, series.column) for series in by_id["reward"].series] == [("a.b", "rewards.a.b.mean")]


def test_lines_of_one_plot_differ_by_dash() -> None:
    columns = [f"rewards.{name}.mean" for name in "abcdefg"] + ["score_mean", "reward_mean"]
    (plot,) = plots_for(known(*columns), {}, [])
    dashes = [series.dash for series in plot.series]
    assert set(dashes[: len(DASHES)]) == set(DASHES)


def test_counts_of_trouble_are_drawn_once_there_is_some() -> None:
    assert ids(plots_for({"unscored_completions": [0, 0], "stale_rows_share": [0.0]}, {}, [])) == []
    assert ids(plots_for({"unscored_completions": [0, 2]}, {}, [])) == ["unscored"]


def test_points_are_drawn_where_there_are_some() -> None:
    assert ids(plots_for({}, {}, ["value-return"])) == ["value-return"]
    assert ids(plots_for(known("value", "returns"), {}, [])) == []


def test_the_pass_rate_alone_is_not_a_reward_model() -> None:
    assert "reward-model" not in ids(plots_for(known("pass_rate"), {}, []))
    assert "reward-model" in ids(plots_for(known("pass_rate", "learned_mean"), {}, []))


def test_the_catalog_is_well_formed() -> None:
    assert len({plot.id for plot in PLOTS}) == len(PLOTS)
    sections = [section.id for section in SECTIONS]
    order = [sections.index(plot.section) for plot in PLOTS]
    assert order == sorted(order)
    for plot in PLOTS:
        assert plot.hint.endswith((".", ":"))
        assert "\n" not in plot.hint
        assert len(plot.hint) <= 100
        assert len({series.name for series in plot.series}) == len(plot.series)
        assert all(series.table in ("", "steps", "evaluations") for series in plot.series)
        assert plot.kind in ("lines", "stack", "points")
        assert plot.kind != "points" or len(plot.series) == 2


def test_a_band_without_a_line_needs_both_edges() -> None:
    assert plots_for(known("ratio_token_p01"), {}, []) == ()
    (plot,) = plots_for(known("ratio_token_p01", "ratio_token_p99"), {}, [])
    assert plot.series == (Series("p01 to p99", "", "ratio_token_p01", "ratio_token_p99"),)


def test_a_page_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(OSError):
        pages.write(made(), tmp_path / "report.html")
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]
