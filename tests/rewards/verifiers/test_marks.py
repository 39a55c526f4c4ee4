"""Laws of reading a text from its end: the parts, and what they say, are those of the whole text."""

from __future__ import annotations

import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from groupwise.rewards.verifiers.marks import DOUBTED, SENTENCE, backwards, doubted
from groupwise.rewards.verifiers.stated import CLAUSE

PIECES = ["\n", " ", "\t", "\r\n", ".", "!", "?", ",", ";", "$", "a.m.", "or", "and", "18", "So she has", "\u2028"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)
WORDS = ["might", "could", "think", "say", "the", "not", "if", "no", "doubt", "without", "n't", "\n", ". "]


@settings(max_examples=400, deadline=None)
@given(TEXTS, st.sampled_from([SENTENCE, CLAUSE]))
def test_the_parts_from_the_end_are_those_of_a_split(text: str, pattern: re.Pattern[str]) -> None:
    assert list(backwards(pattern, text)) == pattern.split(text)[::-1]


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=10).map(" ".join))
@example("I might\nthink that the ")
def test_a_doubt_is_found_in_the_last_clause_as_in_all_of_the_text(before: str) -> None:
    assert doubted(before) == (DOUBTED.search(before) is not None)
