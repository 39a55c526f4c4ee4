"""Navigation of the site, and links of its pages to files of the repository that the site does not have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://github.com/groupwise/groupwise/blob/main/"
#: What the theme loads where a page is opened from the disk.
SHIM = "https://unpkg.com/iframe-worker/shim"
#: Folders of pages in the order of the tabs, with the page that comes first in each.
TABS = {
    "tutorials": "Tutorials",
    "howto": "How-to",
    "reference": "Reference",
    "concepts": "Concepts",
    "findings": "Findings",
    "dev": "Development",
}


def on_config(config: Any) -> Any:
    """List the pages of each folder, so that a new page is in the navigation at once."""
    config["nav"] = [
        {"Start": "index.md"},
        {"Which algorithm": "which.md"},
        *(tab for folder in TABS if (tab := pages(folder))),
    ]
    return config


def pages(folder: str) -> dict[str, list[str]]:
    """List the pages of a folder under the name of its tab; an empty table if it has none."""
    found = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs" / folder).glob("*.md"))
    return {TABS[folder]: found} if found else {}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links to files outside of the site, such as rows of evidence and sources, to the repository."""
    here = (ROOT / "docs" / page.file.src_path).parent

    def pointed(link: re.Match[str]) -> str:
        name, _, anchor = link[1].partition("#")
        target = (here / name).resolve()
        outside = target.suffix not in (".md", ".png", ".svg") or not target.is_relative_to(ROOT / "docs")
        if re.match(r"[a-z]+:", link[1]) or not name or not outside or not target.is_relative_to(ROOT):
            return link[0]
        return f"]({REPOSITORY}{target.relative_to(ROOT).as_posix()}{'#' * bool(anchor)}{anchor})"

    return re.sub(r"\]\(([^)\s]+)\)", pointed, markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Take the script that searches without a web server from the site itself, where the theme asks a network."""
    return output.replace(SHIM, "../" * page.file.dest_uri.count("/") + "assets/iframe-worker.js")


def on_post_template(output_content: str, **_: Any) -> str:
    """Do the same for the page of an address that does not exist."""
    return output_content.replace(SHIM, "assets/iframe-worker.js")
