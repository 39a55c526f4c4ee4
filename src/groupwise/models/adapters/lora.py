"""Adapters (LoRA) that peft injects into a model's own layers: on, off, merged into its weights, and on disk."""

import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from groupwise.core.errors import UsageError, listed, one_line, shortened
from groupwise.core.files.json_text import json_value
from groupwise.core.numbers.seeds import derive
from groupwise.models.adapters.packed import PackedLinear, pack
from groupwise.models.adapters.settings import EXTRA, AdapterSettings, adapted_weights
from groupwise.models.files.folder import ADAPTERS, quiet
from groupwise.models.load import digest
from groupwise.models.precision import need_silently
from groupwise.models.shards import set_unsharded, unsharded

#: peft's name of the adapters; a model has one set of them.
NAME = "default"
#: What a layer has of an adapter.
PARTS = ("lora_A", "lora_B")


class Adapters:
    """A model's adapters: y = W x + alpha/r B A x in each adapted layer, W frozen, A random and B zero at the start.

    The model stays the object that it was, with the parts it had; only its new parameters have a gradient.
    Experts in one parameter have matrices A and B each: W_e + alpha/r B_e A_e.
    """

    def __init__(self, model: Any, settings: AdapterSettings, seed: int, packs: bool = False) -> None:
        """Raise UsageError for targets that do not fit the model, or where peft is missing or cannot adapt it.

        packs  frozen weights may be held in 4 bits, if the settings say so; then they cannot be merged in place
        """
        weights = adapted_weights(model, settings)
        there = not any(weight.is_meta for weight in model.parameters())
        self.settings, self.base_digest = settings, digest(model) if there else ""
        names = [name for name, _ in model.named_parameters()]
        if packs:
            pack(model, settings)
        self._model, base = model, {name: model.get_parameter(name) for name in names}
        model.requires_grad_(False)
        _inject(model, list(weights), settings, seed)
        now = {id(parameter): name for name, parameter in model.named_parameters()}
        self._layers = _by_weight(model, base)
        self._names = {name: now[id(parameter)] for name, parameter in base.items()}
        if missed := weights.keys() ^ self._layers.keys():
            raise UsageError(f"peft adapts other layers of {type(model).__name__} than these: {listed(sorted(missed))}")

    @property
    def base(self) -> Mapping[str, nn.Parameter]:
        """The frozen weights, by the names that they had before."""
        return {name: self._model.get_parameter(now) for name, now in self._names.items()}

    @property
    def like(self) -> Mapping[str, Tensor]:
        """Tensors with the names, shapes and types of the merged weights, of which no number is read."""
        layers = {name: self._model.get_submodule(now.rpartition(".")[0]) for name, now in self._names.items()}
        packed = {name: layer.like for name, layer in layers.items() if isinstance(layer, PackedLinear)}
        return {name: weight if weight.is_floating_point() else packed[name] for name, weight in self.base.items()}

    @property
    def matrices(self) -> dict[str, nn.Parameter]:
        """A and B of each adapted weight, as `<weight>.lora_A` and `<weight>.lora_B`."""
        pairs = self._layers.items()
        return {f"{name}.{part}": getattr(layer, part)[NAME].weight for name, layer in pairs for part in PARTS}

    @contextmanager
    def off(self) -> Iterator[None]:
        """Make the model compute inside what it did before it had adapters, to the bit."""
        for layer in self._layers.values():
            layer.enable_adapters(False)
        try:
            yield
        finally:
            for layer in self._layers.values():
                layer.enable_adapters(True)

    def merged(self) -> Iterator[tuple[str, Tensor]]:
        """Return every weight of the model without adapters, by name: W + alpha/r B A where it is adapted, one at a
        time.

        Of a model in shards each is gathered for it.
        """
        for name, weight in self.base.items():
            yield name, self._merged(name, weight)

    def load(self, matrices: Mapping[str, Tensor]) -> None:
        """Set A and B. Raises ValueError if they are of other weights, shapes or kinds of numbers."""
        own = self.matrices
        if {k: m.shape for k, m in matrices.items()} != {k: m.shape for k, m in own.items()}:
            raise ValueError("the adapters are of other layers than the model has")
        if wrong := [name for name, m in matrices.items() if not m.is_floating_point() or not m.isfinite().all()]:
            raise ValueError(f"matrices hold integers, NaN or infinity ({listed(wrong, most=3)})")
        with torch.no_grad():
            for name, matrix in own.items():
                set_unsharded(matrix, matrices[name])

    def merge(self) -> None:
        """Add the adapters to the weights and take them out: an ordinary model again, and nothing more to do here."""
        with torch.no_grad():
            base = self.base
            for name in self._layers:
                base[name].copy_(self._merged(name, base[name]))
        wrappers = {id(layer) for layer in self._layers.values()}
        while wrapped := next((name for name, m in self._model.named_modules() if id(m) in wrappers), None):
            self._model.set_submodule(wrapped, self._model.get_submodule(wrapped).get_base_layer())
        self._layers, self._names = {}, {name: name for name in self._names}

    @torch.no_grad()
    def _merged(self, name: str, weight: Tensor) -> Tensor:
        layer = self._layers.get(name)
        if layer is None:
            return unsharded(weight)
        own = layer.get_base_layer()
        whole = own.unpacked() if isinstance(own, PackedLinear) else unsharded(weight)
        with _whole_matrices(layer):
            return whole + layer.get_delta_weight(NAME)


def with_adapters(model: Any, settings: AdapterSettings) -> Any:
    """Return a copy of a model without memory, on the meta device, that has adapters and what is frozen as a real one
    has.

    Raises UsageError as Adapters does.
    """
    weights, model = list(adapted_weights(model, settings)), copy.deepcopy(model).requires_grad_(False)
    pack(model, settings)
    with torch.device("meta"):
        _inject(model, weights, settings, seed=0)
    return model


@contextmanager
def _whole_matrices(layer: Any) -> Iterator[None]:
    """Make A and B of one of peft's layers whole inside, also those that are in shards outside."""
    linears = [getattr(layer, part)[NAME] for part in PARTS]
    own = [linear.weight for linear in linears]
    try:
        for linear, weight in zip(linears, own, strict=True):
            linear._parameters["weight"] = unsharded(weight)
        yield
    finally:
        for linear, weight in zip(linears, own, strict=True):
            linear._parameters["weight"] = weight


def _inject(model: Any, weights: list[str], settings: AdapterSettings, seed: int) -> None:
    """Inject adapters without dropout over the weights of these names, random by the seed alone."""
    peft = need_silently("peft", EXTRA, f"adapter.rank = {settings.rank}")
    stacks = [name for name in weights if model.get_parameter(name).dim() == 3]
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=0.0,
        target_modules=[f"policy.{name.removesuffix('.weight')}" for name in weights if name not in stacks],
        target_parameters=[f"policy.{name}" for name in stacks] or None,
    )
    with quiet(), torch.random.fork_rng(devices=[]):  # the caller's random stream stays where it is
        torch.manual_seed(derive(seed, "adapters"))
        # Where peft sees a transformers model, it takes names like gate_proj for those of experts in older versions.
        peft.inject_adapter_in_model(config, nn.ModuleDict({"policy": model}), NAME)


def _by_weight(model: nn.Module, base: Mapping[str, nn.Parameter]) -> dict[str, Any]:
    lora = need_silently("peft", EXTRA, "adapters").tuners.lora
    names = {id(parameter): name for name, parameter in base.items()}
    layers: list[Any] = [module for module in model.modules() if isinstance(module, lora.LoraLayer)]
    stacked = lora.layer.ParamWrapper
    return {names[id(x.get_param() if isinstance(x, stacked) else x.get_base_layer().weight)]: x for x in layers}


MATRICES = "adapters.safetensors"


def holds_adapters(folder: Path) -> bool:
    """Tell whether a folder holds adapters in the place of a model."""
    return (folder / ADAPTERS).is_file()


def write_adapters(folder: Path, adapters: Adapters, base: str, writes: bool = True) -> None:
    """Write only A and B, with their settings and the base that they were trained over, whose folder was `base`.

    writes  False: this rank only helps to gather them
    """
    matrices = {name: unsharded(m).cpu().contiguous() for name, m in adapters.matrices.items()}
    if not writes:
        return
    folder.mkdir(parents=True, exist_ok=True)
    save_file(matrices, folder / MATRICES)
    (folder / ADAPTERS).write_text(json.dumps(_description(adapters) | {"base": base}, indent=1))


def read_adapters(folder: Path, adapters: Adapters) -> None:
    """Read A and B as they were saved, bit for bit.

    Raises UsageError if there are none, where they are of other settings, another base or other layers, and where
    the files hold something else.
    """
    rank = adapters.settings.rank
    if not holds_adapters(folder):
        raise UsageError(
            f"{folder}: trained without adapters, so adapter.rank = {rank} cannot go on with it: set it to 0"
        )
    path = folder / ADAPTERS
    try:
        _require_same_base(json_value(path.read_bytes(), str(path)), adapters, path)
        adapters.load(load_file(folder / MATRICES))
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise UsageError(f"{folder}: not adapters of this model: {shortened(one_line(error))}") from None


def _require_same_base(saved: Any, adapters: Adapters, path: Path) -> None:
    now = _description(adapters)
    for key in ("rank", "alpha", "targets"):
        if saved[key] != now[key]:
            raise UsageError(
                f"{path}: adapter.{key} = {now[key]} and these adapters have {saved[key]}: it cannot change in a run; "
                "set it back, or start another run"
            )
    if saved["digest"] != now["digest"]:
        raise UsageError(
            f"{path}: the adapters are of policy {saved['digest']}, and the base now is {now['digest']}; it was in "
            f"{saved['base']}: take the model folder, library versions and number of threads that it had"
        )


def _description(adapters: Adapters) -> dict[str, Any]:
    settings = adapters.settings
    targets = list(settings.targets)
    return {"rank": settings.rank, "alpha": settings.alpha, "targets": targets, "digest": adapters.base_digest}
