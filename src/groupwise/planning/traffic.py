"""What passes between the ranks of a run in a step, byte for byte, from shapes alone.

A collective is counted by the whole tensor that it is about: what is gathered, what is added up, what rank 0 sends.
That is what torch's collectives are handed on every rank, whatever the network makes of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from groupwise.planning.shard_groups import Groups, gathered, summed
from groupwise.training.learner import SEEN
from groupwise.training.mesh import Message, Verb
from groupwise.training.verbs import tensor_sizes, told_sizes

#: Bytes of a number that is added up over the ranks by itself, and of one in a column of log-probabilities or values.
NUMBER, COLUMN = 8, 4


@dataclass(frozen=True)
class Traffic:
    """Bytes of whole tensors by kind of collective, and how many collectives there are.

    gathered   weights, of which each rank has a part
    scattered  gradients: added up, and each rank keeps its part of the sum
    joined     columns and numbers: added up, and every rank keeps the sum
    sent       by rank 0 to all others
    """

    gathered: int = 0
    scattered: int = 0
    joined: int = 0
    sent: int = 0
    calls: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(*(a + b for a, b in zip(self.numbers, other.numbers, strict=True)))

    def times(self, count: int) -> "Traffic":
        """The same so often."""
        return Traffic(*(count * number for number in self.numbers))

    @property
    def numbers(self) -> tuple[int, ...]:
        """Its fields."""
        return (self.gathered, self.scattered, self.joined, self.sent, self.calls)

    def received(self, ranks: int) -> float:
        """Bytes that reach each rank, and leave it, where the ranks stand in a ring:

        (N - 1) / N (gathered + scattered + 2 joined) + sent

        >>> Traffic(gathered=80, joined=8, sent=10).received(4)
        82.0
        """
        return (ranks - 1) / ranks * (self.gathered + self.scattered + 2 * self.joined) + self.sent


NOTHING = Traffic()


def forward_pass(groups: Groups, ranks: int) -> Traffic:
    """A microbatch without gradient: each group is gathered once."""
    every = [gathered(group, ranks) for group in (*groups.layers, groups.outer)]
    return Traffic(gathered=sum(every), calls=len(every))


def training_pass(groups: Groups, ranks: int) -> Traffic:
    """A microbatch, forward and backward: layers are gathered twice, the outer group once, and gradients added up.

    Backward ends where nothing below trains: the layer below the lowest that does is gathered, as it comes next. Layers
    that are recomputed are those that were gathered for their backward pass.
    """
    first = 0 if any(weight.trains for weight in groups.outer) else max(0, groups.lowest - 1)
    again = [gathered(layer, ranks) for layer in groups.layers[first:]]
    sums = [size for group in (*groups.layers, groups.outer) if (size := summed(group, ranks))]
    backward = Traffic(gathered=sum(again), scattered=sum(sums), calls=len(again) + len(sums))
    return forward_pass(groups, ranks) + backward


def whole_weights(groups: Groups, ranks: int) -> Traffic:
    """Every weight by itself, as it is held: what goes to an engine."""
    sizes = [ranks * weight.part(ranks) * weight.held for weight in groups.every]
    return Traffic(gathered=sum(sizes), calls=len(sizes))


def announced(message: Message) -> Traffic:
    """Rank 0 says to the others what they do, with the batch that they do it on."""
    sizes = told_sizes(message)
    return Traffic(sent=sum(sizes), calls=len(sizes))


def columns(rows: int, width: int, count: int = 1) -> Traffic:
    """So many columns [rows,width] of numbers per token."""
    return Traffic(joined=count * rows * width * COLUMN, calls=count if rows * width else 0)


def sums(*counts: int) -> Traffic:
    """Numbers that are added up, so many at a time."""
    return Traffic(joined=NUMBER * sum(counts), calls=len(counts))


@dataclass(frozen=True)
class RoutesShape:
    """What of a mixture of experts is recorded; of a dense policy there is none.

    layers, chosen  layers with experts, and experts of a token
    itemsize        bytes of an expert's number
    from_engine     whether the engine's routes are replayed; `replayed`: whether any are in an update. Where they are,
                    what the routers would have chosen is recorded too
    losses          how many losses of the routers are added up
    """

    layers: int
    chosen: int
    itemsize: int
    from_engine: bool
    replayed: bool
    losses: int

    def recorded(self, tokens: int, replayed: bool, losses: int) -> Traffic:
        """Of so many tokens that are run, all rows together."""
        each = tokens * self.layers * self.chosen * self.itemsize
        return Traffic(joined=(1 + replayed) * each, calls=1 + replayed) + sums(1 + losses)


@dataclass(frozen=True)
class BatchShape:
    """A batch as rank 0 sends it, and how its rows are run.

    rows, width  completions, and tokens of the longest with its prompt
    tokens       of all rows, prompts included, but for the last of each
    rounds       microbatches that each rank runs, idle ones included
    said         what sending it takes
    """

    rows: int
    width: int
    tokens: int
    rounds: int
    said: Traffic


def rounds(microbatches: int, ranks: int) -> int:
    """Microbatches that each rank runs where so many are dealt.

    >>> rounds(5, 2)
    3
    """
    return -(-microbatches // ranks)


def annotated(
    batch: BatchShape, policy: Groups, reference: Groups | None, ranks: int, old: bool, routes: RoutesShape | None
) -> Traffic:
    """`annotate`.

    reference  the groups of the model that is run as one, of adapters the policy's; None: no reference is read
    old        whether the old policy is run, for its log-probabilities or its routes
    """
    passes = [groups for groups in (policy if old else None, reference) if groups is not None]
    total = batch.said
    for groups in passes:
        total += forward_pass(groups, ranks).times(batch.rounds) + columns(batch.rows, batch.width)
    if old and routes is not None:
        total += routes.recorded(batch.tokens, routes.from_engine, 0)
    return total


def updated(
    batch: BatchShape, policy: Groups, ranks: int, routes: RoutesShape | None = None, untrained: int = 0
) -> Traffic:
    """`update` on a minibatch; `untrained` rounds of it are of rows without a gradient, run for the record alone."""
    trained, others = training_pass(policy, ranks), forward_pass(policy, ranks)
    total = batch.said + trained.times(batch.rounds - untrained) + others.times(untrained)
    total += sums(1) + columns(batch.rows, batch.width, len(SEEN))
    if routes is not None:
        total += routes.recorded(batch.tokens, routes.replayed, routes.losses)
    return total + sums(1, 1)  # the gradient's norm, and whether it is applied


def valued(batch: BatchShape, critic: Groups, ranks: int) -> Traffic:
    """`values` of the critic."""
    return batch.said + forward_pass(critic, ranks).times(batch.rounds) + columns(batch.rows, batch.width)


def critic_updated(batch: BatchShape, critic: Groups, ranks: int) -> Traffic:
    """`update` of the critic."""
    return batch.said + training_pass(critic, ranks).times(batch.rounds) + sums(2, 1, 1)


def scored(rows: int, tokens: int, batches: int, reward: Groups, ranks: int) -> Traffic:
    """`scores` of a reward model: rows of so many `tokens` all together, of which all ranks run so many batches."""
    numbers = {"tokens": tokens, "length": rows}
    sent = tensor_sizes({name: torch.empty(n, dtype=torch.int64, device="meta") for name, n in numbers.items()})
    said = announced(Message(Verb.SCORES)) + Traffic(sent=sum(sent), calls=len(sent))
    return said + forward_pass(reward, ranks).times(rounds(batches, ranks)) + columns(rows, 1)


def weights_sent(policy: Groups, ranks: int) -> Traffic:
    """`weights`, each gathered on every rank."""
    return announced(Message(Verb.WEIGHTS)) + whole_weights(policy, ranks)


def probed(batch: BatchShape, policy: Groups, ranks: int) -> Traffic:
    """The learner's answer to the probe."""
    return batch.said + forward_pass(policy, ranks).times(batch.rounds) + columns(batch.rows, batch.width)


def total(parts: Sequence[Traffic]) -> Traffic:
    """All of them together."""
    return sum(parts, NOTHING)


def sends(size: float, ranks: int) -> float:
    """Bytes that pass one after another where rank 0 sends so many to all others by a tree: each level sends them once.

    >>> sends(10.0, 2), sends(10.0, 64)
    (10.0, 60.0)
    """
    return size * math.ceil(math.log2(ranks))
