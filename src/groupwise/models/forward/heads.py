"""The two halves of a causal language model: the backbone that makes hidden states and the head that makes logits."""

import dataclasses
import math
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
#: How far a token's logits may move with the tokens behind it, as a share of the largest: by rounding, and in 16 bits.
CAUSAL, CAUSAL_ROUNDED = 1e-5, 5e-2
#: Keys of configurations that change logits: factors, divisors, caps.
FACTORS = ("logit_scale", "lm_head_multiplier")
DIVISORS = ("logits_scaling", "logits_mup_width_multiplier")
CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
CHANGES = (*FACTORS, *DIVISORS, *CAPS)


def halves(model: Any) -> tuple[nn.Module, nn.Linear]:
    """Split a model -> (ids [N,T] -> object with last_hidden_state [N,T,H], hidden [..., H] -> logits [..., V]).

    Of the text part of a multimodal model transformers takes the whole for the backbone: its name is another there.
    """
    backbone = model.base_model
    return getattr(model, "model", model) if backbone is model else backbone, model.get_output_embeddings()


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
    factors, divisors, caps = (
        [float(value) for name in names if (value := getattr(config, name, None))]
        for names in (FACTORS, DIVISORS, CAPS)
    )
    change = LogitChange(math.prod(factors) / math.prod(divisors), caps[0] if caps else None)
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
    ids = _two_rows(model)
    with torch.no_grad():
        logits = changed_logits(model, head(hidden(backbone, ids)))
        own = model(input_ids=ids, use_cache=False).logits
    _require_causal(model, own)
    require_same(logits, own, _changed(model), atol=1e-3 * float(own.abs().max().clamp(max=1.0)))


def check_runs(model: Any) -> None:
    """Raise ValueError if a model's logits of a few tokens are not numbers, UsageError if it reads from both sides."""
    with torch.no_grad():
        _require_causal(model, model(input_ids=_two_rows(model), use_cache=False).logits)


def backward(loss: Tensor, model: nn.Module) -> None:
    """Add up a loss's gradient. Raises UsageError for a model whose layers have a backward of their own that runs in
    training mode alone, or leads to no weight: groupwise trains without dropout, in evaluation mode.
    """
    what = f"{type(model).__name__} cannot be trained"
    if not loss.requires_grad:
        raise UsageError(f"{what}: no gradient leads from its output to the weights that train")
    try:
        loss.backward()
    except AssertionError as error:
        raise UsageError(f"{what}: its backward does not run in evaluation mode ({error})") from None


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
    change = logit_change(model) or LogitChange()
    if given and not _same(dataclasses.replace(change, scale=1.0)(given[-1]), own):  # scaled before the head
        require_same(change(given[-1]), own, _changed(model))


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


def _two_rows(model: Any) -> Tensor:
    """Return [2,4] ids that the model has; the rows differ in their last one."""
    ids = few_ids(model).repeat(2, 1)
    ids[1, -1] += 1
    return ids % model.config.get_text_config().vocab_size


def _require_causal(model: Any, own: Tensor) -> None:
    """Raise UsageError for a model whose logits [2,T,V] of two rows differ before the rows do, ValueError where they
    are not finite.
    """
    _require_finite(own)
    one, other = own[:, :-1].float()
    bound = CAUSAL if own.dtype.itemsize >= 4 else CAUSAL_ROUNDED
    if (one - other).abs().max() > bound * one.abs().max():
        remedy = "set is_decoder to true there, or " if getattr(model.config, "is_decoder", None) is False else ""
        raise UsageError(
            f"{type(model).__name__}: its logits of a token depend on the tokens behind it: as its config.json has it, "
            f"it reads a text from both sides, and a policy reads from left to right; {remedy}take a causal language "
            "model"
        )


def require_same(ours: Tensor, own: Tensor, otherwise: str, atol: float = 1e-3) -> None:
    """Raise UsageError, `otherwise`, if ours are not the model's numbers, ValueError where those are not finite."""
    _require_finite(own)
    if not _same(ours, own, atol):
        raise UsageError(otherwise)


def _same(ours: Tensor, own: Tensor, atol: float = 1e-3) -> bool:
    return torch.allclose(ours.float(), own.float(), rtol=1e-3, atol=atol)


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
