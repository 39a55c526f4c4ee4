"""A forward of a mixture-of-experts model on given experts, as its own record or an engine's has them.

A `*TopKRouter` asks `torch.topk` for the best K of its E experts and makes the gates' weights from the values there.
Replaying answers that one call with the given experts and today's values at them, so that everything after it is the
router's own code, and gradients reach its logits. The routers' own forwards come back when the `with` ends.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from groupwise.core.errors import UsageError
from groupwise.core.numbers.inputs import Column, mask_of, tensor_of
from groupwise.core.numbers.transfer import to_device
from groupwise.models.forward.forwards import replaced
from groupwise.models.forward.layout import Layout
from groupwise.models.moe.record import (
    Router,
    Routes,
    choice_of,
    on_forward,
    require_length,
    require_routers,
    tensors_in,
)


class Replay:
    """The replay of one forward.

    live     positions without a route, whose routers choose: padding counts where `present` is False there
    own      [N,T,L,K] what the routers would have chosen themselves, where the replay was asked to watch; on the CPU,
             and as `own_chosen` on the model's device, which is not waited for
    """

    def __init__(self, routers: Sequence[Router], routes: Tensor, present: Tensor | None, watch: bool) -> None:
        self._routers, self._routes, self._present = routers, routes, present
        self._forced: Tensor | None = None
        self._own = Routes(routers) if watch else None
        self.live = 0 if present is None else int((~present).sum())

    @property
    def own(self) -> Tensor:
        return self.own_chosen.cpu()

    @property
    def own_chosen(self) -> Tensor:
        if self._own is None:
            raise UsageError("the replay did not watch: ask for replay_routes(..., watch=True)")
        return self._own.chosen

    def begin(self, shape: tuple[int, int]) -> None:
        """Begin a forward over [N,T] tokens. Raises UsageError if the routes are of another shape."""
        given = self._routes.shape[:2]
        if given != shape:
            raise UsageError(
                f"the routes are of {given[0]} rows of {given[1]} tokens, the forward of {shape[0]} of {shape[1]}; "
                "a token without a route is marked in `present`, not left out"
            )
        if self._own is not None:
            self._own.begin(shape)
        # One transfer for all layers: they are small integers, and a transfer for each would be waited for.
        device = next(self._routers[0].module.parameters()).device
        self._forced = to_device(self._routes.flatten(0, 1), device)
        self._present = None if self._present is None else to_device(self._present.flatten()[:, None], device)

    def route(self, layer: int, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the router's own forward, with its choice taken from the routes."""
        if self._forced is None:
            raise UsageError("a part of the model ran: replay_routes has to be given the very model that runs")
        topk = _ForcedTopK(self._routers[layer], self._forced[:, layer].long(), self._present)
        with topk:
            output = forward(*args, **kwargs)
        _require_forced(topk, output)
        if self._own is not None:
            self._own.record(layer, topk.own)
        return output


@contextmanager
def replay_routes(
    model: nn.Module, routes: Routes | Column, present: Column | None = None, watch: bool = False
) -> Iterator[Replay]:
    """Run one forward of `model`, and its backward, on the given experts; gates' weights come from the live logits.

    The backward belongs inside the `with`: activation checkpointing runs the routers again there, and torch refuses a
    backward outside, where they would choose anew. One replay inside another over the same model is refused;
    record_routes inside it records what was replayed.

    routes   what record_routes gave, or [N,T,L,K] integers
    present  [N,T] bool, or 0 and 1, False where a token has no route and chooses for itself; None: all have one
    watch    keep what the routers would have chosen, in `own`

    Raises UsageError for a dense model, for routes of another depth, number or length, for experts out of range or
    twice in one token, and for a router that cannot be replayed.

        with replay_routes(model, routes):
            model(input_ids=ids).logits.sum().backward()
    """
    routers = require_routers(model)
    try:
        forced = routes.tensor if isinstance(routes, Routes) else tensor_of("routes", routes, "integers")
        present = None if present is None else mask_of("present", present)
    except ValueError as error:
        raise UsageError(str(error)) from None
    _require_shape(forced, present, routers)
    _require_experts(forced.flatten(0, 1) if present is None else forced[present.to(forced.device)], routers)
    if any(_is_replayed(router.module) for router in routers):
        raise UsageError("a replay over this model is already going on: end its `with` before the next")
    replay = Replay(routers, forced, present, watch)
    forced_routers = (
        (router.module, partial(replay.route, layer, router.module.forward)) for layer, router in enumerate(routers)
    )
    with on_forward(model, replay.begin), replaced(forced_routers):
        yield replay


class _ForcedTopK(TorchFunctionMode):
    """Answers a router's torch.topk over all experts with the given ones, and with today's values at them.

    forced [tokens,K] int64; present [tokens,1] bool or None. Afterwards: the `answer` and the router's `own` choice
    [tokens,K], the number of `calls`, and whether the router is `limited`: it also ranked groups of experts.
    """

    def __init__(self, router: Router, forced: Tensor, present: Tensor | None) -> None:
        super().__init__()
        self.router, self.forced, self.present = router, forced, present
        self.calls, self.limited = 0, False
        self.answer = self.own = forced

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func not in (torch.topk, Tensor.topk):
            return out
        values = args[0] if args else (kwargs or {})["input"]
        # With a single group of experts its members are ranked in [tokens,1,E]: only [tokens,E] is the choice.
        if values.dim() != 2 or values.shape[1] != self.router.experts or out.indices.shape[1] != self.router.chosen:
            self.limited = True
            return out
        require_length(self.router, len(self.forced), len(values))
        self.calls += 1
        self.own, forced = out.indices, self.forced.to(values.device)
        self.answer = forced if self.present is None else forced.where(self.present.to(values.device), self.own)
        return torch.return_types.topk((values.gather(-1, self.answer), self.answer))  # type: ignore[attr-defined]


def place_routes(rows: Sequence[Tensor], layout: Layout) -> tuple[Tensor, Tensor]:
    """Map routes of rows, [tokens_i,L,K] each -> [R,S,L,K] where a layout runs their tokens, and present [R,S].

    >>> from groupwise.models.forward.layout import padded
    >>> layout = padded(torch.zeros(2, 4, dtype=torch.long), torch.tensor([3, 4]))
    >>> routes, present = place_routes([torch.ones(2, 1, 1), torch.ones(3, 1, 1)], layout)
    >>> routes.flatten().tolist(), present.tolist()
    ([1.0, 1.0, 0.0, 1.0, 1.0, 1.0], [[True, True, False], [True, True, True]])
    """
    places = layout.place[layout.run].cpu()
    shape = layout.ids.shape
    routes = rows[0].new_zeros(shape.numel(), *rows[0].shape[1:])
    present = torch.zeros(shape.numel(), dtype=torch.bool)
    routes[places], present[places] = torch.cat(list(rows)), True
    return routes.unflatten(0, shape), present.view(shape)


def _require_shape(routes: Tensor, present: Tensor | None, routers: Sequence[Router]) -> None:
    layers, chosen = len(routers), routers[0].chosen
    if routes.is_floating_point() or routes.is_complex() or routes.dtype == torch.bool:
        raise UsageError(f"the routes are {routes.dtype}: they have to be the numbers of experts, integers")
    if routes.dim() != 4 or routes.shape[2] != layers or routes.shape[3] != chosen:
        raise UsageError(
            f"the routes have shape {tuple(routes.shape)}; this model needs [rows, tokens, {layers}, {chosen}]: "
            f"{layers} layers with experts, {chosen} of them for a token"
        )
    if present is not None and present.shape != routes.shape[:2]:
        raise UsageError(
            f"`present` has shape {tuple(present.shape)}; it has to be of shape {tuple(routes.shape[:2])}, a place for "
            "each token of the routes"
        )


def _require_experts(routes: Tensor, routers: Sequence[Router]) -> None:
    """Raise UsageError unless in routes [tokens,L,K] every expert is in range, and once in a token."""
    ordered = routes.sort(-1).values
    for layer, router in enumerate(routers) if len(routes) else ():
        least, most = int(ordered[:, layer, 0].min()), int(ordered[:, layer, -1].max())
        if least < 0 or most >= router.experts:
            raise UsageError(
                f"the routes name experts {least} to {most} for {router.name}, which has 0 to {router.experts - 1}"
            )
    twice = (ordered[..., 1:] == ordered[..., :-1]).flatten(1).any(1)
    if bool(twice.any()):
        raise UsageError(
            f"the routes name an expert twice in one layer, for {int(twice.sum())} tokens of {len(twice)}: a router "
            "never does, so these were not recorded; mark tokens without a route in `present`"
        )


def _require_forced(topk: _ForcedTopK, output: object) -> None:
    """Raise UsageError for a router that chose by other calls, or did not take the answer."""
    router, chosen = topk.router, choice_of(topk.router, output)
    # The same memory is the same answer; comparing it would make the CPU wait for a GPU in every layer.
    taken = chosen.data_ptr() == topk.answer.data_ptr() or torch.equal(chosen.long(), topk.answer)
    if topk.calls != 1 or not taken:
        raise UsageError(
            f"{router} does not choose its experts by one torch.topk over all {router.experts} of them: its routes "
            "cannot be replayed"
        )
    gates = [x for x in tensors_in(output) if x.is_floating_point() and x.shape == topk.answer.shape]
    if topk.limited and any(bool((gate == 0).any()) for gate in gates):
        raise UsageError(
            f"{router} gives weight 0 to experts outside today's best groups: routes that need such a group cannot be "
            "replayed"
        )


def _is_replayed(module: Any) -> bool:
    return isinstance(getattr(getattr(vars(module).get("forward"), "func", None), "__self__", None), Replay)
