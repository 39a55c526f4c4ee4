"""Random groups of episodes for the laws: the same turns of the policy's, and between them whatever one likes."""

from __future__ import annotations

import random

import torch

from groupwise.core.environment import EpisodeTurn
from groupwise.core.records import Batch, Completion, Group, Prompt, Span
from groupwise.core.samples import Sample


def episodes(seed: int, between: int, groups: int = 3, size: int = 4) -> list[Group]:
    """`seed` draws what the policy says and earns, `between` what the environment says: from 1 token to 4 after a turn.

    Some episodes have no score. After a last turn the environment may be silent.
    """
    own, other = random.Random(seed), random.Random(between)
    return [
        Group(
            Prompt(Sample(f"{g}", "p", "a"), (2, 3, 4)[: 1 + g % 3]),
            tuple(_episode(own, other, scored=i != own.randrange(size)) for i in range(size)),
        )
        for g in range(groups)
    ]


def _episode(own: random.Random, other: random.Random, scored: bool) -> Completion:
    tokens: list[int] = []
    logp: list[float] = []
    spans: list[Span] = []
    turns: list[EpisodeTurn] = []
    count = own.randint(1, 4)
    for turn in range(count):
        said = [own.randint(5, 9) for _ in range(own.randint(1, 3))]
        spans.append(Span(len(tokens), len(tokens) + len(said), True, 0))
        tokens += said
        logp += [-3 * own.random() for _ in said]
        turns.append(EpisodeTurn(len(tokens), own.choice((0.0, 0.25, 1.0)), own.choice(("a", "b", ""))))
        answer = [other.randint(10, 99) for _ in range(other.randint(int(turn + 1 < count), 4))]
        if answer:
            spans.append(Span(len(tokens), len(tokens) + len(answer), False, 0))
            tokens += answer
            logp += [0.0] * len(answer)
    return Completion(
        tuple(tokens),
        tuple(logp),
        "stop",
        tuple(spans),
        score=sum(turn.reward for turn in turns) if scored else float("nan"),
        steps=tuple((turn.stop - 1, turn.reward) for turn in turns),
        turns=tuple(turns),
    )


def said(groups: list[Group]) -> torch.Tensor:
    """How many tokens the policy said in all scored episodes, as a column to draw numbers for."""
    return torch.empty(sum(c.length for g in groups for c in g.completions if c.score == c.score), dtype=torch.float64)


def placed(batch: Batch, values: torch.Tensor, elsewhere: float) -> torch.Tensor:
    """Numbers of the trained tokens, in order -> [N,T], with any number at the others."""
    column = torch.full(batch.mask.shape, elsewhere, dtype=torch.float64)
    column[batch.mask] = values
    return column
