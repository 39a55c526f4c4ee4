"""A model in shards by FSDP2: each rank holds a part of every parameter, of its gradient and of its optimizer's state.

A decoder layer is a group of parameters that is gathered when the layer runs, and let go behind it. What lies around
the layers (embedding, final norm, head) is one more group, because a tied head is the embedding. Gradients are added up
over the ranks and not averaged: weights of the loss are made once for the whole optimizer batch.
"""

import math
from collections.abc import Callable, Iterable
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers.modeling_layers import GradientCheckpointingLayer

from groupwise.core.errors import UsageError
from groupwise.models.shards import own_part
from groupwise.training.mesh import Mesh

T = TypeVar("T")


class Sharded(nn.Module):
    """Puts a model's parameters in shards over a mesh, in place, and runs what computes with them.

    The model stays the object that it was, so that its class, configuration and names are those of one process.
    """

    def __init__(self, model: nn.Module, mesh: Mesh, bf16: bool = False) -> None:
        """bf16  layers are gathered and run in bfloat16 over masters as they are; gradients are added up in float32

        Raises UsageError for a model whose layers cannot be found.
        """
        super().__init__()
        self.model = model
        layers = require_decoder_layers(model, mesh.size)
        # Norms go with what lies around the layers: rounded to bfloat16 with a layer they would be other functions than
        # those of one process. They are small, and as a list here they get no hooks of their own.
        self.norms = nn.ModuleList([norm for layer in layers for norm in norms_of(layer)])
        apart = set(self.norms.parameters())
        for layer in layers:
            policy = _policy(layer, bf16)
            fully_shard(layer, mesh=mesh.shards, mp_policy=policy, ignored_params=apart, reshard_after_forward=True)
        fully_shard(self, mesh=mesh.shards, reshard_after_forward=False)
        for module in self.modules():
            if isinstance(module, FSDPModule):
                # A factor of 1 alone would ask for a product inside the sum, which gloo does not have.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)

    def forward(self, compute: Callable[[], T]) -> T:
        """What `compute` returns, run where every parameter is whole when it is used; so in its backward."""
        return compute()

    def run(self, compute: Callable[[], T]) -> T:
        """The same. Every rank has to run its own at the same point of its work."""
        out = self(compute)
        if not torch.is_grad_enabled():
            # No backward will let go of the outer group; held on, it would be of weights that an update makes old.
            cast(FSDPModule, self).reshard()
        return out


def require_decoder_layers(model: nn.Module, ranks: int) -> list[nn.Module]:
    """The decoder layers of a model for so many ranks. Raises UsageError where none are known to be such."""
    layers = decoder_layers(model)
    if not layers:
        raise UsageError(
            f"learner.ranks = {ranks}: {type(model).__name__} has no decoder layers that could be sharded; set it to 1"
        )
    return layers


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float, mesh: Mesh) -> float:
    """Scales the gradients down to the norm `limit`; 0 leaves them -> their norm before, over all ranks.

    As torch.nn.utils.clip_grad_norm_ does in one process; of a model in shards its float() is that of one rank's part.
    """
    parts = [own_part(p.grad) for p in parameters if p.grad is not None]
    norms = [float(torch.linalg.vector_norm(part, dtype=torch.float64)) for part in parts]
    (total,) = mesh.sums([sum(norm * norm for norm in norms)])
    norm = math.sqrt(total)
    if limit and math.isfinite(norm):
        factor = min(1.0, limit / (norm + 1e-6))
        for part in parts:
            part.mul_(factor)
    return norm


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The layers of which each is gathered by itself, in their order."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def norms_of(layer: nn.Module) -> list[nn.Module]:
    """The modules of a layer that have vectors alone, as norms do; they go with what lies around the layers."""
    return [module for module in layer.modules() if _is_norm(module)]


def _is_norm(module: nn.Module) -> bool:
    own = list(module._parameters.values())
    return bool(own) and not module._modules and all(p is not None and p.dim() == 1 for p in own)


def _policy(layer: nn.Module, bf16: bool) -> MixedPrecisionPolicy:
    """The arithmetic of a layer. Autocast goes on inside: what enters stays as it is, such as a residual in float32."""
    weight: Tensor = next(layer.parameters())
    if not bf16 or weight.dtype == torch.bfloat16:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=weight.dtype, cast_forward_inputs=False)
