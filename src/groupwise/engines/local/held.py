"""Keys and values of completions that a later call may go on from, as the next turn of an episode does.

While a call samples, what its completions leave in the cache is copied out as their rows go; the next call looks its
requests up by their ids, so that a request never goes on from what is not its own. What is held takes

    tokens x layers x 2 x key-value heads x head size x bytes of a number

for the tokens of all held sequences, prompts counted once for each completion: as much as the cache has for these rows.
It lives until every request of the next call has begun, so that two calls' tokens lie in memory at most. Keys are
stored as they were turned to their positions, which moving to other columns does not change.

Shapes: T held tokens of all sequences, P prompts, H key-value heads, D head size, W tokens of the longest prompt, of
which the last B are run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from groupwise.core.engine import Request
from groupwise.core.records import Completion
from groupwise.engines.local.cache import RowCache


class Place(NamedTuple):
    """Where a sequence is held: tokens `first` to `first + length`; `routes` [length,L,K] where there are any."""

    first: int
    length: int
    routes: Tensor | None


class Before(NamedTuple):
    """What lies before the tokens of P prompts that are run.

    memory  per layer keys, then values, [P,H,W-B,D], so that every prompt ends in column W
    places  of the prompts
    """

    memory: list[Tensor]
    places: Sequence[Place]


@dataclass(frozen=True)
class Held:
    """Sequences of the call before.

    memory  per layer keys, then values, [T,H,D]
    places  prompt and completion -> where they are; the last token has not been run, so it has none
    """

    memory: list[Tensor] = field(default_factory=list)
    places: Mapping[tuple[int, ...], Place] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of keys and values."""
        return sum(m.nbytes for m in self.memory)

    def place(self, request: Request) -> Place | None:
        """Where the request's first tokens are; None where they are not, whatever the request says."""
        return self.places.get(request.tokens[: request.held]) if request.held else None

    def before(self, prompts: Sequence[tuple[int, ...]], places: Sequence[Place]) -> Before:
        """What need not be run of prompts that begin at these places.

        B is the most that a prompt has new: others run some of their held tokens again, in the place of padding.
        """
        length = torch.tensor([len(prompt) for prompt in prompts])
        first, ran = (torch.tensor([place[i] for place in places]) for i in (0, 1))
        width = int(length.max())
        # A column that lies before a prompt has any token of it: the mask hides it.
        token = (torch.arange(width - int((length - ran).max())) - (width - length)[:, None]).clamp_(min=0)
        index = (first[:, None] + token).to(self.memory[0].device)
        memory = [m.index_select(0, index.flatten()).unflatten(0, index.shape).transpose(1, 2) for m in self.memory]
        return Before(memory, places)


class Holding:
    """What a call's completions leave, copied out as they end. `wanted` says of each completion whether to hold it."""

    def __init__(self, wanted: Sequence[bool], device: torch.device) -> None:
        self._wanted = torch.tensor(wanted, device=device)
        # Of each time that rows went: per layer keys, then values, [tokens,H,D]; the completions, and tokens of each.
        self._parts: list[list[Tensor]] = []
        self._slots: list[int] = []
        self._lengths: list[int] = []

    def take(self, cache: RowCache, rows: Tensor, slots: Tensor, ends: Tensor) -> None:
        """Rows [n] of the cache, completions `slots`, are about to go; their last token has the column `ends`."""
        wanted = self._wanted[slots]
        if not wanted.any():
            return
        memory, length = cache.tokens(rows[wanted], ends[wanted])
        self._parts.append(memory)
        self._slots += slots[wanted].tolist()
        self._lengths += length.tolist()

    def held(self, requests: Sequence[Request], completions: Sequence[Completion]) -> Held:
        """The sequences that are held; both are in the order of the completions."""
        places, first = {}, 0
        for slot, length in zip(self._slots, self._lengths, strict=True):
            done = completions[slot]
            places[requests[slot].tokens + done.tokens] = Place(first, length, done.routes)
            first += length
        layers = [list(layer) for layer in zip(*self._parts, strict=True)]
        self._parts.clear()
        # One layer after the other, whose parts are let go then.
        return Held([torch.cat(layers.pop(0)) for _ in range(len(layers))], places)
