"""The section [adapter] of a recipe, and which of a model's weights get adapters."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from groupwise.core.errors import UsageError, brief, listed, nearest
from groupwise.core.settings import Changeable, Settings
from groupwise.models.files.folder import quiet
from groupwise.models.moe.record import routing_modules
from groupwise.models.precision import bitsandbytes, need_silently

#: What installs peft, beside groupwise.
EXTRA = "adapters"


class AdapterSettings(Settings):
    """Low-rank adapters (LoRA): W + alpha/rank B A replaces the frozen weight W. Only A [rank, in] and B [out, rank]
    are trained.

    rank         rank of the adapters; 0: none, every weight is trained
    alpha        numerator of the scale alpha/rank
    targets      endings of layer names, such as "q_proj"; default: all linear layers and experts, without the output
                 head, routers and weights that the model multiplies itself
    rate_factor  learning rate of adapters, as a multiple of learner.learning_rate
    base         precision of the frozen weights: the policy's, or rounded to 4 bits when loaded ("nf4", bitsandbytes)
    """

    rank: int = Field(default=0, ge=0, le=4096)
    alpha: float = Field(default=32.0, gt=0)
    targets: tuple[str, ...] = Field(default=(), strict=False)
    rate_factor: Changeable[float] = Field(default=10.0, gt=0)
    base: Literal["same", "nf4"] = "same"

    @property
    def packs(self) -> bool:
        """True if frozen weights are held in 4 bits."""
        return bool(self.rank) and self.base == "nf4"

    def require_installed(self) -> None:
        """Raise UsageError, with what to install, if there are to be adapters and what makes them is missing."""
        if self.rank:
            need_silently("peft", EXTRA, f"adapter.rank = {self.rank}")
        if self.packs:
            bitsandbytes("adapter.base = 'nf4'")

    def __str__(self) -> str:
        where = listed(self.targets) if self.targets else "every linear layer but the head and routers"
        packed = ", over 4 bits" if self.packs else ""
        return f"rank {self.rank}, alpha {self.alpha:g}, on {where}{packed}"


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
    """Return every weight that may get adapters: of linear layers and experts, without the head, the routers, and the
    layers that the model passes by.
    """
    routers, embedding = routing_modules(model), model.get_input_embeddings().weight
    without = {*routers, *passed_by(model)}
    weights: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if module is model.get_output_embeddings() or any(name == r or name.startswith(f"{r}.") for r in without):
            continue
        if isinstance(module, (nn.Linear, Conv1D)):
            weights |= {f"{name}.weight": module.weight} if module.weight is not embedding else {}
        elif "expert" in type(module).__name__.lower():
            stacks = module.named_parameters(recurse=False)
            weights |= {f"{name}.{each}": weight for each, weight in stacks if weight.dim() == 3}
    return weights


def passed_by(model: Any) -> tuple[str, ...]:
    """Return the linear layers that a model does not run, so that an adapter inside would change nothing, as it
    multiplies their weights itself; and those that multiply by a part of their weight, which an adapter does not fit.
    """
    text = model.config.to_json_string(use_diff=False)
    return _passed_by(_Architecture(type(model), text, model.config))


@dataclass(frozen=True)
class _Architecture:
    """A class of models with a configuration; it equals another of the same class and text."""

    kind: Any
    text: str
    config: Any = field(compare=False)


@lru_cache(maxsize=8)
def _passed_by(of: _Architecture) -> tuple[str, ...]:
    """Try it on two tokens of a model without memory: none where that model does not run."""
    ran = set[str]()
    try:
        with quiet(), torch.device("meta"), torch.random.fork_rng(devices=[]), torch.no_grad():
            model = of.kind(copy.deepcopy(of.config)).eval()
            model.set_experts_implementation("batched_mm")  # the others need numbers
            head = model.get_output_embeddings()
            linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
            layers = {name: module for name, module in linear.items() if module is not head}
            for name, layer in layers.items():
                layer.register_forward_hook(partial(_note_whole, ran, name))
            model.base_model(input_ids=torch.zeros(1, 2, dtype=torch.long), use_cache=True)
    except Exception:  # it branches on a number, which device meta does not have
        return ()
    return tuple(name for name in layers if name not in ran)


def _note_whole(ran: set[str], name: str, layer: nn.Linear, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    if not inputs or output.shape == (*inputs[0].shape[:-1], layer.out_features):  # none: it came by keyword
        ran.add(name)


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
    if any(_matches(_layer(name), target) for name in weights):
        return
    if over := [name for name in passed_by(model) if _matches(name, target)]:
        raise UsageError(
            f"adapter.targets: {brief(target)} is a layer ({over[0]}) that {type(model).__name__} passes by or runs in "
            "parts: an adapter inside would change nothing, or does not fit; take it out"
        )
    known = sorted({_layer(name).rpartition(".")[2] for name in weights})
    raise UsageError(
        f"adapter.targets: {brief(target)} matches no linear layer of {type(model).__name__}; {nearest(target, known)}"
    )


def _layer(weight: str) -> str:
    """Return a weight's layer, as targets name it: experts in one parameter are a layer of that name."""
    return weight.removesuffix(".weight")


def _matches(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")
