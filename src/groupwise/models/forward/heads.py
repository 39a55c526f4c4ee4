"""The two halves of a causal language model: the backbone that makes hidden states and the head that makes logits."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.core.errors import UsageError
from groupwise.models.precision import wide_product
from groupwise.models.unread import device_of

#: The largest logit that a model is tried with: a cap or a scale changes it, however small the model's own logits are.
LARGE_LOGIT = 1e4
#: Keys of configurations that change logits: two factors, a divisor, a cap.
CHANGES = ("logit_scale", "lm_head_multiplier", "logits_scaling", "final_logit_softcapping")


def halves(model: Any) -> tuple[nn.Module, nn.Linear]:
    """Split a model -> (ids [N,T] -> object with last_hidden_state [N,T,H], hidden [..., H] -> logits [..., V])."""
    base = model.base_model
    # Llama 4 names another part than it has as its base model.
    return getattr(model, "model", base) if base is model else base, model.get_output_embeddings()


@dataclass(frozen=True)
class LogitChange:
    """Function by which a model changes the output z of its head: f(z) = scale z, or cap tanh(scale z / cap).

    >>> LogitChange(scale=0.5, cap=2.0)(torch.tensor([0.0, 1e6]))
    tensor([0., 2.])
    """

    scale: float = 1.0
    cap: float | None = None

    def __call__(self, head_output: Tensor) -> Tensor:
        """Return f(z)."""
        scaled = head_output * self.scale
        return scaled if self.cap is None else (scaled / self.cap).tanh() * self.cap

    def slope(self, logits: Tensor) -> Tensor | float:
        """Return d f / d z where f(z) is `logits`: scale, or scale (1 - (f / cap)^2)."""
        return self.scale if self.cap is None else (1 - (logits / self.cap).square()) * self.scale


def logit_change(model: Any) -> LogitChange | None:
    """Return the change of logits that a model's configuration names; None if it names none.

    Whether the model makes that change and no other is tried by `check_halves`.
    """
    config = model.config.get_text_config()
    cohere, falcon, granite, gemma = (getattr(config, name, None) for name in CHANGES)
    scale = float(cohere or 1.0) * float(falcon or 1.0) / float(granite or 1.0)
    change = LogitChange(scale, float(gemma) if gemma else None)
    return None if change == LogitChange() else change


def changed_logits(model: Any, head_output: Tensor) -> Tensor:
    """Return the logits that a model makes of its head's output."""
    change = logit_change(model)
    return head_output if change is None else change(head_output)


def check_halves(model: Any) -> None:
    """Raise UsageError for a model whose logits are not what groupwise makes of its head's output, ValueError where
    they are not numbers.

    Training never makes all logits at once, as the model does. This runs both ways on a few tokens, and refuses a model
    that changes the head's input or output in another way than its configuration says, which would make every ratio
    silently wrong.
    """
    require_known_head(model)
    backbone, head = halves(model)
    ids = few_ids(model)
    with torch.no_grad():
        logits = changed_logits(model, head(hidden(backbone, ids)))
        own = model(input_ids=ids, use_cache=False).logits
    require_same(logits, own, _changed(model), atol=1e-3 * float(own.abs().max().clamp(max=1.0)))


def check_runs(model: Any) -> None:
    """Raise ValueError if a model's logits of a few tokens are not numbers."""
    with torch.no_grad():
        _require_finite(model(input_ids=few_ids(model), use_cache=False).logits)


def require_known_head(model: Any) -> None:
    """Raise UsageError for a model without a linear head, or one that makes other logits of its head's output than its
    configuration says.

    The head's output is replaced by logits from -1e4 to 1e4, more of them small. Only shapes of weights are needed:
    device meta will do.
    """
    backbone, head = halves(model)
    if not isinstance(head, nn.Linear) or backbone is model:
        raise UsageError(f"{type(model).__name__} has no separate linear output head; groupwise cannot train it")
    given: list[Tensor] = []

    def replace(_: nn.Module, __: object, output: Tensor) -> Tensor:
        device = "cpu" if output.is_meta else output.device
        spread = torch.linspace(-1, 1, output.numel(), device=device) ** 5 * LARGE_LOGIT
        given.append(spread.view(output.shape).to(output.dtype))
        return given[-1].clone()

    ids = few_ids(model)
    with head.register_forward_hook(replace), torch.no_grad():
        # Without a cache transformers looks for packed rows, in numbers, which device meta does not have.
        own = model(input_ids=ids, use_cache=ids.is_meta).logits
    if given:
        require_same(changed_logits(model, given[-1]), own, _changed(model))


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
        f"{type(model).__name__} changes its logits before or after the output head, and not only by what its "
        f"configuration may name ({', '.join(CHANGES)}); groupwise computes log-probabilities from the head and would "
        "be wrong: such a model can be evaluated (groupwise eval), not trained"
    )


def hidden(backbone: nn.Module, ids: Tensor) -> Tensor:
    """Map [N,T] ids -> [N,T,H]. Rows are padded on the right, which causal attention never looks at, without a mask."""
    return backbone(input_ids=ids, use_cache=False).last_hidden_state
