"""The two halves of a causal language model: the backbone that makes hidden states and the head that makes logits."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.core.errors import UsageError
from groupwise.models.precision import wide_product
from groupwise.models.unread import device_of

#: The largest logit that a model is tried with: a cap or a scale changes it, however small the model's own logits are.
LARGE_LOGIT = 1e4


def halves(model: Any) -> tuple[nn.Module, nn.Linear]:
    """Split a model -> (ids [N,T] -> object with last_hidden_state [N,T,H], hidden [..., H] -> logits [..., V])."""
    return model.base_model, model.get_output_embeddings()


def check_halves(model: Any) -> None:
    """Raise UsageError for a model whose logits are not its head's output, ValueError where they are not numbers.

    Training never makes all logits at once, as the model does. This runs both ways on a few tokens, and refuses a model
    that changes the head's input or output (softcapping, scaling), which would make every ratio silently wrong.
    """
    require_plain_head(model)
    backbone, head = halves(model)
    ids = few_ids(model)
    with torch.no_grad():
        logits, own = head(hidden(backbone, ids)), model(input_ids=ids, use_cache=False).logits
    require_same(logits, own, _changed(model), atol=1e-3 * float(own.abs().max().clamp(max=1.0)))


def check_runs(model: Any) -> None:
    """Raise ValueError if a model's logits of a few tokens are not numbers."""
    with torch.no_grad():
        _require_finite(model(input_ids=few_ids(model), use_cache=False).logits)


def require_plain_head(model: Any) -> None:
    """Raise UsageError for a model without a linear head, or one that returns other logits than its head gives it.

    The head's output is replaced by logits from -1e4 to 1e4. Only shapes of weights are needed: device meta will do.
    """
    backbone, head = halves(model)
    if not isinstance(head, nn.Linear) or backbone is model:
        raise UsageError(f"{type(model).__name__} has no separate linear output head; groupwise cannot train it")
    given: list[Tensor] = []

    def replace(_: nn.Module, __: object, output: Tensor) -> Tensor:
        device = "cpu" if output.is_meta else output.device
        spread = torch.linspace(-LARGE_LOGIT, LARGE_LOGIT, output.numel(), device=device)
        given.append(spread.view(output.shape).to(output.dtype))
        return given[-1].clone()

    ids = few_ids(model)
    with head.register_forward_hook(replace), torch.no_grad():
        # Without a cache transformers looks for packed rows, in numbers, which device meta does not have.
        own = model(input_ids=ids, use_cache=ids.is_meta).logits
    if given:
        require_same(given[-1], own, _changed(model))


def wide_head(model: Any) -> list[tuple[nn.Module, Callable[[Tensor], Tensor]]]:
    """Pair the head of a model of 16 bits with a function that does not round its logits; none for another model."""
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear) or head.weight.dtype.itemsize > 2:
        return []
    return [(head, partial(_wide_logits, head))]


def _wide_logits(head: nn.Linear, states: Tensor) -> Tensor:
    logits = wide_product(states.flatten(0, -2), head.weight).unflatten(0, states.shape[:-1])
    return logits if head.bias is None else logits + head.bias


def few_ids(model: Any) -> Tensor:
    """Return [1,4] ids that the model has."""
    ids = torch.arange(4, device=device_of(model))
    return ids[None] % model.config.get_text_config().vocab_size


def require_same(ours: Tensor, own: Tensor, otherwise: str, atol: float = 1e-3) -> None:
    """Raise UsageError, `otherwise`, if ours are not the model's numbers, ValueError where those are not finite."""
    _require_finite(own)
    if not torch.allclose(ours.float(), own.float(), rtol=1e-3, atol=atol):
        raise UsageError(otherwise)


def _require_finite(own: Tensor) -> None:
    if not own.isfinite().all():
        raise ValueError("its outputs are NaN or infinite: a weight, or a number of config.json (rope, norms), is off")


def _changed(model: Any) -> str:
    return (
        f"{type(model).__name__} changes its logits before or after the output head (softcapping or scaling); "
        "groupwise computes log-probabilities from the head alone and would be wrong: such a model can be evaluated "
        "(groupwise eval), not trained"
    )


def hidden(backbone: nn.Module, ids: Tensor) -> Tensor:
    """Map [N,T] ids -> [N,T,H]. Rows are padded on the right, which causal attention never looks at, without a mask."""
    return backbone(input_ids=ids, use_cache=False).last_hidden_state
