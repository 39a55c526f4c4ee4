"""Bytes of the tensors that live while code runs; tensors that have a shape only are counted as if they had memory."""

import weakref
from collections.abc import Iterator
from typing import Any

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """Counter of every tensor that an operation makes inside it, views of older ones not, until its storage is gone.

    now   bytes
    peak  the most that `now` has been

    What one operation takes and gives back inside its kernel is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = self.compute(func, args, kwargs or {})
        older = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(out):
            if storage._cdata not in older:
                self._see(storage)
        return out

    def compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operation gives; a subclass may know better what one gives of shapes."""
        return func(*args, **kwargs)

    def _see(self, storage: UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def _storages(values: Any) -> Iterator[UntypedStorage]:
    return (value.untyped_storage() for value in tree_iter(values) if isinstance(value, Tensor))
