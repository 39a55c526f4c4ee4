"""Weights on their way to ranks that hold a part of a model: from rank 0, or from files, and nowhere all of them.

A rank that has no weights yet has a model without memory (device meta), whose parameters become real where they arrive:
one group of those that are sharded together, then the next.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from groupwise.models.files.folder import FLOATING, weight_files
from groupwise.models.shards import first_rows, own_part
from groupwise.models.unread import Weights, names_of_entries
from groupwise.training.mesh import Mesh


class Arrival:
    """Takes rank 0's weights into a model of this rank, if some rank's has no memory; else each has the same already.
    Rank 0's may be in its files (models/unread.py): it reads one at a time, and tells it the others.

    Every rank makes one at the same point of its work, of models that are alike, and asks for the same.
    """

    def __init__(self, model: nn.Module, mesh: Mesh) -> None:
        self._model, self._mesh = model, mesh
        self._weights = Weights(model) if mesh.leads else None
        self._owners: dict[int, list[tuple[nn.Module, str]]] = {}
        for module in model.modules():
            for name, parameter in module._parameters.items():
                self._owners.setdefault(id(parameter), []).append((module, name))
        self._due = any(mesh.of_each(any(p.is_meta for p in model.parameters())))

    def fill(self, parameters: Iterable[nn.Parameter]) -> None:
        """Give these parameters rank 0's numbers, in its types, one at a time; each stays one for all that share it."""
        for parameter in dict.fromkeys(parameters) if self._due else ():
            whole = self._mesh.tensors({} if self._weights is None else {"": self._weights.whole(parameter)})[""]
            if not parameter.is_meta:
                if not self._mesh.leads:
                    parameter.data.copy_(whole)
                continue
            real = nn.Parameter(whole, requires_grad=parameter.requires_grad)
            for module, name in self._owners[id(parameter)]:
                module._parameters[name] = real

    def fill_buffers(self) -> None:
        """Give every buffer rank 0's numbers."""
        arrived = self._mesh.tensors(dict(self._model.named_buffers())) if self._due else {}
        for name, buffer in arrived.items() if not self._mesh.leads else ():
            owner, _, last = name.rpartition(".")
            self._model.get_submodule(owner)._buffers[last] = buffer.to(self._mesh.device)


@torch.no_grad()
def read_own_rows(model: nn.Module, folder: Path, mesh: Mesh) -> bool:
    """Put the weights of a folder into a model in shards, of which each rank reads the rows that it holds.

    -> whether they are; they are not, and nothing is changed, if the files have other names, shapes or kinds of numbers
    than the model: of some architectures each expert by itself, which the model has as one.
    """
    entries = _entries(model)
    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(path, "pt")) for path in weight_files(folder, str(folder))]
        places = {name: file for file in files for name in file.keys()}  # noqa: SIM118  it is no mapping
        named = {next((n for n in names if n in places), ""): entry for names, entry in entries}
        known = {name for names, _ in entries for name in names}
        fits = "" not in named and places.keys() <= known
        fits = fits and all(_fits(places[name].get_slice(name), entry) for name, entry in named.items())
        if not mesh.all_agree(fits):
            return False
        for name, entry in named.items():
            own_part(entry).copy_(_own_rows(places[name], name, entry))
    return True


def _entries(model: nn.Module) -> list[tuple[Sequence[str], Tensor]]:
    """List the entries of a model's state, each once with all of its names."""
    state: Mapping[str, Tensor] = model.state_dict(keep_vars=True)
    return [(names, state[names[0]]) for names in names_of_entries(model).values()]


def _fits(stored: Any, entry: Tensor) -> bool:
    floating = FLOATING.match(stored.get_dtype()) is not None
    return tuple(stored.get_shape()) == tuple(entry.shape) and floating >= entry.is_floating_point()


def _own_rows(file: Any, name: str, entry: Tensor) -> Tensor:
    if not isinstance(entry, DTensor):
        return file.get_tensor(name)
    bounds, rank = first_rows(entry), entry.device_mesh.get_local_rank()
    return file.get_slice(name)[bounds[rank] : bounds[rank + 1]]
