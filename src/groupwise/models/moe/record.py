"""The experts that the routers of a mixture-of-experts model choose for each token, recorded; and the routers' logits.

It works on a model's own `*TopKRouter` modules, whatever they compute around their choice (softmax or sigmoid, group
limits, a bias, float32 inside). No model code is copied, and no hook is left when the `with` ends.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.core.errors import UsageError

#: Where a configuration says how many experts a layer has.
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
WITHOUT_ROUTING = "leave the section [routing] out"
#: Routes of rows: [tokens run, L, K] each, on the CPU. A row's last token is not run: it has none.
RowRoutes = tuple[Tensor, ...]


@dataclass(frozen=True)
class Router:
    """One of a model's routers: the module, its name inside the model, and how many experts it chooses of how many."""

    name: str
    module: Any
    chosen: int
    experts: int

    def __str__(self) -> str:
        return f"{self.name} ({type(self.module).__name__})"


def routers(model: nn.Module) -> tuple[Router, ...]:
    """Return a model's routers, in the order of its layers; none for a dense model.

    Raises UsageError for a router that does not say how many experts it chooses of how many, or where layers differ.
    """
    by_layer: list[Router] = []
    for name, module in model.named_modules():
        if type(module).__name__.lower().endswith("topkrouter"):
            chosen, experts = getattr(module, "top_k", None), getattr(module, "num_experts", None)
            if not isinstance(chosen, int) or not isinstance(experts, int):
                raise UsageError(
                    f"{name} ({type(module).__name__}) has no top_k and num_experts: its routes cannot be understood"
                )
            by_layer.append(Router(name, module, chosen, experts))
    if len({r.chosen for r in by_layer}) > 1:
        counts = ", ".join(f"{r.name} {r.chosen}" for r in by_layer)
        raise UsageError(f"the layers choose different numbers of experts ({counts}): routes need one number for all")
    return tuple(by_layer)


def require_routers(model: nn.Module) -> tuple[Router, ...]:
    """Return a model's routers. Raises UsageError for a model without any, or with others than *TopKRouter."""
    by_layer = routers(model)
    if not by_layer and (unknown := {type(model.get_submodule(name)).__name__ for name in routing_modules(model)}):
        raise UsageError(
            f"{type(model).__name__}: its routers ({', '.join(sorted(unknown))}) are not known: their routes cannot be "
            f"recorded, replayed or balanced; {WITHOUT_ROUTING}"
        )
    if not by_layer:
        raise UsageError(
            f"{type(model).__name__} has no routers: it is dense, and there is nothing to record, replay or balance; "
            f"take a mixture-of-experts model, or {WITHOUT_ROUTING}"
        )
    return by_layer


def routing_modules(model: nn.Module) -> tuple[str, ...]:
    """Return the modules that choose experts, by name: called so, or beside experts with an output for each."""
    config = model.config.get_text_config()  # type: ignore[union-attr]
    counts = {getattr(config, key, None) for key in EXPERT_COUNTS} - {None}
    modules = model.named_modules()
    named = (name for name, module in modules if type(module).__name__.lower().endswith(("router", "gating")))
    return tuple(dict.fromkeys([*named, *_beside_experts(model, counts)]))


def _beside_experts(model: nn.Module, counts: set[Any]) -> Iterator[str]:
    for name, block in model.named_modules():
        children = dict(block.named_children())
        if "experts" not in children:
            continue
        for child, module in children.items():
            weights = (getattr(part, "weight", None) for part in module.modules())
            if "expert" not in child and any(isinstance(w, Tensor) and w.shape[0] in counts for w in weights):
                yield f"{name}.{child}"


def route_dtype(experts: int) -> torch.dtype:
    """Return the smallest type that holds an expert's number.

    >>> route_dtype(256), route_dtype(257)
    (torch.uint8, torch.int16)
    """
    return torch.uint8 if experts <= 256 else torch.int16


class Routes:
    """The experts that one forward chose. Empty until the forward has run."""

    def __init__(self, routers: Sequence[Router]) -> None:
        self._routers, self._dtype = routers, route_dtype(max(r.experts for r in routers))
        self._layers: list[Tensor | None] = [None] * len(routers)
        self._shape: tuple[int, int] | None = None

    @property
    def tensor(self) -> Tensor:
        """[N,T,L,K] on the CPU, uint8 (int16 above 256 experts). Raises UsageError before a forward has run."""
        return self.chosen.cpu()

    @property
    def chosen(self) -> Tensor:
        """Those [N,T,L,K] on the model's device, which is not waited for."""
        layers = [choice for choice in self._layers if choice is not None]
        if self._shape is None or len(layers) < len(self._layers):
            raise UsageError(
                "no routes were recorded: run a forward of the very model that was given, not of a part of it, inside "
                "`with record_routes(model)`"
            )
        for router, layer in zip(self._routers, layers, strict=True):
            require_length(router, self._shape[0] * self._shape[1], len(layer))
        return torch.stack([layer.view(*self._shape, -1).to(layers[0].device) for layer in layers], dim=2)

    def begin(self, shape: tuple[int, int]) -> None:
        """Begin a forward over [N,T] tokens. Raises UsageError on a second one."""
        if self._shape is not None:
            raise UsageError("one forward for each `with`: a second one would overwrite the routes of the first")
        self._shape = shape

    def record(self, layer: int, choice: Tensor) -> None:
        """Keep [N*T,K] of one layer, also if activation checkpointing runs it twice."""
        self._layers[layer] = choice.detach().to(self._dtype)  # on its device: a copy to the CPU would wait for it


@contextmanager
def record_routes(model: nn.Module) -> Iterator[Routes]:
    """Record the experts of one forward of `model`, of every position, padding included.

    Raises UsageError for a dense model, for a second forward, and for a router whose output holds no choice.

        with record_routes(model) as routes:
            model(input_ids=ids)
        routes.tensor    # [N,T,L,K]
    """
    by_layer = require_routers(model)
    routes = Routes(by_layer)

    def record(layer: int, output: object) -> None:
        routes.record(layer, choice_of(by_layer[layer], output))

    with on_forward(model, routes.begin), on_output(by_layer, record):
        yield routes


@contextmanager
def router_logits(routers: Sequence[Router]) -> Iterator[list[Tensor]]:
    """Collect the routers' logits [tokens,E] of one forward, a layer each, with their gradient.

    Raises UsageError, from the forward, for a router that does not return them.
    """
    logits = [torch.empty(0)] * len(routers)

    def record(layer: int, output: object) -> None:
        experts = routers[layer].experts
        tables = [x for x in tensors_in(output) if x.is_floating_point() and x.dim() == 2]
        wide = [x for x in tables if x.shape[-1] == experts]
        if not wide:
            raise UsageError(
                f"{routers[layer]} does not return logits of its {experts} experts: there is nothing to balance"
            )
        logits[layer] = wide[0]

    with on_output(routers, record):
        yield logits


def choice_of(router: Router, output: object) -> Tensor:
    """Return the [tokens,K] integers in a router's output. Raises UsageError if there are none, or several."""
    integers = [x for x in tensors_in(output) if not x.is_floating_point() and x.dim() == 2]
    if len(integers) != 1 or integers[0].shape[-1] != router.chosen:
        raise UsageError(
            f"{router} does not return the {router.chosen} experts of each token: its routes cannot be understood"
        )
    return integers[0]


def tensors_in(output: object) -> list[Tensor]:
    """Return the tensors of a module's output, one or several."""
    return [x for x in (output if isinstance(output, (tuple, list)) else (output,)) if isinstance(x, Tensor)]


def require_length(router: Router, tokens: int, ran: int) -> None:
    """Raise UsageError if a router ran over another number of tokens than its model's forward."""
    if ran != tokens:
        raise UsageError(f"{router.name} ran over {ran} tokens of a forward over {tokens}: its routes have no places")


@contextmanager
def on_forward(model: nn.Module, begin: Callable[[tuple[int, int]], None]) -> Iterator[None]:
    """Call `begin` inside with the [N,T] of each forward of `model`, before it runs."""

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs = [kwargs.get("input_ids"), kwargs.get("inputs_embeds"), *args]
        shapes = [x.shape for x in inputs if isinstance(x, Tensor) and x.dim() >= 2]
        if shapes:  # the model itself refuses a call without tokens
            begin((int(shapes[0][0]), int(shapes[0][1])))

    with model.register_forward_pre_hook(before, with_kwargs=True):
        yield


@contextmanager
def on_output(routers: Sequence[Router], receive: Callable[[int, object], None]) -> Iterator[None]:
    """Inside, `receive` is called with the layer and the output of every router that runs."""

    def after(layer: int, module: nn.Module, args: object, output: object) -> None:
        receive(layer, output)

    with ExitStack() as stack:
        for layer, router in enumerate(routers):
            stack.enter_context(router.module.register_forward_hook(partial(after, layer)))
        yield
