"""A model's weights over ranks, from shapes alone: what each rank holds, what is gathered at once, and what an update
takes beside them.

FSDP2 deals a weight by its rows: of R rows over N ranks each holds the next ceil(R / N), the last ones fewer or
none. Whatever passes is as large as if each held that many: rows that fill up are sent too.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from groupwise.planning.activations import MicrobatchBytes
from groupwise.training.ranks.sharded import decoder_layers, norms_of

#: Bytes of a number: of a master weight, its gradient and its moments; of one in bfloat16; of two in 4 bits each.
FLOAT32, BFLOAT16, BYTE = 4, 2, 1


@dataclass(frozen=True)
class Weight:
    """One weight of a model.

    rows, row  how many rows it has, and numbers of each
    held       bytes of a number as a rank holds it
    passed     bytes of a number as it goes to the other ranks for a forward or backward pass
    trains     whether it has a gradient
    """

    rows: int
    row: int
    held: int = FLOAT32
    passed: int = FLOAT32
    trains: bool = True

    def part(self, ranks: int, rank: int = 0) -> int:
        """Count the numbers that a rank holds; none holds more than rank 0.

        >>> [Weight(rows=15, row=20).part(ranks) for ranks in (1, 2, 64)], Weight(rows=15, row=20).part(2, rank=1)
        ([300, 160, 20], 140)
        """
        each = -(-self.rows // ranks)
        return max(0, min(each, self.rows - rank * each)) * self.row


Group = tuple[Weight, ...]


@dataclass(frozen=True)
class Groups:
    """A model's weights as they are gathered: a layer's with one another; what lies around the layers is one more."""

    layers: tuple[Group, ...]
    outer: Group

    @property
    def every(self) -> Group:
        """All weights, each once."""
        return tuple(weight for group in (*self.layers, self.outer) for weight in group)

    @property
    def largest(self) -> Group:
        """The largest layer."""
        return max(self.layers, key=lambda layer: gathered(layer, 1), default=())


@dataclass(frozen=True)
class GroupedModel:
    """A model, which may be without memory, and its weights in groups."""

    model: Any
    groups: Groups


def groups_of(model: Any, bf16: bool = False, held: int = FLOAT32) -> Groups:
    """Make the groups that `Sharded` makes of a model, which may be without memory.

    bf16  whether it computes in bfloat16 over float32: then its layers pass in bfloat16
    held  bytes of a number of its weights
    A model without decoder layers has the outer group alone; over ranks such a one is refused.
    """
    layers, known = [], set[int]()
    for layer in decoder_layers(model):
        apart = {id(p) for norm in norms_of(layer) for p in norm.parameters()}
        own = [p for p in layer.parameters() if id(p) not in apart | known]
        known |= {id(p) for p in own}
        layers.append(tuple(_weights(own, held, BFLOAT16 if bf16 else held)))
    return Groups(tuple(layers), tuple(_weights((p for p in model.parameters() if id(p) not in known), held, held)))


def _weights(parameters: Iterable[nn.Parameter], held: int, passed: int) -> Iterable[Weight]:
    for p in parameters:
        rows = p.shape[0] if p.dim() else 1
        size = held if p.is_floating_point() else BYTE
        yield Weight(rows, p.numel() // max(rows, 1), size, passed, p.requires_grad)


def held_bytes(group: Iterable[Weight], ranks: int) -> int:
    """Size a group's weights on rank 0; every rank keeps room for as many."""
    return sum(weight.part(ranks) * weight.held for weight in group)


def trained_part(group: Iterable[Weight], ranks: int, rank: int = 0) -> int:
    """Size a rank's gradients, which are float32 as its masters are."""
    return sum(weight.part(ranks, rank) * FLOAT32 for weight in group if weight.trains)


def gathered(group: Iterable[Weight], ranks: int) -> int:
    """Size the whole group on a rank that runs it, what fills up included.

    >>> gathered([Weight(rows=15, row=20)], 2), gathered([Weight(rows=8, row=10, passed=2)], 64)
    (1280, 1280)
    """
    return ranks * sum(weight.part(ranks) * weight.passed for weight in group)


def summed(group: Iterable[Weight], ranks: int) -> int:
    """Size the whole group's gradients as they are added up over the ranks, in float32."""
    return ranks * trained_part(group, ranks)


def largest_whole(groups: Groups, ranks: int) -> int:
    """Size the largest weight, gathered as it is held, as an engine takes it."""
    return max((ranks * weight.part(ranks) * weight.held for weight in groups.every), default=0)


@dataclass(frozen=True)
class UpdateBytes:
    """The most that a microbatch takes on a rank, beside its part of weights and gradients.

    activations  as in one process
    gathered     what other ranks' parts of the weights, and gradients on their way, take beside them
    layer_token  of the activations, what one layer takes for one token
    """

    activations: int
    gathered: int
    layer_token: float = 0.0


def update_bytes(
    groups: Groups, ranks: int, at: MicrobatchBytes, tied: bool, several: bool, copies: bool
) -> UpdateBytes:
    """Find the most of a microbatch; U is the outer group as it is gathered, u its gradients, l the largest layer as it
    is gathered, g its gradients, s those in float32:

        head   activations + U + l                        the buffer of the next layer is on its way
        first  activations + U + u + 2 l + g + s          a layer and the next one, gradients, and those on their way
        last   activations + U + u + s;  2 u, or 3 u      the outer group's gradients are added up, in a copy of gloo's

    at       the activations at these times
    tied     whether `at` counts the head's gradient while it waits for the embedding's
    several  whether microbatches came before: else gradients come while activations go
    copies   whether a sum over the ranks takes the tensors once more, as gloo's does
    """
    before = 0 if several else trained_part(groups.every, ranks)
    alone = max(max(at.head, at.first) - before, at.last)
    if ranks == 1:
        return UpdateBytes(alone, 0)
    layer = gathered(groups.largest, ranks)
    layer_gradients = gathered((weight for weight in groups.largest if weight.trains), ranks)
    on_its_way = summed(groups.largest, ranks)
    outer, outer_gradients = gathered(groups.outer, ranks), summed(groups.outer, ranks)
    apart = 0 if tied else outer_gradients
    most = max(
        at.head - before + outer + layer,
        at.first - before + outer + apart + 2 * layer + layer_gradients + on_its_way,
        at.last + outer + apart + on_its_way,
        (2 + copies) * outer_gradients,
    )
    return UpdateBytes(alone, max(0, most - alone))
