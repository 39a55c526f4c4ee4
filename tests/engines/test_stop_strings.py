"""A stop string is found at the very token that completes it, whatever the tokens are, and seldom by decoding."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from groupwise.core.errors import UsageError
from groupwise.engines.stop_strings import StopStrings, require_spelled

TEXT = "a\n\nb é\n– ab\nUser: 日本\n\n ba–é日"
STOPS: list[tuple[str, ...]] = [
    ("\n",),
    ("\n\n",),
    ("User:",),
    ("é",),
    ("日本", "–"),
    ("ab", "b", "\n "),
    (" ", "\n\n b"),
    ("\n– ab\n", "é\n–"),
    ("never",),
]


def decoder(pieces: Sequence[bytes]) -> Callable[[tuple[int, ...]], str]:
    """Ids that stand for bytes, as those of a byte-level tokenizer do."""
    return lambda ids: b"".join(pieces[i] for i in ids).decode(errors="replace")


def first_completed(stops: StopStrings, ids: tuple[int, ...]) -> tuple[int, str]:
    """What an engine does: most tokens are looked at by their id alone."""
    for count in range(1, len(ids) + 1):
        if stops.rows([ids[count - 1]]) and (stop := stops.completed(ids[:count])):
            return count, stop
    return 0, ""


@pytest.mark.parametrize("texts", STOPS, ids=repr)
def test_any_split_of_the_text_into_tokens_ends_with_the_one_that_completes_it(texts: tuple[str, ...]) -> None:
    """Cut anywhere, inside of characters too. The truth: the first token with which the decoded text holds a stop."""
    whole, chance = TEXT.encode(), random.Random(0)
    for cuts in (0, 1, 3, 6, 12, len(whole) - 1):
        for _ in range(20):
            edges = [0, *sorted(chance.sample(range(1, len(whole)), cuts)), len(whole)]
            pieces = [whole[a:b] for a, b in itertools.pairwise(edges)]
            ids, decode = tuple(range(len(pieces))), decoder(pieces)
            held = (count for count in ids if any(text in decode(ids[: count + 1]) for text in texts))
            expected = next(held, -1) + 1
            count, stop = first_completed(StopStrings(texts, decode), ids)
            assert count == expected
            if expected:
                text = decode(ids[:count])
                assert stop == min((t for t in texts if t in text), key=lambda t: text.index(t) + len(t))


def test_of_several_that_one_token_completes_the_first_to_end_is_named() -> None:
    stops = StopStrings(("cd", "bc", "abcd"), decoder([b"a", b"bcd"]))
    assert stops.completed((0, 1)) == "bc"


def test_what_was_there_before_the_last_token_is_not_completed_by_it() -> None:
    """A text that went past its stop, under min_new_tokens, ends at the next one."""
    stops = StopStrings(("aa",), decoder([b"a", b"b"]))
    assert [stops.completed(ids) for ids in ((0, 0), (0, 0, 1), (0, 0, 1, 0), (0, 0, 0), (0, 0, 1, 0, 0))] == [
        "aa",
        "",
        "",
        "aa",
        "aa",
    ]


def test_tokens_without_text_may_stand_inside_of_a_stop_string() -> None:
    decode = decoder([b"Us", b"er", b":", b""])
    ids = (0, *[3] * 40, 1, *[3] * 40, 2)
    assert first_completed(StopStrings(("User:",), decode), ids) == (len(ids), "User:")


def test_most_tokens_are_never_decoded_again() -> None:
    calls = 0
    pieces = [bytes([i]) for i in range(128)]

    def decode(ids: tuple[int, ...]) -> str:
        nonlocal calls
        calls += 1
        return decoder(pieces)(ids)

    stops, drawn = StopStrings(("User:", "\n"), decode), list(range(11, 128))
    assert stops.rows(drawn) == [ord(":") - 11]
    calls = 0
    for _ in range(50):
        assert stops.rows(drawn) == [ord(":") - 11]
    assert calls == 0
    long = (*[ord("x")] * 3000, ord(":"))
    lengths: list[int] = []
    StopStrings(("User:",), lambda ids: lengths.append(len(ids)) or decode(ids)).completed(long)  # type: ignore[func-returns-value]
    assert max(lengths) < 20


def sentencepiece() -> Any:
    """Spaces are marked at a word's beginning and left out at the text's, and bytes stand in for rare characters."""
    words = ["<unk>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁a", "▁", "a", "b", "▁b"]
    tokenizer = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")


def lowercasing() -> Any:
    vocabulary = {"<unk>": 0, **{c: i + 1 for i, c in enumerate("abcdefghijklmnopqrstuvwxyz :")}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def policy(tokenizer: Any) -> Any:
    return SimpleNamespace(
        tokenizer=tokenizer, decode=lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True)
    )


@pytest.mark.parametrize("texts", [(" b",), ("a b",), ("é",), ("\n",), ("a", " b"), ("a ",)], ids=repr)
def test_spaces_that_a_tokenizer_marks_and_bytes_that_stand_in(texts: tuple[str, ...]) -> None:
    own = policy(sentencepiece())
    require_spelled(own, texts)
    chance = random.Random(1)
    vocabulary = [i for i in range(own.tokenizer.vocab_size) if i > 257 or i in (12, 0xC3 + 2, 0xA9 + 2)]
    ended = 0
    for _ in range(60):
        ids = tuple(chance.choices(vocabulary, k=12))
        held = (count for count in range(1, 13) if any(text in own.decode(ids[:count]) for text in texts))
        expected = next(held, 0)
        assert first_completed(StopStrings(texts, own.decode), ids)[0] == expected
        ended += expected > 0
    assert ended > 1


@pytest.mark.parametrize(
    ("make", "text", "words"),
    [
        (sentencepiece, "</s>", r"no text of this model's tokens can hold it; it is special: set stop_ids = \[1\]"),
        (lowercasing, "User", "no text of this model's tokens can hold it; take it out"),
        (lowercasing, "user\n", "no text of this model's tokens can hold it; take it out"),
    ],
)
def test_a_stop_string_that_no_text_can_hold_is_refused(make: Callable[[], Any], text: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"^stop = .*: {words}$"):
        require_spelled(policy(make()), (text,))


def test_what_text_can_hold_is_taken() -> None:
    require_spelled(policy(lowercasing()), ("user:", " "))
    require_spelled(policy(sentencepiece()), ("\n", "日本", " a"))
