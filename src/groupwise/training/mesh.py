"""The ranks of a run: processes that hold one model's shards together and share its microbatches.

Every rank calls the same methods in the same order. A mesh of one process, ALONE, sends nothing anywhere.

Tensors of a model in shards pass on the ranks' devices: over NCCL if each rank has a GPU of its own, else over gloo.
All else is on the processor and passes over gloo: columns, numbers, and what JSON can hold.

Rank 0 runs the loop. Before it does something that takes all ranks it tells the others a verb and the whole batch that
it works on. They wait for the next verb, however long rank 0 samples, and do the same with the same batch. What passes
is JSON and raw tensors.
"""

import dataclasses
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.device_mesh import DeviceMesh

from groupwise.core.errors import UsageError, one_line, shortened
from groupwise.core.files.tensor_layout import DTYPES
from groupwise.core.machine.cards import identity
from groupwise.core.processes.network import Address, heard_only_inside
from groupwise.core.records import Batch, Support

T = TypeVar("T")

#: Seconds that the ranks have to find one another, and that one may keep the others waiting.
DEADLINE = 600.0
#: Days that a rank waits for what rank 0 says.
FOREVER = 3650
#: Bytes of one broadcast, which a connection takes at once. If a rank is killed while a part of a message is written,
#: gloo forgets the rest, and rank 0 would wait DEADLINE for it.
PIECE = 1 << 20
#: What torch reads before it makes a group over NCCL, and the value under which it ends what waits for a rank that is
#: late, and not this process: the next sum over gloo says which rank it is.
NCCL_ERRORS, ENDS_WORK = "TORCH_NCCL_ASYNC_ERROR_HANDLING", "2"
#: What gloo and NCCL read for the interface that they listen at.
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
#: A tensor's type by the name under which it passes from rank to rank.
_NAMED = {name: dtype for dtype, name in DTYPES.items()}


class Verb(StrEnum):
    """Work that the ranks of a run do together."""

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
    """A verb, the batch and the supervised rows that it works on, if any, and what else it needs, as JSON can hold."""

    verb: Verb
    batch: Batch | None = None
    supervised: Batch | None = None
    others: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Mesh:
    """The ranks as one of them sees them.

    rank, size   its number, from 0, and how many there are
    device       where its model's tensors are
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
        """True if this is rank 0, the one that writes files."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """True if there is no other rank."""
        return self.size == 1

    def dealt(self, items: Sequence[T]) -> Iterator[T | None]:
        """Yield item i on rank i mod size, in order; None if this rank has none left and another still has one.

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
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def joined(self, part: Tensor) -> Tensor:
        """Add tensors up that are 0 but in places of one rank each -> the sum on every rank, exact to the bit.

        The sum is of bytes, so that NaN, infinity and -0.0 arrive as they are.
        """
        if self.alone or not part.numel():
            return part
        flat = part.detach().to("cpu", copy=True).contiguous()
        dist.all_reduce(flat.view(-1).view(torch.uint8))
        return flat.to(part.device)

    def all_agree(self, yes: bool) -> bool:
        """Ask whether every rank says yes: one decision for all."""
        return self.sums([float(yes)])[0] == self.size

    def plain(self, value: Any) -> Any:
        """Give every rank rank 0's value, which it waits for without a deadline: what JSON can hold."""
        if self.alone:
            return value
        text = bytearray(json.dumps(value, default=str).encode()) if self.leads else bytearray()
        length = torch.tensor([len(text)])
        self._spread(length)
        data = torch.frombuffer(text or bytearray(int(length)), dtype=torch.uint8)
        self._spread(data)
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
        """Give every rank rank 0's tensors, on the CPU, one at a time; what the others give is not read."""
        if self.alone:
            return dict(named)
        layout = self.plain([(name, DTYPES[x.dtype], list(x.shape)) for name, x in named.items()])
        arrived = {}
        for name, dtype, shape in layout:
            own = named[name] if self.leads else torch.empty(shape, dtype=_NAMED[dtype])
            data = own.detach().cpu().contiguous()
            if data.numel():
                self._spread(data.view(-1).view(torch.uint8))
            arrived[name] = data
        return arrived

    def _spread(self, data: Tensor) -> None:
        """Overwrite a flat tensor with rank 0's, a piece after the other."""
        for piece in data.split(PIECE):
            dist.broadcast(piece, 0, group=self.waiting)

    def answering(self) -> AbstractContextManager[None]:
        """Let the ranks work together inside; a mesh with followers says in words which of them is lost."""
        return nullcontext()

    def together(
        self, verb: Verb, batch: Batch | None = None, supervised: Batch | None = None, **others: Any
    ) -> AbstractContextManager[None]:
        """Let every rank do inside what the verb says: a mesh with followers tells them (ranks/followers.py)."""
        return nullcontext()

    def tell(self, verb: Verb, batch: Batch | None = None, supervised: Batch | None = None, **others: Any) -> None:
        """Say it to all other ranks, as rank 0; a path arrives as text."""
        parts = [None if each is None else columns_of(each) for each in (batch, supervised)]
        self.plain({"verb": verb, "others": others, "batches": [part and part[0] for part in parts]})
        for part in parts:
            if part is not None:
                self.tensors(part[1])

    def hear(self) -> Message:
        """Wait, as another rank, for what rank 0 says next."""
        said = self.plain(None)
        batches = [None if plain is None else batch_of(plain, self.tensors({})) for plain in said["batches"]]
        return Message(Verb(said["verb"]), *batches, others=said["others"])

    def follow(self, verbs: Mapping[Verb, Callable[[Message], object]]) -> None:
        """Do, as another rank, what rank 0 says, until it says stop."""
        while (message := self.hear()).verb is not Verb.STOP:
            verbs[message.verb](message)

    def close(self) -> None:
        """Leave the other ranks. A mesh of one has none to leave."""
        if not self.alone:
            dist.destroy_process_group()


#: A process by itself.
ALONE = Mesh()


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


def connect(
    store: Store, rank: int, size: int, device: str = "cpu", seconds: float = DEADLINE, interface: str = ""
) -> Mesh:
    """Join the mesh of `size` processes that meet at a store, once every one of them is there.

    They reach one another through a network interface, which torch chooses where no name is given, unless the
    environment names one. Over gloo they listen until they have met, and from then on none of them does.

    From then on a rank that waits for another longer than `seconds` gets a RuntimeError from torch, but where it waits
    for what rank 0 says, which samples meanwhile. A process has one mesh at a time, because torch keeps its group of
    processes for all of it. A GPU that is named becomes the one that "cuda" means in this process.
    Raises UsageError if not all of them come in time, or the process has such a group already.
    """
    if dist.is_initialized():
        raise UsageError("this process has a group of torch.distributed already; ranks need a process without one")
    names = [f"rank {number}" for number in range(size)]
    try:
        # torch counts its attempts to make a group, those that fail too, and names groups by that count: two processes
        # of which one has failed before would wait for each other under different names.
        _prepare(device)
        store.set(names[rank], identity(device))
        store.wait(names, timedelta(seconds=seconds))
        backend = backend_of([store.get(name).decode() for name in names])
        card = torch.device(device) if "nccl" in backend else None
        limit = timedelta(seconds=seconds)
        patience = limit if rank == 0 else timedelta(days=FOREVER)
        # NCCL listens for what its cards say later: it does not tell which sockets are whose.
        with _through(interface), heard_only_inside() if backend == "gloo" else nullcontext():
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit, device_id=card)
            waiting = dist.new_group(backend="gloo", timeout=patience)
    except RuntimeError as error:
        raise UsageError(f"rank {rank} of {size} did not find the others: {shortened(one_line(error))}") from None
    shards = DeviceMesh.from_group(dist.group.WORLD, torch.device(device).type)  # type: ignore[arg-type]
    return Mesh(rank, size, device, shards, waiting if isinstance(waiting, ProcessGroup) else None)


def backend_of(cards: Sequence[str]) -> str:
    """Choose what carries the ranks' tensors, from what tells their cards apart; "" stands for a processor.

    NCCL has one rank a card; gloo takes what it sends to the processor and back.

    >>> backend_of(["GPU-1", "GPU-2"]), backend_of(["GPU-1", "GPU-1"]), backend_of(["", ""])
    ('cpu:gloo,cuda:nccl', 'gloo', 'gloo')
    """
    return "cpu:gloo,cuda:nccl" if all(cards) and len(set(cards)) == len(cards) else "gloo"


@contextmanager
def _through(interface: str) -> Iterator[None]:
    """Let gloo and NCCL listen at this interface inside, unless somebody has said another; torch has no argument."""
    added = [name for name in INTERFACES if interface and name not in os.environ]
    os.environ.update(dict.fromkeys(added, interface))
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _prepare(device: str) -> None:
    """Let "cuda" mean this rank's own card, before anything is put there."""
    if torch.device(device).type != "cpu":
        os.environ.setdefault(NCCL_ERRORS, ENDS_WORK)
        torch.cuda.set_device(device)


def columns_of(batch: Batch) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a batch as what JSON can hold and tensors: rows of different length lie one behind the other."""
    lengths: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for column in dataclasses.fields(batch):
        value = getattr(batch, column.name)
        if isinstance(value, Tensor):
            tensors[column.name] = value
        for part, rows in _parts(column.name, value).items() if isinstance(value, tuple) else ():
            present = [row for row in rows if row is not None]
            lengths[part] = [None if row is None else len(row) for row in rows]
            tensors[part] = torch.cat(present) if present else torch.empty(0)
    return lengths, tensors


def batch_of(lengths: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Batch:
    """Return the batch that `columns_of` took apart, to the bit."""
    columns: dict[str, Any] = {name: x for name, x in tensors.items() if name not in lengths}
    for name, each in lengths.items():
        rows = iter(tensors[name].split([length for length in each if length is not None]))
        columns[name] = tuple(None if length is None else next(rows) for length in each)
    ids, starts = columns.pop("support.ids", None), columns.pop("support.start", None)
    if ids is not None and starts is not None:
        columns["support"] = tuple(None if a is None else Support(a, b) for a, b in zip(ids, starts, strict=True))
    return Batch(**columns)


def _parts(name: str, rows: tuple[Any, ...]) -> dict[str, list[Tensor | None]]:
    if name != "support":
        return {name: list(rows)}
    return {f"{name}.{part}": [row and getattr(row, part) for row in rows] for part in ("ids", "start")}
