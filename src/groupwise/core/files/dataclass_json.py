"""Dataclasses to JSON and back by their fields: a new field needs no code. Tensors and floats keep every bit."""

import base64
import dataclasses
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor


def to_json(value: Any) -> Any:
    """Write dataclasses and mappings as objects, sequences as lists, a tensor as its type, shape and bytes.

    >>> to_json(torch.tensor([1, 2], dtype=torch.uint8))
    {'dtype': 'uint8', 'shape': [2], 'base64': 'AQI='}
    """
    if dataclasses.is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_json(entry) for key, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(entry) for entry in value]
    if isinstance(value, Tensor):
        # Bytes as text: a number for each element would be several times as long.
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        text = base64.b64encode(raw).decode()
        return {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape), "base64": text}
    return value


def from_json(kind: Any, data: Any) -> Any:
    """Return the value that `to_json` wrote, where `kind` is its annotated type: a tuple for a sequence, and the
    default for a field that is missing.

    >>> from_json(tuple[tuple[str, float], ...], [["a", 1.5]])
    (('a', 1.5),)
    """
    arguments = get_args(kind)
    if data is None:
        return None
    if get_origin(kind) in (Union, UnionType):
        return from_json(next(a for a in arguments if a is not NoneType), data)
    if kind is Tensor:
        raw = torch.from_numpy(np.frombuffer(bytearray(base64.b64decode(data["base64"])), np.uint8))
        return raw.view(getattr(torch, data["dtype"])).reshape(data["shape"])
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{name: from_json(hints[name], entry) for name, entry in data.items()})  # type: ignore[operator]
    if get_origin(kind) in (tuple, Sequence):
        kinds = arguments if len(arguments) > 1 and arguments[-1] is not Ellipsis else arguments[:1] * len(data)
        return tuple(from_json(each, entry) for each, entry in zip(kinds, data, strict=True))
    return data
