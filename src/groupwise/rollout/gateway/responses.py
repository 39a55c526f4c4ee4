"""OpenAI's responses: `POST /v1/responses`, without what a server would have to remember of earlier ones."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

from groupwise.core.environment import MODEL
from groupwise.rollout.gateway.request import Body, ModelAnswer, ModelRequest, Refusal, assistant

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def read(body: Body) -> ModelRequest:
    """Read a request. Raises Refusal."""
    body.require_plain()
    if body.table("text").table("format").content.get("type", "text") != "text":
        raise Refusal(400, "text.format: this policy is sampled without it; take it out")
    instructions, given = body.text("instructions"), body.content.get("input")
    messages = [{"role": "system", "content": instructions}] if instructions else []
    messages += [{"role": "user", "content": given}] if isinstance(given, str) else _messages(body)
    if not messages or messages[-1]["role"] == "assistant":
        raise Refusal(400, "input: the last item must not be the assistant's")
    given, left_out = body.tools("function")
    tools = tuple(each.function("parameters") for each in given)
    return ModelRequest(
        tuple(messages),
        tools,
        body.may_call(tools),
        most=body.number("max_output_tokens", least=1),
        stream=body.flag("stream"),
        unread=body.unread(),
        left_out=left_out,
    )


def whole(asked: ModelRequest, answer: ModelAnswer) -> dict[str, Any]:
    """Write an answer."""
    cut = answer.choices[0].finish == "length"
    read, written = len(answer.prompt), answer.written
    return {
        **_head(answer, "incomplete" if cut else "completed"),
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": [*_items(answer)],
        "usage": {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + written,
        },
    }


def events(asked: ModelRequest, answer: ModelAnswer) -> Iterator[str]:
    """Write an answer as events: each item in one piece."""
    numbers = itertools.count()

    def event(kind: str, **content: Any) -> str:
        body = {"type": f"response.{kind}", "sequence_number": next(numbers), **content}
        return f"event: response.{kind}\ndata: {json.dumps(body)}\n\n"

    yield event("created", response={**_head(answer, "in_progress"), "output": []})
    for index, item in enumerate(_items(answer)):
        at = {"output_index": index, "item_id": item["id"]}
        begun = {**item, "status": "in_progress"}
        if item["type"] == "message":
            (part,), place = item["content"], {**at, "content_index": 0}
            yield event("output_item.added", output_index=index, item={**begun, "content": []})
            yield event("content_part.added", **place, part={**part, "text": ""})
            yield event("output_text.delta", **place, delta=part["text"], logprobs=[])
            yield event("output_text.done", **place, text=part["text"], logprobs=[])
            yield event("content_part.done", **place, part=part)
        else:
            words = item["arguments"]
            yield event("output_item.added", output_index=index, item={**begun, "arguments": ""})
            yield event("function_call_arguments.delta", **at, delta=words)
            yield event("function_call_arguments.done", **at, arguments=words, name=item["name"])
        yield event("output_item.done", output_index=index, item=item)
    last = whole(asked, answer)
    yield event(last["status"], response=last)


def _messages(body: Body) -> list[dict[str, Any]]:
    """Return the items of an input as messages: what the policy said and the calls behind it are one."""
    messages: list[dict[str, Any]] = []
    for item in body.tables("input"):
        kind = item.content.get("type") or "message"
        if kind == "message":
            role, text = item.role(ROLES), item.text("content")
            messages.append(assistant(text, []) if role == "assistant" else {"role": role, "content": text})
        elif kind == "function_call":
            call = assistant("", [(item.name("name"), item.content.get("arguments") or "{}")])
            if messages and messages[-1]["role"] == "assistant":
                before = messages.pop()
                calls = [*before.get("tool_calls", ()), *call["tool_calls"]]
                call = {**before, "tool_calls": calls}
            messages.append(call)
        elif kind == "function_call_output":
            messages.append({"role": "tool", "content": item.text("output")})
        elif kind != "reasoning":
            raise item.wrong("type", "this policy reads messages and calls of functions alone")
    return messages


def _head(answer: ModelAnswer, status: str) -> dict[str, Any]:
    """Return what every response has; how it was sampled is the run's to say."""
    none = dict.fromkeys(("error", "instructions", "temperature", "top_p", "incomplete_details", "metadata"))
    own = {"id": answer.name("resp"), "object": "response", "created_at": 0, "model": MODEL, "status": status}
    return {**own, **none, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}


def _items(answer: ModelAnswer) -> Iterator[dict[str, Any]]:
    """Yield what the policy said, and its calls."""
    choice = answer.choices[0]
    if choice.content or not choice.calls:
        part = {"type": "output_text", "text": choice.content, "annotations": []}
        own = {"type": "message", "role": "assistant", "status": "completed"}
        yield {"id": answer.name("msg"), **own, "content": [part]}
    for at, call in enumerate(choice.calls):
        name = answer.call_name(0, at)
        own = {"type": "function_call", "call_id": name, "status": "completed"}
        yield {"id": f"fc-{name}", **own, "name": call.name, "arguments": json.dumps(call.arguments)}
