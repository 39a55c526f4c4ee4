"""A linear layer in the type that autocast says, forward and backward, of operands that the device multiplies fast."""

from typing import Any

import torch
from torch import Tensor, nn

from groupwise.models.precision import computes_in, operand


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
    """weight x + bias, each rounded to the type that it is computed in."""
    with torch.autocast(x.device.type, enabled=False):
        added = None if bias is None else operand(bias, compute)
        return nn.functional.linear(operand(x, compute), operand(weight, compute), added).to(compute)


def linear_slopes(
    slope: Tensor, x: Tensor | None, weight: Tensor, biased: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Given that of the output, the gradients of x, of the weight where x is given, of the bias where there is one."""
    compute, rows = slope.dtype, operand(slope, slope.dtype)
    to_x = (rows @ operand(weight, compute)).to(compute)
    rows = rows.flatten(0, -2)
    to_weight = None if x is None else (rows.T @ operand(x, compute).flatten(0, -2)).to(compute).to(weight.dtype)
    return to_x, to_weight, rows.sum(0).to(weight.dtype) if biased else None
