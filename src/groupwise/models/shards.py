"""A parameter of which each rank holds a part: gathered whole, and set from a whole one.

An ordinary tensor is whole already, so callers need not know whether a model is sharded.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor


def unsharded(x: Tensor) -> Tensor:
    """Return all of a tensor, without gradient. If it is in shards, every rank has to call this at the same point."""
    x = x.detach()
    return x.full_tensor() if isinstance(x, DTensor) else x


def own_part(x: Tensor) -> Tensor:
    """Return what this rank holds of a tensor: a view, which may be empty."""
    return x.to_local() if isinstance(x, DTensor) else x


@torch.no_grad()
def set_unsharded(x: Tensor, values: Tensor) -> None:
    """Set a tensor from all of its numbers, which every rank has; nothing is sent."""
    x.copy_(parted_like(values, x))


def parted_like(values: Tensor, x: Tensor) -> Tensor:
    """Map all of a tensor, which every rank has -> the same on x's device and in parts as x is; nothing is sent."""
    values = values.to(x.device)
    if not isinstance(x, DTensor):
        return values
    return distribute_tensor(values, x.device_mesh, x.placements, src_data_rank=None)


def first_rows(x: DTensor) -> tuple[int, ...]:
    """Tell where the rows of each rank begin, and behind them how many rows there are, as torch.chunk deals them."""
    return dealt_rows(x.shape[0], x.device_mesh.size())


def dealt_rows(rows: int, ranks: int) -> tuple[int, ...]:
    """Deal so many rows to ranks: all but the last ones have as many.

    >>> dealt_rows(15, 2), dealt_rows(5, 4)
    ((0, 8, 15), (0, 2, 4, 5, 5))
    """
    each = -(-rows // ranks)
    return tuple(min(rank * each, rows) for rank in range(ranks + 1))


def with_own_part(x: DTensor, own: Tensor) -> DTensor:
    """Return a tensor in parts as x is, of which this rank holds `own`; nothing is sent.

    Raises ValueError if this rank holds another number of rows of x.
    """
    if own.shape != x.to_local().shape:
        raise ValueError(f"a part of shape {tuple(own.shape)} in the place of {tuple(x.to_local().shape)}")
    return DTensor.from_local(own, x.device_mesh, x.placements, run_check=False, shape=x.shape, stride=x.stride())


def unsharded_state(model: nn.Module, holds: bool) -> dict[str, Tensor]:
    """Return every entry of a model's state, gathered one after another to the CPU of the ranks that hold them; else
    none.

    Entries that are one tensor, as a tied head and the embedding are, stay one.
    """
    gathered: dict[int, Tensor] = {}
    state = model.state_dict(keep_vars=True)
    for entry in {id(x): x for x in state.values()}.values():
        one = unsharded(entry)
        if holds:
            gathered[id(entry)] = one.cpu()
    return {name: gathered[id(entry)] for name, entry in state.items()} if holds else {}


def set_unsharded_state(
    model: nn.Module, state: Mapping[str, Tensor], told: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
) -> None:
    """Set every entry of a model's state, which rank 0 has whole and tells the others one after another.

    Raises ValueError, on every rank, if it has others than the model.
    """
    own = model.state_dict(keep_vars=True)
    for name, entry in own.items():
        arrived = told({name: state[name]} if name in state else {})
        if {k: x.shape for k, x in arrived.items()} != {name: entry.shape}:
            raise ValueError("the weights are of another model")
        set_unsharded(entry, arrived[name])
