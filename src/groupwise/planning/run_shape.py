"""Sizes of a run that its memory and its time depend on, beside the model; and the microbatches of its updates.

Prompts and completions are all taken to be as long as they may be.
"""

from bisect import bisect_right
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from groupwise.core.collate import microbatches
from groupwise.core.prefixes import prefix_microbatches, prompt_keys
from groupwise.engines.kinds import LOCAL, EngineKind, Sleep
from groupwise.planning.activations import Computation, Rows

#: Microbatches that are laid out to find the largest.
ENOUGH = 4


@dataclass(frozen=True)
class RunShape:
    """The sizes of a run that its memory and its time depend on, beside the model.

    prompts, samples    of a step
    minibatches         of a batch
    passes              over a batch
    annotated           passes of the policy's size over a batch before its updates: of the old policy, of a reference
    prompt, completion  tokens, at most
    rows                completions that an engine samples side by side
    truncates, adjusts  whether sampling ranks ids, to leave some out or keep the likeliest, and whether it changes
                        logits
    engine, reference   bytes of a weight of the engine's copy, and of the frozen one's; 0 where there is none
    reward_model        whether a reward model is held, which is of the policy's size
    engines             how many engines there are
    devices             how many devices they sample on
    in_files            models that rank 0 does not have whole at the start: "policy", "reference", "critic"; those of a
                        mixture of experts it has all the same, because files have each expert by itself
    beside              of these engines, how many are on the GPU of rank 0, and how many at most on that of another
                        rank; None: all are with rank 0
    outside             whether they have processes of their own: libraries once more, and the weights on their way
    elsewhere           whether that is on another machine: then the weights on their way are all that is here
    ahead               whether a batch is sampled while another trains
    held                completions whose keys and values are held between the turns of their episodes
    kind                what is known of the engine
    max_rows            completions that it may sample side by side
    cache_mib           of its cache, if the recipe says it
    sleep               engine.sleep
    memory_share        of the device, that the engine takes in all, if the recipe says it
    ranks               processes that hold the policy together; on a CPU all of one machine
    top, engine_top     likely ids, the reference's and the engine's, that each token has in columns, 8 bytes each
    offloaded           models that are on the host while they are not used: "reference", "critic", "reward model"
    uncached            why each step of the engine runs whole texts; "" where it runs one token of each row
    """

    prompts: int
    samples: int
    minibatches: int
    prompt: int
    completion: int
    rows: int
    truncates: bool
    adjusts: bool
    engine: int
    reference: int
    reward_model: bool
    engines: int = 1
    outside: bool = False
    elsewhere: bool = False
    ahead: bool = False
    held: int = 0
    kind: EngineKind = LOCAL
    max_rows: int = 0
    cache_mib: int | None = None
    sleep: Sleep = "auto"
    memory_share: float | None = None
    ranks: int = 1
    top: int = 0
    engine_top: int = 0
    passes: int = 1
    annotated: int = 0
    devices: int = 1
    offloaded: frozenset[str] = frozenset()
    in_files: frozenset[str] = frozenset()
    beside: tuple[int, int] | None = None
    uncached: str = ""

    def engines_of(self, rank: int) -> int:
        """Count the engines that share a rank's memory; rank 1 stands for all others."""
        return self.beside[rank > 0] if self.beside else self.engines * (rank == 0)


def microbatch_rows(shape: RunShape, tokens: int, line: bool) -> list[Rows]:
    """Lay out the first microbatches of a minibatch whose prompts and completions are all as long as they may be."""
    # Rows are equal, so that the next microbatches are like these.
    count = min(minibatch_rows(shape), ENOUGH * (tokens // shape.completion + 1))
    length = torch.full((count,), shape.prompt + shape.completion)
    family = torch.arange(count) // shape.samples
    if line:
        parts = prefix_microbatches(prompt_keys(family, shape.prompt, shape.completion), length, tokens)
    else:
        parts = microbatches(length, tokens)
    of_each = (family[part].unique(return_counts=True)[1] if line else torch.tensor([len(part)]) for part in parts)
    return [Rows(tuple(counts.tolist()), shape.prompt, shape.completion) for counts in of_each]


def extremes(every: list[Rows], model: Any, how: Computation) -> list[Rows]:
    """Find the largest microbatch, and the largest whose log-probabilities are held, where that is another."""
    vocabulary = model.get_output_embeddings().out_features
    holding = [rows for rows in every if sum(rows.completions) * rows.completion * vocabulary <= how.held_elements]
    return list(dict.fromkeys([every[0], *holding[:1]]))


def minibatch_rows(shape: RunShape) -> int:
    """Count the completions of the largest minibatch, which has whole groups."""
    return -(-shape.prompts // shape.minibatches) * shape.samples


@dataclass(frozen=True)
class MicrobatchSizes:
    """Sizes of the microbatches of a minibatch.

    count    how many there are
    tokens   that all of them run; a prompt once in each microbatch that has completions of it
    largest  tokens of the largest
    """

    count: int
    tokens: int
    largest: int


def microbatch_sizes(shape: RunShape, tokens: int, line: bool) -> MicrobatchSizes:
    """Count the microbatches of a minibatch: what `prefix_microbatches` and `microbatches` make of rows of one length.

    n rows of which the first is the j-th of its group, from 0, run in one line
    P (1 + (j + n - 1) // G) + n (C - 1) tokens, with P of a prompt, C of a completion and G completions in a group.
    """
    rows, prompt, group = minibatch_rows(shape), shape.prompt, shape.samples
    new = shape.completion - 1  # the last token of a row is not run
    if not line:
        of_each = max(1, tokens // (prompt + shape.completion))
        return MicrobatchSizes(-(-rows // of_each), rows * (prompt + new), min(rows, of_each) * (prompt + new))

    def size(place: int, n: int) -> int:
        return prompt * (1 + (place + n - 1) // group) + n * new

    row = count = total = largest = 0
    seen: dict[int, tuple[int, int, int]] = {}
    while row < rows:
        place = row % group
        if place in seen:  # all goes on as it went from there: as many whole rounds as are left, at once
            was = seen[place]
            again = (rows - row) // (row - was[0])
            row, count, total = (a + again * (a - b) for a, b in zip((row, count, total), was, strict=True))
            seen = {}
            continue
        seen[place] = (row, count, total)
        n = max(1, bisect_right(range(1, rows - row + 1), tokens, key=partial(size, place)))
        row, count, total, largest = row + n, count + 1, total + size(place, n), max(largest, size(place, n))
    return MicrobatchSizes(count, total, largest)


def scored_sizes(shape: RunShape, tokens: int) -> MicrobatchSizes:
    """Count the batches of a step's rows that a reward model scores, of at most so many tokens each."""
    rows, length = shape.prompts * shape.samples, shape.prompt + shape.completion
    of_each = min(rows, max(1, tokens // length))
    return MicrobatchSizes(-(-rows // of_each), rows * length, of_each * length)
