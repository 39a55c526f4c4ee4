"""The ranks of a run: processes that hold one model's shards together and share its microbatches.

Every rank calls the same methods in the same order. A mesh of one process, ALONE, sends nothing anywhere.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.device_mesh import DeviceMesh

from groupwise.core.errors import UsageError, one_line, shortened
from groupwise.core.tensor_layout import DTYPES

T = TypeVar("T")

#: Seconds that the ranks have to find one another, and that one may keep the others waiting.
DEADLINE = 600.0
#: A tensor's type by the name under which it passes from rank to rank.
_NAMED = {name: dtype for dtype, name in DTYPES.items()}


@dataclass(frozen=True)
class Mesh:
    """The ranks as one of them sees them.

    rank, size   its number, from 0, and how many there are
    device       where its tensors are
    shards       torch's record of the ranks, for the shards of a model; None for a process by itself
    """

    rank: int = 0
    size: int = 1
    device: str = "cpu"
    shards: DeviceMesh | None = None

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, the one that writes files."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there is no other rank."""
        return self.size == 1

    def dealt(self, items: Sequence[T]) -> Iterator[T | None]:
        """Item i for rank i mod size, in order; None where this rank has none left and another still has one.

        >>> [list(Mesh(rank, size=2).dealt("abc")) for rank in (0, 1)]
        [['a', 'c'], ['b', None]]
        """
        for first in range(0, len(items), self.size):
            own = first + self.rank
            yield items[own] if own < len(items) else None

    def sums(self, values: Sequence[float]) -> list[float]:
        """Each value, added up over the ranks in float64; the same bits on each."""
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

    def all_say(self, yes: bool) -> bool:
        """Whether every rank says yes: one decision for all."""
        return self.sums([float(yes)])[0] == self.size

    def plain(self, value: Any) -> Any:
        """Rank 0's value on every rank: what JSON can hold."""
        if self.alone:
            return value
        text = bytearray(json.dumps(value).encode()) if self.leads else bytearray()
        length = torch.tensor([len(text)], device=self.device)
        dist.broadcast(length, 0)
        data = torch.frombuffer(text or bytearray(int(length)), dtype=torch.uint8).to(self.device)
        dist.broadcast(data, 0)
        return json.loads(data.cpu().numpy().tobytes())

    def tensors(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rank 0's tensors on every rank, on the CPU, one at a time; what the others give is not read."""
        if self.alone:
            return dict(named)
        layout = self.plain([(name, DTYPES[x.dtype], list(x.shape)) for name, x in named.items()])
        arrived = {}
        for name, dtype, shape in layout:
            own = named[name] if self.leads else torch.empty(shape, dtype=_NAMED[dtype])
            data = own.detach().to(self.device).contiguous()
            if data.numel():
                dist.broadcast(data.view(-1).view(torch.uint8), 0)
            arrived[name] = data.cpu()
        return arrived

    def close(self) -> None:
        """Leaves the other ranks. A mesh of one has none to leave."""
        if not self.alone:
            dist.destroy_process_group()


#: A process by itself.
ALONE = Mesh()


def rendezvous(host: str, port: int, size: int, leads: bool, seconds: float = DEADLINE) -> TCPStore:
    """Where the ranks find one another: rank 0 keeps it, at a free port where `port` is 0; its `port` says which.

    Raises UsageError where rank 0 cannot keep it there, or the others cannot reach it.
    """
    try:
        return TCPStore(host, port, size, is_master=leads, timeout=timedelta(seconds=seconds), wait_for_workers=False)
    except RuntimeError as error:  # torch's own, which has no finer class
        what = "cannot be kept" if leads else "cannot be reached"
        raise UsageError(f"the ranks' meeting point {host}:{port} {what}: {shortened(one_line(error))}") from None


def joined_ranks(store: Store, rank: int, size: int, device: str = "cpu", seconds: float = DEADLINE) -> Mesh:
    """The mesh of `size` processes that meet at a store, once every one of them is there.

    From then on a rank that waits for another longer than `seconds` gets a RuntimeError from torch. A process has one
    mesh at a time: torch keeps its group of processes for all of a process.
    Raises UsageError where not all of them come in time.
    """
    backend = "nccl" if torch.device(device).type == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=seconds))
    except RuntimeError as error:
        raise UsageError(f"rank {rank} of {size} did not find the others: {shortened(one_line(error))}") from None
    shards = DeviceMesh.from_group(dist.group.WORLD, torch.device(device).type)  # type: ignore[arg-type]
    return Mesh(rank, size, device, shards)
