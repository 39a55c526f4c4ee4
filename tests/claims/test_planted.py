"""A bug in a part turns the verdict of a claim that is measured through it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from groupwise.claims.articles import chosen
from groupwise.claims.measurements import Outcome
from tests.claims.planted import BUGS, verdicts, with_bug

PAGE = Path(__file__).parents[2] / "docs" / "findings" / "claims.md"
#: Of each bug a claim that sees it and is quick to measure.
SEEN_BY = {
    "swapped epsilon": "rare-tokens",
    "wrong normaliser": "length-weights",
    "biased group mean": "group-baseline",
    "ratio of the wrong sign": "perplexity-ratio",
    "entropy of another temperature": "toy-entropy",
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_turns_a_verdict(name: str) -> None:
    """Measured with two seeds, on which what is estimated may be undecided; the page's table has all of them."""
    claims = chosen([SEEN_BY[name]])
    (before,), (now,) = (each.values() for each in (verdicts(claims, 2), with_bug(BUGS[name], claims, 2)))
    assert before.outcome in (Outcome.HOLDS, Outcome.UNDECIDED)
    assert now.outcome in (Outcome.FAILS, Outcome.NOT_MEASURED)
    assert re.search(rf"\b{SEEN_BY[name]}: [^;]+ -> {now.outcome.value}", _lines()[name])


def test_the_page_has_every_bug_and_each_turns_a_verdict() -> None:
    assert list(_lines()) == list(BUGS)
    assert all("->" in words for words in _lines().values())


def _lines() -> dict[str, str]:
    """Bug -> the verdicts that it turns, as the page has them."""
    section = PAGE.read_text().partition("## Planted bugs")[2]
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]*) \|$", section, re.MULTILINE)
    return {name: words for name, words in rows if name in BUGS}
