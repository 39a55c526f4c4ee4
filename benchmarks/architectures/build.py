"""A small folder of a language model class of transformers, with random weights, that every command takes as a model.

    python benchmarks/architectures/build.py FOLDER gemma3_text gemma3 gpt_oss     # FOLDER/gemma3_text, ...

Its layers are of every kind that the class has by its own configuration, and no weight is where the class starts it:
a norm that is 1, a bias that is 0 or a gate that is closed would hide what a wrong one does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
import typer
from torch import nn
from transformers import CONFIG_MAPPING, GenerationConfig, PreTrainedConfig
from transformers.models.auto import modeling_auto

from groupwise.models.files.folder import quiet
from groupwise.models.load import save_policy
from groupwise.models.tiny import EOS_ID, PAD_ID, ByteSpec

if __package__:
    from .kinds import CHANGES, OTHERS, WHOLE
    from .sizes import EVEN_IF_NONE, LATENT, POSITIONS, SIZES
else:
    from kinds import CHANGES, OTHERS, WHOLE
    from sizes import EVEN_IF_NONE, LATENT, POSITIONS, SIZES

#: Standard deviation of what is added to every weight.
NOISE = 0.1
#: Layers of different kinds that a small model has at most.
MOST_LAYERS = 6


def kinds() -> dict[str, str]:
    """Map each kind of model that this transformers has, a `model_type`, to the class that its folders are of.

    A class that several kinds share with one configuration is named once, and parts of other models come last.
    """
    names = {**modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
    pictured = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    names |= {kind: pictured[kind] for kind in WHOLE.split() if kind in pictured}
    seen = dict[tuple[str, str], str]()
    for kind, name in names.items():
        if kind in CONFIG_MAPPING:
            seen.setdefault((CONFIG_MAPPING[kind].__name__, name), kind)
    parts = " ".join(OTHERS.values()).split()
    return {kind: name for (_, name), kind in sorted(seen.items(), key=lambda pair: pair[1] in parts)}


def small_config(kind: str, **changes: Any) -> Any:
    """Return a small configuration of a kind; `changes` are of its text part, if it has parts."""
    given = {**CHANGES.get(kind, {})}
    if changes:
        text = _text_part(CONFIG_MAPPING[kind])
        given = {**given, text: {**given.get(text, {}), **changes}} if text else {**given, **changes}
    return _shrunk(CONFIG_MAPPING[kind], given)


def _text_part(kind: Any) -> str:
    return next((name for name in ("text_config", "thinker_config") if name in kind.sub_configs), "")


def _shrunk(kind: Any, given: Mapping[str, Any], default: Any = None) -> Any:
    """Return a configuration of a class, of small sizes and with what is given."""
    own = kind() if default is None else default
    parts = {name: getattr(own, name, None) for name in kind.sub_configs}
    parts = {name: part for name, part in parts.items() if isinstance(part, PreTrainedConfig)}
    sizes = {**_sizes(own), **_layers(own)}
    sizes |= {
        name: _shrunk(type(part), given.get(name, {}) | CHANGES.get(str(part.model_type), {}), part).to_dict()
        for name, part in parts.items()
        if not hasattr(given.get(name), "to_dict")
    }
    return kind(**{**sizes, **{key: value for key, value in given.items() if key not in parts}})


def _fields(config: Any) -> dict[str, Any]:
    """Map the fields of a configuration's class to their values; of one that differs by layer, to its default."""
    fields = {field.name: field for field in dataclasses.fields(config) if field.name not in config.sub_configs}
    return {name: vars(config).get(name, field.default) for name, field in fields.items()}


def _sizes(config: Any) -> dict[str, Any]:
    sizes = {name: SIZES[name] for name, value in _fields(config).items() if name in SIZES and _sized(name, value)}
    optional = {field.name for field in dataclasses.fields(config) if "None" in str(field.type)}
    sizes |= LATENT if "kv_lora_rank" in sizes else {}
    return {name: EOS_ID if size is None and name not in optional else size for name, size in sizes.items()}


def _sized(name: str, value: Any) -> bool:
    return name in EVEN_IF_NONE.split() if value is None else not isinstance(value, (bool, str))


def _layers(config: Any) -> dict[str, Any]:
    """Choose layers of every kind that a configuration names: its lists of a value a layer, of these alone."""
    total = getattr(config, "num_hidden_layers", None)
    lists = {
        name: value
        for name, value in _fields(config).items()
        if isinstance(value, (list, tuple)) and len(value) == total
    }
    by_kind = {name: value for name, value in lists.items() if name not in SIZES and _tells_kinds(value)}
    if not by_kind or "num_hidden_layers" not in {*_fields(config), *type(config).attribute_map}:
        return {}
    seen = dict[tuple[Any, ...], int]()
    for number, layer in enumerate(zip(*by_kind.values(), strict=True)):
        seen.setdefault(layer, number)
    chosen = [*seen.values()][:MOST_LAYERS]
    chosen = chosen if len(chosen) > 1 else [*chosen, *chosen]
    return {
        **{name: [value[number] for number in chosen] for name, value in lists.items() if name not in SIZES},
        "num_hidden_layers": len(chosen),
    }


def _tells_kinds(values: Any) -> bool:
    return all(isinstance(value, (str, bool)) or value in (0, 1) for value in values)


def small_model(kind: str, seed: int = 0, **changes: Any) -> Any:
    """Return a small model of a kind; the same seed gives the same bits, and no one else's random numbers change."""
    model_class = getattr(transformers, kinds()[kind])
    with quiet(), torch.random.fork_rng(devices=[]):
        config = small_config(kind, **changes)
        torch.manual_seed(seed)
        model = model_class(config if isinstance(config, model_class.config_class) else config.get_text_config())
        moved(model)
    return model.eval()


def moved(model: nn.Module) -> None:
    """Move every weight, and every bias that is a buffer, off its start by noise of torch's generator."""
    numbers = [*model.parameters(), *(b for name, b in model.named_buffers() if name.endswith("bias"))]
    with torch.no_grad():
        for weight in numbers:
            if weight.is_floating_point():
                weight.add_(NOISE * torch.randn(weight.shape))


def save_small(kind: str, folder: Path, seed: int = 0, **changes: Any) -> Path:
    """Write a small model of a kind with a tokenizer of one token a byte -> the folder."""
    model, tokenizer = small_model(kind, seed, **changes), ByteSpec(chat=True, max_length=POSITIONS).tokenizer("")
    model.generation_config = GenerationConfig(eos_token_id=[tokenizer.eos_token_id, EOS_ID], pad_token_id=PAD_ID)
    save_policy(model, tokenizer, folder)
    return folder


def main(folder: Path, names: Annotated[list[str] | None, typer.Argument(help="Kinds; all without.")] = None) -> None:
    """Write a small folder of each kind."""
    for kind in names or kinds():
        print(save_small(kind, folder / kind), flush=True)


if __name__ == "__main__":
    typer.run(main)
