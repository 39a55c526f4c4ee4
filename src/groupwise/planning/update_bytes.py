"""What an update takes on a rank beside its part of a model: activations, weights and gradients on their way."""

from dataclasses import dataclass

from groupwise.planning.activations import MicrobatchBytes
from groupwise.planning.shard_groups import Groups, gathered, summed, trained_part


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
    gradients = sum(trained_part(group, ranks) for group in (*groups.layers, groups.outer))
    before = 0 if several else gradients
    alone = max(max(at.head, at.first) - before, at.last)
    if ranks == 1:
        return UpdateBytes(alone, 0)
    layer = gathered(groups.largest, ranks)
    layer_gradients = ranks * sum(w.part(ranks) * w.passed for w in groups.largest if w.trains)
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
