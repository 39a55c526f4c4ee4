"""Small policies whose expectations can be written out in full: every sequence is enumerated."""

from itertools import product

import torch
from torch import Tensor


def sequences(vocabulary: int, length: int) -> Tensor:
    """Every sequence of `length` tokens, [vocabulary ** length, length]."""
    return torch.tensor(list(product(range(vocabulary), repeat=length)))


class Markov:
    """A policy over `vocabulary` tokens whose next token depends on the last one: logits [V+1,V], row V at the start."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    @classmethod
    def drawn(cls, seed: int, vocabulary: int, spread: float = 1.0) -> "Markov":
        """Logits from a normal distribution of that deviation, in float64."""
        numbers = torch.Generator().manual_seed(seed)
        return cls(spread * torch.randn(vocabulary + 1, vocabulary, generator=numbers, dtype=torch.float64))

    def moved(self, seed: int, size: float) -> "Markov":
        """Another policy nearby."""
        return Markov(self.logits + Markov.drawn(seed, self.logits.shape[1], size).logits)

    def logprobs(self, tokens: Tensor) -> Tensor:
        """[N,T] nats of each token given the one before."""
        start = torch.full_like(tokens[:, :1], self.logits.shape[1])
        before = torch.cat([start, tokens[:, :-1]], 1)
        return self.logits.log_softmax(-1)[before, tokens]
