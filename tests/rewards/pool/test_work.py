"""What processes are given to score comes as it was: every field, every token, and each sample once."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

import pytest

from groupwise.core.channel import Channel, pack
from groupwise.core.environment import Conversation
from groupwise.core.errors import UsageError
from groupwise.core.samples import Attempt, Sample
from groupwise.rewards.pool.work import Given, packed

MESSAGES = ({"role": "user", "content": "1 + 1?", "parts": [{"a": None}]},)
FULL = Sample("k", "p\ud800", "2", {"pair": (1, [2.5])}, "web", MESSAGES, ({"name": "f"},), "hard", 2**62, ([1],))


@dataclass(frozen=True)
class Harder(Sample):
    level: int = 0


def sent(*work: Attempt | Conversation) -> list[Attempt | Conversation]:
    """What the other end of a connection has of it."""
    ours, theirs = map(Channel, socket.socketpair())
    packed({"name": "mine"}, work, "it").send(theirs)
    theirs.send({"next": 1})
    try:
        given = Given.received(ours)
        assert given.message["name"] == "mine"
        assert ours.receive() == {"next": 1}, "all that belongs to the message was read, and no more"
        return given.work()
    finally:
        ours.close()
        theirs.close()


WORK = [
    Attempt(FULL, "text\0é", "length", (0, 5, 2**63 - 1, -1)),
    Attempt(FULL, ""),
    Attempt(Harder("other", "", "", level=3), "of a kind of the user's own", "stop", (7,) * 900),
    Conversation(FULL, 3, 2, ("a", "b"), ("", "f00"), last=True),
    Conversation(FULL, 4, 2, cut_off=True),
]


@pytest.mark.parametrize("work", [WORK, WORK[::-1], WORK[:1], WORK[3:], []], ids=["all", "back", "one", "turns", "no"])
def test_work_comes_as_it_was(work: list[Any]) -> None:
    assert sent(*work) == work


def test_a_sample_of_a_group_travels_once_and_is_one_there() -> None:
    sample = Sample("k", "x" * 10_000, "")
    group = [Attempt(sample, str(number)) for number in range(8)]
    first, *others = (one.sample for one in sent(*group))
    assert all(one is first for one in others)
    assert len(pack(packed({}, group, "it").message)) < 11_000


def test_tokens_take_eight_bytes_each_and_no_text() -> None:
    given = packed({}, [Attempt(FULL, "", "stop", range(4_000))], "it")
    assert len(given.numbers) == 32_000
    assert len(pack(given.message)) < 1_000


@pytest.mark.parametrize("tokens", [(2**63,), (1.5,), ("a",)], ids=repr)
def test_tokens_that_are_none_are_one_line(tokens: Any) -> None:
    with pytest.raises(UsageError, match=r"^rewards: what mine is given cannot be sent to another process: .+$"):
        packed({}, [Attempt(FULL, "", "stop", tokens)], "what mine is given")
