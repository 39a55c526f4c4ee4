"""What clients are told: by the libraries that agents are written with, streamed and whole, with tools."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import anthropic
import openai
import pytest

from groupwise.core.engine import Sampling
from groupwise.core.environment import EpisodeLimits, ToolCall, Visit
from groupwise.core.numbers.measure import Measure
from groupwise.core.processes.network import Address
from groupwise.core.records import Completion
from groupwise.core.stream import Cohort
from groupwise.diagnostics.groups import episode_metrics
from groupwise.rollout.gateway.play import Sessions
from groupwise.rollout.gateway.server import Server
from groupwise.rollout.segments import Segment
from tests.rollout.gateway.made import LIMITS, InThreads, Listening, chat, played, policy, post, prompts, user, writing

TOOL = {"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object"}}}
ONE: dict[str, Any] = {"samples": 1, "texts": ["Say a."]}


def alone(play: Any, engine: Any = None, **how: Any) -> Completion:
    ((episode,),) = played(play, engine, **{**ONE, **how})
    assert not episode.turns[-1].fault, episode.turns[-1].detail
    return episode


def saying(text: str) -> Any:
    """An engine whose answers all begin with a text: whatever the policy samples, an agent is told this."""

    class Saying(Listening):
        def generate(self, requests: Any, sampling: Any, on_finish: Any = None) -> Any:
            ids = tuple(policy().tokenizer(text)["input_ids"])
            length = len(ids)
            done = Completion.of_one_turn((*ids, policy().tokenizer.eos_token_id), (-0.5,) * (length + 1), "stop", 0)
            return [(done,) for _ in requests]

    return Saying()


@pytest.mark.parametrize("counted", [False, True])
def test_only_a_stream_that_is_to_be_counted_has_an_event_without_a_choice(counted: bool) -> None:
    def play(visit: Visit) -> float:
        with openai.OpenAI(base_url=visit.base_url, api_key=visit.key, max_retries=0) as client:
            more = {"stream_options": {"include_usage": True}} if counted else {}
            given = {"model": "policy", "messages": [user(visit.sample.prompt)], "max_tokens": 3, "stream": True}
            pieces = list(client.chat.completions.create(**given, **more))  # type: ignore[call-overload]
            assert [bool(piece.choices) for piece in pieces] == [True, True, *([False] if counted else [])]
            counts = [piece.usage.completion_tokens for piece in pieces if piece.usage]
            assert counts == ([3] if counted else [])
        return 1.0

    alone(play)


@pytest.mark.parametrize("stream", [False, True])
def test_openais_library_plays_a_session(stream: bool) -> None:
    seen: list[Any] = []

    def play(visit: Visit) -> float:
        with openai.OpenAI(base_url=visit.base_url, api_key=visit.key, max_retries=0) as client:
            assert [model.id for model in client.models.list()] == ["policy"]
            first = {"model": "policy", "messages": [user(visit.sample.prompt)], "max_tokens": 3}
            if stream:
                pieces = list(client.chat.completions.create(**first, stream=True))  # type: ignore[call-overload]
                said = "".join(piece.choices[0].delta.content or "" for piece in pieces)
            else:
                answer = client.chat.completions.create(**first, logprobs=True)  # type: ignore[call-overload]
                said = answer.choices[0].message.content
                seen.append([token.logprob for token in answer.choices[0].logprobs.content])
                assert answer.usage.prompt_tokens == len(answer.prompt_token_ids)
            history = [*first["messages"], {"role": "assistant", "content": said}, user("more")]
            several = client.chat.completions.create(model="policy", messages=history, n=3, stop=["e"], seed=7)
            assert len({choice.message.content for choice in several.choices}) == 3
            assert not any("e" in (choice.message.content or "") for choice in several.choices)
        return 1.0

    episode = alone(play)
    assert [span.own for span in episode.spans].count(True) == len(episode.turns) == 4
    assert seen in ([], [list(episode.logp_engine[:3])])
    assert sum(span.anew for span in episode.spans) == 2  # two of three answers open rows


@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_library_plays_a_session_with_tools(stream: bool) -> None:
    text = 'Let me see.<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    tools: Any = [{"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {}}}]

    def play(visit: Visit) -> float:
        with anthropic.Anthropic(base_url=visit.base_url, api_key=visit.key, max_retries=0) as client:
            messages: list[Any] = [user(visit.sample.prompt)]
            for _ in range(2):
                given = {"model": "policy", "max_tokens": 99, "system": "Add.", "messages": messages, "tools": tools}
                if stream:
                    with client.messages.stream(**given) as events:
                        answer = events.get_final_message()
                else:
                    answer = client.messages.create(**given)
                words, call = answer.content
                assert (words.text, call.name, call.input) == ("Let me see.", "add", {"a": 1})
                assert answer.stop_reason == "tool_use"
                result = {"type": "tool_result", "tool_use_id": call.id, "content": "3"}
                messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
        return 1.0

    episode = alone(play, saying(text))
    assert [span.anew for span in episode.spans] == [True, False, False, False]  # its own prompt, a, 3, a
    assert "<|im_start|>tool\n3<|im_end|>" in policy().decode_all(episode.tokens)
    assert '"name": "add", "description": "Adds."' in policy().decode_all(episode.tokens)


@pytest.mark.parametrize("stream", [False, True])
def test_openais_responses_play_a_session_with_tools(stream: bool) -> None:
    text = 'Hm.<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    tools: Any = [{"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object"}}]

    def play(visit: Visit) -> float:
        with openai.OpenAI(base_url=visit.base_url, api_key=visit.key, max_retries=0) as client:
            history: list[Any] = [user(visit.sample.prompt)]
            for _ in range(2):
                given = {"model": "policy", "instructions": "Add.", "input": history, "tools": tools}
                if stream:
                    with client.responses.stream(**given) as events:
                        answer = events.get_final_response()
                else:
                    answer = client.responses.create(**given)
                message, call = answer.output
                assert (answer.output_text, call.name, call.arguments) == ("Hm.", "add", '{"a": 1}')
                history += [message, call]
                history.append({"type": "function_call_output", "call_id": call.call_id, "output": "3"})
        return 1.0

    episode = alone(play, saying(text))
    assert [span.anew for span in episode.spans] == [True, False, False, False]
    assert "<|im_start|>tool\n3<|im_end|>" in policy().decode_all(episode.tokens)


def test_tokens_are_counted_as_they_would_be_read() -> None:
    def play(visit: Visit) -> float:
        with anthropic.Anthropic(base_url=visit.base_url, api_key=visit.key, max_retries=0) as client:
            asked: dict[str, Any] = {"model": "policy", "messages": [user("q")], "system": "Be brief."}
            for _ in range(2):
                counts.append(client.messages.count_tokens(**asked).input_tokens)
                said = client.messages.create(**asked, max_tokens=5).content
                asked["messages"] = [*asked["messages"], {"role": "assistant", "content": said}, user("more")]
        return 1.0

    counts: list[int] = []
    engine = Listening()
    episode = alone(play, engine, limits=EpisodeLimits(turns=2))
    assert counts == [len(request.tokens) for request, _ in engine.calls]
    assert len(episode.turns) == 2


def test_tools_that_a_server_would_run_are_left_out_and_the_log_says_so_once() -> None:
    schema: Any = {"type": "object", "properties": {}}
    offered: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"tools": [{"type": "custom", "custom": {"name": "patch"}}, TOOL]}),
        ("/v1/messages", {"tools": [{"type": "search_1", "name": "find"}, {"name": "add", "input_schema": schema}]}),
        ("/v1/responses", {"tools": [
            {"type": "web_search"}, {"type": "namespace", "name": "many", "tools": []},
            {"type": "function", "name": "add", "description": "", "parameters": schema},
        ]}),
    ]  # fmt: skip

    def play(visit: Visit) -> float:
        for _ in range(2):
            for path, tools in offered:
                words = {"input": "q"} if "responses" in path else {"messages": [user("q")]}
                assert post(visit, path, {**words, **tools})[0] == 200
        return 1.0

    said: list[str] = []
    engine = Listening()
    alone(
        play,
        engine,
        note=said.append,
        limits=EpisodeLimits(turns=6, turn_tokens=2),
        sampling=Sampling(max_new_tokens=4000),
    )
    assert said == [
        f"agents       offer tools of type {kinds}: left out, as the policy calls functions alone"
        for kinds in ("custom", "search_1", "namespace, web_search")
    ]
    for request, _ in engine.calls:
        read = policy().decode_all(request.tokens)
        assert '"name": "add"' in read
        assert not any(name in read for name in ("patch", "find", "many", "search"))


class Slow(Listening):
    """An engine that takes half a second."""

    def generate(self, requests: Any, sampling: Any, on_finish: Any = None) -> Any:
        if requests:
            time.sleep(0.5)
        return super().generate(requests, sampling, on_finish)


def test_a_stream_says_that_it_lives_until_there_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("groupwise.rollout.gateway.server.SILENT", 0.1)
    asked = {"messages": [user("q")], "max_tokens": 3, "stream": True}

    def play(visit: Visit) -> float:
        for path, sign in (("/v1/chat/completions", ": sampling\n\n"), ("/v1/messages", "event: ping\n")):
            status, events = post(visit, path, asked)
            assert (status, events.startswith(sign), events.count(sign) >= 3) == (200, True, True)
        with openai.OpenAI(base_url=visit.base_url, api_key=visit.key, max_retries=0) as client:
            pieces = list(
                client.chat.completions.create(model="policy", messages=[user("q")], max_tokens=3, stream=True)
            )  # type: ignore[list-item]
            assert len(pieces) == 2
            with client.responses.stream(model="policy", input="q", max_output_tokens=16) as events:
                assert [*events][-1].type == "response.incomplete"
        with anthropic.Anthropic(base_url=visit.base_url, api_key=visit.key, max_retries=0) as own:
            with own.messages.stream(model="policy", max_tokens=3, messages=[user("q")]) as events:  # type: ignore[list-item]
                assert events.get_final_message().usage.output_tokens == 3
            assert post(visit, "/v1/messages", {**asked, "max_tokens": 0})[0] == 400
        return 1.0

    assert len(alone(play, Slow()).turns) == 5


def test_a_stream_that_has_begun_ends_with_the_reason_why_there_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's thread is busy for another session as a request comes that is refused."""
    monkeypatch.setattr("groupwise.rollout.gateway.server.SILENT", 0.1)
    began, heard = threading.Event(), list[str]()

    class Busy(Slow):
        def generate(self, requests: Any, sampling: Any, on_finish: Any = None) -> Any:
            began.set()
            return super().generate(requests, sampling, on_finish)

    def play(visit: Visit) -> float:
        if visit.sample.key == "k0":
            chat(visit, [user("q")])
            return 1.0
        began.wait(60)
        with openai.OpenAI(base_url=visit.base_url, api_key=visit.key, max_retries=0) as client:
            for _ in range(2):
                try:
                    list(client.chat.completions.create(model="policy", messages=[user("x" * 2000)], stream=True))  # type: ignore[list-item]
                except openai.APIError as error:
                    heard.append(str(error))
        return 1.0

    played(play, Busy(), samples=1, texts=("a", "b"), patience=0.05)
    assert len(heard) == 2
    assert "the model takes 1024 with the answer" in heard[0]
    assert heard[0] in heard[1]  # the second time at once, with its status


def test_calls_of_tools_go_on_as_they_were_sampled() -> None:
    """Whatever spaces the policy has put into its JSON: the agent is told JSON anew, and the ids stay."""
    text = '<tool_call>{"name":  "add", "arguments": {"a":   1}}</tool_call>'

    def play(visit: Visit) -> float:
        first = chat(visit, [user("q")], tools=[TOOL])["choices"][0]
        assert first["finish_reason"] == "tool_calls"
        (call,) = first["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"a": 1}
        time.sleep(0.05)
        result = {"role": "tool", "content": "3", "tool_call_id": call["id"]}
        asked = [user("q"), {**first["message"], "content": ""}, result]
        last = chat(visit, asked, tools=[TOOL], tool_choice="none")["choices"][0]
        assert last["message"]["content"] == text
        return 1.0

    episode = alone(play, saying(text))
    assert policy().decode_all(episode.tokens).count(text) == 2
    assert sum(span.anew for span in episode.spans) == 1
    ((call,), none) = (turn.calls for turn in episode.turns)
    assert (call.tool, call.failure, none) == ("add", "", ())
    assert 0.05 <= call.seconds < 10.0


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('<tool_call>{"name": "add", ', [ToolCall("", "malformed")]),
        ('<tool_call>{"name": "sub", "arguments": {}}</tool_call>', [ToolCall("", "unknown tool")]),
        (
            '<tool_call>[{"name": "add", "arguments": {}}, {"name": "add", "arguments": {}}]</tool_call>',
            2 * [ToolCall("add")],
        ),
        ("add", []),
    ],
)
def test_calls_are_measured_as_those_of_an_environment_are(text: str, calls: list[ToolCall]) -> None:
    server = Server(Address.of("127.0.0.1:0"))
    agents = InThreads(lambda visit: bool(chat(visit, [user("q")], tools=[TOOL])) * 1.0)
    sessions = Sessions(saying(text), agents, 2, server, writing(), LIMITS, 30.0)  # type: ignore[arg-type]
    try:
        (cohort,) = sessions([Cohort(prompts(["q"]), (3,))], Segment(2, Sampling(max_new_tokens=400)))
    finally:
        sessions.close()
    assert [list(episode.turns[0].calls) for episode in cohort.completions[0]] == [calls, calls]
    metrics = episode_metrics(cohort.completions[0], Measure(), sessions.tools)
    assert metrics["tools.add.calls"].read() == 2 * sum(call.tool == "add" for call in calls)
    assert {name for name in metrics if "of_no_tool" in name} == {
        f"calls_of_no_tool.{call.failure}" for call in calls if call.failure
    }


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "add", ',
        '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": [-Infinity]}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": "\\ud83d"}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"\\ud83d": 1}}</tool_call>',
    ],
)
def test_a_call_that_cannot_be_read_is_told_as_it_was_said(text: str) -> None:
    """Nor is one told whose arguments no answer in JSON can hold."""

    def play(visit: Visit) -> float:
        message = chat(visit, [user("q")], tools=[TOOL])["choices"][0]["message"]
        assert message == {"role": "assistant", "content": text}
        asked = {"messages": [user("q")], "max_tokens": 99, "tools": [{"name": "add", "input_schema": {}}]}
        status, answer = post(visit, "/v1/messages", asked)
        assert (status, answer["content"]) == (200, [{"type": "text", "text": text}])
        return 1.0

    alone(play, saying(text))


def test_ids_go_in_and_come_out_with_their_log_probabilities() -> None:
    def play(visit: Visit) -> float:
        asked, params = [40, 41, 42], {"max_tokens": 3, "temperature": 0.3}
        for _ in range(3):
            body = {"token_ids": asked, "sampling_params": params, "model": "policy"}
            status, answer = post(visit, f"/s/{visit.key}/inference/v1/generate", body, key="")
            (choice,) = answer["choices"]
            assert (status, len(choice["token_ids"]), choice["finish_reason"]) == (200, 3, "length")
            rows = choice["logprobs"]["content"]
            assert [row["token"] for row in rows] == [f"token_id:{token}" for token in choice["token_ids"]]
            heard.append([row["logprob"] for row in rows])
            asked = [*asked, *choice["token_ids"], 43]
        return 1.0

    heard: list[list[float]] = []
    engine = Listening()
    episode = alone(play, engine)
    assert heard == [list(answer.logp_engine) for _, answer in engine.calls]
    assert [(span.own, span.anew) for span in episode.spans] == [
        (False, True), (True, False), (False, False), (True, False), (False, False), (True, False)
    ]  # fmt: skip


def test_a_request_whose_seed_is_its_own_draws_other_numbers() -> None:
    def says(seed: int | None) -> str:
        heard: list[str] = []

        def play(visit: Visit) -> float:
            heard.append(chat(visit, [user("q")], seed=seed)["choices"][0]["message"]["content"])
            return 1.0

        alone(play, sampling=Sampling(max_new_tokens=60), limits=EpisodeLimits(turns=1, turn_tokens=20))
        return heard[0]

    assert says(None) == says(None) != says(1) == says(1) != says(2)


def test_how_tokens_are_drawn_is_not_the_agents_to_say_and_the_log_says_so_once() -> None:
    def play(visit: Visit) -> float:
        for _ in range(2):
            chat(visit, [user("q")], temperature=0.0, top_p=0.1, max_tokens=2)
        post(visit, "/inference/v1/generate", {"token_ids": [40], "sampling_params": {"top_k": 1, "max_tokens": 2}})
        return 1.0

    said: list[str] = []
    alone(play, note=said.append)
    assert said == [
        "agents       set temperature, top_p: not read, as [sampling] says how tokens are drawn",
        "agents       set top_k: not read, as [sampling] says how tokens are drawn",
    ]


def test_a_history_that_is_no_extension_opens_a_row_and_says_nothing_twice() -> None:
    """Sub-agent, compaction, a retry: rows of one episode; what was sampled before is context there."""

    def play(visit: Visit) -> float:
        first = chat(visit, [user(visit.sample.prompt)])["choices"][0]["message"]
        chat(visit, [user("sub-agent")])
        chat(visit, [user(visit.sample.prompt), first, user("go on")])
        chat(visit, [user(visit.sample.prompt), first, user("go on")])
        chat(visit, [user("summary of all"), user("go on")])
        chat(visit, [user(visit.sample.prompt), first, user("go on")], tools=[TOOL])
        return 1.0

    engine = Listening()
    episode = alone(play, engine, limits=LIMITS, sampling=Sampling(max_new_tokens=900))
    contexts, answers = zip(*((request.tokens, answer.tokens) for request, answer in engine.calls), strict=True)
    begun = contexts[0] + answers[0]
    assert contexts[2] == contexts[3]
    assert contexts[2][: len(begun)] == begun
    assert "<|im_start|>tools" in policy().decode_all(contexts[5])
    assert [span.anew for span in episode.spans if not span.own] == [False, True, True, True, True]
    assert episode.length == sum(len(answer.tokens) for _, answer in engine.calls)
