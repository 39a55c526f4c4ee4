"""What rank 0 tells the other ranks before it does it: a verb, and the whole batch that it works on.

Rank 0 runs the loop; the others wait for the next verb, however long rank 0 samples, and do the same with the same
batch. What passes is JSON and raw tensors.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from groupwise.core.records import Batch, Support
from groupwise.training.mesh import Mesh, Message, Verb


def tell(mesh: Mesh, message: Message) -> None:
    """Rank 0 says it to all others."""
    plain, tensors = (None, None) if message.batch is None else columns_of(message.batch)
    mesh.plain({"verb": message.verb, "others": dict(message.others), "batch": plain})
    if tensors is not None:
        mesh.tensors(tensors)


def hear(mesh: Mesh) -> Message:
    """Another rank waits for what rank 0 says next."""
    said = mesh.plain(None)
    batch = None if said["batch"] is None else batch_of(said["batch"], mesh.tensors({}))
    return Message(Verb(said["verb"]), batch, said["others"])


def follow(mesh: Mesh, verbs: Mapping[Verb, Callable[[Message], object]]) -> None:
    """Does what rank 0 says, until it says stop."""
    while (message := hear(mesh)).verb is not Verb.STOP:
        verbs[message.verb](message)


def columns_of(batch: Batch) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A batch as what JSON can hold and tensors: rows of different length lie one behind the other."""
    lengths: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for column in dataclasses.fields(batch):
        value = getattr(batch, column.name)
        if isinstance(value, Tensor):
            tensors[column.name] = value
        elif isinstance(value, tuple):
            for part, rows in _parts(column.name, value).items():
                present = [row for row in rows if row is not None]
                lengths[part] = [None if row is None else len(row) for row in rows]
                tensors[part] = torch.cat(present) if present else torch.empty(0)
    return lengths, tensors


def batch_of(lengths: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Batch:
    """The batch that `columns_of` took apart, to the bit."""
    columns: dict[str, Any] = {name: x for name, x in tensors.items() if name not in lengths}
    rows = {name: _rows(tensors[name], each) for name, each in lengths.items()}
    for name in ("routes_engine", "routes", "routes_own"):
        if name in rows:
            columns[name] = rows[name]
    if "support.ids" in rows:
        pairs = zip(rows["support.ids"], rows["support.start"], strict=True)
        columns["support"] = tuple(None if a is None or b is None else Support(a, b) for a, b in pairs)
    return Batch(**columns)


def _parts(name: str, rows: tuple[Any, ...]) -> dict[str, list[Tensor | None]]:
    """A column of rows as columns of tensors."""
    if name != "support":
        return {name: list(rows)}
    return {f"{name}.{part}": [row and getattr(row, part) for row in rows] for part in ("ids", "start")}


def _rows(joined: Tensor, lengths: list[int | None]) -> tuple[Tensor | None, ...]:
    parts = iter(joined.split([length for length in lengths if length is not None]))
    return tuple(None if length is None else next(parts) for length in lengths)
