"""Keys and values of completions that have ended, for requests that go on from them: the earlier turns of an episode.

A completion's last token has been drawn but not run, so what is held ends before it. A request that goes on runs that
token and what came behind it:

    turn t       p p p p a a a         p prompt, a sampled
    held         p p p p a a
    turn t + 1   p p p p a a|a o o     o the environment's; what is behind the bar is run

Keys are held after their rotation: they are right at their positions, in whatever columns they are put. What is held
takes, beside the cache of the call that goes on from it,

    tokens of the sequences x layers x 2 x key-value heads x head size x bytes of a number
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from groupwise.core.engine import Request


@dataclass(frozen=True)
class Held:
    """What was computed for a sequence of T tokens, under the weights that the engine has.

    tokens  T ids
    memory  of each layer the keys, then the values, [H,T,D]: H key-value heads, D head size
    routes  [T,L,K] on the CPU, the experts chosen; None if routes are not asked for
    """

    tokens: tuple[int, ...]
    memory: tuple[Tensor, ...]
    routes: Tensor | None = None


class Store:
    """What is held, by its ids."""

    def __init__(self) -> None:
        self._by_tokens: dict[tuple[int, ...], Held] = {}

    def __len__(self) -> int:
        return len(self._by_tokens)

    def add(self, sequence: Held) -> None:
        """Hold it, in place of one of the same ids."""
        self._by_tokens[sequence.tokens] = sequence

    def before(self, request: Request) -> Held | None:
        """Return what is held of the request's first `held` tokens, all but the last; None if it is not there."""
        return self._by_tokens.get(request.tokens[: request.held - 1]) if request.held else None


def first_tokens(sequences: Sequence[Held], counts: Sequence[int]) -> list[Tensor]:
    """Join, of each layer, the keys, then the values, of the first counts[i] tokens of each sequence, [P,H,W,D].

    W is the largest count; fewer are padded with zeros on the left.
    """
    layers = zip(*(sequence.memory for sequence in sequences), strict=True)
    return [
        pad_sequence(
            [tensor[:, :count].transpose(0, 1) for tensor, count in zip(layer, counts, strict=True)],
            batch_first=True,
            padding_side="left",
        ).transpose(1, 2)
        for layer in layers
    ]


def routes_after(sequences: Sequence[Held], routes: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the routes of whole prompts: what is held of each, [T,L,K], and its new tokens' from the last of
    routes[i].
    """
    joined = []
    for sequence, last in zip(sequences, routes, strict=True):
        assert sequence.routes is not None, "an engine records routes always or never"
        joined.append(torch.cat([sequence.routes, last]))
    return tuple(joined)
