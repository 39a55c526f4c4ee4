"""The front door: README has the numbers of the evidence, its example runs, and the site builds without a warning."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from docs.dev import readme, site

from groupwise.cli import __main__ as cli

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_readme_has_the_numbers_of_the_evidence() -> None:
    assert readme.readme() == README, "run make docs"


def test_readme_is_short() -> None:
    lines = README.splitlines()
    assert len([line for line in lines if line.strip()]) <= 92
    assert [line for line in lines if len(line) > 110] == []


def test_the_bugs_that_readme_counts_are_those_of_the_page() -> None:
    assert "66 of 66" in (ROOT / "docs" / "concepts" / "checks.md").read_text()
    assert "66 of the 66" in README


def test_readmes_recipe_is_checked_without_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", README, re.DOTALL):
        (tmp_path / name).write_text(text)
    (tmp_path / "prompts.jsonl").write_text("".join(f'{{"prompt": "Question: say {n}"}}\n' for n in range(80)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["groupwise", "check", "mine.toml", "--no-model"])
    with pytest.raises(SystemExit) as leaving:
        cli.main()
    shown = capsys.readouterr()
    assert (leaving.value.code, "no faults found" in shown.out) == (0, True), shown


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Strict: a dead link, a lost anchor or a page that no tab has is an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "search" / "search_index.js").stat().st_size > 100_000
    assert "https://unpkg" not in (tmp_path / "site" / "index.html").read_text()
    for folder in site.TABS:
        for page in (ROOT / "docs" / folder).glob("*.md"):
            assert (tmp_path / "site" / folder / f"{page.stem}.html").exists()


def test_a_link_out_of_the_site_leads_to_the_repository() -> None:
    page = type("Page", (), {"file": type("File", (), {"src_path": "howto/page.md"})})
    text = "[a](../evidence/kills.jsonl) [b](runs.md#x) [c](../../src/groupwise/loop.py#L3) [d](https://x.org/y)"
    expected = text.replace("../evidence", f"{site.REPOSITORY}docs/evidence").replace(
        "../../src", f"{site.REPOSITORY}src"
    )
    assert site.on_page_markdown(text, page) == expected


@pytest.mark.slow
def test_the_site_is_searched_from_the_disk_without_a_network(tmp_path: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or pytest.skip("no chromium")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True)
    asked: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        view = browser.new_page()
        view.on("request", lambda request: asked.append(request.url))
        view.goto((tmp_path / "concepts" / "glossary.html").as_uri())
        view.keyboard.press("/")
        view.keyboard.type("staleness")
        view.wait_for_selector(".md-search-result__item", timeout=20_000)
        browser.close()
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
