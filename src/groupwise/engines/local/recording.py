"""A model's forward with the interpreter's share of the time taken out where that is safe.

In a small model most of a forward over few tokens is Python between tensor operations. So the model's own forward is
recorded once by torch's tracer and replayed: the same operations on the same weights (a loaded weight is seen at
once). A recording is used only if nothing in it depended on the values of a tensor (the tracer warns where something
did: routing loops, rescaled rotary positions) and if it agrees with the plain forward at other shapes; otherwise, and
where torch has no tracer, the plain forward runs.

torch.jit.trace would keep each recording for the life of the process, in the one compilation unit that torch has for
all. Here each has a unit of its own, which goes with it.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from groupwise.models.load import quiet

Forward = Callable[..., tuple[Tensor, ...]]
S = TypeVar("S")


def recorded(plain: nn.Module, example: Callable[[S], Sequence[Tensor]], first: S, *others: S) -> Forward:
    """`plain`, recorded on the example of the first shape and compared on the others'; itself where that fails."""
    with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")
        # A value that decides what is recorded makes the recording wrong for other values.
        warnings.simplefilter("error", torch.jit.TracerWarning)  # type: ignore[reportPrivateImportUsage]
        try:
            replay = _replayed(plain, tuple(example(first)))
            if not all(_agree(plain(*inputs), replay(*inputs)) for inputs in map(example, others)):
                return plain
        except Exception:  # whatever a model does that cannot be recorded, the plain forward can do
            return plain
    return replay


def _replayed(plain: nn.Module, inputs: tuple[Tensor, ...]) -> Forward:
    """The operations of `plain` on these inputs; its weights and buffers are inputs as well, and stay its own."""
    state = tuple({id(tensor): tensor for tensor in (*plain.parameters(), *plain.buffers())}.values())
    count = len(inputs)

    def record(*tensors: Tensor) -> Any:
        outputs = plain(*tensors[:count])
        return outputs if len(outputs) > 1 else outputs[0]

    graph, _ = torch._C._create_graph_by_tracing(record, (*inputs, *state), lambda tensor: "", True, False)
    replay = torch._C.CompilationUnit().create_function("recorded", graph, False)
    run = partial(_as_recorded, replay) if inputs[0].is_cuda else replay
    return partial(_outputs_of, run, state)


def _outputs_of(run: Callable[..., Any], state: tuple[Tensor, ...], *inputs: Tensor) -> tuple[Tensor, ...]:
    outputs = run(*inputs, *state)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _as_recorded(replay: Callable[..., Any], *inputs: Tensor) -> Any:
    """torch joins operations on a GPU after a few calls, which moves the last bits: an engine that is made anew, for a
    run that goes on, would not have those of the one before.
    """
    with torch.jit.optimized_execution(False):  # pyright: ignore[reportPrivateImportUsage]
        return replay(*inputs)


def _agree(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(one, other, strict=True))
