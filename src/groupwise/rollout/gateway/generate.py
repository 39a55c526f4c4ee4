"""Tokens in, tokens out, in vLLM's shape: `POST /inference/v1/generate`."""

import json
from collections.abc import Iterator
from typing import Any

from groupwise.rollout.gateway.chat import logprobs, usage
from groupwise.rollout.gateway.request import MOST_ANSWERS, Body, ModelAnswer, ModelRequest, Refusal

#: Tokens of a prompt at most.
LONGEST = 2**20


def read(body: Body) -> ModelRequest:
    """Read a request: ids, and sampling_params of which the length, stop, n and seed are read. Raises Refusal."""
    ids = body.content.get("token_ids")
    if not isinstance(ids, list) or not 0 < len(ids) <= LONGEST or any(type(token) is not int for token in ids):
        raise Refusal(400, f"token_ids: must be a list of whole numbers, 1 to {LONGEST} of them")
    if body.content.get("features"):
        raise Refusal(400, "features: this policy reads text alone")
    params = body.table("sampling_params")
    params.require_plain()
    if params.content.get("stop_token_ids"):
        raise Refusal(400, "sampling_params.stop_token_ids: the recipe says them for all answers, sampling.stop_ids")
    return ModelRequest(
        ids=tuple(ids),
        most=params.number("max_tokens", least=1),
        answers=params.number("n", least=1, most=MOST_ANSWERS) or 1,
        stop=params.texts("stop"),
        seed=params.number("seed", least=-(2**62)),
        whole=True,
        stream=body.flag("stream"),
        unread=params.unread(),
    )


def whole(asked: ModelRequest, answer: ModelAnswer) -> dict[str, Any]:
    """Write an answer: ids, and log-probabilities in nats whose tokens are named by id."""
    choices = []
    for i, choice in enumerate(answer.choices):
        said = logprobs(choice)
        for token, row in zip(choice.ids, said["content"], strict=True):
            row["token"] = f"token_id:{token}"
        choices.append({"index": i, "token_ids": list(choice.ids), "finish_reason": choice.finish, "logprobs": said})
    return {"request_id": answer.name("generate"), "choices": choices, "prompt_logprobs": None, "usage": usage(answer)}


def events(asked: ModelRequest, answer: ModelAnswer) -> Iterator[str]:
    """Write an answer as events, in one piece."""
    yield f"data: {json.dumps(whole(asked, answer))}\n\n"
    yield "data: [DONE]\n\n"
