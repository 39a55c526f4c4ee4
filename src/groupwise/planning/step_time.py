"""Estimate of a step's time: amounts of work, each over a constant of the device.

    operations                  / (bf16 or fp32 x reached)
    bytes of memory             / (bandwidth x streamed)
    bytes over the network      / (inside or between x network)
    bytes to engines outside    / host
    layers, one after another   x layer

A piece of work takes the longest of these: the others are hidden behind it. All are of the device that has most to do.
"""

import dataclasses
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from timeit import timeit
from typing import Any

import torch

from groupwise.core.errors import UsageError, nearest
from groupwise.models.moe.record import routers
from groupwise.models.scalar_heads import tokens_at_once
from groupwise.planning.activations import cached_widths
from groupwise.planning.parts import Cuts, PlannedRun
from groupwise.planning.run_shape import MicrobatchSizes, RunShape, microbatch_sizes, minibatch_rows, scored_sizes
from groupwise.planning.shard_groups import GroupedModel, gathered, held_bytes, summed, trained_part
from groupwise.training.ranks.sharded import decoder_layers

#: Numbers that AdamW reads and writes for each of a gradient: weight, gradient and two moments; all but the gradient.
ADAMW = 7
#: The device that is measured.
CPU = "cpu"
#: Rows of the matrices that are multiplied to measure, bytes that are copied, and how often: the quickest counts. After
#: so many seconds there is no other try: a processor without units for 16 bits takes one for a product of them.
MATRIX, COPIED, TRIES, ENOUGH = 1024, 1 << 27, 8, 0.3
GIB = 1 << 30


@dataclass(frozen=True)
class Device:
    """One device of a run: a GPU with its part of the network, or a rank's part of this machine's processor.

    memory           bytes that a rank may hold
    bf16, fp32       operations a second of matrix products, at most
    bandwidth        bytes a second from and to its memory, at most
    inside, between  bytes a second to another device of the same machine, and by its own card to another machine
    machine          devices of a machine
    reached          share of bf16 or fp32 that a pass reaches
    streamed         share of the bandwidth that reading weights and caches reaches
    network          share of inside or between that a collective reaches
    host             bytes a second between two processes, on which weights go to an engine outside of the run
    layer            seconds that a layer takes at least, for each pass over it
    source           where the numbers come from
    """

    name: str
    title: str
    memory: float
    bf16: float
    fp32: float
    bandwidth: float
    inside: float
    between: float
    machine: int
    reached: float
    streamed: float
    network: float
    host: float
    layer: float
    source: str

    def link(self, ranks: int) -> float:
        """Compute the bytes a second that reach each of so many ranks in a collective.

        Rings over several machines enter each of them by all of its network cards, a part of the bytes by each.
        """
        apart = self.machine * self.between if ranks > self.machine else self.inside
        return self.network * min(self.inside, apart)


@dataclass(frozen=True)
class Work:
    """A piece of work, in the amounts above; `bf16` says if its operations are in a type of half the length."""

    operations: float = 0.0
    memory: float = 0.0
    network: float = 0.0
    outside: float = 0.0
    layers: float = 0.0
    bf16: bool = False

    def each(self, device: Device, ranks: int) -> dict[str, float]:
        """Divide each amount by its constant: seconds, by the amount's name."""
        return {
            "operations": self.operations / (device.reached * (device.bf16 if self.bf16 else device.fp32)),
            "memory": self.memory / (device.streamed * device.bandwidth),
            "network": self.network / device.link(ranks),
            "outside": self.outside / device.host,
            "layers": self.layers * device.layer,
        }

    def longest(self, device: Device, ranks: int) -> str:
        """Name the amount that takes the longest."""
        each = self.each(device, ranks)
        return max(each, key=lambda amount: each[amount])

    def seconds(self, device: Device, ranks: int) -> float:
        """Take the longest of all amounts."""
        return max(self.each(device, ranks).values())


@dataclass(frozen=True)
class Phase:
    """A phase of a step: its work, piece after piece, and the seconds that all of it takes."""

    name: str
    work: tuple[Work, ...]
    seconds: float

    def total(self, amount: str) -> float:
        """Add up one amount of all pieces."""
        return sum(getattr(piece, amount) for piece in self.work)


@dataclass(frozen=True)
class Numbers:
    """Counts of a model's weights and channels.

    dense     weights of the layers' matrices that every token goes through
    experts   weights of all experts; chosen  the share of them that a token goes through
    head      weights of the head
    trained   the share of all these that have a gradient
    channels  of the queries in all layers
    cached    numbers of keys and values of a token
    """

    layers: int
    dense: int
    experts: int
    chosen: float
    head: int
    trained: float
    channels: int
    cached: int

    @property
    def of_token(self) -> float:
        """The layers' weights that a token goes through."""
        return self.dense + self.chosen * self.experts

    def forward(self, shape: RunShape, prompts: float, new: float) -> float:
        """Count the operations of a forward pass over so many tokens of prompts and of completions.

        2 a weight and token, of the head for completions alone; 4 a channel and pair of a token and one it attends to.
        """
        pairs = prompts * shape.prompt / 2 + new * (shape.prompt + shape.completion / 2)
        return 2 * (prompts + new) * self.of_token + 2 * new * self.head + 4 * pairs * self.channels

    def read(self, rows: int) -> float:
        """Count the weights that a pass over `rows` tokens reads: of experts those that any of them goes to.

        If each token chooses by itself, all of them leave an expert out with probability (1 - chosen)^rows.
        """
        return self.dense + self.head + self.experts * (1 - (1 - self.chosen) ** rows)


def numbers_of(model: Any) -> Numbers:
    """Count a model without memory; if its routers do not say how many experts they choose, a token goes to all."""
    layers = decoder_layers(model)
    dense, experts = ({id(p): p for m in layers for p in m.parameters() if p.dim() == dim} for dim in (2, 3))
    head, known, config = model.get_output_embeddings().weight, routers(model), model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None) or 1  # a state-space model's configuration names none
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    every = [head, *dense.values(), *experts.values()]
    return Numbers(
        layers=len(layers),
        dense=sum(p.numel() for p in dense.values()),
        experts=sum(p.numel() for p in experts.values()),
        chosen=known[0].chosen / known[0].experts if known else 1.0,
        head=head.numel(),
        trained=sum(p.numel() for p in every if p.requires_grad) / sum(p.numel() for p in every),
        channels=len(layers) * heads * width,
        cached=sum(cached_widths(model)),
    )


def step_phases(run: PlannedRun, cuts: Cuts, device: Device) -> list[Phase]:
    """Estimate the phases of a step, in its order."""
    shape, learner = run.shape, run.learner
    whole = dataclasses.replace(shape, minibatches=1)
    trained = [(run.policy, cuts.learner, learner.shared_prefixes, learner.recompute, shape.annotated)]
    trained += [] if run.critic is None else [(run.critic, cuts.critic, False, False, 1)]
    frozen, updates = [], []
    for model, tokens, line, recompute, times in trained:
        frozen += [passed(model, whole, microbatch_sizes(whole, tokens, line), learner.bf16)] * times
        sizes = microbatch_sizes(shape, tokens, line)
        both = passed(model, shape, sizes, learner.bf16, trains=True, recompute=recompute)
        adamw = Work(memory=ADAMW * trained_part(model.groups.every, shape.ranks))
        updates += [both, adamw] * shape.passes * min(shape.minibatches, shape.prompts)
    parts = {"generate": [sampled(numbers_of(run.base), shape)]}
    if run.reward is not None:
        parts["score"] = [passed(run.reward, whole, scored_sizes(shape, tokens_at_once(run.device)), bf16=False)]
    parts |= {"annotate": frozen, "update": updates, "load weights": [loaded(run.policy, shape)]}
    return [
        Phase(name, tuple(work), sum(piece.seconds(device, shape.ranks) for piece in work))
        for name, work in parts.items()
    ]


def step_seconds(phases: Sequence[Phase], beside: bool) -> float:
    """Add up the phases; `beside` says whether others sample the next batch while this one trains."""
    training = sum(phase.seconds for phase in phases[1:])
    return max(phases[0].seconds, training) if beside else phases[0].seconds + training


def sampled(numbers: Numbers, shape: RunShape) -> Work:
    """Count what a device that samples does: prompts, then completions, as many side by side as there are places.

    Engines that share a device each read the weights for themselves.
    """
    rows, engines = -(-shape.prompts * shape.samples // shape.devices), -(-shape.engines // shape.devices)
    at_once = min(-(-rows // engines), shape.rows)
    steps, new = -(-rows // (engines * at_once)) * shape.completion, rows * shape.completion
    before = shape.prompt + shape.completion / 2
    cache = 0 if shape.uncached else new * before * numbers.cached
    again = new * before if shape.uncached else 0
    return Work(
        operations=numbers.forward(shape, -(-shape.prompts // shape.devices) * shape.prompt + again, new),
        memory=(engines * steps * numbers.read(at_once) + cache) * shape.engine,
        layers=0 if shape.kind.own_layers else engines * steps * numbers.layers,  # those are recorded beforehand
        bf16=shape.engine == 2,
    )


def passed(
    of: GroupedModel, shape: RunShape, sizes: MicrobatchSizes, bf16: bool, trains: bool = False, recompute: bool = False
) -> Work:
    """Count what the rank with most microbatches of a minibatch does, forward and, if it trains, backward.

    For each microbatch weights are gathered, layers again to go backward, and gradients are added up. A backward pass
    is a forward one for what came in and one more for the weights that train.
    """
    numbers, groups, ranks = numbers_of(of.model), of.groups, shape.ranks
    rounds, new = -(-sizes.count // ranks), minibatch_rows(shape) * (shape.completion - 1)
    share = rounds / sizes.count
    moved = gathered(groups.every, ranks)
    if trains:
        moved += sum(gathered(layer, ranks) for layer in groups.layers) + summed(groups.every, ranks)
    return Work(
        operations=numbers.forward(shape, share * (sizes.tokens - new), share * new)
        * (2 + numbers.trained + recompute if trains else 1),
        memory=rounds * moved,
        network=rounds * moved * (ranks - 1) / ranks,  # all but the rank's own part, in a ring
        layers=rounds * numbers.layers * (3 + recompute if trains else 1),
        bf16=bf16,
    )


def loaded(policy: GroupedModel, shape: RunShape) -> Work:
    """Count what brings the weights to the engine: they are gathered, and written or sent."""
    weights = shape.ranks * held_bytes(policy.groups.every, shape.ranks)
    written = 0 if shape.outside else weights + weights // 4 * shape.engine
    return Work(memory=written, network=weights * (shape.ranks - 1) / shape.ranks, outside=weights * shape.outside)


def known_devices() -> list[str]:
    """List the names that `device_of` takes."""
    return [CPU, *(name for name in _table() if name not in (CPU, "assumed"))]


def device_of(name: str, ranks: int, free: int) -> Device:
    """Find the device of that name, of which `ranks` work together; `free` bytes are those of this machine.

    Raises UsageError for a name that no row has, and for a file (NAME.toml) whose keys are not those of a row.
    """
    if name == CPU:
        return _measured(ranks, free)
    if name.endswith(".toml"):
        row = _of_file(Path(name))
    elif name in known_devices():
        row = _table()["assumed"] | _table()[name]
    else:
        raise UsageError(f"--device {name}: {nearest(name, known_devices())}, or a file of constants, NAME.toml")
    return Device(name=name, **(row | {"memory": row["memory"] * GIB}))


def _of_file(path: Path) -> dict[str, Any]:
    try:
        row = {"title": path.stem, "source": str(path), **_table()["assumed"], **tomllib.loads(path.read_text("utf-8"))}
    except (OSError, ValueError) as error:
        raise UsageError(f"--device {path}: cannot be read: {error}") from None
    known = set(Device.__dataclass_fields__) - {"name"}
    if unknown := sorted(set(row) - known):
        raise UsageError(f"--device {path}: {unknown[0]}: {nearest(unknown[0], sorted(known))}")
    for key in sorted(known - {"title", "source"}):
        if type(row.get(key)) not in (int, float) or not row[key] > 0:
            raise UsageError(f"--device {path}: {key}: expected a number above 0, not {row.get(key)!r}")
    return row


def _measured(ranks: int, free: int) -> Device:
    """Measure a rank's part of this machine's processor: its threads, and the memory that all ranks share."""
    row, before = _table()[CPU], torch.get_num_threads()
    threads = max(1, before // ranks)
    one, other = torch.zeros(2, COPIED, dtype=torch.uint8)
    matrices = [torch.rand(MATRIX, MATRIX).to(dtype) for dtype in (torch.float32, torch.bfloat16)]
    tried = [*(partial(torch.mm, a, a) for a in matrices), partial(one.copy_, other)]
    torch.set_num_threads(1)  # two that share their cores with other work would wait for one another
    try:
        fp32, bf16, copied = map(_quickest, tried)
    finally:
        torch.set_num_threads(before)
    return Device(
        name=CPU,
        title=f"{threads} thread{'s' * (threads > 1)} of this machine for each rank",
        memory=free,
        bf16=threads * 2 * MATRIX**3 / bf16,
        fp32=threads * 2 * MATRIX**3 / fp32,
        bandwidth=2 * COPIED / copied,
        inside=row["host"],
        between=row["host"],
        machine=ranks,
        source=f"measured now on one thread: products of {MATRIX} x {MATRIX}, a copy of {COPIED >> 20} MiB",
        **row,
    )


def _quickest(work: Callable[[], object]) -> float:
    """Measure the seconds of the quickest of a few tries."""
    tries = [timeit(work, number=1)]
    while len(tries) < TRIES and sum(tries) < ENOUGH:
        tries.append(timeit(work, number=1))
    return min(tries)


@lru_cache
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("devices.toml").read_text(encoding="utf-8"))
