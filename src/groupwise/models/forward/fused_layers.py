"""Norms and gated MLPs of transformers' models, each with a backward of its own that holds less and passes less often.

    RMSNorm      y = w x r,   r = 1 / sqrt(mean x^2 + eps)            holds x and r
    gated MLP    y = W_down (silu(W_gate x) * (W_up x))               holds W_gate x and W_up x, and what it was given

Plain autograd holds x r beside x, and silu(..) and the product beside the two. A model's part is replaced only where it
gives, on a few numbers that are tried, what the function here gives; a part of another kind runs as it is. Linear
layers in bfloat16 have one too, for devices without instructions for it.

None of them is a product of a matrix and a vector: its rounding depends on where in memory the two lie, and a resumed
run would not have the same bits.
"""

import copy
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from groupwise.models.forward.forwards import replaced
from groupwise.models.precision import computes_in, multiplies_bf16, operand


class FusedLayers:
    """The norms and gated MLPs of models that have a function here, by the name `parts`; found once."""

    def __init__(self, *models: nn.Module) -> None:
        tried = ((part, _forward_of(part)) for model in models for part in model.modules())
        self.parts = [(part, forward) for part, forward in tried if forward is not None]

    def running(self) -> AbstractContextManager[None]:
        """Make a forward of the models run these parts by their functions here inside, and its backward anywhere."""
        return replaced((part, partial(forward, part)) for part, forward in self.parts)


def one_kernel_norms(model: nn.Module) -> list[tuple[nn.Module, Callable[[Tensor], Tensor]]]:
    """Find the norms that torch's own RMS norm gives too: one kernel on a GPU, without a gradient of ours."""
    candidates = (_torch_norm, _torch_norm_about_one)
    norms = [module for module in model.modules() if _is_norm(module)]
    tried = ((norm, _forward_of(norm, candidates)) for norm in norms)
    return [(norm, partial(forward, norm)) for norm, forward in tried if forward is not None]


class Linear(torch.autograd.Function):
    """x [..., I], weight [H,I], bias [H] or None -> weight x + bias [..., H], in the type that autocast says."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        compute = computes_in(weight)
        x = x.to(compute)
        ctx.save_for_backward(x, weight)
        return linear_of(x, weight, bias, compute)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return linear_slopes(slope, x if ctx.needs_input_grad[1] else None, weight, ctx.needs_input_grad[2])


def linear_of(x: Tensor, weight: Tensor, bias: Tensor | None, compute: torch.dtype) -> Tensor:
    """Compute weight x + bias, each rounded to the type that it is computed in."""
    with torch.autocast(x.device.type, enabled=False):
        added = None if bias is None else operand(bias, compute)
        return nn.functional.linear(operand(x, compute), operand(weight, compute), added).to(compute)


def linear_slopes(
    slope: Tensor, x: Tensor | None, weight: Tensor, biased: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Compute from the output's gradient those of x, of the weight where x is given, of the bias where there is one."""
    compute, rows = slope.dtype, operand(slope, slope.dtype)
    to_x = (rows @ operand(weight, compute)).to(compute)
    rows = rows.flatten(0, -2)
    to_weight = None if x is None else (rows.T @ operand(x, compute).flatten(0, -2)).to(compute).to(weight.dtype)
    return to_x, to_weight, rows.sum(0).to(weight.dtype) if biased else None


class RMSNorm(torch.autograd.Function):
    """x [..., H], w [H] -> w x r [..., H]; float32 inside, or wider."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = _wide(x)
        norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        rate = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, rate)
        unit = (wide * rate).to(x.dtype)
        return unit.mul_(weight) if unit.dtype == weight.dtype else unit * weight

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, rate = ctx.saved_tensors
        up = _wide(up)
        unit = _wide(x) * rate
        product = up * unit
        to_weight = product.flatten(0, -2).sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        mean = product.mul_(weight).sum(-1, keepdim=True).div_(-x.shape[-1])  # a product with a matrix rounds
        to_x = torch.mul(up, weight, out=product).addcmul_(unit, mean).mul_(rate)  # by where in memory it lies
        return to_x.to(x.dtype), to_weight, None


class GatedProduct(torch.autograd.Function):
    """gate, up [..., I] -> silu(gate) * up [..., I]."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return silu(gate).mul_(up)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        return _gated_slopes(gate, up, silu(gate), slope)


class GatedDown(torch.autograd.Function):
    """gate, up [..., I], weight [H,I], bias [H] or None -> weight (silu(gate) * up) + bias [..., H].

    The product is computed again in the backward pass rather than held for the gradient of the weight.
    """

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(gate, up, weight)
        return linear_of(silu(gate).mul_(up), weight, bias, computes_in(weight))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        gate, up, weight = ctx.saved_tensors
        opened = silu(gate)
        product = opened * up if ctx.needs_input_grad[2] else None
        to_product, to_weight, to_bias = linear_slopes(slope, product, weight, ctx.needs_input_grad[3])
        to_gate, to_up = _gated_slopes(gate, up, opened, to_product)
        return to_gate, to_up, to_weight, to_bias


def _gated_slopes(gate: Tensor, up: Tensor, opened: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Compute d/d gate and d/d up of silu(gate) * up, times `slope`; `opened`, silu(gate), is used up."""
    to_up = opened.mul_(slope)
    return torch.ops.aten.silu_backward(slope * up, gate), to_up


def _norm(module: Any, hidden_states: Tensor) -> Tensor:
    return RMSNorm.apply(hidden_states, module.weight, _eps(module))  # type: ignore[return-value]


def _norm_about_one(module: Any, hidden_states: Tensor) -> Tensor:
    """Run a norm whose weight is what is added to 1."""
    return RMSNorm.apply(hidden_states, 1 + module.weight, _eps(module))  # type: ignore[return-value]


def _torch_norm(module: Any, hidden_states: Tensor) -> Tensor:
    return nn.functional.rms_norm(hidden_states, module.weight.shape, module.weight, _eps(module))


def _torch_norm_about_one(module: Any, hidden_states: Tensor) -> Tensor:
    return nn.functional.rms_norm(hidden_states, module.weight.shape, 1 + module.weight, _eps(module))


def _gated_mlp(module: Any, x: Tensor) -> Tensor:
    gate, up, down = module.gate_proj(x), module.up_proj(x), module.down_proj
    if type(down) is not nn.Linear:  # one with adapters, say, which has a forward of its own
        return down(GatedProduct.apply(gate, up))
    return GatedDown.apply(gate, up, down.weight, down.bias)  # type: ignore[return-value]


def _linear(module: Any, x: Tensor) -> Tensor:
    if multiplies_bf16(x.device.type) or computes_in(x) is not torch.bfloat16:
        return nn.functional.linear(x, module.weight, module.bias)
    return Linear.apply(x, module.weight, module.bias)  # type: ignore[return-value]


def _forward_of(
    module: nn.Module, norms: Sequence[Callable[[Any, Tensor], Tensor]] = (_norm, _norm_about_one)
) -> Callable[[Any, Tensor], Tensor] | None:
    """Find the function that gives what the module gives, tried on the module with small weights; of a norm among
    `norms`.
    """
    if type(module) is nn.Linear:
        return _linear
    numbers = torch.Generator().manual_seed(0)
    x = torch.randn(3, 6, generator=numbers) * torch.tensor([1e-3, 1.0, 30.0])[:, None]  # 1e-3: where eps counts
    if _is_norm(module):
        small, candidates = copy.copy(module), norms
        small._parameters = {"weight": nn.Parameter(torch.rand(6, generator=numbers) + 0.5)}
    elif _is_gated_mlp(module):
        small, candidates = copy.copy(module), (_gated_mlp,)
        sizes = {"gate_proj": (10, 6), "up_proj": (10, 6), "down_proj": (6, 10)}
        small._modules = {**module._modules, **{n: _small_linear(size, numbers) for n, size in sizes.items()}}
    else:
        return None
    with torch.no_grad():
        try:
            own = small(x)
            return next((f for f in candidates if torch.allclose(f(small, x), own, rtol=1e-5, atol=1e-7)), None)
        except Exception:  # whatever a module does with other sizes than its own
            return None


def _is_norm(module: nn.Module) -> bool:
    """Tell a norm of one argument, as that of a layer with a state may have a gate, too, and be tried without it."""
    weight = module._parameters.get("weight")
    alone = len(module._parameters) == 1 and not module._modules
    gated = alone and "gate" in inspect.signature(module.forward).parameters
    return alone and not gated and weight is not None and weight.dim() == 1 and _eps(module) is not None


def _is_gated_mlp(module: nn.Module) -> bool:
    linears = {"gate_proj", "up_proj", "down_proj"}
    others = [child for name, child in module.named_children() if name not in linears]
    return linears <= module._modules.keys() and not any(len(list(child.parameters())) for child in others)


def _eps(module: Any) -> Any:
    return getattr(module, "variance_epsilon", getattr(module, "eps", None))


def _small_linear(size: tuple[int, int], numbers: torch.Generator) -> nn.Linear:
    linear = nn.Linear(size[1], size[0], bias=False, device="meta")  # so that it draws no numbers of its own
    linear.weight = nn.Parameter(torch.randn(size, generator=numbers))
    return linear


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
