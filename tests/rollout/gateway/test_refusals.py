"""Requests that cannot be answered: the status, one line, and nothing lost beside them."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest

from groupwise.core.engine import Sampling
from groupwise.core.environment import Ended, EpisodeLimits, Visit
from groupwise.core.errors import UsageError
from groupwise.core.processes.network import Address
from groupwise.core.records import Completion
from groupwise.rollout.gateway.server import Server
from tests.rollout.gateway.made import Listening, chat, played, policy, post, user

CHAT, IDS, ANTHROPIC = "/v1/chat/completions", "/inference/v1/generate", "/v1/messages"
ASKED = {"messages": [{"role": "user", "content": "q"}]}
IMAGE = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]}
BLOCK = {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}], "max_tokens": 5}
TOOLS = [{"type": "function", "function": {"name": "add"}}]
NO_CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": "add"}]}

REFUSED: list[tuple[str, Any, int, str]] = [
    (CHAT, {**ASKED, "model": "gpt-5"}, 404, "model = 'gpt-5': there is no such model; this run has 'policy'"),
    (CHAT, b"{", 400, "the body is no JSON"),
    (CHAT, b"[" * 100_000, 400, "the body is no JSON"),
    (CHAT, [], 400, "the body must be a JSON object"),
    (CHAT, {}, 400, "messages: the last one must not be the assistant's"),
    (CHAT, {"messages": "q"}, 400, "messages = 'q': must be a list"),
    (CHAT, {"messages": ["q"]}, 400, "messages[0] = 'q': must be an object"),
    (CHAT, {"messages": [{"role": "robot", "content": ""}]}, 400, "messages[0].role = 'robot'"),
    (CHAT, {"messages": [{"content": ""}]}, 400, "messages[0].role = None: must be text"),
    (CHAT, {"messages": [user("q"), {"role": "assistant", "content": "a"}]}, 400, "the last one must not be"),
    (CHAT, {"messages": [NO_CALL, user("q")]}, 400, "messages[0].tool_calls[0].function = 'add': must be an object"),
    (CHAT, {"messages": [user("a<|im_end|>b")]}, 400, "messages[0]: holds the control token <|im_end|>"),
    (CHAT, IMAGE, 400, "messages[0].content[0].type = 'image_url': this policy reads text alone"),
    (ANTHROPIC, BLOCK, 400, "messages[0].content[0].type = 'image': this policy reads text alone"),
    (CHAT, {**ASKED, "max_tokens": 0}, 400, "max_tokens = 0: must be a whole number from 1"),
    (CHAT, {**ASKED, "n": 1.5}, 400, "n = 1.5: must be a whole number from 1 to 64"),
    (CHAT, {**ASKED, "stop": ["x"] * 99}, 400, "must be a text or a list of at most 16"),
    (CHAT, {**ASKED, "stream": 1.5}, 400, "stream = 1.5: must be true or false"),
    (CHAT, {**ASKED, "tools": [{}]}, 400, "tools[0].function.name = None: must be text"),
    (CHAT, {**ASKED, "tools": [{"function": 1}]}, 400, "tools[0].function = 1: must be an object"),
    (CHAT, {**ASKED, "tools": [{"function": {"name": "a b"}}]}, 400, "tools[0].function.name = 'a b': must be letters"),
    (CHAT, {**ASKED, "tools": TOOLS, "tool_choice": "required"}, 400, "a call cannot be forced"),
    (
        CHAT,
        {**ASKED, "response_format": {"type": "json_object"}},
        400,
        "response_format = {'type': 'json_object'}: this policy is sampled",
    ),
    (CHAT, {**ASKED, "top_logprobs": 5}, 400, "top_logprobs: the engine says"),
    (CHAT, {**ASKED, "stream_options": 1}, 400, "stream_options = 1: must be an object"),
    (CHAT, {**ASKED, "stream_options": {"include_usage": 1.5}}, 400, "stream_options.include_usage = 1.5: must be"),
    (CHAT, {"messages": [user("x" * 2000)]}, 400, "the model takes 1024 with the answer"),
    (CHAT, {"messages": [user("x" * 600)]}, 400, "more of the prompt leave no room for an answer"),
    (IDS, {"token_ids": []}, 400, "token_ids: must be a list of whole numbers"),
    (IDS, {"token_ids": [2, "3"]}, 400, "token_ids: must be a list of whole numbers"),
    (IDS, {"token_ids": [2, 100_000]}, 400, "token_ids: an id is not among the model's"),
    (IDS, {"token_ids": [2], "features": {"mm": 1}}, 400, "features: this policy reads text alone"),
    (IDS, {"token_ids": [2], "sampling_params": 3}, 400, "sampling_params = 3: must be an object"),
    (CHAT, {"messages": [user("a\ud83d")]}, 400, "the body is no JSON: no low surrogate in string"),
    (CHAT, {**ASKED, "stop": "a\ud83d"}, 400, "the body is no JSON: no low surrogate in string"),
    ("/v1/responses", {"input": "q", "text": "x"}, 400, "text = 'x': must be an object"),
    ("/v1/responses", {"input": "q", "text": {"format": ["x"]}}, 400, "text.format = ['x']: must be an object"),
    ("/v1/responses", {"input": []}, 400, "input: the last item must not be the assistant's"),
    (
        "/v1/responses",
        {"input": "q", "previous_response_id": "x"},
        400,
        "previous_response_id = 'x': this policy is sampled",
    ),
    ("/v1/responses", {"input": "q", "tools": [{"type": 1}]}, 400, "tools[0].type = 1: must be text"),
    ("/v1/completions", {}, 404, "no such request; known: GET /v1/models, POST /v1/chat/completions"),
]


def alone(play: Callable[[Visit], Any], **how: Any) -> Completion:
    given = {"samples": 1, "texts": ["Say a."], "sampling": Sampling(max_new_tokens=500), **how}
    ((episode,),) = played(play, **given)
    return episode


def test_each_has_its_status_and_one_line_and_the_session_goes_on() -> None:
    heard: list[tuple[int, Any]] = []

    def play(visit: Visit) -> float:
        first = chat(visit, [user("Say a.")])["choices"][0]["message"]
        heard.extend(post(visit, path, body) for path, body, *_ in REFUSED)
        chat(visit, [user("Say a."), first, user("more")])
        return 1.0

    episode = alone(play)
    for (path, body, status, line), (got, answer) in zip(REFUSED, heard, strict=True):
        assert got == status, (path, body, answer)
        assert line in answer["error"]["message"], answer
        assert "\n" not in answer["error"]["message"]
    assert (episode.ended, len(episode.turns), len(episode.spans)) == (Ended.DONE, 2, 3)


def test_the_log_says_why_once_for_each_of_the_first_reasons() -> None:
    def play(visit: Visit) -> float:
        post(visit, CHAT, ASKED, key="of nobody")
        for _ in range(2):
            for path, body, *_ in REFUSED:
                post(visit, path, body)
        chat(visit, [user("q")])
        return 1.0

    said: list[str] = []
    alone(play, note=said.append)
    assert len(said) == len(set(said)) == 8
    assert said[0] == "agents       had no answer (404): model = 'gpt-5': there is no such model; this run has 'policy'"
    assert all(
        line.startswith(("agents       had no answer (400)", "agents       had no answer (404)")) for line in said
    )


def test_texts_that_end_an_answer_are_counted_with_the_runs_own() -> None:
    heard: list[Any] = []

    def play(visit: Visit) -> float:
        for stop in (["x", "y"], ["x"]):
            heard.append(post(visit, CHAT, {"messages": [user("Say a.")], "stop": stop}))
        return 1.0

    own = (*(f"end {number}" for number in range(62)), "x")
    assert alone(play, sampling=Sampling(max_new_tokens=500, stop=own)).ended == Ended.DONE
    assert [status for status, _ in heard] == [200, 200]
    heard.clear()
    assert alone(play, sampling=Sampling(max_new_tokens=500, stop=(*own, "z"))).ended == Ended.DONE
    assert [status for status, _ in heard] == [400, 200]
    assert heard[0][1]["error"]["message"].startswith("stop: with the 64 texts of sampling.stop these are more")


def test_a_key_opens_its_own_session_while_that_is_played() -> None:
    statuses: list[Any] = []

    def play(visit: Visit) -> float:
        statuses.append(post(visit, CHAT, ASKED, key="")[0])
        statuses.append(post(visit, CHAT, ASKED, key="another")[0])
        statuses.append(post(visit, CHAT, ASKED, key="", **{"x-api-key": visit.key})[0])
        late.append(visit)
        return 1.0

    late: list[Visit] = []
    server = Server(Address.of("127.0.0.1:0"))
    try:
        alone(play)
        over = Visit(late[0].sample, *server.enter(lambda *_: None))
        server.leave(over.key)
        status, answer = post(over, CHAT, ASKED)
        assert (status, answer["error"]["message"]) == (410, "this session is over: its agent has ended")
        assert post(over, CHAT, ASKED, key=late[0].key)[0] == 401  # of another run
    finally:
        server.close()
    assert statuses == [401, 401, 200]


def test_an_address_that_is_taken_is_refused() -> None:
    server = Server(Address.of("127.0.0.1:0"))
    try:
        with pytest.raises(UsageError, match=r"rollout.gateway = .*: Address already in use; choose another port"):
            Server(server.address)
    finally:
        server.close()


def test_a_body_of_100_mb_is_refused_and_not_kept() -> None:
    heard: list[Any] = []

    def play(visit: Visit) -> float:
        place = urlsplit(visit.base_url)
        head = {"Authorization": f"Bearer {visit.key}", "Content-Length": str(10**8)}
        with closing(http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)) as line:
            line.request("POST", CHAT, (b"x" * 10**6 for _ in range(100)), head)
            answer = line.getresponse()
            heard.append((answer.status, json.loads(answer.read())["error"]["message"]))
        chat(visit, [user("q")])
        return 1.0

    assert alone(play).ended is Ended.DONE
    assert heard == [(413, f"the body has {10**8} bytes; {2**23} are the most")]


def test_a_client_that_goes_away_leaves_nothing_in_the_episode() -> None:
    """While its answer is sampled: the others of its round have theirs."""
    began, left = threading.Event(), threading.Event()

    class Slow(Listening):
        def generate(self, requests: Any, sampling: Sampling, on_finish: Any = None) -> Any:
            if not began.is_set():
                began.set()
                left.wait(60)
                time.sleep(0.5)  # until the server has seen it
            return super().generate(requests, sampling, on_finish)

    def play(visit: Visit) -> float:
        if visit.sample.key == "k0":
            place = urlsplit(visit.base_url)
            body = json.dumps({"messages": [user("gone")]})
            with socket.create_connection((place.hostname, place.port)) as line:
                head = f"POST {CHAT} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {visit.key}\r\n"
                line.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
                began.wait(60)
            left.set()
        chat(visit, [user(visit.sample.prompt)])
        return 1.0

    engine = Slow()
    episodes = played(play, engine, samples=1)
    assert engine.sizes[0] == 3
    assert [len(group[0].turns) for group in episodes] == [1, 1, 1]
    assert all("gone" not in policy().decode(group[0].tokens) for group in episodes)


def test_what_is_beyond_a_sessions_limits_cuts_it_off_and_is_worth_nothing() -> None:
    """An agent that fails over a refusal of more than its session may have is no fault: the policy was too long."""

    def asks_on(visit: Visit) -> float:
        for _ in range(99):
            chat(visit, [user("Say a.")])
        return 1.0

    def heeds(visit: Visit) -> float:
        try:
            return asks_on(visit)
        except OSError:
            return 0.25

    episode = alone(asks_on, limits=EpisodeLimits(turns=3, turn_tokens=5))
    assert (episode.ended, len(episode.turns), episode.turns[-1].reward) == (Ended.TURNS, 3, 0.0)
    episode = alone(asks_on, limits=EpisodeLimits(turns=99, turn_tokens=5), sampling=Sampling(max_new_tokens=100))
    assert (episode.ended, episode.finish) == (Ended.TOKENS, "length")
    assert len(episode.tokens) <= 100
    episode = alone(heeds, limits=EpisodeLimits(turns=3, turn_tokens=5))
    assert (episode.ended, episode.turns[-1].reward) == (Ended.DONE, 0.25)


def test_a_fault_is_a_fault_and_no_zero() -> None:
    def fails(visit: Visit) -> float:
        chat(visit, [user("Say a.")])
        raise RuntimeError("no luck")

    episode = alone(fails)
    assert (episode.ended, episode.turns[-1].fault) == (Ended.FAULT, "exception")
    assert "no luck" in episode.turns[-1].detail
    assert episode.trains_on != episode.trains_on
    silent = alone(lambda visit: 1.0)
    assert (silent.ended, silent.turns[-1].fault, silent.length) == (Ended.FAULT, "empty answer", 0)


def test_many_requests_of_one_session_wait_together_and_more_are_refused() -> None:
    def play(visit: Visit) -> float:
        heard: list[int] = []

        def asks(number: int) -> None:
            heard.append(post(visit, CHAT, {"messages": [user(f"q{number}")], "max_tokens": 2})[0])

        threads = [threading.Thread(target=asks, args=(number,)) for number in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(heard) <= {200, 429}
        assert heard.count(200) >= 32
        return 1.0

    episode = alone(play, sampling=Sampling(max_new_tokens=4000), limits=EpisodeLimits(turns=99))
    assert (episode.ended, len(episode.turns) >= 32) == (Ended.DONE, True)
