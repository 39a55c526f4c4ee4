"""Counts what the collectives of this process are handed, whole tensors, by kind: beside what a plan says of them.

with Passed() as passed:
    learner.update(minibatch, algorithm)
passed.numbers    # bytes gathered, scattered, joined and sent, and how many collectives, as Traffic.numbers has them
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

#: torch's own operation -> the place among `numbers` of its kind, and which of its arguments is the whole tensor.
KINDS = {
    "c10d::_allgather_base_": (0, 0),
    "c10d::_reduce_scatter_base_": (1, 1),
    "c10d::allreduce_": (2, 0),
    "c10d::broadcast_": (3, 0),
}
#: The same of what gathers a weight by itself: of a part, and the number of ranks behind it.
WHOLE = "_c10d_functional::all_gather_into_tensor"
#: Ends of names of operations that are about collectives and are none.
MOVES_NOTHING = ("wait_tensor", "_wrap_tensor_autograd")


class Passed(TorchDispatchMode):
    """Inside, counts. Raises NotImplementedError for a collective of another kind."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = [0] * 5

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it takes itself apart, and what it calls is seen
        name = func._schema.name
        if name in KINDS:
            kind, whole = KINDS[name]
            self._count(kind, sum(x.nbytes for x in tree_iter(args[whole]) if isinstance(x, Tensor)))
        elif name == WHOLE:
            self._count(0, args[0].nbytes * args[1])
        elif name.startswith(("c10d::", "_c10d_functional::")) and not name.endswith(MOVES_NOTHING):
            raise NotImplementedError(name)
        return func(*args, **(kwargs or {}))

    def _count(self, kind: int, size: int) -> None:
        self.numbers[kind] += size
        self.numbers[4] += 1
