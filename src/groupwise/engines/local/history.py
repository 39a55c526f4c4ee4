"""Which ids each row has had, for a sampling that makes them less likely to come again."""

from collections.abc import Sequence

import torch
from torch import Tensor


class History:
    """`had` [R,V] bool: the ids of each live row's prompt, and those it has drawn."""

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        self.had = torch.zeros(0, vocabulary, dtype=torch.bool, device=device)

    def admit(self, prompts: Sequence[tuple[int, ...]], counts: Sequence[int]) -> None:
        """New rows behind the others: `counts` of them after each prompt."""
        new = self.had.new_zeros(len(prompts), self.had.shape[1])
        for row, tokens in zip(new, prompts, strict=True):
            row[list(set(tokens))] = True
        repeats = torch.tensor(counts, device=new.device)
        self.had = torch.cat([self.had, new.repeat_interleave(repeats, 0)])

    def add(self, tokens: Tensor) -> None:
        """[R] what each row has drawn."""
        self.had.scatter_(1, tokens[:, None], True)

    def move(self, to: Tensor, origin: Tensor, rows: int) -> None:
        """Copy rows `origin` over rows `to`, and keep the first `rows`."""
        self.had[to] = self.had[origin]
        self.had = self.had[:rows]
