"""Bodies that no client would send: each has an answer or a refusal, and neither session nor run ends by it."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from groupwise.core.engine import Sampling
from groupwise.core.environment import Ended, EpisodeLimits, Visit
from groupwise.rollout.gateway.request import Body, Refusal
from groupwise.rollout.gateway.server import PROTOCOLS
from tests.rollout.gateway.made import played, post

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TEXT = [{"type": "text", "text": "hi"}]
SOUND: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "policy", "n": 2, "seed": 1, "stream": True, "stream_options": {"include_usage": True}, "stop": ["a"],
        "messages": [
            {"role": "system", "content": "s"}, {"role": "user", "content": TEXT},
            {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "content": "x"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}], "tool_choice": "auto",
        "max_tokens": 3, "response_format": {"type": "text"}, "logprobs": True, "top_logprobs": 0,
    },
    "/v1/messages": {
        "model": "policy", "max_tokens": 3, "system": TEXT, "stop_sequences": ["z"], "stream": False,
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [*TEXT, {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": TEXT}, *TEXT]},
        ],
        "tools": [{"name": "f", "description": "d", "input_schema": {}}], "tool_choice": {"type": "auto"},
    },
    "/v1/responses": {
        "model": "policy", "instructions": "i", "text": {"format": {"type": "text"}}, "max_output_tokens": 3,
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "1"},
            {"type": "function_call_output", "call_id": "1", "output": "x"},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": {}}], "stream": True,
    },
    "/inference/v1/generate": {
        "token_ids": [5, 6], "sampling_params": {"max_tokens": 3, "n": 1, "stop": ["a"], "seed": 1}, "stream": False,
    },
}  # fmt: skip
ODD: list[Any] = [
    None, True, 0, -1, 1.5, 2**70, float("nan"), "", "x", "\x00", "\ufffd", "\ud800", "{{ 1/0 }}", "<|im_end|>",
    "x" * 3000, [], [1], ["a"], [None], [[]], [{}], {}, {"a": 1}, {"type": 1}, {"type": {"a": 1}}, [{"role": []}],
    [{"type": "text", "text": 1}], {"\ud800": 1},
]  # fmt: skip


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a body, by keys and numbers."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*before, key)
        yield from places(inner, (*before, key))


def changed(numbers: random.Random) -> tuple[str, dict[str, Any]]:
    """A path, and its sound body with one to three odd values, or without some of its keys."""
    path = numbers.choice(list(SOUND))
    body = copy.deepcopy(SOUND[path])
    for _ in range(numbers.choice((1, 1, 2, 3))):
        *before, last = numbers.choice([*places(body)] or [("model",)])
        inner: Any = body
        for key in before:
            inner = inner[key]
        if numbers.random() < 0.15:
            inner.pop(last)
        else:
            inner[last] = copy.deepcopy(numbers.choice(ODD))
    return path, body


@pytest.mark.parametrize("path", SOUND)
def test_the_sound_bodies_are_read(path: str) -> None:
    PROTOCOLS[path].read(Body.of(json.dumps(SOUND[path]).encode()))


def test_a_body_is_read_or_refused() -> None:
    numbers, statuses = random.Random(0), []
    for _ in range(4000):
        path, body = changed(numbers)
        try:
            asked = PROTOCOLS[path].read(Body.of(json.dumps(body).encode()))
            assert asked.history is not None
            assert asked.offered
        except Refusal as refusal:
            statuses.append(refusal.status)
    assert set(statuses) == {400}
    assert 2000 < len(statuses) < 3900


@pytest.mark.parametrize("seed", [0, 1])
def test_a_session_outlives_what_its_agent_asks(seed: int) -> None:
    statuses: list[tuple[int, Any]] = []

    def play(visit: Visit) -> float:
        numbers = random.Random(seed)
        for _ in range(100):
            path, body = changed(numbers)
            statuses.append((post(visit, path, body)[0], body))
        return 1.0

    limits, sampling = EpisodeLimits(turns=1000, turn_tokens=1), Sampling(max_new_tokens=100_000)
    ((episode,),) = played(play, samples=1, texts=("Say a.",), limits=limits, sampling=sampling)
    assert episode.ended == Ended.DONE
    assert [(status, body) for status, body in statuses if status >= 500] == []
    assert {status for status, _ in statuses} >= {200, 400}
