"""Weights that routers give replayed experts, which need not be the ones that they would choose."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from groupwise.core.errors import UsageError
from groupwise.core.records import Batch
from groupwise.diagnostics.witness.plain.forward import RowPart, run
from groupwise.diagnostics.witness.reading import Disagreement, Said, Unmeasured
from groupwise.models.forward.heads import halves
from groupwise.models.moe.record import Router
from groupwise.models.moe.replay import replay_routes

#: Tokens that are run, and how far two experts' weights may be from their definition, of the logarithm of their
#: quotient: in float32, and where a router computes in 16 bits.
TOKENS, EXACT, ROUNDED = 64, 1e-3, 0.1
#: What makes a router's weights of its logits, up to a factor that a token's experts have in common.
SCORES = (lambda logits: logits, logsigmoid)


def gates_under_replay(model: Any, routers: Sequence[Router], rows: Batch) -> Said:
    """Replay in one row other experts than its own: the weights of two must stand as today's logits of these two do,
    by the definition that holds for the experts that the routers choose.
    """
    some = [RowPart(0, 0, min(TOKENS, int(rows.length[0])))]
    own = gates(model, routers, rows, some)
    logits, _, chosen = own[0]
    experts = logits.shape[1]
    if chosen.shape[1] in (1, experts):
        yield Unmeasured("a token has one expert or all of them, so that no two weights can be compared")
        return
    limit = EXACT if logits.dtype.itemsize > 2 else ROUNDED
    scores = next((score for score in SCORES if distance(own, score) <= limit), None)
    if scores is None:
        yield Unmeasured("the weights of experts are neither a softmax nor sigmoids of their router's logits")
        return
    other = torch.stack([(indices + 1) % experts for *_, indices in own], dim=1)[None]
    try:
        replayed = gates(model, routers, rows, some, other)
    except UsageError as error:
        yield Unmeasured(f"experts that a router would not choose cannot be replayed: {error}")
        return
    words = "experts that are replayed have other weights than today's router gives them; look at the replay"
    yield Disagreement("the weights of replayed experts", words, distance(replayed, scores), limit)


def distance(layers: Sequence[tuple[Tensor, Tensor, Tensor]], scores: Any) -> float:
    """Return how far the weights are from their definition: log w_a - log w_b against s_a - s_b, the worst."""
    worst = 0.0
    for logits, weights, chosen in layers:
        due = scores(logits.double()).gather(1, chosen)
        there = weights.double().clamp(min=1e-30).log()
        worst = max(worst, float(((there - there[:, :1]) - (due - due[:, :1])).abs().max()))
    return worst


def gates(
    model: Any, routers: Sequence[Router], rows: Batch, parts: Sequence[RowPart], routes: Tensor | None = None
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Run parts of rows -> of each router its logits [M,E], the weights [M,K] of the experts, and their numbers [M,K].

    routes  [1,M,L,K], the experts that are replayed; None: the routers choose
    """
    backbone = halves(model)[0]
    replay = nullcontext() if routes is None else replay_routes(backbone, routes)
    with torch.no_grad(), replay, outputs(routers) as seen:
        run(backbone, rows, parts)
    layers = []
    for router, output in zip(routers, seen, strict=True):
        tables = [x for x in output if isinstance(x, Tensor) and x.dim() == 2]
        floats = [x for x in tables if x.is_floating_point()]
        logits = next(x for x in floats if x.shape[1] == router.experts)
        weights = next(x for x in floats if x is not logits and x.shape[1] == router.chosen)
        layers.append((logits, weights, next(x for x in tables if not x.is_floating_point()).long()))
    return layers


@contextmanager
def outputs(routers: Sequence[Router]) -> Iterator[list[Any]]:
    """Collect what each router returns in the forward inside."""
    seen: list[Any] = []

    def after(module: nn.Module, args: Any, output: Any) -> None:
        seen.append(output)

    with ExitStack() as stack:
        for router in routers:
            stack.enter_context(router.module.register_forward_hook(after))
        yield seen
