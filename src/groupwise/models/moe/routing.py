"""The experts that a mixture-of-experts model chose for each token, as data: recorded, and replayed.

It works on a model's own `*TopKRouter` modules, whatever they compute around their choice (softmax or sigmoid, group
limits, a bias, float32 inside): such a router asks `torch.topk` for the best K of its E experts and makes the gates'
weights from the values there. Replaying answers that one question with the given experts and today's values at them, so
that everything after it is the router's own code, and gradients reach its logits. No model code is copied, and nothing
stays behind when the `with` ends.

Shapes: N rows, T tokens, L routers (layers with experts), K experts a token, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from groupwise.core.errors import UsageError


@dataclass(frozen=True)
class Router:
    """One of a model's routers: the module, its name inside the model, and how many experts it chooses of how many."""

    name: str
    module: Any
    chosen: int
    experts: int


def routers(model: nn.Module) -> tuple[Router, ...]:
    """A model's routers, in the order of its layers; none for a dense model.

    Raises UsageError for a router that does not say how many experts it chooses of how many, or where layers differ.
    """
    found = []
    for name, module in model.named_modules():
        if type(module).__name__.lower().endswith("topkrouter"):
            chosen, experts = getattr(module, "top_k", None), getattr(module, "num_experts", None)
            if not isinstance(chosen, int) or not isinstance(experts, int):
                raise UsageError(
                    f"{name} ({type(module).__name__}) has no top_k and num_experts: its routes cannot be understood"
                )
            found.append(Router(name, module, chosen, experts))
    if len({r.chosen for r in found}) > 1:
        told = ", ".join(f"{r.name} {r.chosen}" for r in found)
        raise UsageError(f"the layers choose different numbers of experts ({told}): routes need one number for all")
    return tuple(found)


def need_routers(model: nn.Module) -> tuple[Router, ...]:
    """The same. Raises UsageError for a model without any."""
    found = routers(model)
    if not found:
        raise UsageError(
            f"{type(model).__name__} has no routers (modules named *TopKRouter): it is dense, and there is nothing to "
            'record or replay; take a mixture-of-experts model, or routing.replay = "none"'
        )
    return found


def route_dtype(experts: int) -> torch.dtype:
    """The smallest type that holds an expert's number.

    >>> route_dtype(256), route_dtype(257)
    (torch.uint8, torch.int16)
    """
    return torch.uint8 if experts <= 256 else torch.int16


class Routes:
    """What one forward chose. Empty until the forward has run."""

    def __init__(self, found: Sequence[Router]) -> None:
        self._routers, self._dtype = found, route_dtype(max(r.experts for r in found))
        self._layers: list[Tensor | None] = [None] * len(found)
        self._shape: tuple[int, int] | None = None

    @property
    def tensor(self) -> Tensor:
        """[N,T,L,K] on the CPU, uint8 (int16 above 256 experts). Raises UsageError before a forward has run."""
        layers = [choice for choice in self._layers if choice is not None]
        if self._shape is None or len(layers) < len(self._layers):
            raise UsageError(
                "no routes were recorded: run a forward of the very model that was given, not of a part of it, inside "
                "`with record_routes(model)`"
            )
        for router, layer in zip(self._routers, layers, strict=True):
            _check_length(router, self._shape[0] * self._shape[1], len(layer))
        return torch.stack([layer.view(*self._shape, -1).cpu() for layer in layers], dim=2)

    def begin(self, shape: tuple[int, int]) -> None:
        """A forward over [N,T] tokens begins. Raises UsageError on a second one."""
        if self._shape is not None:
            raise UsageError("one forward for each `with`: a second one would overwrite the routes of the first")
        self._shape = shape

    def take(self, layer: int, choice: Tensor) -> None:
        """[N*T,K] of one layer; the same again where activation checkpointing runs it twice."""
        self._layers[layer] = choice.detach().to(self._dtype)  # on its device: a copy to the CPU would wait for it


@contextmanager
def record_routes(model: nn.Module) -> Iterator[Routes]:
    """Record the experts of one forward of `model`, of every position, padding included.

    Raises UsageError for a dense model, for a second forward, and for a router whose answer holds no choice.

        with record_routes(model) as routes:
            model(input_ids=ids)
        routes.tensor    # [N,T,L,K]
    """
    found = need_routers(model)
    routes = Routes(found)

    def keep(layer: int, module: nn.Module, args: object, out: object) -> None:
        routes.take(layer, _choice(found[layer], out))

    with _forward_of(model, routes.begin), ExitStack() as stack:
        for layer, router in enumerate(found):
            stack.callback(router.module.register_forward_hook(partial(keep, layer)).remove)
        yield routes


class Replay:
    """A replay that goes on.

    live     positions without a route, routed live: padding counts where `present` is False there
    own      [N,T,L,K] what the routers would have chosen themselves, where the replay was asked to watch
    """

    def __init__(self, found: Sequence[Router], routes: Tensor, present: Tensor | None, watch: bool) -> None:
        self._routers, self._routes, self._present = found, routes, present
        self._forced: Tensor | None = None
        self._watched = Routes(found) if watch else None
        self.live = 0 if present is None else int((~present).sum())

    @property
    def own(self) -> Tensor:
        if self._watched is None:
            raise UsageError("the replay did not watch: ask for replay_routes(..., watch=True)")
        return self._watched.tensor

    def begin(self, shape: tuple[int, int]) -> None:
        """A forward over [N,T] tokens begins. Raises UsageError where the routes are of another shape."""
        given = self._routes.shape[:2]
        if given != shape:
            raise UsageError(
                f"the routes are of {given[0]} rows of {given[1]} tokens, the forward of {shape[0]} of {shape[1]}; "
                "a token without a route is marked in `present`, not left out"
            )
        if self._watched is not None:
            self._watched.begin(shape)
        # One transfer for all layers: they are small integers, and a transfer for each would be waited for.
        device = next(self._routers[0].module.parameters()).device
        self._forced = self._routes.flatten(0, 1).to(device)
        self._present = None if self._present is None else self._present.flatten()[:, None].to(device)

    def route(self, layer: int, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The router's own forward, with its choice taken from the routes."""
        if self._forced is None:
            raise UsageError("a part of the model ran: replay_routes has to be given the very model that runs")
        question = _Question(self._routers[layer], self._forced[:, layer].long(), self._present)
        with question:
            out = forward(*args, **kwargs)
        _check_answer(question, out)
        if self._watched is not None:
            self._watched.take(layer, question.own)
        return out


@contextmanager
def replay_routes(
    model: nn.Module, routes: Routes | Tensor, present: Tensor | None = None, watch: bool = False
) -> Iterator[Replay]:
    """Run one forward of `model`, and its backward, on the given experts; gates' weights come from the live logits.

    The backward belongs inside the `with`: activation checkpointing runs the routers again there, and torch refuses a
    backward outside, where they would choose anew. One replay inside another over the same model is refused;
    record_routes inside it records what was replayed.

    routes   what record_routes gave, or [N,T,L,K] integers
    present  [N,T] bool, False where a token has no route and chooses for itself; None: all have one
    watch    keep what the routers would have chosen, in `own`

    Raises UsageError for a dense model, for routes of another depth, number or length, for experts out of range or
    twice in one token, and for a router that cannot be replayed.

        with replay_routes(model, routes):
            model(input_ids=ids).logits.sum().backward()
    """
    found = need_routers(model)
    given = routes.tensor if isinstance(routes, Routes) else routes
    _check_routes(given, present, found)
    if any(_replays(router.module) for router in found):
        raise UsageError("a replay over this model is already going on: end its `with` before the next")
    replay = Replay(found, given, present, watch)
    with _forward_of(model, replay.begin), ExitStack() as stack:
        for layer, router in enumerate(found):
            stack.callback(_restore, router.module, vars(router.module).get("forward"))
            router.module.forward = partial(replay.route, layer, router.module.forward)
        yield replay


class _Question(TorchFunctionMode):
    """Answers a router's torch.topk over all experts with the given ones, and with today's values at them.

    forced [tokens,K] int64; present [tokens,1] bool or None. After: `answer` and `own` [tokens,K], `asked` how often,
    and whether the router is `limited`: it asked about something else than all experts too, groups of them.
    """

    def __init__(self, router: Router, forced: Tensor, present: Tensor | None) -> None:
        super().__init__()
        self.router, self.forced, self.present = router, forced, present
        self.asked, self.limited = 0, False
        self.answer = self.own = forced

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func not in (torch.topk, Tensor.topk):
            return out
        values = args[0] if args else (kwargs or {})["input"]
        # With a single group of experts its members are asked about in [tokens,1,E]: only [tokens,E] is the choice.
        if values.dim() != 2 or values.shape[1] != self.router.experts or out.indices.shape[1] != self.router.chosen:
            self.limited = True
            return out
        _check_length(self.router, len(self.forced), len(values))
        self.asked += 1
        self.own, forced = out.indices, self.forced.to(values.device)
        self.answer = forced if self.present is None else forced.where(self.present.to(values.device), self.own)
        return torch.return_types.topk((values.gather(-1, self.answer), self.answer))  # type: ignore[attr-defined]


def changed(routes: Tensor, other: Tensor) -> Tensor:
    """[..., K] each -> [...] float64: the share of the choices in `routes` that are not among those in `other`.

    The order inside a token's K does not count.

    >>> changed(torch.tensor([[0, 1], [2, 3], [4, 5]]), torch.tensor([[1, 0], [2, 7], [6, 7]]))
    tensor([0.0000, 0.5000, 1.0000], dtype=torch.float64)
    """
    kept = (routes[..., :, None] == other[..., None, :]).any(-1)
    return 1 - kept.double().mean(-1)


def lay_out(rows: Sequence[Tensor], width: int) -> tuple[Tensor, Tensor]:
    """Routes of sequences, [tokens_i,L,K] each -> [N,width,L,K], and present [N,width]: padding on the right.

    A sequence longer than `width` is cut: the learner does not run a row's last token.

    >>> routes, present = lay_out([torch.ones(2, 1, 1, dtype=torch.uint8)], width=3)
    >>> routes.flatten().tolist(), present.tolist()
    ([1, 1, 0], [[True, True, False]])
    """
    cut = [row[:width] for row in rows]
    present = torch.arange(width) < torch.tensor([len(row) for row in cut])[:, None]
    padded = rows[0].new_zeros(len(rows), width, *rows[0].shape[1:])
    padded[present] = torch.cat(cut)
    return padded, present


def _choice(router: Router, out: object) -> Tensor:
    """The [tokens,K] integers in a router's answer."""
    found = [part for part in _parts(out) if not part.is_floating_point() and part.dim() == 2]
    if len(found) != 1 or found[0].shape[-1] != router.chosen:
        raise UsageError(
            f"{router.name} ({type(router.module).__name__}) does not return the {router.chosen} experts of each "
            "token: its routes cannot be understood"
        )
    return found[0]


def _parts(out: object) -> list[Tensor]:
    return [part for part in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(part, Tensor)]


@contextmanager
def _forward_of(model: nn.Module, begin: Callable[[tuple[int, int]], None]) -> Iterator[None]:
    """Tell `begin` the [N,T] of each forward of `model`."""

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        told = [kwargs.get("input_ids"), kwargs.get("inputs_embeds"), *args]
        shapes = [t.shape for t in told if isinstance(t, Tensor) and t.dim() >= 2]
        if shapes:  # the model itself refuses a call without tokens
            begin((int(shapes[0][0]), int(shapes[0][1])))

    handle = model.register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _check_routes(routes: Tensor, present: Tensor | None, found: Sequence[Router]) -> None:
    layers, chosen = len(found), found[0].chosen
    if routes.is_floating_point() or routes.dtype == torch.bool:
        raise UsageError(f"the routes are {routes.dtype}: they have to be the numbers of experts, integers")
    if routes.dim() != 4 or routes.shape[2] != layers or routes.shape[3] != chosen:
        raise UsageError(
            f"the routes have shape {tuple(routes.shape)}; this model needs [rows, tokens, {layers}, {chosen}]: "
            f"{layers} layers with experts, {chosen} of them for a token"
        )
    if present is not None and (present.shape != routes.shape[:2] or present.dtype != torch.bool):
        raise UsageError(
            f"`present` has shape {tuple(present.shape)} and is {present.dtype}; it has to be bool and of shape "
            f"{tuple(routes.shape[:2])}, a place for each token of the routes"
        )
    _check_experts(routes.flatten(0, 1) if present is None else routes[present.to(routes.device)], found)


def _check_experts(routes: Tensor, found: Sequence[Router]) -> None:
    """Routes [tokens,L,K] of tokens that have one."""
    ordered = routes.sort(-1).values
    for layer, router in enumerate(found) if len(routes) else ():
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


def _check_length(router: Router, tokens: int, ran: int) -> None:
    if ran != tokens:
        raise UsageError(f"{router.name} ran over {ran} tokens of a forward over {tokens}: its routes have no places")


def _check_answer(question: _Question, out: object) -> None:
    """Refuse a router that asked otherwise than understood, or did not take the answer."""
    router, chosen = question.router, _choice(question.router, out)
    # The same memory is the same answer; comparing it would make the CPU wait for a GPU in every layer.
    taken = chosen.data_ptr() == question.answer.data_ptr() or torch.equal(chosen.long(), question.answer)
    if question.asked != 1 or not taken:
        raise UsageError(
            f"{router.name} ({type(router.module).__name__}) does not choose its experts by one torch.topk over "
            f"all {router.experts} of them: its routes cannot be replayed"
        )
    gates = [part for part in _parts(out) if part.is_floating_point() and part.shape == question.answer.shape]
    if question.limited and any(bool((part == 0).any()) for part in gates):
        raise UsageError(
            f"{router.name} ({type(router.module).__name__}) gives weight 0 to experts outside today's best groups: "
            "routes that need such a group cannot be replayed"
        )


def _replays(module: Any) -> bool:
    """Whether a replay holds this router now."""
    return isinstance(getattr(getattr(vars(module).get("forward"), "func", None), "__self__", None), Replay)


def _restore(module: Any, own: object) -> None:
    """Take the replaced forward away again; one that the module had of its own comes back."""
    if own is None:
        del module.forward
    else:
        module.forward = own
