"""Tensors on their way to a device, which nobody waits for."""

import dataclasses
from typing import Any, TypeVar

import torch
from torch import Tensor

R = TypeVar("R")


def to_device(x: Tensor, device: torch.device | str) -> Tensor:
    """Return a tensor on a device; one of the CPU goes to a GPU from pinned memory, while the CPU goes on."""
    if torch.device(device).type == "cuda" and x.device.type == "cpu":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


def columns_to_device(record: R, device: torch.device | str) -> R:
    """Return a dataclass with those of its fields that are tensors on a device."""
    columns: dict[str, Any] = {name: x for name, x in vars(record).items() if isinstance(x, Tensor)}
    return dataclasses.replace(record, **{name: to_device(x, device) for name, x in columns.items()})  # type: ignore[type-var]
