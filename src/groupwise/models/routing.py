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

from groupwise.errors import UsageError


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
        self._dtype = route_dtype(max(r.experts for r in found))
        self._layers: list[Tensor | None] = [None] * len(found)
        self._shape: tuple[int, int] | None = None

    @property
    def tensor(self) -> Tensor:
        """[N,T,L,K] on the CPU, uint8 (int16 above 256 experts). Raises UsageError before a forward has run."""
        layers = [choice for choice in self._layers if choice is not None]
        if self._shape is None or len(layers) < len(self._layers):
            raise UsageError("no routes were recorded: run the model's forward inside `with record_routes(model)`")
        return torch.stack([layer.view(*self._shape, -1) for layer in layers], dim=2)

    def begin(self, shape: tuple[int, int]) -> None:
        """A forward over [N,T] tokens begins. Raises UsageError on a second one."""
        if self._shape is not None:
            raise UsageError("one forward for each `with record_routes(model)`: a second would overwrite the routes")
        self._shape = shape

    def take(self, layer: int, choice: Tensor) -> None:
        """[N*T,K] of one layer; the same again where activation checkpointing runs it twice."""
        self._layers[layer] = choice.detach().to("cpu", self._dtype)


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

    live     positions that had no route and were routed live, once the forward has run
    own      [N,T,L,K] what the routers would have chosen themselves, where the replay was asked to watch
    """

    def __init__(self, found: Sequence[Router], routes: Tensor, present: Tensor | None, watch: bool) -> None:
        self._routers, self._routes, self._present = found, routes, present
        self._watched = Routes(found) if watch else None
        self.live = 0 if present is None else int((~present).sum())

    @property
    def own(self) -> Tensor:
        if self._watched is None:
            raise UsageError("the replay did not watch: ask for replay_routes(..., watch=True)")
        return self._watched.tensor

    def begin(self, shape: tuple[int, int]) -> None:
        """A forward over [N,T] tokens begins. Raises UsageError where the routes are of another shape."""
        given = tuple(self._routes.shape[:2])
        if given != shape:
            raise UsageError(
                f"the routes are of {given[0]} rows of {given[1]} tokens, the forward of {shape[0]} of {shape[1]}; "
                "a token without a route is marked in `present`, not left out"
            )
        if self._watched is not None:
            self._watched.begin(shape)

    def route(self, layer: int, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The router's own forward, with its choice taken from the routes."""
        router = self._routers[layer]
        device = next(router.module.parameters()).device
        forced = self._routes[:, :, layer].flatten(0, 1).to(device, torch.int64)
        present = None if self._present is None else self._present.flatten().to(device)
        question = _Question(router, forced, present)
        with question:
            out = forward(*args, **kwargs)
        if question.asked != 1 or not torch.equal(_choice(router, out).long(), question.answer):
            raise UsageError(
                f"{router.name} ({type(router.module).__name__}) does not choose its experts by one torch.topk over "
                f"all {router.experts} of them: its routes cannot be replayed"
            )
        if self._watched is not None:
            self._watched.take(layer, question.own)
        return out


@contextmanager
def replay_routes(
    model: nn.Module, routes: Routes | Tensor, present: Tensor | None = None, watch: bool = False
) -> Iterator[Replay]:
    """Run one forward of `model`, and its backward, on the given experts; gates' weights come from the live logits.

    routes   what record_routes gave, or [N,T,L,K] integers
    present  [N,T] bool, False where a token has no route and chooses for itself; None: all have one
    watch    keep what the routers would have chosen, in `own`

    Raises UsageError for a dense model, for routes of another depth, number or length, and for a router that cannot be
    replayed.

        with replay_routes(model, routes):
            model(input_ids=ids).logits.sum().backward()
    """
    found = need_routers(model)
    given = routes.tensor if isinstance(routes, Routes) else routes
    _check_routes(given, present, found)
    replay = Replay(found, given, present, watch)
    with _forward_of(model, replay.begin), ExitStack() as stack:
        for layer, router in enumerate(found):
            stack.callback(_restore, router.module, vars(router.module).get("forward"))
            router.module.forward = partial(replay.route, layer, router.module.forward)
        yield replay


class _Question(TorchFunctionMode):
    """Answers a router's torch.topk over all experts with the given ones, and with today's values at them.

    forced [tokens,K] int64; present [tokens] bool or None. After: `answer` and `own` [tokens,K], `asked` how often.
    """

    def __init__(self, router: Router, forced: Tensor, present: Tensor | None) -> None:
        super().__init__()
        self.router, self.forced, self.present = router, forced, present
        self.asked = 0
        self.answer = self.own = forced

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func not in (torch.topk, Tensor.topk) or not self._is_choice(args[0] if args else kwargs["input"], out):
            return out
        values = args[0] if args else kwargs["input"]
        self.asked += 1
        self.own = out.indices
        if self.present is None:
            self.answer = self.forced
        else:
            self.answer = torch.where(self.present[:, None], self.forced, out.indices)
        return torch.return_types.topk((values.gather(-1, self.answer), self.answer))  # type: ignore[attr-defined]

    def _is_choice(self, values: Tensor, out: Any) -> bool:
        """Group-limited routers ask topk about groups first, in other shapes."""
        return values.shape == (len(self.forced), self.router.experts) and out.indices.shape == self.forced.shape


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
    padded = rows[0].new_zeros(len(rows), width, *rows[0].shape[1:])
    present = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        tokens = min(len(row), width)
        padded[i, :tokens] = row[:tokens]
        present[i, :tokens] = True
    return padded, present


def _choice(router: Router, out: object) -> Tensor:
    """The [tokens,K] integers in a router's answer."""
    told = out if isinstance(out, (tuple, list)) else (out,)
    found = [part for part in told if isinstance(part, Tensor) and not part.is_floating_point() and part.dim() >= 2]
    if len(found) != 1 or found[0].shape[-1] != router.chosen:
        raise UsageError(
            f"{router.name} ({type(router.module).__name__}) does not return the {router.chosen} experts of each "
            "token: its routes cannot be understood"
        )
    return found[0].flatten(0, -2)


@contextmanager
def _forward_of(model: nn.Module, begin: Callable[[tuple[int, int]], None]) -> Iterator[None]:
    """Tell `begin` the [N,T] of each forward of `model`."""

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        told = [kwargs.get("input_ids"), kwargs.get("inputs_embeds"), *args]
        shape = next(t.shape for t in told if isinstance(t, Tensor))
        begin((int(shape[0]), int(shape[1])))

    handle = model.register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _check_routes(routes: Tensor, present: Tensor | None, found: Sequence[Router]) -> None:
    layers, chosen = len(found), found[0].chosen
    if routes.dim() != 4 or routes.shape[2] != layers or routes.shape[3] != chosen:
        raise UsageError(
            f"the routes have shape {tuple(routes.shape)}; this model needs [rows, tokens, {layers}, {chosen}]: "
            f"{layers} layers with experts, {chosen} of them for a token"
        )
    if present is not None and present.shape != routes.shape[:2]:
        raise UsageError(f"`present` has shape {tuple(present.shape)}, the routes are of {tuple(routes.shape[:2])}")
    least = min(r.experts for r in found)
    if routes.numel() and (int(routes.min()) < 0 or int(routes.max()) >= least):
        raise UsageError(
            f"the routes name experts {int(routes.min())} to {int(routes.max())}; there are 0 to {least - 1}"
        )


def _restore(module: Any, own: object) -> None:
    """Take the replaced forward away again; one that the module had of its own comes back."""
    if own is None:
        del module.forward
    else:
        module.forward = own
