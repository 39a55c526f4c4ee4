"""Recordings of a forward by torch's tracer: the same operations on the same weights, without the Python between them.

A recording is used only if nothing in it depended on the values of a tensor (the tracer warns if something did: routing
loops, rescaled rotary positions) and if it agrees with the plain forward at other shapes; otherwise, and if torch has
no tracer, the plain forward runs. Compared is all that a forward gives and all that it writes into its inputs.

Layers with a state branch on sizes: of tokens, of heads. To the tracer every size is a tensor; so those that are the
same at every step are made numbers for such layers. A size that was wrongly taken for one fails at the other shapes.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from groupwise.models.files.folder import quiet

Forward = Callable[..., tuple[Tensor, ...]]
S = TypeVar("S")


def recorded(
    plain: nn.Module, example: Callable[[S], Sequence[Tensor]], first: S, *others: S, branches: bool = False
) -> Forward:
    """Record `plain` on the example of the first shape and compare on the others'; `plain` itself if that fails.

    branches  it may branch on sizes that are the same in all of them
    """
    with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")
        # A value that decides what is recorded makes the recording wrong for other values.
        warnings.simplefilter("error", torch.jit.TracerWarning)  # type: ignore[reportPrivateImportUsage]
        try:
            inputs = tuple(example(first))
            with _FixedSizes(inputs, example(others[0])) if branches else nullcontext():
                replay = _replayed(plain, inputs)
            for shape in others:
                # Each has inputs of its own, which it may write: a state that both advanced would be two steps on.
                ours, own = tuple(example(shape)), tuple(example(shape))
                if not _agree((*plain(*own), *own), (*replay(*ours), *ours)):
                    return plain
        except Exception:  # whatever a model does that cannot be recorded, the plain forward can do
            return plain
    return replay


class _FixedSizes(TorchFunctionMode):
    """Sizes are numbers inside, and not tensors that a tracer follows, but for those that differ from step to step."""

    def __init__(self, one: Sequence[Tensor], other: Sequence[Tensor]) -> None:
        """Take inputs of two shapes, which begin with one of R rows: multiples of R differ, too."""
        super().__init__()
        pairs = zip(one, other, strict=True)
        self._differ = {a for x, y in pairs for a, b in zip(x.shape, y.shape, strict=True) if a != b}
        self._rows = one[0].shape[0]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func not in _SIZES:
            return found
        tracing = torch._C._get_tracing_state()
        torch._C._set_tracing_state(None)  # pyright: ignore[reportAttributeAccessIssue]
        try:
            real = func(*args, **(kwargs or {}))
        finally:
            torch._C._set_tracing_state(tracing)  # pyright: ignore[reportAttributeAccessIssue]
        return self._of(real, found) if isinstance(real, int) else tuple(map(self._of, real, found))

    def _of(self, number: int, traced: Any) -> Any:
        return traced if number in self._differ or number % self._rows == 0 else number


#: The functions that say a tensor's sizes.
_SIZES = (Tensor.shape.__get__, Tensor.size)  # type: ignore[attr-defined]


def _replayed(plain: nn.Module, inputs: tuple[Tensor, ...]) -> Forward:
    """Record the operations of `plain` on these inputs; its weights and buffers are inputs too, and stay its own."""
    state = tuple({id(tensor): tensor for tensor in (*plain.parameters(), *plain.buffers())}.values())
    count = len(inputs)

    def record(*tensors: Tensor) -> Any:
        outputs = plain(*tensors[:count])
        return outputs if len(outputs) > 1 else outputs[0]

    graph, _ = torch._C._create_graph_by_tracing(record, (*inputs, *state), lambda tensor: "", True, False)
    # torch.jit.trace would keep each recording for the life of the process, in the one unit that torch has for all.
    replay = torch._C.CompilationUnit().create_function("recorded", graph, False)
    return partial(_replay_on_gpu if inputs[0].is_cuda else _replay, replay, state)


def _replay(replay: Callable[..., Any], state: tuple[Tensor, ...], *inputs: Tensor) -> tuple[Tensor, ...]:
    outputs = replay(*inputs, *state)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _replay_on_gpu(replay: Callable[..., Any], state: tuple[Tensor, ...], *inputs: Tensor) -> tuple[Tensor, ...]:
    """Replay without torch's joining of operations on a GPU after a few calls, which moves the last bits: an engine
    that is made anew, for a run that resumes, would not have those of the one before.
    """
    with torch.jit.optimized_execution(False):  # pyright: ignore[reportPrivateImportUsage]
        return _replay(replay, state, *inputs)


def _agree(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(one, other, strict=True))
