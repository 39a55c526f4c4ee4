"""Columns of any type, as callers have them, to tensors for arithmetic; a ValueError in one line for what cannot be."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from groupwise.core.errors import one_line
from groupwise.core.masked import real

#: What a caller has: a tensor, an array or lists.
Column = Any
#: Rewards and values beyond this, in either direction, are refused: in float32 the sum of their squares overflows.
LARGEST = 1e15


def numbers(name: str, given: Column, beside: Tensor | None = None) -> Tensor:
    """Return a column of numbers in float32 or float64, on the device of the tensor that it is used with.

    float32 and float64 stay as they are; half precision and whole numbers become the default type, at least float32.
    Gradients pass, and arrive in the type that was given.

    >>> numbers("rewards", [1, 0]), numbers("rewards", torch.ones(1, dtype=torch.bfloat16))
    (tensor([1., 0.]), tensor([1.]))
    """
    tensor = tensor_of(name, given, "numbers", beside)
    if tensor.is_complex():
        raise ValueError(f"{name} holds complex numbers; real ones are due")
    return real(tensor)


def whole_numbers(name: str, given: Column, beside: Tensor) -> Tensor:
    """Return a column of integer ids. Floating-point numbers are refused: in bfloat16, 256 and 257 are one id."""
    tensor = tensor_of(name, given, "integers", beside)
    if not isinstance(given, Tensor) and not tensor.numel():
        return tensor.long()  # an empty list is of no type
    if tensor.is_floating_point() or tensor.is_complex():
        raise ValueError(f"{name} holds {tensor.dtype}, which cannot tell all ids apart; give integers")
    return tensor


def mask_of(name: str, given: Column, beside: Tensor | None = None) -> Tensor:
    """Return a bool column, from bool or from the numbers 0 and 1 of any type.

    >>> mask_of("mask", [[1, 0]])
    tensor([[ True, False]])
    """
    tensor = tensor_of(name, given, "bool or of 0 and 1", beside)
    if tensor.dtype == torch.bool:
        return tensor
    other = tensor[(tensor != 0) & (tensor != 1)]
    if len(other):
        raise ValueError(f"{name} holds {other[0].item():g}; it must be bool, or 1 where it holds and 0 where not")
    return tensor == 1


def tensor_of(name: str, given: Column, due: str, beside: Tensor | None = None) -> Tensor:
    """Return a tensor as it is, else convert, onto the device of `beside`. Raises ValueError, with what is `due`."""
    if not isinstance(given, Tensor):
        try:
            given = _from_array(given) if hasattr(given, "__array__") else torch.as_tensor(given)
        except (TypeError, ValueError, RuntimeError) as error:
            kind, words = type(given).__name__, one_line(error)
            nothing = "; NaN stands for a number that is not there, None does not" * ("NoneType" in words)
            raise ValueError(f"{name} is a {kind} ({words}); a tensor, array or list, {due}, is due{nothing}") from None
        return given if beside is None else given.to(beside.device)
    if given.layout != torch.strided:
        raise ValueError(f"{name} is a tensor of {given.layout}; a dense one is due")
    if beside is not None and given.device != beside.device:
        raise ValueError(f"{name} is on {given.device}, what it is used with on {beside.device}; move one of them")
    return given


def _from_array(given: Column) -> Tensor:
    """Copy an array: torch reads no reversed one, no foreign byte order and no float of more than 64 bits."""
    array = np.array(given)
    wide = array.dtype.kind == "f" and array.dtype.itemsize > 8
    return torch.from_numpy(array.astype(np.float64 if wide else array.dtype.newbyteorder("="), order="C"))


def require_shape(name: str, column: Tensor, shape: torch.Size, words: str) -> None:
    """Raise ValueError, with `words` for the shape that is due, if a column has another."""
    if column.shape != shape:
        raise ValueError(f"{name} has shape {tuple(column.shape)}; {words} {tuple(shape)} is due")


def require_finite(name: str, column: Tensor, read: Tensor, remedy: str, largest: float = torch.inf) -> None:
    """Raise ValueError if a column has NaN, infinity or a number beyond the largest at a place that is read."""
    column = column.detach()
    wrong = read & ~(column.abs() <= min(largest, torch.finfo(column.dtype).max))
    if wrong.any():
        place, value = wrong.nonzero()[0].tolist(), float(column[wrong][0])
        beyond = f", beyond {largest:g}" if torch.finfo(column.dtype).max >= abs(value) else ""
        raise ValueError(f"{name}{place} is {value:g}{beyond}; {remedy}")


def per_token(advantage: Tensor, mask: Tensor) -> Tensor:
    """Expand an advantage [N] to the mask's [N,T]; one that has this shape stays. Raises ValueError for another."""
    if advantage.shape == mask.shape:
        return advantage
    if advantage.shape != mask.shape[:1]:
        raise ValueError(f"advantage has shape {tuple(advantage.shape)}; expected [N] or [N,T] of {tuple(mask.shape)}")
    return advantage[:, None].expand(mask.shape)


def require_mask_shape(mask: Tensor, **columns: Tensor | None) -> None:
    """Raise ValueError, with its name, for a column of another shape than the mask's."""
    for name, column in columns.items():
        if column is not None and column.shape != mask.shape:
            raise ValueError(f"{name} has shape {tuple(column.shape)}, the mask {tuple(mask.shape)}")
