"""The ranks of a run: processes that hold one model's shards together and share its microbatches.

Every rank calls the same methods in the same order. A mesh of one process, ALONE, sends nothing anywhere.
"""

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.device_mesh import DeviceMesh

from groupwise.core.errors import UsageError, one_line, shortened
from groupwise.core.files.tensor_layout import DTYPES
from groupwise.core.processes.network import Address
from groupwise.core.records import Batch

T = TypeVar("T")

#: Seconds that the ranks have to find one another, and that one may keep the others waiting.
DEADLINE = 600.0
#: Days that a rank waits for what rank 0 says.
FOREVER = 3650
#: A tensor's type by the name under which it passes from rank to rank.
_NAMED = {name: dtype for dtype, name in DTYPES.items()}


class Verb(StrEnum):
    """What the ranks of a run do together."""

    ANNOTATE = "annotate"
    UPDATE = "update"
    LOGPROBS = "logprobs"
    WEIGHTS = "weights"
    SAVE = "save"
    RESTORE = "restore"
    RENEW_REFERENCE = "renew reference"
    SAVE_REFERENCE = "save reference"
    RESTORE_REFERENCE = "restore reference"
    VALUES = "values"
    UPDATE_CRITIC = "update critic"
    SAVE_CRITIC = "save critic"
    RESTORE_CRITIC = "restore critic"
    SCORES = "scores"
    STOP = "stop"


@dataclass(frozen=True)
class Message:
    """A verb, the batch that it works on where there is one, and what else it needs: what JSON can hold."""

    verb: Verb
    batch: Batch | None = None
    others: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Mesh:
    """The ranks as one of them sees them.

    rank, size   its number, from 0, and how many there are
    device       where its tensors are
    shards       torch's record of the ranks, for the shards of a model; None for a process by itself
    waiting      the ranks once more, for what one of them may wait for as long as it takes, on the CPU
    """

    rank: int = 0
    size: int = 1
    device: str = "cpu"
    shards: DeviceMesh | None = None
    waiting: ProcessGroup | None = None

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, the one that writes files."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there is no other rank."""
        return self.size == 1

    def dealt(self, items: Sequence[T]) -> Iterator[T | None]:
        """Item i for rank i mod size, in order; None if this rank has none left and another still has one.

        >>> [list(Mesh(rank, size=2).dealt("abc")) for rank in (0, 1)]
        [['a', 'c'], ['b', None]]
        """
        for first in range(0, len(items), self.size):
            own = first + self.rank
            yield items[own] if own < len(items) else None

    def sums(self, values: Sequence[float]) -> list[float]:
        """Add each value up over the ranks in float64; the same bits on each."""
        if self.alone:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total.tolist()

    def joined(self, part: Tensor) -> Tensor:
        """Tensors that are 0 but in places of one rank each -> their sum on every rank, exact to the bit.

        The sum is of bytes, so that NaN, infinity and -0.0 arrive as they are.
        """
        if self.alone or not part.numel():
            return part
        flat = part.detach().to(self.device, copy=True).contiguous()
        dist.all_reduce(flat.view(-1).view(torch.uint8))
        return flat.to(part.device)

    def all_agree(self, yes: bool) -> bool:
        """Ask whether every rank says yes: one decision for all."""
        return self.sums([float(yes)])[0] == self.size

    def plain(self, value: Any) -> Any:
        """Rank 0's value on every rank, which waits for it without a deadline: what JSON can hold."""
        if self.alone:
            return value
        text = bytearray(as_text(value)) if self.leads else bytearray()
        length = torch.tensor([len(text)])
        dist.broadcast(length, 0, group=self.waiting)
        data = torch.frombuffer(text or bytearray(int(length)), dtype=torch.uint8)
        dist.broadcast(data, 0, group=self.waiting)
        return json.loads(data.numpy().tobytes())

    def of_each(self, value: T) -> list[T]:
        """Gather what every rank gives, in the order of their numbers, on every rank: what JSON can hold. Tuples are
        lists.

        >>> Mesh().of_each("alone")
        ['alone']
        """
        if self.alone:
            return [value]
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [int(size) for size in self.sums([len(text) * (rank == self.rank) for rank in range(self.size)])]
        table = torch.zeros(self.size, max(sizes), dtype=torch.uint8)
        table[self.rank, : len(text)] = text
        table = self.joined(table)
        return [json.loads(table[rank, :size].numpy().tobytes()) for rank, size in enumerate(sizes)]

    def tensors(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rank 0's tensors on every rank, on the CPU, one at a time; what the others give is not read."""
        if self.alone:
            return dict(named)
        layout = self.plain(layout_of(named))
        arrived = {}
        for name, dtype, shape in layout:
            own = named[name] if self.leads else torch.empty(shape, dtype=_NAMED[dtype])
            data = own.detach().cpu().contiguous()
            if data.numel():
                dist.broadcast(data.view(-1).view(torch.uint8), 0, group=self.waiting)
            arrived[name] = data
        return arrived

    def share_weights(self, model: nn.Module) -> None:
        """Rank 0's weights and buffers in a whole model of every rank, one at a time; buffers in rank 0's types."""
        for entry in model.state_dict(keep_vars=True).values():
            arrived = self.tensors({"": entry} if self.leads else {})[""]
            if not self.leads:
                entry.data.copy_(arrived)
        buffers = dict(model.named_buffers())
        for name, arrived in self.tensors(buffers).items():
            if not self.leads:
                buffers[name].data = arrived.to(buffers[name].device)

    def answering(self) -> AbstractContextManager[None]:
        """Let the ranks work together inside; a mesh with followers says in words which of them is lost."""
        return nullcontext()

    def together(self, message: Message) -> AbstractContextManager[None]:
        """Let every rank do inside what the message says: a mesh with followers tells them (ranks/followers.py)."""
        return nullcontext()

    def close(self) -> None:
        """Leaves the other ranks. A mesh of one has none to leave."""
        if not self.alone:
            dist.destroy_process_group()


#: A process by itself.
ALONE = Mesh()


def as_text(value: Any) -> bytes:
    """Return a plain value as it passes from rank to rank."""
    return json.dumps(value).encode()


def layout_of(named: Mapping[str, Tensor]) -> list[tuple[str, str, list[int]]]:
    """Return what is said of tensors before they pass: name, type and shape of each."""
    return [(name, DTYPES[x.dtype], list(x.shape)) for name, x in named.items()]


def rendezvous(host: str, port: int, size: int, leads: bool, seconds: float = DEADLINE) -> TCPStore:
    """Open the place where the ranks find one another: rank 0 keeps it, at a free port where `port` is 0; its `port`
    says which.

    It can be reached at `host` alone: torch itself would listen at every address of the machine.
    Raises UsageError if rank 0 cannot keep it there, or the others cannot reach it.
    """
    make = partial(TCPStore, host, world_size=size, timeout=timedelta(seconds=seconds), wait_for_workers=False)
    try:
        if not leads:
            return make(port=port, is_master=False)
        place = Address(host, port)
        listening = socket.create_server(place, family=place.family)
        own = listening.getsockname()[1]
        return make(port=own, is_master=True, master_listen_fd=listening.detach())  # torch closes it
    except (OSError, RuntimeError) as error:  # torch's own, which has no finer class
        what = "cannot be kept" if leads else "cannot be reached"
        raise UsageError(f"the ranks' meeting point {host}:{port} {what}: {shortened(one_line(error))}") from None


def connect(store: Store, rank: int, size: int, device: str = "cpu", seconds: float = DEADLINE) -> Mesh:
    """Join the mesh of `size` processes that meet at a store, once every one of them is there.

    From then on a rank that waits for another longer than `seconds` gets a RuntimeError from torch, but where it waits
    for what rank 0 says, which samples meanwhile. A process has one mesh at a time, because torch keeps its group of
    processes for all of it.
    Raises UsageError if not all of them come in time, or the process has such a group already.
    """
    if dist.is_initialized():
        raise UsageError("this process has a group of torch.distributed already; ranks need a process without one")
    backend = "nccl" if torch.device(device).type == "cuda" else "gloo"
    names = [f"rank {number}" for number in range(size)]
    try:
        # torch counts its attempts to make a group, those that fail too, and names groups by that count: two processes
        # of which one has failed before would wait for each other under different names.
        store.set(names[rank], "here")
        store.wait(names, timedelta(seconds=seconds))
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=seconds))
    except RuntimeError as error:
        raise UsageError(f"rank {rank} of {size} did not find the others: {shortened(one_line(error))}") from None
    shards = DeviceMesh.from_group(dist.group.WORLD, torch.device(device).type)  # type: ignore[arg-type]
    patience = timedelta(seconds=seconds) if rank == 0 else timedelta(days=FOREVER)
    waiting = dist.new_group(backend="gloo", timeout=patience)
    return Mesh(rank, size, device, shards, waiting if isinstance(waiting, ProcessGroup) else None)
