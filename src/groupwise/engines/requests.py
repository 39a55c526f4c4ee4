"""What an engine can be asked: requests that fit into a model's positions."""

from collections.abc import Sequence
from typing import Any

from groupwise.core.engine import Request, Sampling
from groupwise.core.errors import UsageError
from groupwise.engines.kinds import setting
from groupwise.models.context import positions, positions_in_words, window


def local_limit(config: Any) -> tuple[int, str]:
    """Return how long a prompt and completion together the local engine samples, tokens, and that in words."""
    most, seen = positions(config), window(config)
    if seen is None or seen >= most:
        return most, positions_in_words(config)
    return seen, (
        f"the sliding window of {seen} tokens in the model's attention, which the local engine does not compute "
        f"({setting(lambda kind: kind.own_layers)} does)"
    )


def limits_of(
    requests: Sequence[Request], sampling: Sampling, context: int, vocabulary: int, within: str = ""
) -> list[int]:
    """Return the most new tokens of each request. Raises UsageError for a request that a model cannot be asked.

    context     positions of the model
    vocabulary  ids of the model
    within      the context in words, if it is not the model's positions
    """
    limits = [sampling.max_new_tokens if r.max_new_tokens is None else r.max_new_tokens for r in requests]
    for number, (request, limit) in enumerate(zip(requests, limits, strict=True)):
        _require_request(number, request, limit, context, vocabulary, within or f"the model's {context} positions")
    return limits


def _require_request(number: int, request: Request, limit: int, context: int, vocabulary: int, within: str) -> None:
    prompt = len(request.tokens)
    if not prompt:
        raise UsageError(f"request {number}: the prompt is empty; give it at least one token, such as the BOS id")
    if request.samples < 1 or limit < 1:
        raise UsageError(
            f"request {number}: samples is {request.samples}, max_new_tokens {limit}; both must be 1 or more"
        )
    if not (0 <= request.drawn < prompt and request.first >= 0):
        raise UsageError(
            f"request {number}: drawn is {request.drawn} of {prompt} tokens, first {request.first}; a prompt has at "
            "least one token that was not drawn, and completions count from 0"
        )
    if not 0 <= request.held <= prompt:
        raise UsageError(
            f"request {number}: held is {request.held} of {prompt} tokens; it counts the first tokens of the prompt"
        )
    if prompt + limit > context:
        remedy = f"set max_new_tokens to at most {context - prompt}" if prompt < context else "shorten the prompt"
        raise UsageError(
            f"request {number}: a prompt of {prompt} tokens and up to {limit} new ones do not fit {within}; {remedy}"
        )
    if min(request.tokens) < 0 or max(request.tokens) >= vocabulary:
        raise UsageError(f"request {number}: ids outside of 0 to {vocabulary - 1}; is the tokenizer the model's?")
