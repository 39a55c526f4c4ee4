"""One token for many rows through the model, with the interpreter's share of the time taken out if that is safe.

In a small model most of a forward over few tokens is Python between tensor operations. So the model's own forward is
recorded once by torch's tracer and replayed: the same operations on the same weights (a loaded weight is seen at
once). A recording is used only if nothing in it depended on the values of a tensor (the tracer warns if something
did: routing loops, rescaled rotary positions) and if it agrees with the plain forward at other shapes; otherwise, and
if torch has no tracer, the plain forward runs.

In docs/performance.md (python benchmarks/engine.py experts) a step is 2.6 times as fast as the plain forward at 8 rows,
1.6 times at 64 and 1.4 times at 256.

torch.jit.trace would keep each recording for the life of the process, in the one compilation unit that torch has for
all. Here each has a unit of its own, which goes with it.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from groupwise.engines.local.cache import ViewCache
from groupwise.engines.local.experts import logits_and_experts
from groupwise.models.load import quiet
from groupwise.models.moe.record import Router, require_routers

Forward = Callable[..., tuple[Tensor, ...]]
S = TypeVar("S")


class Step:
    """tokens [R,1], positions [R,1] or [1,1], mask [R,1,1,W] or None, views of the cache -> logits [R,V] and, where
    `routes` is True, the experts chosen, [R,L,K].
    """

    def __init__(self, model: Any, routes: bool = False) -> None:
        self._model = model
        self._routers = require_routers(model) if routes else ()
        self._forward: dict[bool, Forward] = {}

    def __call__(
        self, tokens: Tensor, positions: Tensor, mask: Tensor | None, views: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        masked = mask is not None
        if masked not in self._forward:
            plain = _Forward(self._model, masked, self._routers).eval()
            example = partial(_example, views, masked)
            self._forward[masked] = recorded(plain, example, (3, 5), (5, 9), (1, 2))
        logits, *routes = self._forward[masked](tokens, positions, *([mask] if masked else []), *views)
        return logits, routes[0] if routes else None


class _Forward(nn.Module):
    def __init__(self, model: nn.Module, masked: bool, routers: Sequence[Router]) -> None:
        super().__init__()
        self.model = model
        self.masked = masked
        self.routers = routers

    def forward(self, tokens: Tensor, positions: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        mask, views = (rest[0], rest[1:]) if self.masked else (None, rest)
        logits, experts = logits_and_experts(
            self.model,
            self.routers,
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=ViewCache(views),
        )
        return (logits,) if experts is None else (logits, experts)


def _example(views: Sequence[Tensor], masked: bool, shape: tuple[int, int]) -> list[Tensor]:
    """Return inputs of the right kinds, strided as the cache's are, the same at every call."""
    rows, window = shape
    device, dtype = views[0].device, views[0].dtype
    noise = torch.Generator().manual_seed(rows)
    memory = []
    for keys in views[1::2]:
        sizes = (rows + 1, keys.shape[1], window + 3, keys.shape[3])
        states = torch.randn(sizes, generator=noise).to(device, dtype)[:rows]
        memory += [states[:, :, window : window + 1], states[:, :, 1 : window + 1]]
    tokens = torch.arange(rows, device=device)[:, None] % 2
    if not masked:
        return [tokens, torch.full((1, 1), window - 1, device=device), *memory]
    mask = torch.zeros(rows, window + 2, device=device, dtype=dtype)[:, None, None, 1 : window + 1]
    mask[0, :, :, : window // 2] = float("-inf")
    return [tokens, torch.arange(rows, device=device)[:, None] % window, mask, *memory]


def recorded(plain: nn.Module, example: Callable[[S], Sequence[Tensor]], first: S, *others: S) -> Forward:
    """Record `plain` on the example of the first shape and compare on the others'; `plain` itself if that fails."""
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
    """Record the operations of `plain` on these inputs; its weights and buffers are inputs too, and stay its own."""
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
    """Replay without torch's joining of operations on a GPU after a few calls, which moves the last bits: an engine
    that is made anew, for a run that resumes, would not have those of the one before.
    """
    with torch.jit.optimized_execution(False):  # pyright: ignore[reportPrivateImportUsage]
        return replay(*inputs)


def _agree(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(one, other, strict=True))
