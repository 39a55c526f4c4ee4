"""A multimodal folder's text: found in the folder's model, taken out as a causal language model, and saved inside the
whole model again, whose other tensors stay as they are.
"""

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
import transformers
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.core_model_loading import revert_weight_conversion

from groupwise.core.errors import RunError, UsageError, listed, one_line
from groupwise.core.files.tensor_layout import TensorBytes, file_layout, read_tensor
from groupwise.models.causal import CausalLM, ModelClass, text_config
from groupwise.models.files.folder import INDEX, loading, weight_files
from groupwise.models.forward.heads import few_ids, halves
from groupwise.models.unread import parameters_without_memory

#: Files that say how images and sounds are read.
PROCESSORS = (
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "chat_template.json",
)
#: How far the logits of a text alone may be from those of the whole model, as a share of the largest, or of 1.
NEAR = 1e-4
#: Bytes of a file of weights at most, as transformers has it.
LARGEST_FILE = "50GB"


@dataclass(frozen=True)
class Whole:
    """A multimodal model around its text, which alone has memory.

    frame       the model without memory (device meta)
    names       names in the frame of the entries of the text's state
    stored      names of the text's tensors in the files of weights
    others      places of all other tensors of these files, by name: they do not train, and stay there
    processors  contents of the files that say how images are read, by name
    """

    frame: Any
    names: Mapping[str, str]
    stored: frozenset[str]
    others: Mapping[str, tuple[Path, TensorBytes]]
    processors: Mapping[str, bytes]

    def __deepcopy__(self, memo: object) -> Self:
        return self

    @property
    def untrained_bytes(self) -> int:
        """Bytes of the tensors that do not train."""
        return sum(place.end - place.begin for _, place in self.others.values())

    def untrained(self) -> Iterator[tuple[str, Tensor]]:
        """Read the tensors that do not train, one at a time. Raises RunError if the files have changed since."""
        for name, (path, place) in self.others.items():
            try:
                if file_layout(path).places.get(name) != place:
                    raise ValueError("the file is another one now")
                tensor = read_tensor(path, place)
            except (OSError, ValueError) as error:
                raise RunError(f"{path}: {name} cannot be read there any more: {one_line(error)}") from None
            yield name, tensor

    def save(self, state: Mapping[str, Tensor], folder: Path) -> None:
        """Write the model, its text's state given, each tensor under the name that it had in the files."""
        config = copy.deepcopy(self.frame.config)
        config.architectures = [type(self.frame).__name__]
        config.dtype = str(next(iter(state.values())).dtype).removeprefix("torch.")
        config.save_pretrained(folder)
        self.frame.generation_config.save_pretrained(folder)
        for name, content in self.processors.items():
            (folder / name).write_bytes(content)
        text = revert_weight_conversion(self.frame, {self.names[name]: tensor for name, tensor in state.items()})
        write_weights({name: text[name].detach() for name in sorted(self.stored)} | dict(self.untrained()), folder)


def write_weights(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Write files of weights that transformers loads, with an index if there are several."""
    shards = split_torch_state_dict_into_shards(
        dict(tensors), filename_pattern="model{suffix}.safetensors", max_shard_size=LARGEST_FILE
    )
    for file, names in shards.filename_to_tensors.items():
        written: dict[int, Tensor] = {}
        own = {name: tensors[name].contiguous() for name in names}
        for name, tensor in own.items():  # a head and an embedding may be one, and both in the files
            own[name] = tensor.clone() if tensor.data_ptr() in written else tensor
            written[tensor.data_ptr()] = tensor
        save_file(own, folder / file, metadata={"format": "pt"})
    if shards.is_sharded:
        index = {"metadata": shards.metadata, "weight_map": shards.tensor_to_filename}
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def whole_of(model: Any) -> Whole | None:
    """Return the model around a text that was taken out of it; None if the model is no part of another."""
    return getattr(model, "whole", None)


def whole_class(config: Any, what: str) -> ModelClass:
    """Return the class of a multimodal folder's model. Raises UsageError, `what` first, if transformers has none."""
    name = (config.architectures or [""])[0]
    cls = getattr(transformers, name, None) if name else None
    if not isinstance(cls, type) or not issubclass(cls, transformers.PreTrainedModel):
        raise UsageError(
            f"{what}: config.json: architectures: transformers {transformers.__version__} has no {name!r:.80}"
        )
    return ModelClass(cls)


def text_of(model: Any, folder: Path, what: str) -> Any:
    """Take the text out of a folder's multimodal model, whose other parts lose their memory.

    Raises UsageError, `what` first, if no part of it computes alone what the model computes of a text.
    """
    head, config = model.get_output_embeddings(), text_config(model.config)
    config.tie_word_embeddings = head is not None and head.weight is model.get_input_embeddings().weight
    with loading(what), parameters_without_memory():
        text = CausalLM.from_config(config, dtype=model.dtype, trust_remote_code=False)
    names, state = _names(model, text, what), model.state_dict()
    text.load_state_dict({own: state[name] for own, name in names.items()}, assign=True)
    text.tie_weights()
    text.generation_config = model.generation_config
    text.eval()
    with loading(what):
        _require_alike(model, text, what)
        text.whole = _whole(model, names, folder, what)
    model.to("meta")
    return text


def _names(model: Any, text: Any, what: str) -> dict[str, str]:
    """Map names of a text's state to those in the whole model. Raises UsageError, `what` first, if it has others."""
    backbone, head = halves(text)
    pairs = (
        (backbone, [part for part in model.modules() if type(part) is type(backbone)]),
        (head, [model.get_output_embeddings()]),
    )
    paths = [{part: name for name, part in one.named_modules()} for one in (text, model)]
    places = {paths[0].get(own): [paths[1].get(part) for part in there] for own, there in pairs}
    state, names = model.state_dict(), dict[str, str]()
    for name in text.state_dict():
        for own, there in places.items():
            if own is not None and len(there) == 1 and there[0] is not None and name.startswith(f"{own}."):
                names[name] = there[0] + name.removeprefix(own)
    if missing := [name for name in text.state_dict() if names.get(name) not in state]:
        raise UsageError(
            f"{what}: {type(model).__name__} has no one part that is its text as {type(text).__name__} "
            f"(no {listed(missing, most=1)})"
        )
    return names


@torch.no_grad()
def _require_alike(model: Any, text: Any, what: str) -> None:
    """Raise UsageError, `what` first, if a text's logits alone are not those of the whole model."""
    ids = few_ids(text)
    whole, own = (one(input_ids=ids, use_cache=False).logits.float() for one in (model, text))
    if not torch.allclose(whole, own, rtol=NEAR, atol=NEAR * float(whole.abs().max().clamp(max=1.0))):
        raise UsageError(
            f"{what}: {type(model).__name__} computes other logits of a text than its {type(text).__name__} alone "
            f"(by up to {float((whole - own).abs().max()):.2g}), and only the text is trained"
        )


def _whole(model: Any, names: Mapping[str, str], folder: Path, what: str) -> Whole:
    """Describe what is around a text. Raises UsageError, `what` first, if the names of its weights in the files are not
    those that transformers gives them.
    """
    places = {
        name: (path, place) for path in weight_files(folder, what) for name, place in file_layout(path).places.items()
    }
    state = {name: entry.to("meta") for name, entry in model.state_dict(keep_vars=True).items()}
    made = revert_weight_conversion(model, {name: state[name] for name in names.values()})
    tied = _tied_names(model)
    stored = {name for name, entry in made.items() if name in places and places[name][1].shape == tuple(entry.shape)}
    if missing := made.keys() - stored - revert_weight_conversion(model, {name: state[name] for name in tied}).keys():
        words = (
            f"{len(missing)} tensors of its text have other names or shapes in the files than transformers gives them"
        )
        raise UsageError(f"{what}: {words} ({listed(sorted(missing), most=3)})")
    return Whole(
        frame=model,
        names=names,
        stored=frozenset(stored),
        others={name: places[name] for name in sorted(places.keys() - stored)},
        processors={name: (folder / name).read_bytes() for name in PROCESSORS if (folder / name).is_file()},
    )


def _tied_names(model: nn.Module) -> list[str]:
    """List the names of entries of a model's state that are another entry, but for the first of each."""
    first: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    return [name for name, entry in state.items() if first.setdefault(id(entry), name) != name]
