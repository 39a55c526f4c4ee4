"""Rewards for the form of a completion."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from groupwise.core.errors import UsageError
from groupwise.core.samples import Attempt, Sample
from groupwise.rewards.functions.form import FORMS, Format, Repetition, Tags
from groupwise.rewards.verifiers.answers import Choice, Exact, Numeric


def attempts(*texts: str) -> list[Attempt]:
    return [Attempt(Sample("k", "p", "a"), text, tokens=[ord(letter) for letter in text]) for text in texts]


def test_format_matches_the_whole_completion_only():
    texts = attempts("<think>a\nb</think> 5", "x<think>a</think> 5", "<think>a</think> 5 ", "")
    assert Format(r"<think>.*</think>\s*\d+")(texts) == [1.0, 0.0, 0.0, 0.0]
    assert Format(r".*", longest=3)(attempts("abc", "abcd")) == [1.0, 0.0]


@pytest.mark.parametrize("pattern", [r"(.|\n)*#### \d", r"(a|a)*b", r"(a+)+b", r"#### \d+", "a", ""])
def test_no_pattern_of_a_users_is_matched_without_a_deadline(pattern: str):
    assert not Format(pattern).quick


#: Texts that a policy might write to keep whoever reads them busy.
LONG = [part * (100_000 // len(part)) for part in (
    "a", "a ", "a\n", "<", "<think>", "</think>", "<think></answer>", "<answer>1", "<a", "\\boxed{", "\\boxed{1}", "{",
    "1", "1,", "1 ", "1/", "1.", "1=", "1 or ", "#### 1\n", "####    \n", "The answer is 1 ", "answer ", "$", "$1$",
    "\\frac{1", "~", "<<1", "A or ", "(A) ", ", ", "- ",
    "\n*", "wait ", "A is right ", "it is A ", "that is wrong. ", "A (x)\n", "1_000", "not $x$ but ",
)]  # fmt: skip
LONG += ["The answer is B" + text[20:] for text in LONG[-8:]]  # the end of a longer text is read
CHECKED = {"numeric": lambda text: Numeric()(text, "1"), "exact": lambda text: Exact()(text, "1"),
           "choice": lambda text: Choice()(text, "B")}  # fmt: skip
FORMED = {"tags": Tags(), "opened tags": Tags(opened=True), "words": Repetition(), "ids": Repetition(9, tokens=True)}


def seconds_of(given: Callable[[str], object], text: str) -> float:
    """Seconds of this process's own that a reading of the text takes."""
    begin = time.process_time()
    given(text)
    return time.process_time() - begin


@pytest.mark.parametrize("name", [*CHECKED, *FORMED])
def test_what_is_quick_is_quick_for_every_text(name: str):
    for text in LONG:
        given = CHECKED.get(name, lambda text: FORMED[name](attempts(text)))
        assert min(seconds_of(given, text) for _ in range(2)) < 1, text[:20]  # other work may disturb one of them


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("a{99999999999}", "the repetition number is too large"),
        ("(" * 990 + ")" * 990, "is not a regular expression: "),
        ("(" * 990, "is not a regular expression: "),
        ("a" * 100_000, "pattern has 100000 characters; it may have 2000"),
        ("(?P<a>x)" * 2, "redefinition of group name"),
    ],
    ids=["a huge repeat", "nested deep", "never closed", "long", "a name twice"],
)
def test_a_pattern_that_cannot_be_read_is_refused_in_one_line(pattern: str, words: str):
    with pytest.raises(UsageError) as told:
        Format(pattern)
    assert words in str(told.value)
    assert len(str(told.value)) < 400
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("part", ["(?i:[\0-\uffff])", "[^\0-\ud7ff]", "(?:a{1,9}){1,9}", "(?<=a)", "((a{9}){9}|b)"])
def test_to_read_a_pattern_takes_a_moment_whatever_it_says(part: str):
    begin = time.process_time()
    Format(part * (1000 // len(part)))
    assert time.process_time() - begin < 10


@pytest.mark.parametrize(
    ("text", "worth"),
    [
        ("<think>a</think>\n<answer>b</answer>\n", 1.0),
        ("<think>a</think> so <answer>b</answer>", 0.75),
        ("<think></think><answer>b</answer>", 0.75),
        ("<answer>b</answer><think>a</think>", 0.5),
        ("<think>a<answer>b</think></answer>", 0.5),
        ("<think>a</think><answer>b", 0.375),
        ("<think>a</think><answer>b</answer><answer>c</answer>", 0.25),
        ("b", 0.0),
    ],
)
def test_tags_earn_their_parts(text: str, worth: float):
    assert Tags()(attempts(text)) == [worth]


def test_an_opening_by_the_prompt_is_not_the_completions_merit():
    reward = Tags(opened=True)
    assert reward(attempts("a</think><answer>b</answer>", "a", "<think>a</think><answer>b</answer>")) == [1.0, 0.0, 0.5]


def test_repetition_is_the_share_of_repeated_ngrams():
    assert Repetition(n=1)(attempts("a b c d", "a a a a", "a B b c", "", "a")) == [0.0, -0.75, -0.25, 0.0, 0.0]
    assert Repetition(n=3, largest=-2.0)(attempts("a b c a b c", "a b")) == [-0.5, 0.0]
    assert Repetition(n=1, tokens=True)(attempts("aaaa", "abcd")) == [-0.75, 0.0]


@pytest.mark.parametrize(
    ("word", "settings"),
    [
        ("format", {"pattern": "("}),
        ("format", {"pattern": "a", "longest": 0}),
        ("tags", {"tags": []}),
        ("tags", {"tags": ["a", "a"]}),
        ("tags", {"tags": "think"}),
        ("tags", {"tags": ["<think>"]}),
        ("repetition", {"n": 0}),
        ("repetition", {"n": 101}),
        ("repetition", {"largest": 0.5}),
    ],
)
def test_settings_that_mean_nothing_are_refused(word: str, settings):
    with pytest.raises(UsageError):
        FORMS[word](**settings)
