"""Inputs of every engine: requests that fit into a model's positions, and weights by name, whole or not at all.

An engine has its own copy of the policy, in the run's process too: updates reach the sampler only through
`load_weights`, with a version, so the probe after each load compares two things.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from groupwise.core.engine import Request, Sampling, streamed
from groupwise.core.errors import RunError, UsageError, listed
from groupwise.core.numbers.precision import Precision, beyond_float16


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


Shapes = Mapping[str, tuple[int, ...]]


def shapes_of(tensors: Mapping[str, Tensor]) -> Shapes:
    """Return the shape of each."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def require_whole(given: Shapes, parameters: Shapes, buffers: Shapes, keeps: int) -> None:
    """Raise RunError with the version that the model keeps unless all parameters come, and beside them only buffers."""
    own = {**parameters, **buffers}
    problems = {
        "missing": [name for name in parameters if name not in given],
        "unexpected": [name for name in given if name not in own],
        "of another shape": [
            f"{name} {shape} for {own[name]}" for name, shape in given.items() if name in own and shape != own[name]
        ],
    }
    if any(problems.values()):
        words = "; ".join(f"{kind}: {listed(names, most=3)}" for kind, names in problems.items() if names)
        raise RunError(f"these weights are not of the engine's model, which keeps version {keeps}: {words}")


def require_in_float16(weights: Iterable[tuple[str, Tensor]], keeps: int) -> None:
    """Raise RunError with the version that the model keeps if float16 cannot hold one of the weights."""
    if beyond := beyond_float16(weights):
        raise RunError(
            f"{beyond}: the engine keeps version {keeps}; go back to an earlier checkpoint and lower the "
            "learning rate, or start a run with engine.precision = 'bf16' or 'same'"
        )


def broken(version: int, precision: Precision) -> RunError:
    """Make the error of logits that are not finite under the weights of a version, in the engine's precision."""
    why = "the weights are broken; go back to an earlier checkpoint, and lower the learning rate if it happens again"
    if precision == "fp16":
        why = (
            "a number on the way may have passed 65,504, where float16 ends, or the weights are broken; set "
            "engine.precision to 'bf16', or to 'same', which says which of the two it is"
        )
    return RunError(f"the model's logits are NaN or infinite (weights version {version}): {why}")


def copy_weights(model: nn.Module, given: Iterable[tuple[str, Tensor]], keeps: int) -> None:
    """Replace every parameter, and buffers where named: one after another, but into float16, which all must fit before.

    keeps  the version that the model has where a name or a shape does not match, or a number is beyond float16
    Raises RunError then, and nothing is changed.
    """
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    weights = streamed(given)
    require_whole(shapes_of(weights.like), shapes_of(parameters), shapes_of(buffers), keeps)
    own = parameters | buffers
    arriving: Iterable[tuple[str, Tensor]] = weights
    if any(tensor.dtype == torch.float16 for tensor in own.values()):
        arriving = list(weights)
        require_in_float16((pair for pair in arriving if own[pair[0]].dtype == torch.float16), keeps)
    with torch.no_grad():
        for name, tensor in arriving:
            own[name].copy_(tensor)
            del tensor  # before the next one is gathered
