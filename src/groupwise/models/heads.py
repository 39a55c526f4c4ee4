"""The two halves of a causal language model: the backbone that makes hidden states and the head that makes logits."""

from typing import Any

import torch
from torch import Tensor, nn

from groupwise.core.errors import UsageError


def halves(model: Any) -> tuple[nn.Module, nn.Linear]:
    """-> (ids [N,T] -> object with last_hidden_state [N,T,H], hidden [..., H] -> logits [..., V])."""
    return model.base_model, model.get_output_embeddings()


def check_halves(model: Any) -> None:
    """Raises UsageError for a model whose logits are not its head's output, ValueError where they are not numbers.

    Training never makes all logits at once, as the model does. This runs both ways on a few tokens, and refuses a model
    that changes the head's output (softcapping, scaling), which would make every ratio silently wrong.
    """
    backbone, head = halves(model)
    if not isinstance(head, nn.Linear) or backbone is model:
        raise UsageError(f"{type(model).__name__} has no separate linear output head; groupwise cannot train it")
    ids = torch.arange(4, device=next(model.parameters()).device)[None] % model.config.get_text_config().vocab_size
    with torch.no_grad():
        logits, own = head(hidden(backbone, ids)), model(input_ids=ids, use_cache=False).logits
    require_same(
        logits,
        own,
        f"{type(model).__name__} changes its logits after the output head (softcapping or scaling); "
        "groupwise computes log-probabilities from the head and would be wrong",
    )


def require_same(ours: Tensor, own: Tensor, otherwise: str) -> None:
    """Raises UsageError, `otherwise`, where ours are not the model's numbers, ValueError where those are not finite."""
    if not own.isfinite().all():
        raise ValueError("its outputs are NaN or infinite: a weight, or a number of config.json (rope, norms), is off")
    if not torch.allclose(ours.float(), own.float(), rtol=1e-3, atol=1e-3):
        raise UsageError(otherwise)


def hidden(backbone: nn.Module, ids: Tensor) -> Tensor:
    """[N,T] ids -> [N,T,H]. Rows are padded on the right, which causal attention never looks at: no mask is needed."""
    return backbone(input_ids=ids, use_cache=False).last_hidden_state
