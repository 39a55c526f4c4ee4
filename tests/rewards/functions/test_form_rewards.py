"""Rewards for the form of a completion."""

from __future__ import annotations

import time

import pytest

from groupwise.core.errors import UsageError
from groupwise.core.samples import Attempt, Sample
from groupwise.rewards.functions.form import FORMS, Format, Repetition, Tags


def attempts(*texts: str) -> list[Attempt]:
    return [Attempt(Sample("k", "p", "a"), text, tokens=[ord(letter) for letter in text]) for text in texts]


def test_format_matches_the_whole_completion_only():
    texts = attempts("<think>a\nb</think> 5", "x<think>a</think> 5", "<think>a</think> 5 ", "")
    assert Format(r"<think>.*</think>\s*\d+")(texts) == [1.0, 0.0, 0.0, 0.0]
    assert Format(r".*", longest=3)(attempts("abc", "abcd")) == [1.0, 0.0]


def test_a_pattern_that_may_not_return_is_not_quick():
    for pattern in (r"(a+)+b", r"a?a?a", r".*x.*y", r"(a|a)*b*", r"[^\]]*\*+x?"):
        assert not Format(pattern).quick
    quick = Format(r"[*+?]\*\?a.*b")
    assert quick.quick
    begin = time.perf_counter()
    quick(attempts("*" * 100_000))
    assert time.perf_counter() - begin < 1


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
        ("repetition", {"largest": 0.5}),
    ],
)
def test_settings_that_mean_nothing_are_refused(word: str, settings):
    with pytest.raises(UsageError):
        FORMS[word](**settings)
