"""An estimate of a step's seconds, by phase, from operations, bytes, and what a device does in a second.

computing   operations / (bf16 or fp32 x reached) + layers x layer
passing     bytes / (network x inside, or the cards of a machine) + collectives x call + what rank 0 sends / host
a phase     the larger of computing and the weights' and gradients' passing where the device overlaps them, else both
sampling    for each token of a completion the larger of (weights + keys and values) / (bandwidth x sampling) and its
            operations; and the prompts' operations
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from groupwise.planning.devices import Device
from groupwise.planning.run_shape import RunShape
from groupwise.planning.traffic import Traffic, sends
from groupwise.planning.work import Work

#: What AdamW reads and writes for each number of a gradient: weight, gradient and two moments; all but the gradient.
ADAMW = 7


@dataclass(frozen=True)
class Phase:
    """A part of a step.

    computing  seconds of one rank; of sampling those of one engine
    passing    seconds in which weights, gradients, columns and the batch pass, beside what they share with computing
    operations of all ranks together
    """

    name: str
    computing: float
    passing: float = 0.0
    operations: float = 0.0

    @property
    def seconds(self) -> float:
        """Both, one after the other."""
        return self.computing + self.passing

    def times(self, count: int) -> "Phase":
        """So many of them, one after another."""
        return Phase(self.name, count * self.computing, count * self.passing, count * self.operations)


def passing(traffic: Traffic, ranks: int, device: Device) -> float:
    """Seconds of everything that passes, where nothing is computed meanwhile.

    What each rank gets over its own connection is as `Traffic.received` has it; gradients twice with `doubled`.
    """
    if ranks == 1:
        return 0.0
    twice = replace(traffic, scattered=traffic.scattered * (1 + device.doubled), sent=0)
    return (
        twice.received(ranks) / device.link(ranks)
        + traffic.calls * device.call
        + sends(traffic.sent, ranks) / device.host
    )


def phase(name: str, computing: float, traffic: Traffic, ranks: int, device: Device, operations: float = 0.0) -> Phase:
    """A phase in which a rank computes so many seconds and this much passes."""
    apart = replace(traffic, gathered=0, scattered=0, calls=0)
    beside = passing(replace(traffic, joined=0, sent=0), ranks, device)
    exposed = max(0.0, beside - computing) if device.overlaps else beside
    return Phase(name, computing, exposed + passing(apart, ranks, device), operations)


@dataclass(frozen=True)
class Tokens:
    """What a pass over rows of equal length runs.

    tokens     of the rank that runs most
    every      of all ranks
    pairs      of a token and one that it attends to, a token of the rows
    predicted  share of the tokens from which one is predicted
    """

    tokens: int
    every: int
    pairs: float
    predicted: float


def tokens_of(shape: RunShape, busiest: int, every: int, line: bool) -> Tokens:
    """With P of a prompt, C of a completion, G completions of a prompt: a group's pairs are P^2 / 2 + G (P C + C^2 / 2)
    where its prompt is run once, over P + G C tokens; else each row's (P + C)^2 / 2 over P + C.
    """
    p, c, g = shape.prompt, shape.completion, shape.samples
    if line:
        pairs, tokens, predicted = p * p / 2 + g * (p * c + c * c / 2), p + g * c, g * c
    else:
        pairs, tokens, predicted = (p + c) ** 2 / 2, p + c, c
    return Tokens(busiest, every, pairs / tokens, predicted / tokens)


def forward_seconds(work: Work, tokens: Tokens, rounds: int, device: Device, bf16: bool) -> tuple[float, float]:
    """Of the rank that runs most; and the operations of all ranks."""
    own, every = (work.forward(n, n * tokens.pairs, n * tokens.predicted) for n in (tokens.tokens, tokens.every))
    return own / device.speed(bf16) + rounds * work.layers * device.layer, every


def training_seconds(
    work: Work, tokens: Tokens, rounds: int, device: Device, bf16: bool, recompute: bool, trains_head: bool
) -> tuple[float, float]:
    """The same, forward and backward; a layer's backward pass takes at least as long as two forward."""
    own, every = (
        work.training(n, n * tokens.pairs, n * tokens.predicted, recompute, trains_head)
        for n in (tokens.tokens, tokens.every)
    )
    return own / device.speed(bf16) + rounds * work.layers * device.layer * (3 + recompute), every


def optimizer_seconds(gradients: int, device: Device) -> float:
    """AdamW on a rank whose gradients are so many bytes, read and written as fast as its memory goes."""
    return ADAMW * gradients / device.bandwidth


@dataclass(frozen=True)
class Sampling:
    """How a step's completions are sampled.

    devices   that sample, each an equal share of the completions
    engines   that share a device: each reads weights of its own, and they take turns at its memory and its units
    at_once   completions side by side in each engine
    launches  whether a layer takes the least that it takes, as it does where it is not recorded beforehand
    """

    devices: int
    engines: int
    at_once: int
    launches: bool


def sampling_seconds(work: Work, shape: RunShape, how: Sampling, device: Device) -> Phase:
    """Of each device that samples: its prompts, and then its completions, as many side by side as it may."""
    rows = -(-shape.prompts * shape.samples // how.devices)
    of_engine = -(-rows // how.engines)
    at_once, speed = min(of_engine, how.at_once), device.speed(shape.engine == 2)
    context = shape.prompt + shape.completion / 2
    of_row = work.token + work.head + context * work.pair
    read = how.engines * (work.read(at_once) + at_once * context * work.cached) * shape.engine
    token = max(read / (device.bandwidth * device.sampling), how.engines * at_once * of_row / speed)
    token += how.launches * how.engines * work.layers * device.layer
    prompts = -(-shape.prompts // how.devices) * shape.prompt
    before = work.forward(prompts, prompts * shape.prompt / 2, 0)
    seconds = before / speed + -(-of_engine // at_once) * shape.completion * token
    return Phase("generate", seconds, 0.0, how.devices * (before + rows * shape.completion * of_row))


def loading_seconds(weights: int, shape: RunShape, device: Device) -> float:
    """The engines' copies are written anew: inside in memory, else on their way between two processors."""
    written = weights // 4 * shape.engine
    return weights / device.host if shape.outside else (weights + written) / device.bandwidth


def step_seconds(phases: Sequence[Phase], beside: bool) -> float:
    """One phase after another; `beside`: the next batch is sampled, by others' hands, while this one trains."""
    training = sum(phase.seconds for phase in phases[1:])
    return max(phases[0].seconds, training) if beside else phases[0].seconds + training
