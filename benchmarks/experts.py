"""Time of transformers' expert implementations, for the learner and for an engine step: python benchmarks/experts.py

tiny-moe and a wider model, with random weights. Learner: forward and backward of a mean log-probability over rows of 16
tokens. Engine: one token for each row after 16 cached ones, from a recording where the implementation allows one (see
engines/local/forward.py). All compute the same: the largest difference of a log-probability to "eager" is the last
column. The implementations take turns; milliseconds, medians. "-" is where batched_mm would copy over 1 GiB of weights
at once.
"""

from __future__ import annotations

import copy
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from groupwise.engines.local.columns import ONE_KIND
from groupwise.engines.local.forward import ATTENTION, Step
from groupwise.models.load import load_policy
from groupwise.models.tiny import MoeSpec

KINDS = ("eager", "batched_mm", "grouped_mm")
LENGTH = 16
MOST_COPIED = 2**30
ALPHABET = "0123456789+-="
SPECS = {
    "tiny-moe": MoeSpec(),
    "width 256, 4 of 32 experts": MoeSpec(width=256, heads=8, kv_heads=8, head_dim=32, experts=32, chosen=4),
}
# What is timed, by the name of its implementation; and how far the log-probabilities are apart, nats.
Sides = tuple[dict[str, Callable[[], object]], float]


def main() -> None:
    """Print both tables."""
    print(f"{platform.machine()}, {torch.get_num_threads()} threads; Python {platform.python_version()}, ", end="")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    print(f"command: python {' '.join(sys.argv)}")
    table("learner, tokens", learner, (512, 4096, 8192), runs=5)
    table("engine step, rows", engine, (8, 64, 512), runs=25)


def table(title: str, prepare: Callable[[Any, int], Sides], sizes: tuple[int, ...], runs: int) -> None:
    """One table: a line for each model and size."""
    print(f"\n| {title} | model | {' | '.join(KINDS)} | largest difference |\n{'|---' * (3 + len(KINDS))}|")
    for name, spec in SPECS.items():
        for size in sizes:
            sides, apart = prepare(build(spec), size)
            times = dict(zip(sides, in_turns(list(sides.values()), runs), strict=True))
            told = " | ".join(f"{1000 * times[kind]:.1f}" if kind in times else "-" for kind in KINDS)
            print(f"| {size:,} | {name} | {told} | {apart:.0e} |", flush=True)


def build(spec: MoeSpec) -> Any:
    """The spec's model, loaded from a folder like any other."""
    with tempfile.TemporaryDirectory() as folder:
        spec.build(ALPHABET, Path(folder), seed=0)
        return load_policy(Path(folder)).model


def learner(model: Any, tokens: int) -> Sides:
    """Forward and backward over `tokens` tokens."""
    ids = torch.randint(2, 15, (tokens // LENGTH, LENGTH), generator=torch.Generator().manual_seed(0))
    kinds = affordable(model, tokens)
    with torch.no_grad():
        found = [logp(model, ids, kind) for kind in kinds]
    return {kind: partial(update, model, ids, kind) for kind in kinds}, apart(found)


def affordable(model: Any, tokens: int) -> list[str]:
    """The implementations that fit into memory."""
    config = model.config
    copied = 4 * tokens * config.num_experts_per_tok * 2 * config.moe_intermediate_size * config.hidden_size
    return [kind for kind in KINDS if kind != "batched_mm" or copied <= MOST_COPIED]


def logp(model: Any, ids: Tensor, kind: str) -> Tensor:
    """Log-probabilities of the tokens, nats."""
    model.set_experts_implementation(kind)
    found = model(input_ids=ids, use_cache=False).logits[:, :-1].log_softmax(-1)
    return found.gather(-1, ids[:, 1:, None])


def update(model: Any, ids: Tensor, kind: str) -> None:
    """What the learner does with a microbatch."""
    logp(model, ids, kind).mean().backward()
    model.zero_grad(set_to_none=True)


def engine(model: Any, rows: int) -> Sides:
    """One token for each of `rows` rows."""
    config, noise = model.config, torch.Generator().manual_seed(0)
    shape = (rows, config.num_key_value_heads, LENGTH + 1, config.head_dim)
    memory = [torch.randn(shape, generator=noise) for _ in range(2 * config.num_hidden_layers)]
    views = [view for part in memory for view in (part[:, :, -1:], part)]
    inputs = (torch.arange(rows)[:, None] % 13 + 2, torch.full((1, 1), LENGTH), (), views)
    sides = {}
    for kind in KINDS:
        own = copy.deepcopy(model).requires_grad_(False)
        own.set_attn_implementation(ATTENTION)
        own.set_experts_implementation(kind)
        sides[kind] = partial(Step(own, ONE_KIND), *inputs)
    with torch.inference_mode():
        found = [side()[0].log_softmax(-1) for side in sides.values()]
    return {kind: partial(quietly, side) for kind, side in sides.items()}, apart(found)


def quietly(step: Callable[[], object]) -> None:
    """One step as the engine runs it."""
    with torch.inference_mode():
        step()


def apart(found: list[Tensor]) -> float:
    """The largest difference to the first, nats."""
    return max(float((other - found[0]).abs().max()) for other in found[1:])


def in_turns(sides: list[Callable[[], object]], runs: int) -> list[float]:
    """Median seconds of each; the first round warms up."""
    rounds = [[timed(side) for side in sides] for _ in range(runs + 1)][1:]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
