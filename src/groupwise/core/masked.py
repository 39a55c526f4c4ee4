"""Sums, means and ranges over what is trained and over groups. Masked positions may hold anything, even NaN."""

import torch
from torch import Tensor


def keep(x: Tensor, mask: Tensor) -> Tensor:
    """x where the mask is True, exactly 0 elsewhere, with zero gradient there (NaN does not leak). Same shape."""
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))


def real(x: Tensor) -> Tensor:
    """x in float32 or float64: as it is, or in the default type, at least float32, where it is of whole numbers or half
    precision, which counts to 256 (bfloat16) and adds up wrongly.
    """
    if x.dtype in (torch.float32, torch.float64):
        return x
    return x.to(torch.promote_types(torch.get_default_dtype(), torch.float32))


def row_sum(x: Tensor, mask: Tensor) -> Tensor:
    """[N,T], [N,T] bool -> [N]: sum over the trained tokens of each row."""
    return keep(x, mask).sum(-1)


def row_mean(x: Tensor, mask: Tensor) -> Tensor:
    """[N,T], [N,T] bool -> [N]: mean over the trained tokens of each row; 0 for a row without any.

    >>> row_mean(torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[True, True, False]]))
    tensor([2.])
    """
    return row_sum(x, mask) / mask.sum(-1).clamp(min=1).to(x.dtype)


def begins(mask: Tensor) -> Tensor:
    """[N,T] bool -> [N,T] bool: where a run of trained tokens begins, which is a turn.

    >>> begins(torch.tensor([[True, True, False, True]]))
    tensor([[ True, False, False,  True]])
    """
    return mask & ~torch.nn.functional.pad(mask, (1, 0))[:, :-1]


def by_run(x: Tensor, mask: Tensor, inside: Tensor) -> Tensor:
    """[N,T], the trained tokens [N,T], which of them count [N,T] -> [N,T+1]: the sum over each run of trained tokens.

    A run's number, from 1, is `begins(mask).cumsum(-1)` at its tokens; 0 has none.
    """
    empty = torch.zeros(len(mask), mask.shape[1] + 1, dtype=x.dtype, device=x.device)
    return empty.scatter_add(1, begins(mask).cumsum(-1), keep(x, inside))


def group_ids(group: Tensor) -> tuple[Tensor, int]:
    """Any integer ids in any order [N] -> ids 0..P-1 [N] and P."""
    names, dense = torch.unique(group, return_inverse=True)
    return dense, len(names)


def group_sum(x: Tensor, group: Tensor, groups: int) -> Tensor:
    """[N], dense ids [N] -> [P]: sum over each group."""
    return torch.zeros(groups, dtype=x.dtype, device=x.device).index_add_(0, group, x)


def group_range(x: Tensor, vote: Tensor, group: Tensor, groups: int) -> Tensor:
    """[N], [N] bool, dense ids [N] -> [P]: largest minus smallest over the votes; 0 without votes."""
    low = torch.full((groups,), torch.inf, dtype=x.dtype, device=x.device)
    high = -low
    low = low.scatter_reduce(0, group, torch.where(vote, x, torch.inf), "amin")
    high = high.scatter_reduce(0, group, torch.where(vote, x, -torch.inf), "amax")
    return torch.where(high >= low, high - low, torch.zeros_like(low))


#: What `whiten` adds to an equation.
WHITENED = ";  then (A - mean A) / std A over the batch where whiten"


def whiten(x: Tensor, mask: Tensor) -> Tensor:
    """(x - mean) / sqrt(variance + 1e-8) over the trained tokens of all rows, 0 where masked. [N,T] -> [N,T].

    The variance is the unbiased one. Fewer than two trained tokens have none and stay as they are.

    >>> whiten(torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[True, True, False]]))
    tensor([[-0.7071,  0.7071,  0.0000]])
    """
    count = int(mask.sum())
    if count < 2:
        return keep(x, mask)
    centred = keep(x - keep(x, mask).sum() / count, mask)
    return centred * torch.rsqrt(centred.square().sum() / (count - 1) + 1e-8)
