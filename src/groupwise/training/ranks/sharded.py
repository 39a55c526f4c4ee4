"""A model in shards by FSDP2, and a reward model that scores so.

Each rank holds a part of every parameter, of its gradient and of its optimizer's state.
A decoder layer is a group of parameters that is gathered when the layer runs, and let go behind it. What lies around
the layers (embedding, final norm, head) is one more group, because a tied head is the embedding. Gradients are added up
over the ranks and not averaged: weights of the loss are made once for the whole optimizer batch.

The root of the shards is a module of our own with the model inside: `fully_shard` changes the class of the module that
it is called on, and a checkpoint's config.json would name that class.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer

from groupwise.core.collate import NO_ROWS
from groupwise.core.errors import UsageError
from groupwise.core.machine.free_memory import give_back
from groupwise.models.on_host import on_device
from groupwise.models.scalar_heads import RewardModel, Tokens
from groupwise.models.shards import own_part
from groupwise.training.mesh import ALONE, Mesh, Verb
from groupwise.training.ranks.arrival import Arrival

T = TypeVar("T")

#: Rows of an idle rank, beside others that have a batch of rows left: their score is read by nothing.
IDLE: Sequence[Tokens] = ((0,),)


class Sharded(nn.Module):
    """Puts a model's parameters in shards over a mesh, in place, and runs what computes with them.

    The model stays the object that it was, so that its class, configuration and names are those of one process.
    """

    def __init__(self, model: nn.Module, mesh: Mesh, bf16: bool = False) -> None:
        """Raise UsageError for a model whose layers cannot be found.

        mesh  all of its ranks make this at the same point of their work; a model without memory gets rank 0's weights
        bf16  layers are gathered and run in bfloat16 over masters as they are; gradients are added up in float32
        """
        super().__init__()
        self.model = model
        layers = require_decoder_layers(model, mesh.size)
        # Norms go with what lies around the layers: rounded to bfloat16 with a layer they would be other functions than
        # those of one process. They are small, and as a list here they get no hooks of their own.
        self.norms = nn.ModuleList([norm for layer in layers for norm in norms_of(layer)])
        apart, arrival = set(self.norms.parameters()), Arrival(model, mesh)
        for layer in layers:
            arrival.fill(p for p in layer.parameters() if p not in apart)
            policy, weight = MixedPrecisionPolicy(), next(layer.parameters()).dtype
            if bf16 and weight != torch.bfloat16:
                # Autocast goes on inside; what enters stays as it is, such as a float32 residual.
                policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=weight, cast_forward_inputs=False)
            fully_shard(layer, mesh=mesh.shards, mp_policy=policy, ignored_params=apart, reshard_after_forward=True)
        arrival.fill(p for p in model.parameters() if not isinstance(p, DTensor))
        arrival.fill_buffers()
        fully_shard(self, mesh=mesh.shards, reshard_after_forward=False)
        for module in self.modules():
            if isinstance(module, FSDPModule):
                # A factor of 1 alone would ask for a product inside the sum, which gloo does not have.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)

    def forward(self, compute: Callable[[], T]) -> T:
        """Return what `compute` returns, run where every parameter is whole when it is used; so in its backward."""
        return compute()

    def run(self, compute: Callable[[], T]) -> T:
        """Run `forward`. Every rank has to run its own at the same point of its work."""
        out = self(compute)
        if not torch.is_grad_enabled():
            # No backward will let go of the outer group; held on, it would be of weights that an update makes old.
            cast(FSDPModule, self).reshard()
        return out


def require_decoder_layers(model: nn.Module, ranks: int) -> list[nn.Module]:
    """Return the decoder layers of a model for so many ranks. Raises UsageError if none are known to be such."""
    layers = decoder_layers(model)
    if not layers:
        raise UsageError(
            f"learner.ranks = {ranks}: {type(model).__name__} has no decoder layers that could be sharded; set it to 1"
        )
    return layers


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float, mesh: Mesh) -> float:
    """Scale the gradients down to the norm `limit`; 0 leaves them -> their norm before, over all ranks.

    As torch.nn.utils.clip_grad_norm_ does in one process; of a model in shards its float() is that of one rank's part.
    """
    parts = [own_part(p.grad) for p in parameters if p.grad is not None]
    norms = [torch.linalg.vector_norm(part, dtype=torch.float64) for part in parts]
    squares = [norm * norm for norm in torch.stack(norms).tolist()] if norms else []  # one wait for the device
    (total,) = mesh.sums([sum(squares)])
    norm = math.sqrt(total)
    if limit and math.isfinite(norm):
        factor = min(1.0, limit / (norm + 1e-6))
        for part in parts:
            part.mul_(factor)
    return norm


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers of which each is gathered by itself, in their order."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def norms_of(layer: nn.Module) -> list[nn.Module]:
    """Return the modules of a layer that have vectors alone, as norms do; they go with what lies around the layers."""
    leaves = [(module, [*module._parameters.values()]) for module in layer.modules() if not module._modules]
    return [module for module, own in leaves if own and all(p is not None and p.dim() == 1 for p in own)]


class RewardScorer:
    """Scores with a reward model, of which each rank holds a part, and scores some of the batches.

    A row's score has the bits that `RewardModel.scores` gives in one process: its batch is the same, on whichever rank.
    """

    def __init__(self, reward: RewardModel, mesh: Mesh = ALONE) -> None:
        """Put the model in shards if the mesh has several ranks. Raises UsageError as `Sharded` does."""
        self.model, self.mesh, self._reward = reward.model, mesh, reward
        self._device = next(reward.model.parameters()).device
        self._sharded = None if mesh.alone else Sharded(reward.model, mesh)

    def scores(self, prompts: Sequence[Tokens], completions: Sequence[Tokens]) -> list[float]:
        """Return one score a row, reward units, in the order given. Raises ValueError as `RewardModel.scores` does."""
        rows = self._reward.rows(prompts, completions)
        with self.mesh.together(Verb.SCORES), on_device(self.model, self._device):
            return self.take_part(rows)

    def take_part(self, rows: Sequence[Tokens] = ()) -> list[float]:
        """Score rank 0's rows, on every rank; what the others give is not read."""
        rows = [tuple(row) for row in self.mesh.plain(list(rows))]
        out = torch.zeros(len(rows))
        with torch.no_grad():
            for part in self.mesh.dealt(self._reward.batches(rows)):
                index, own = (NO_ROWS, IDLE) if part is None else (part, [rows[i] for i in part.tolist()])
                forward = partial(self._reward.forward, own)
                scores = forward() if self._sharded is None else self._sharded.run(forward)
                out[index] = scores[: len(index)].cpu().float()
        # What a pass leaves with the C library has other sizes than what an update takes, and would stay beside it.
        give_back()
        return self.mesh.joined(out).tolist()
