"""Where completions end: stop strings, further end ids, and no end among the first tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from groupwise.core.engine import Finished, Request, Sampling
from groupwise.core.errors import UsageError
from groupwise.core.records import Completion
from groupwise.engines.local.engine import LocalEngine
from groupwise.engines.stop_strings import StopStrings
from tests.engines.local.made import EOS, VOCABULARY, build

#: The text of each id: letters, two halves of a character, ends of lines in and around other text, and none for 3, 7.
PIECES = [bytes([97 + i]) for i in range(VOCABULARY)]
PIECES[3] = PIECES[7] = b""
for number, piece in {19: b"\xc3", 5: b"\xa9", 24: b"\n", 25: b"x\n", 26: b"\ny", 12: b"Us", 11: b"er: "}.items():
    PIECES[number] = piece
REQUESTS = [Request(tuple(1 + (5 * i + j) % 29 for j in range(1 + 3 * i)), 6, seed=i) for i in range(5)]
STOPS: list[tuple[str, ...]] = [("\n",), ("é", "User:"), ("\n\n", "er:", "ab"), ("e", "g", "\ny\xe9"), ("never",)]


def decode(ids: tuple[int, ...]) -> str:
    return b"".join(PIECES[i] for i in ids).decode(errors="replace")


@pytest.fixture(scope="module")
def engine() -> LocalEngine:
    return LocalEngine(build(), EOS, pad=0, max_rows=9, decode=decode)


def cut(whole: Completion, texts: tuple[str, ...], ids: frozenset[int] = frozenset()) -> tuple[tuple[int, ...], str]:
    """What is left of a completion that was sampled without these ends, and why it ends, by looking at all of it."""
    for count in range(1, len(whole.tokens) + 1):
        tokens = whole.tokens[:count]
        if any(text in decode(tokens) for text in texts) or tokens[-1] in ids:
            return tokens, "stop"
    return whole.tokens, whole.finish


def both(engine: LocalEngine, before: Sampling, **ends: Any) -> list[tuple[Completion, Completion]]:
    """Each completion sampled without and with these ends."""
    one, other = (engine.generate(REQUESTS, how) for how in (before, before.replace(**ends)))
    return [pair for a, b in zip(one, other, strict=True) for pair in zip(a, b, strict=True)]


@pytest.mark.parametrize("truncation", [{}, {"top_p": 0.9}])
@pytest.mark.parametrize("texts", STOPS, ids=repr)
def test_a_completion_is_the_one_without_stop_strings_up_to_the_token_that_completes_one(
    engine: LocalEngine, texts: tuple[str, ...], truncation: dict[str, float]
) -> None:
    """The ids to the last, and their log-probabilities and supports; the rows beside it end where they end."""
    ended = 0
    for whole, done in both(engine, Sampling(max_new_tokens=30, **truncation), stop=texts):  # type: ignore[arg-type]
        tokens, finish = cut(whole, texts)
        assert (done.tokens, done.finish) == (tokens, finish)
        assert done.logp_engine == pytest.approx(whole.logp_engine[: len(tokens)], abs=1e-5)
        assert (done.stop in texts and done.stop in decode(tokens)) == (done.stop != "")
        by_text = any(text in decode(tokens) for text in texts)
        assert bool(done.stop) == by_text
        ended += by_text
        if truncation:
            assert done.support is not None
            assert whole.support is not None
            assert torch.equal(done.support.start, whole.support.start[: len(tokens) + 1])
            assert torch.equal(done.support.ids, whole.support.ids[: int(done.support.start[-1])])
    assert (ended == 0) == (texts == ("never",))


@pytest.mark.parametrize("max_rows", [1, 4])
def test_rows_at_a_time_change_nothing(engine: LocalEngine, max_rows: int) -> None:
    how = Sampling(max_new_tokens=30, stop=("\n", "User:", "é"), stop_ids=(5,), min_new_tokens=2)
    other = LocalEngine(build(), EOS, pad=0, max_rows=max_rows, decode=decode)
    heard: list[Finished] = []
    groups = other.generate(REQUESTS, how, heard.append)
    said = [[(c.tokens, c.finish, c.stop) for c in group] for group in groups]
    assert said == [[(c.tokens, c.finish, c.stop) for c in group] for group in engine.generate(REQUESTS, how)]
    assert {(h.request, h.sample): (h.tokens, h.finish) for h in heard} == {
        (i, j): (c.tokens, c.finish) for i, group in enumerate(groups) for j, c in enumerate(group)
    }


def test_calls_with_and_without_stop_strings_go_by_turns(engine: LocalEngine) -> None:
    plain, with_stop = Sampling(max_new_tokens=20), Sampling(max_new_tokens=20, stop=("\n",), stop_ids=(5, 6))
    once = [engine.generate(REQUESTS, how) for how in (plain, with_stop)]
    again = [engine.generate(REQUESTS, how) for how in (with_stop, plain)]
    assert once == again[::-1]
    assert once[0] != once[1]


def test_a_stop_at_the_very_limit_is_a_stop(engine: LocalEngine) -> None:
    how = Sampling(max_new_tokens=30, stop=("\n",))
    ends = [[c for c in group if c.stop] for group in engine.generate(REQUESTS, how)]
    assert sum(map(len, ends)) > 5
    for request, ended in zip(REQUESTS, ends, strict=True):
        for done in ended:
            limited = engine.generate([request], how.replace(max_new_tokens=len(done.tokens)))[0]
            assert (done.tokens, "stop", "\n") in [(c.tokens, c.finish, c.stop) for c in limited]


def test_further_end_ids_end_a_completion(engine: LocalEngine) -> None:
    pairs = both(engine, Sampling(max_new_tokens=30), stop_ids=(5, 20))
    for whole, done in pairs:
        assert (done.tokens, done.finish, done.stop) == (*cut(whole, (), frozenset({5, 20})), "")
    assert {done.tokens[-1] for _, done in pairs} >= {5, 20}


@pytest.mark.parametrize("truncation", [{}, {"top_k": 28}, {"top_p": 0.95, "min_p": 0.01}], ids=repr)
@pytest.mark.parametrize("least", [1, 4, 30])
def test_the_first_tokens_are_no_ends(engine: LocalEngine, least: int, truncation: dict[str, Any]) -> None:
    """Neither the model's own, nor further ones, nor the completion of a stop string."""
    how = Sampling(max_new_tokens=30, min_new_tokens=least, stop=("\n", "a"), stop_ids=(5,), **truncation)
    done = [c for group in engine.generate(REQUESTS, how) for c in group]
    ends = {*EOS, 5}
    for completion in done:
        assert not ends & {*completion.tokens[:least]}
        assert len(completion.tokens) > least or completion.finish == "length"
        assert not ends & {*completion.tokens[least:-1]}
    assert (least == 30) == all(c.finish == "length" for c in done)
    assert least == 30 or {len(c.tokens) for c in done} >= {least + 1}
    at_once = Sampling(max_new_tokens=30, stop=("\n", "a"), stop_ids=(5,), **truncation)
    assert min(len(c.tokens) for group in engine.generate(REQUESTS, at_once) for c in group) == 1


def test_a_stop_string_among_the_first_tokens_is_passed_and_the_next_one_ends(engine: LocalEngine) -> None:
    how = Sampling(max_new_tokens=30, min_new_tokens=8, stop=("\n", "e"))
    stops, passed = StopStrings(("\n", "e"), decode), 0
    for completion in (c for group in engine.generate(REQUESTS, how) for c in group):
        tokens = completion.tokens
        passed += any(text in decode(tokens[:8]) for text in ("\n", "e"))
        assert not any(stops.completed(tokens[:count]) for count in range(9, len(tokens)))
        assert completion.stop == (stops.completed(tokens) if len(tokens) > 8 else "")
    assert passed


def test_stop_strings_need_what_decodes(engine: LocalEngine) -> None:
    blind = LocalEngine(build(), EOS, pad=0)
    assert engine.options - blind.options == {"stop"}
    with pytest.raises(
        UsageError, match=r"^stop = \['x'\]: this engine was made without what decodes ids; take it out"
    ):
        blind.generate(REQUESTS, Sampling(stop=("x",)))
