"""Frozen weights in 4 bits: bitsandbytes' NF4, one of 16 levels times a scale that 64 numbers share; 4.5 bits each.

A policy of such a run is rounded when it is loaded: each weight becomes the number that its bits stand for
(`round_base`). So engine, reference, digest and what is exported know that number, and no bits. The learner alone holds
the bits in its place (`pack`), and makes a weight of them each time that a layer computes, backward too.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.core.errors import UsageError
from groupwise.models.adapters.settings import AdapterSettings, adapted_weights
from groupwise.models.forward.fused_layers import linear_of, linear_slopes
from groupwise.models.precision import bitsandbytes, computes_in

#: Numbers that share a scale, and the name of the levels.
BLOCK, LEVELS = 64, "nf4"


class PackedLinear(nn.Linear):
    """A linear layer whose frozen weight [H,I] is in 4 bits.

    weight  two numbers in each byte
    scales  one for each block
    """

    def __init__(self, linear: nn.Linear) -> None:
        """Pack a layer's weight; one that was packed before has the same numbers again, to the bit."""
        nn.Module.__init__(self)
        bitsandbytes("4-bit weights")  # whose operators torch knows from then on
        self.in_features, self.out_features = linear.in_features, linear.out_features
        whole = linear.weight.detach().float().contiguous()
        bits, scales = torch.ops.bitsandbytes.quantize_4bit(whole, BLOCK, LEVELS, torch.uint8)
        self.weight, self.scales = (nn.Parameter(x, requires_grad=False) for x in (bits, scales))
        self.bias = linear.bias

    @property
    def like(self) -> Tensor:
        """A tensor of the weight's shape, without memory."""
        return torch.empty(self.out_features, self.in_features, device="meta")

    def unpacked(self) -> Tensor:
        """Make the weight [H,I] of its bits, float32."""
        shape = (self.out_features, self.in_features)
        return torch.ops.bitsandbytes.dequantize_4bit(self.weight, self.scales, BLOCK, LEVELS, shape, torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        return PackedProduct.apply(x, self)  # type: ignore[return-value]


class PackedProduct(torch.autograd.Function):
    """x [..., I] and a packed layer -> W x + bias [..., H], in the type that autocast says.

    W is unpacked for each of the two passes, and not held between them.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: PackedLinear) -> Tensor:
        ctx.layer, ctx.dtype = layer, x.dtype
        return linear_of(x, layer.unpacked(), layer.bias, computes_in(x))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        to_x, _, _ = linear_slopes(slope, None, ctx.layer.unpacked(), biased=False)
        return to_x.to(ctx.dtype), None


def round_base(model: Any, settings: AdapterSettings) -> None:
    """Round the weights that are to be packed, if the settings say so, to the numbers that their bits stand for."""
    with torch.no_grad():
        for name in _packable(model, settings):
            linear = model.get_submodule(_layer(name))
            linear.weight.copy_(PackedLinear(linear).unpacked())


def pack(model: Any, settings: AdapterSettings) -> None:
    """Put packed layers in the places of those that get adapters, if the settings say so."""
    for name in _packable(model, settings):
        model.set_submodule(_layer(name), PackedLinear(model.get_submodule(_layer(name))))


def unpack(model: Any) -> Any:
    """Put ordinary layers in the places of packed ones -> the model."""
    for name, layer in [each for each in model.named_modules() if isinstance(each[1], PackedLinear)]:
        whole = nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
        whole.weight, whole.bias = nn.Parameter(layer.unpacked(), requires_grad=False), layer.bias
        model.set_submodule(name, whole)
    return model


def _packable(model: Any, settings: AdapterSettings) -> Iterable[str]:
    """Name the weights that are to be packed. Raises UsageError if one is of no linear layer."""
    if not settings.packs:
        return ()
    weights = adapted_weights(model, settings)
    for name, weight in weights.items():
        if weight.dim() != 2 or type(model.get_submodule(_layer(name))) is not nn.Linear:
            raise UsageError(
                f"adapter.base = 'nf4': {name} of {type(model).__name__} is of no linear layer, and only such weights "
                "are packed; set adapter.base = 'same', or name linear layers in adapter.targets"
            )
    return weights


def _layer(name: str) -> str:
    return name.rpartition(".")[0]
