"""What an engine can be asked: how long a model's sequences may be, and requests that fit into them."""

from collections.abc import Sequence
from typing import Any

from groupwise.core.engine import Request, Sampling
from groupwise.core.errors import UsageError


def positions(config: Any) -> int:
    """Positions the model can be run on. Windowed attention is not built, so a window is a limit."""
    windowed = any("sliding" in kind for kind in getattr(config, "layer_types", None) or ["sliding"])
    window = getattr(config, "sliding_window", None) if windowed else None
    limits = [getattr(config, "max_position_embeddings", None), window]
    return min((limit for limit in limits if limit), default=2**31)


def limits_of(requests: Sequence[Request], sampling: Sampling, context: int, vocabulary: int) -> list[int]:
    """Most new tokens of a completion of each request. Raises UsageError for a request that a model cannot be asked.

    context     positions of the model
    vocabulary  ids of the model
    """
    limits = [sampling.max_new_tokens if r.max_new_tokens is None else r.max_new_tokens for r in requests]
    for number, (request, limit) in enumerate(zip(requests, limits, strict=True)):
        _require_request(number, request, limit, context, vocabulary)
    return limits


def _require_request(number: int, request: Request, limit: int, context: int, vocabulary: int) -> None:
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
            f"request {number}: a prompt of {prompt} tokens and up to {limit} new ones do not fit "
            f"the model's {context} positions; {remedy}"
        )
    if min(request.tokens) < 0 or max(request.tokens) >= vocabulary:
        raise UsageError(f"request {number}: ids outside of 0 to {vocabulary - 1}; is the tokenizer the model's?")
