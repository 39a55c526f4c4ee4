"""A sampling as vLLM carries it out."""

from collections.abc import Callable, Iterable
from typing import Any

from groupwise.core.engine import Sampling
from groupwise.core.seeds import derive

#: Makes vLLM's SamplingParams of keywords.
Params = Callable[..., Any]


def params_of(
    sampling: Sampling, make: Params, ends: Iterable[int], limit: int, seed: int, number: int, streamed: Any
) -> Any:
    """The parameters of one completion: each is a request of its own, with a seed of its own.

    ends      ids that end it; vLLM knows of no others
    limit     most tokens of it
    seed      of its group, in which it has this number
    streamed  vLLM's kind of output: all at the end, or what is new at each step
    """
    return make(
        n=1,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        logit_bias=dict(sampling.logit_bias) or None,
        repetition_penalty=sampling.repetition_penalty,
        min_tokens=min(sampling.min_new_tokens, limit),
        max_tokens=limit,
        stop_token_ids=sorted(ends),
        ignore_eos=True,
        seed=derive(seed, number),
        logprobs=0,
        detokenize=False,
        output_kind=streamed,
    )
