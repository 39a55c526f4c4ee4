"""A model in the host's memory, which is on the device only while it is used.

A pass over a batch reads each weight once a microbatch, so that a model that is used once a step costs 4 bytes a
float32 weight over PCIe, and back again what an update has changed: 0.12 s of 1.5 billion weights at 50 GB/s, from
memory that is pinned.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

#: Copies a tensor to a device; a test has another one, because a machine without a GPU has one device.
Copy = Callable[[Tensor, torch.device], Tensor]


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device; from pinned memory without a wait. One that is there already stays what it is."""
    return x.to(device, non_blocking=True)


def host_like(x: Tensor) -> Tensor:
    """Make a tensor in the host's memory with the shape and type of x; pinned, if x is on a GPU."""
    return torch.empty_like(x, device="cpu", pin_memory=x.is_cuda)


def put_on_host(model: nn.Module) -> None:
    """Move a model's weights and buffers to the host's memory, in place."""
    for x in _tensors(model):
        if x.device.type != "cpu":
            x.data = host_like(x.data).copy_(x.data)


@contextmanager
def on_device(model: nn.Module, device: torch.device, copy: Copy = to_device) -> Iterator[None]:
    """Have a model on the device inside, if it is in the host's memory outside; there is what it was, or what training
    made of it.

    A gradient has to be gone at the end: it would be on the device.
    """
    away = [(x, x.data) for x in _tensors(model) if x.device != device]
    for x, home in away:
        x.data = copy(home, device)
    try:
        yield
    finally:
        for x, home in away:
            if x.requires_grad:
                home.copy_(x.data)
            x.data = home


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]
