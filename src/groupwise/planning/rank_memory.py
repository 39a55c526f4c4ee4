"""What a rank holds beside its part of a model, and what the other ranks of one machine hold."""

from collections.abc import Mapping
from dataclasses import dataclass

from groupwise.planning.activations import MicrobatchBytes
from groupwise.planning.shard_groups import FLOAT32, Groups, gathered, held_bytes, largest_whole, summed, trained_part

#: What stands on every rank from sampling to the end of a step.
STANDING = ("process", "weights", "moments", "reference", "critic", "reward model", "batch", "freed blocks")
#: What another rank than 0 holds in each phase.
FOLLOWS = {
    "starting": ("process", "whole models"),
    "generating": STANDING,
    "scoring": (*STANDING, "gathered to score", "scored rows"),
    "updating": (*STANDING, "gradients", "gathered weights", "activations", "freed inside an update"),
    "loading weights": (*STANDING, "a gathered weight"),
    "saving": (*STANDING, "a gathered weight"),
    "updating the critic": (
        *STANDING,
        "critic's gradients",
        "critic's gathered weights",
        "critic's activations",
        "freed inside an update",
    ),
}


@dataclass(frozen=True)
class UpdateBytes:
    """The most that a microbatch takes on a rank, beside its part of weights and gradients.

    activations  as in one process
    gathered     what other ranks' parts of the weights, and gradients on their way, take beside them
    """

    activations: int
    gathered: int


def update_bytes(
    groups: Groups, ranks: int, at: MicrobatchBytes, tied: bool, several: bool, copies: bool
) -> UpdateBytes:
    """The most of a microbatch; U is the outer group as it is gathered, u its gradients, l the largest layer as it is
    gathered, g its gradients, s those in float32:

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


def gathered_to_score(groups: Groups, ranks: int) -> int:
    """What is gathered of a model that runs forward alone: what lies around its layers, a layer and the next one."""
    return 0 if ranks == 1 else gathered(groups.outer, ranks) + 2 * gathered(groups.largest, ranks)


def whole_models(models: Mapping[str, Groups | None]) -> int:
    """Bytes of the models that a rank has whole at its start, before they are put in shards."""
    return sum(held_bytes(groups.every, 1) for groups in models.values() if groups is not None)


def gathered_to_save(groups: Groups, ranks: int, adapters: bool) -> int:
    """Bytes that rank 0 holds to write a checkpoint: the whole policy, or with adapters one weight after another."""
    if ranks == 1:
        return 0
    return largest_whole(groups, ranks) if adapters else sum(w.rows * w.row for w in groups.every) * FLOAT32


def follower_parts(parts: Mapping[str, int], policy: Groups, critic: Groups | None, ranks: int) -> dict[str, int]:
    """The parts of rank 1, from those of rank 0: no engine, no completions, and moments of its own rows alone."""
    own = {name: parts.get(name, 0) for names in FOLLOWS.values() for name in names}
    own["batch"] = parts["columns"]
    own["moments"] = 2 * _own_trained(policy, ranks)
    if critic is not None:
        own["critic"] = held_bytes(critic.every, ranks) + 2 * _own_trained(critic, ranks)
    return own


def _own_trained(groups: Groups, ranks: int) -> int:
    return sum(weight.own(ranks, 1) for weight in groups.every if weight.trains) * FLOAT32
