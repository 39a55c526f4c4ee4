"""A sampling as vLLM carries it out."""

from collections.abc import Callable, Iterable
from typing import Any

from groupwise.core.engine import Request, Sampling
from groupwise.core.numbers.seeds import derive

#: Makes vLLM's SamplingParams of keywords.
Params = Callable[..., Any]


def params_of(
    sampling: Sampling, make: Params, ends: Iterable[int], limit: int, request: Request, sample: int, streamed: Any
) -> Any:
    """The parameters of completion `sample` of a request: each is a request of its own, with a seed of its own.

    ends      ids that end it; vLLM knows of no others
    limit     most new tokens of it
    streamed  vLLM's kind of output: all at the end, or what is new at each step
    """
    # vLLM's generators cannot begin in the middle: what goes on has numbers of its own.
    turn = (request.drawn,) if request.drawn else ()
    return make(
        n=1,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        logit_bias=dict(sampling.logit_bias) or None,
        repetition_penalty=sampling.repetition_penalty,
        min_tokens=min(max(0, sampling.min_new_tokens - request.drawn), limit),
        max_tokens=limit,
        stop_token_ids=sorted(ends),
        ignore_eos=True,
        seed=derive(request.seed, request.first + sample, *turn),
        logprobs=0,
        detokenize=False,
        output_kind=streamed,
    )
