"""Anthropic's messages: `POST /v1/messages`."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from groupwise.core.environment import MODEL
from groupwise.rollout.gateway.request import Body, Choice, ModelAnswer, ModelRequest, Refusal, assistant

WAIT = 'event: ping\ndata: {"type": "ping"}\n\n'
ROLES = {role: role for role in ("system", "user", "assistant")}
FINISH: Mapping[str, str] = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def read(body: Body) -> ModelRequest:
    """Read a request. Raises Refusal."""
    body.require_plain()
    system = body.text("system")
    messages = [{"role": "system", "content": system}] if system else []
    for each in body.tables("messages"):
        messages += _messages(each)
    if not messages or messages[-1]["role"] == "assistant":
        raise Refusal(400, "messages: the last one must not be the assistant's")
    given, left_out = body.tools("custom")
    tools = tuple(each.function("input_schema") for each in given)
    return ModelRequest(
        tuple(messages),
        tools,
        body.may_call(tools),
        most=body.number("max_tokens", least=1),
        stop=body.texts("stop_sequences"),
        stream=body.flag("stream"),
        unread=body.unread(),
        left_out=left_out,
    )


def whole(asked: ModelRequest, answer: ModelAnswer) -> dict[str, Any]:
    """Write an answer."""
    choice = answer.choices[0]
    return {**_head(answer), "content": _blocks(answer, choice), **_end(choice), "usage": _usage(answer)}


def read_to_count(body: Body) -> ModelRequest:
    """Read a request whose tokens are to be counted."""
    return replace(read(body), counts=True)


def counted(asked: ModelRequest, answer: ModelAnswer) -> dict[str, Any]:
    """Write the count of tokens."""
    return {"input_tokens": len(answer.prompt)}


def events(asked: ModelRequest, answer: ModelAnswer) -> Iterator[str]:
    """Write an answer as events: each block in one piece, and its end."""
    choice = answer.choices[0]
    start = {**_head(answer), "content": [], "stop_reason": None, "stop_sequence": None, "usage": _usage(answer)}
    yield _event("message_start", message=start)
    for index, block in enumerate(_blocks(answer, choice)):
        if block["type"] == "text":
            begun, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            begun = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield _event("content_block_start", index=index, content_block=begun)
        yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    yield _event("message_delta", delta=_end(choice), usage=_usage(answer))
    yield _event("message_stop")


def _messages(body: Body) -> list[dict[str, Any]]:
    """Return a message as templates read it: results of tools first, each a message of its own."""
    role, content = body.role(ROLES), body.content.get("content")
    text, results, calls = content if isinstance(content, str) else "", [], []
    for block in [] if isinstance(content, str) else body.tables("content"):
        match block.content.get("type"):
            case "tool_result":
                results.append(block)
            case "tool_use":
                calls.append(block)
            case "thinking" | "redacted_thinking":
                pass
            case _:
                text += block.part()
    if role == "assistant":
        return [assistant(text, [(call.name("name"), call.content.get("input") or {}) for call in calls])]
    if calls:
        raise calls[0].wrong("type", "a call of a tool is the assistant's")
    answered = [{"role": "tool", "content": result.text("content")} for result in results]
    return [*answered, *([{"role": role, "content": text}] if text or not answered else [])]


def _head(answer: ModelAnswer) -> dict[str, Any]:
    return {"id": answer.name("msg"), "type": "message", "role": "assistant", "model": MODEL}


def _blocks(answer: ModelAnswer, choice: Choice) -> list[dict[str, Any]]:
    calls = [
        {"type": "tool_use", "id": answer.call_name(0, at), "name": call.name, "input": call.arguments}
        for at, call in enumerate(choice.calls)
    ]
    text = [{"type": "text", "text": choice.content}] if choice.content or not calls else []
    return [*text, *calls]


def _end(choice: Choice) -> dict[str, Any]:
    if choice.stop:
        return {"stop_reason": "stop_sequence", "stop_sequence": choice.stop}
    return {"stop_reason": FINISH[choice.finish], "stop_sequence": None}


def _usage(answer: ModelAnswer) -> dict[str, int]:
    return {"input_tokens": len(answer.prompt), "output_tokens": answer.written}


def _event(name: str, **content: Any) -> str:
    return f"event: {name}\ndata: {json.dumps({'type': name, **content})}\n\n"
