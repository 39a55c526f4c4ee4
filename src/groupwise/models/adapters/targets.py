"""Which of a model's weights get adapters."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from groupwise.core.errors import UsageError, brief, nearest
from groupwise.models.adapters.settings import AdapterSettings

#: Where a configuration says how many experts a layer has.
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def adapted_weights(model: Any, settings: AdapterSettings) -> dict[str, Tensor]:
    """Return the weights that get adapters, by name: [out, in] of linear layers, [experts, ...] of experts in one
    parameter.

    Raises UsageError, one line, for a target that matches none of them, a router, or the output head.
    """
    if not settings.rank:
        return {}
    weights = adaptable_weights(model)
    if not settings.targets:
        if not weights:
            raise UsageError(f"adapter.rank = {settings.rank}: {type(model).__name__} has no linear layer to adapt")
        return weights
    for target in settings.targets:
        _require_target(target, weights, model)
    return {name: w for name, w in weights.items() if any(_matches(_layer(name), t) for t in settings.targets)}


def adaptable_weights(model: Any) -> dict[str, Tensor]:
    """Return every weight that may get adapters: those of linear layers and of experts, without the head and the
    routers.
    """
    routers, embedding = routing_modules(model), model.get_input_embeddings().weight
    weights: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if module is model.get_output_embeddings() or any(name == r or name.startswith(f"{r}.") for r in routers):
            continue
        if isinstance(module, (nn.Linear, Conv1D)):
            weights |= {f"{name}.weight": module.weight} if module.weight is not embedding else {}
        elif "expert" in type(module).__name__.lower():
            stacks = module.named_parameters(recurse=False)
            weights |= {f"{name}.{each}": weight for each, weight in stacks if weight.dim() == 3}
    return weights


def adapter_size(weights: Mapping[str, Tensor], rank: int) -> int:
    """Tell how many numbers adapters of that rank have: rank (in + out) for each matrix."""
    return sum(rank * w.shape[:-2].numel() * (w.shape[-2] + w.shape[-1]) for w in weights.values())


def in_short(model: Any, settings: AdapterSettings) -> str:
    """Tell what of a model gets adapters, and how many numbers train."""
    weights = adapted_weights(model, settings)
    experts = sum(weight.dim() == 3 for weight in weights.values())
    stacks = f", {experts} stacks of experts" if experts else ""
    trained, frozen = adapter_size(weights, settings.rank), sum(p.numel() for p in model.parameters())
    return f"{len(weights) - experts} linear layers{stacks}; {trained:,} numbers train, the policy's {frozen:,} do not"


def routing_modules(model: nn.Module) -> tuple[str, ...]:
    """Return the modules that choose experts, by name: called so, or with an output for each expert and beside the
    experts.
    """
    config = model.config.get_text_config()  # type: ignore[union-attr]
    counts = {getattr(config, key, None) for key in EXPERT_COUNTS} - {None}
    named = (name for name, module in model.named_modules() if _named_as_router(module))
    return tuple(dict.fromkeys([*named, *_beside_experts(model, counts)]))


def _named_as_router(module: nn.Module) -> bool:
    name = type(module).__name__.lower()
    return name.endswith(("router", "gating"))


def _beside_experts(model: nn.Module, counts: set[Any]) -> Iterator[str]:
    for name, block in model.named_modules():
        children = dict(block.named_children())
        if "experts" not in children:
            continue
        for child, module in children.items():
            weights = (getattr(part, "weight", None) for part in module.modules())
            if "expert" not in child and any(isinstance(w, Tensor) and w.shape[0] in counts for w in weights):
                yield f"{name}.{child}"


def _require_target(target: str, weights: Mapping[str, Tensor], model: Any) -> None:
    head = next((name for name, module in model.named_modules() if module is model.get_output_embeddings()), None)
    if over := [name for name in routing_modules(model) if _matches(name, target)]:
        raise UsageError(
            f"adapter.targets: {brief(target)} is a router ({over[0]}), and a router is not adapted: its choices are "
            "recorded and replayed as its own weights make them; take it out"
        )
    if head is not None and _matches(head, target):
        raise UsageError(
            f"adapter.targets: {brief(target)} is the output head, which is not adapted: log-probabilities are made of "
            "its own weights; take it out"
        )
    if not any(_matches(_layer(name), target) for name in weights):
        known = sorted({_layer(name).rpartition(".")[2] for name in weights})
        raise UsageError(
            f"adapter.targets: {brief(target)} matches no linear layer of {type(model).__name__}; "
            f"{nearest(target, known)}"
        )


def _layer(weight: str) -> str:
    """Return a weight's layer, as targets name it: experts in one parameter are a layer of that name."""
    return weight.removesuffix(".weight")


def _matches(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")
