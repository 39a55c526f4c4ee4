"""Pages are short: no line that can be broken is over 110 characters, and all pages together have a limit in words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

LONGEST, MOST_WORDS = 110, 80_000
DOCS = sorted((ROOT / "docs").rglob("*.md"))
FRONT = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
#: Pages with the output of a command as it is printed, which a test compares.
PRINTED = {"docs/howto/check.md"}
#: The target of a link, with what stands before it to the last space, and an address: neither can be broken.
UNBROKEN = re.compile(r"\S*\]\(\S*|\S*://\S*")
#: What begins an item, a quotation or a definition of a link, and stays with what comes after it.
MARKER = re.compile(r"\s*(?:(?:[-*+>]|\d+\.|\[[^\]]+\]:)\s+)*")


def too_long(text: str) -> Iterator[int]:
    """Number the lines that are too long, but rows of tables and those that are one link or address."""
    for number, line in enumerate(text.splitlines(), start=1):
        rest = MARKER.sub("", line, count=1)
        if len(line) > LONGEST and not rest.startswith("|") and not UNBROKEN.fullmatch(rest.rstrip()):
            yield number


def words(text: str) -> int:
    """Count the tokens with a letter, those of code and tables too."""
    return sum(re.search(r"[A-Za-z]", token) is not None for token in text.split())


@pytest.mark.parametrize("page", [*FRONT, *DOCS], ids=lambda page: str(page.relative_to(ROOT)))
def test_a_line_is_short_unless_it_cannot_be_broken(page: Path) -> None:
    text = page.read_text()
    if str(page.relative_to(ROOT)) in PRINTED:
        text = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    assert list(too_long(text)) == [], f"lines over {LONGEST} characters"


def test_all_pages_together_are_read_in_an_afternoon() -> None:
    counted = {str(page.relative_to(ROOT)): words(page.read_text()) for page in DOCS}
    longest = sorted(counted.items(), key=lambda item: -item[1])[:5]
    assert sum(counted.values()) <= MOST_WORDS, f"the longest pages: {longest}"


LONG = "x" * 100
URL = f"https://example.org/{LONG}"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("word " * 23, [1]),
        (f"    groupwise train --set {LONG}", [1]),
        (f"see {URL}", [1]),
        (f"[two words]({URL}) and [one]({URL})", [1]),
        (f"| {LONG} | cell |", []),
        (f"  | {LONG} | cell |", []),
        (f"- [one]({URL}).", []),
        (f"[one]: {URL}", []),
        (f"  {URL}", []),
        ("x" * LONGEST, []),
        ("x" * (LONGEST + 1), [1]),
    ],
)
def test_what_could_be_broken_is_found_and_what_could_not_is_not(line: str, found: list[int]) -> None:
    assert list(too_long(line)) == found


def test_a_word_has_a_letter() -> None:
    assert words("Two words, 3 - 4 | `5e-6`\n--- 12.5 %") == 3
