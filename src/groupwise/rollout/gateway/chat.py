"""OpenAI's chat completions: `POST /v1/chat/completions`."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from groupwise.core.environment import MODEL
from groupwise.rollout.gateway.request import MOST_ANSWERS, Body, Choice, ModelAnswer, ModelRequest, Refusal, assistant

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_BASE: Mapping[str, Any] = {"created": 0, "model": MODEL}


def read(body: Body) -> ModelRequest:
    """Read a request. Raises Refusal."""
    body.require_plain()
    if body.number("top_logprobs", most=20):
        raise Refusal(400, "top_logprobs: the engine says the log-probability of the sampled token alone; set it to 0")
    messages = [_message(each) for each in body.tables("messages")]
    if not messages or messages[-1]["role"] == "assistant":
        raise Refusal(400, "messages: the last one must not be the assistant's")
    given, left_out = body.tools("function")
    tools = tuple(dict(each.content) for each in given if each.table("function").tool_name())
    return ModelRequest(
        tuple(messages),
        tools,
        body.may_call(tools),
        most=body.number("max_completion_tokens", "max_tokens", least=1),
        answers=body.number("n", least=1, most=MOST_ANSWERS) or 1,
        stop=body.texts("stop"),
        seed=body.number("seed", least=-(2**62)),
        whole=body.flag("logprobs") or body.flag("return_token_ids"),
        stream=body.flag("stream"),
        usage=body.table("stream_options").flag("include_usage"),
        unread=body.unread(),
        left_out=left_out,
    )


def whole(asked: ModelRequest, answer: ModelAnswer) -> dict[str, Any]:
    """Write an answer."""
    choices = [
        {"index": i, "message": {"role": "assistant", **_said(answer, i, choice)}, **_rest(asked, choice)}
        for i, choice in enumerate(answer.choices)
    ]
    head = {"id": answer.name("chatcmpl"), "object": "chat.completion", **_BASE, "choices": choices}
    ids = {"prompt_token_ids": list(answer.prompt)} if asked.whole else {}
    return {**head, "usage": usage(answer), **ids}


def events(asked: ModelRequest, answer: ModelAnswer) -> Iterator[str]:
    """Write an answer as events: each choice in one piece, and its end. Only clients that ask for tokens to be counted
    get an event without a choice: others take the first choice of every event.
    """
    head = {"id": answer.name("chatcmpl"), "object": "chat.completion.chunk", **_BASE}
    for i, choice in enumerate(answer.choices):
        said = _said(answer, i, choice)
        for at, call in enumerate(said.get("tool_calls", ())):
            call["index"] = at
        rest = _rest(asked, choice)
        first = {"index": i, "delta": {"role": "assistant", **said}, **rest, "finish_reason": None}
        last = {"index": i, "delta": {}, "finish_reason": rest["finish_reason"]}
        yield from (f"data: {json.dumps({**head, 'choices': [one]})}\n\n" for one in (first, last))
    if asked.usage:
        yield f"data: {json.dumps({**head, 'choices': [], 'usage': usage(answer)})}\n\n"
    yield "data: [DONE]\n\n"


def usage(answer: ModelAnswer) -> dict[str, int]:
    """Count tokens read and sampled."""
    read, written = len(answer.prompt), answer.written
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def logprobs(choice: Choice) -> dict[str, Any]:
    """Write the log-probability of each sampled token, in nats, under the distribution that it was drawn from."""
    each = zip(choice.spelled, choice.logprobs, strict=True)
    rows = [{"token": t, "logprob": logp, "bytes": [*t.encode()], "top_logprobs": []} for t, logp in each]
    return {"content": rows, "refusal": None}


def _message(body: Body) -> dict[str, Any]:
    role, text = body.role(ROLES), body.text("content")
    if role != "assistant":
        return {"role": role, "content": text}
    return assistant(text, [_call(call) for call in body.tables("tool_calls")])


def _call(body: Body) -> tuple[str, Any]:
    inner = body.table("function")
    return inner.name("name"), inner.content.get("arguments") or "{}"


def _said(answer: ModelAnswer, number: int, choice: Choice) -> dict[str, Any]:
    if not choice.calls:
        return {"content": choice.content}
    calls = [
        {
            "id": answer.call_name(number, at),
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for at, call in enumerate(choice.calls)
    ]
    return {"content": choice.content or None, "tool_calls": calls}


def _rest(asked: ModelRequest, choice: Choice) -> dict[str, Any]:
    whole = {"token_ids": list(choice.ids)} if asked.whole else {}
    return {"finish_reason": choice.finish, "logprobs": logprobs(choice) if asked.whole else None, **whole}
