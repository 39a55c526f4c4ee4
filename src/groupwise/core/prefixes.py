"""Prefixes that rows of tokens have in common: a prompt, the opening of two completions.

A causal model computes a token from what precedes it, so that tokens that end the same prefix are one computation.
"""

import numpy as np
import torch
from torch import Tensor


def prefix_order(keys: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Sort rows by keys [n,T] >= 0, of length [n] -> their order [n], and what each shares with the one before [n].

    Keys are tokens, or numbers that tell apart what else a computation depends on. What a row has in common with any
    row before it in this order, it has in common with the one just before.

    >>> order, shared = prefix_order(torch.tensor([[7, 7, 1, 0], [7, 7, 2, 4], [3, 0, 0, 0], [7, 7, 2, 5]]),
    ...                              torch.tensor([3, 4, 1, 4]))
    >>> order.tolist(), shared.tolist()
    ([2, 0, 1, 3], [0, 0, 2, 3])
    """
    table, lengths = keys.numpy(), length.numpy()
    words = [row[:n].tobytes() for row, n in zip(table.astype(">i8"), lengths, strict=True)]  # bytes in numbers' order
    order = np.array(sorted(range(len(words)), key=words.__getitem__), dtype=np.int64)
    table, lengths = table[order], lengths[order]
    both = np.minimum(lengths[1:], lengths[:-1])[:, None]
    same = (table[1:] == table[:-1]) & (np.arange(table.shape[1]) < both)
    shared = np.zeros(len(order), dtype=np.int64)
    shared[1:] = np.logical_and.accumulate(same, axis=1).sum(1)
    return torch.from_numpy(order), torch.from_numpy(shared)


def prefix_microbatches(keys: Tensor, length: Tensor, tokens: int) -> list[Tensor]:
    """Cut rows in prefix order: keys [N,T], row lengths [N] -> row indices of each microbatch, the largest first.

    A microbatch computes at most `tokens` tokens, each prefix once; a row beyond that is a microbatch of its own. The
    last token of a row is not computed: nothing is predicted from it.

    >>> keys = torch.tensor([[7, 7, 1, 1], [7, 7, 2, 2], [7, 7, 3, 3]])
    >>> [part.tolist() for part in prefix_microbatches(keys, torch.tensor([4, 4, 4]), 4)]
    [[0, 1], [2]]
    """
    run = (length - 1).clamp(min=0)
    order, shared = prefix_order(keys, run)
    parts: list[list[int]] = []
    sizes: list[int] = []
    for row, whole, common in zip(order.tolist(), run[order].tolist(), shared.tolist(), strict=True):
        if parts and sizes[-1] + whole - common <= tokens:
            parts[-1].append(row)
            sizes[-1] += whole - common
        else:
            parts.append([row])
            sizes.append(whole)
    largest_first = sorted(range(len(parts)), key=lambda part: -sizes[part])
    return [torch.tensor(parts[part]) for part in largest_first]


def prompt_keys(family: Tensor, prompt: int, completion: int) -> Tensor:
    """family [n] from 0 -> keys [n,prompt+completion] of rows that share the prompt of their family, and nothing else.

    >>> prompt_keys(torch.tensor([0, 0, 1]), prompt=2, completion=1).tolist()
    [[0, 0, 3], [0, 0, 4], [1, 1, 5]]
    """
    own = len(family) + torch.arange(len(family))
    return torch.cat([family[:, None].expand(-1, prompt), own[:, None].expand(-1, completion)], dim=1)
