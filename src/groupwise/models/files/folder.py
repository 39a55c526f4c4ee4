"""A Hugging Face folder before and while a library reads it: what it may hold, and one line for whatever is wrong."""

import json
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from logging import CRITICAL, getLogger
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, GenerationConfig, PreTrainedConfig
from transformers.utils import logging

from groupwise.core.errors import GroupwiseError, UsageError, listed, shortened

#: Of adapters, which are in a checkpoint in the place of a model.
ADAPTERS = "adapters.json"
WEIGHTS, INDEX, GENERATION = "model.safetensors", "model.safetensors.index.json", "generation_config.json"
#: Files by which transformers would load other weights than those, or more.
NO_WEIGHTS = {
    "adapter_config.json": "an adapter; merge it into the weights first",
    "shard-*-model-*.safetensors": "a distributed checkpoint; save it in one folder with save_pretrained",
}
#: Formats whose loading can run code, or that nothing here reads.
OTHER_FORMATS = ("*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.h5", "*.msgpack", "*.gguf")
#: Types of numbers in the header of a safetensors file that are floating-point.
FLOATING = re.compile("B?F[0-9]")
#: Files that are read whole, by their ends, and the bytes that one may have: parsed, it takes many times as much.
TEXTS, LARGEST_TEXT = (".json", ".jinja", ".txt", ".model"), 2**28
#: Bytes of config.json and generation_config.json: transformers checks each entry of a list, for minutes.
LARGEST_CONFIG = 2**22
#: Name under which torch logs the traceback of a forward on shapes alone that fails, beside raising it.
SHAPES = "torch._subclasses.fake_tensor"
#: What every language model's configuration says.
MEASURES = ("vocab_size", "hidden_size", "num_hidden_layers")
#: Counts of config.json that objects are made by before any weight is looked at, and the most that they may be.
COUNTS = ((re.compile(r"\w*layers?"), 1024), (re.compile(r"\w*(labels|heads?|experts)"), 2**14))


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Keep transformers quiet inside; all that it raises becomes a UsageError that begins with `what`.

    A field of another type fails anywhere and with any kind of error; a panic in Rust is not even an Exception.
    """
    try:
        with quiet():
            yield
    except (GroupwiseError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        kind = "" if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: "
        raise UsageError(f"{what}: {kind}{error_line(error)}") from None


def read_config(folder: Path, what: str, **changes: Any) -> Any:
    """Read config.json as transformers takes it, with `changes` to its fields.

    Raises UsageError, `what` first, if it does not load or would load something else than whole weights, and where a
    field has a value that breaks later or takes all memory.
    """
    with loading(what):
        for path in folder.iterdir():
            if path.exists() and not path.is_file() and not path.is_dir():
                raise UsageError(f"{what}: {path.name} is not a regular file")
            most = LARGEST_CONFIG if path.name in ("config.json", GENERATION) else LARGEST_TEXT
            if path.suffix in TEXTS and path.is_file() and (size := path.stat().st_size) > most:
                said = f"{size:,} bytes, and what belongs to a model has {most:,} at most; take it out"
                raise UsageError(f"{what}: {path.name} has {said}")
        for pattern, held in NO_WEIGHTS.items():
            for path in folder.glob(pattern):
                raise UsageError(f"{what}: {path.name} is of {held}")
    with loading(f"{what}: config.json"):
        fields, _ = PreTrainedConfig.get_config_dict(folder, local_files_only=True)
        for key, value in _fields(fields):
            if key == "quantization_config" and value is not None:
                raise UsageError(f"{what}: {_quantised(value)}")
            if expected := _expected(key, value):
                raise UsageError(f"{what}: config.json: {key} = {str(value)[:40]}: expected {expected}")
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **changes)
        _require_measures(config.get_text_config(), what)
    return config


def _require_measures(text: PreTrainedConfig, what: str) -> None:
    """Raise UsageError, `what` first, if a text model's configuration does not say its measures."""
    if absent := [key for key in MEASURES if key not in text.attribute_map and not hasattr(text, key)]:
        raise UsageError(
            f"{what}: config.json is a {type(text).__name__}, which has no {' and no '.join(absent)}: by these a run "
            "is planned and sampled; take another model"
        )


def read_generation(folder: Path, what: str) -> GenerationConfig | None:
    """Read generation_config.json, if there is one. Raises UsageError, `what` first, if it does not load."""
    if not (folder / GENERATION).exists():
        return None
    with loading(f"{what}: {GENERATION}"):
        return GenerationConfig.from_pretrained(folder, local_files_only=True)


def read_tokenizer(folder: Path, what: str) -> dict[str, Any]:
    """Read tokenizer.json; nothing if there is none. Raises UsageError, `what` first, if an added token, there or in
    tokenizer_config.json, has a field whose name holds control characters: the tokenizers library prints the names of
    fields that it does not know, as they are.
    """
    read = dict[str, Any]()
    for name, place in (("tokenizer_config.json", "added_tokens_decoder"), ("tokenizer.json", "added_tokens")):
        read = json.loads((folder / name).read_text(encoding="utf-8")) if (folder / name).is_file() else {}
        if wrong := [key for key, _ in _fields(read.get(place)) if not key.isprintable()]:
            raise UsageError(f"{what}: {name}: {place} has a field of the name {wrong[0]!a:.80}")
    return read


def weight_files(folder: Path, what: str) -> list[Path]:
    """Return the safetensors files of a folder's weights. Raises UsageError, `what` first, if there are none.

    No other format is read: to load one can mean to run its code.
    """
    others = sorted(path.name for pattern in OTHER_FORMATS for path in folder.glob(pattern))
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        names = _index_names(folder, what)
        others = [name for name in names if not name.endswith(".safetensors")]
        if names and not others:
            return [_named(folder, name, what) for name in names]
    if others:
        raise UsageError(
            f"{what}: its weights are in {listed(others, most=3)}, and only safetensors are read, because other "
            "formats can run code; save them again with save_pretrained"
        )
    raise UsageError(f"{what}: no weights in it ({WEIGHTS})")


def _index_names(folder: Path, what: str) -> list[str]:
    """Return the names of files in the index, each once. Raises UsageError, `what` first, if it is no index."""
    with loading(f"{what}: {INDEX}"):
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not isinstance(index.get("metadata", {}), dict):
        raise UsageError(
            f"{what}: {INDEX} is no index: weight_map and metadata are tables; copy the whole folder again"
        )
    if wrong := [name for name in places.values() if not isinstance(name, str)]:
        words = f"names {shortened(ascii(wrong[0]))}, which is no name of a file in the folder"
        raise UsageError(f"{what}: {INDEX} {words}")
    return sorted(set(places.values()))


def _named(folder: Path, name: str, what: str) -> Path:
    """Return a file that the index names. Raises UsageError, `what` first, if it is not in the folder."""
    if Path(name).name != name or not name.isprintable():
        raise UsageError(f"{what}: {INDEX} names {shortened(ascii(name))}, which is no name of a file in the folder")
    if name not in os.listdir(folder) or not (folder / name).is_file():
        raise UsageError(f"{what}: {INDEX} names {shortened(name)}, which is not there; copy the whole folder again")
    return folder / name


def require_floating(empty: Any, files: list[Path], what: str) -> None:
    """Raise UsageError, `what` first, if the files hold integers for a weight of a model without memory (device
    meta): they would be read as numbers of some 10^9. Buffers of integers, and what transformers passes over, may be.
    And if two files hold a weight of one name, of which one would be passed over.
    """
    own = empty.state_dict()
    # A model that is converted as it is loaded has its weights under other names in the files.
    integers = {name.rpartition(".")[2] for name, tensor in own.items() if not tensor.is_floating_point()}
    passed_over = empty._keys_to_ignore_on_load_unexpected or ()
    wrong: dict[str, str] = {}
    places: dict[str, str] = {}
    for path in files:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  it is no mapping
                if (other := places.setdefault(name, path.name)) != path.name:
                    raise UsageError(f"{what}: {name} is in {other} and in {path.name}; copy the whole folder again")
                kind = file.get_slice(name).get_dtype()
                entry = own.get(name, own.get(f"{empty.base_model_prefix}.{name}"))
                if entry is not None:
                    known = not entry.is_floating_point()
                else:
                    known = name.rpartition(".")[2] in integers or any(re.search(p, name) for p in passed_over)
                if not known and not FLOATING.match(kind):
                    wrong[name] = kind
    if wrong:
        words = listed([f"{name}: {kind}" for name, kind in sorted(wrong.items())], most=3)
        raise UsageError(f"{what}: {len(wrong)} of its weights are no floating-point numbers ({words})")


def require_room(empty: Any, files: list[Path], what: str) -> None:
    """Raise UsageError, `what` first, if a model without memory (device meta) is far larger than the files.

    What is missing would be drawn at random before it could be refused, whatever memory that takes. Of the densest
    formats a byte holds two weights.
    """
    size = sum(tensor.numel() for tensor in (*empty.parameters(), *empty.buffers()))
    stored = sum(path.stat().st_size for path in files)
    if size > 2 * stored + 2**20:
        raise UsageError(f"{what}: config.json describes {size:,} numbers, but its weights are {stored:,} bytes")


def require_whole(model: Any, info: dict[str, Any], what: str, other_head: bool) -> None:
    """Raise UsageError, `what` first, if a model's weights were not all in its files and nothing else.

    info        what transformers says about the loading
    other_head  beside the backbone there may be another layer than the model's, or none
    """

    def counts(name: str) -> bool:
        return not other_head or name.startswith(f"{model.base_model_prefix}.") or name.count(".") > 1

    kinds = {
        "missing": [name for name in info["missing_keys"] if counts(name)],
        "unexpected": [name for name in info["unexpected_keys"] if counts(name)],
        "of another shape": [name for name, *_ in info["mismatched_keys"]],
    }
    wrong = [f"{len(names)} {kind} ({listed(sorted(names), most=3)})" for kind, names in kinds.items() if names]
    if wrong:
        raise UsageError(f"{what}: its weights are not those of its config.json: {', '.join(wrong)}")


def require_finite(model: torch.nn.Module, what: str) -> None:
    """Raise UsageError, `what` first, if a weight, or a frequency made of config.json, is NaN or infinite.

    Attention takes NaN for masked, so that the output alone would not show it. Other buffers may be infinite.
    """
    tensors = [*model.named_parameters(), *((name, t) for name, t in model.named_buffers() if "inv_freq" in name)]
    floats = [(name, t) for name, t in tensors if t.is_floating_point() and t.numel()]
    wrong = [name for name, t in floats if not torch.stack(torch.aminmax(t.detach())).isfinite().all()]
    if wrong:
        raise UsageError(f"{what}: {len(wrong)} of its tensors hold NaN or infinity ({listed(wrong, most=3)})")


def error_line(error: BaseException) -> str:
    """Return a library's message as one line of bounded length."""
    # transformers lists every class that it knows.
    return " ".join(str(error).split()).partition(" Model type should be one of")[0][:300] or type(error).__name__


@contextmanager
def quiet() -> Iterator[None]:
    """Keep libraries from showing progress bars and warnings inside: a run has its own."""
    bars, level, shapes = logging.is_progress_bar_enabled(), logging.get_verbosity(), getLogger(SHAPES)
    of_shapes, shapes.disabled = shapes.disabled, True
    logging.disable_progress_bar()
    logging.set_verbosity(CRITICAL)  # what it says of an error, it also raises
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        shapes.disabled = of_shapes
        if bars:
            logging.enable_progress_bar()


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Return every key of nested JSON objects with its value, in lists too."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield str(key), inner
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _fields(inner)


def _quantised(value: Any) -> str:
    method = value.get("quant_method") if isinstance(value, dict) else value
    return (
        f"config.json says that its weights are quantised (quantization_config, {str(method)[:40]}), and float32 or "
        "bfloat16 ones are trained; save them dequantised and without that key first"
    )


def _expected(key: str, value: Any) -> str:
    """Tell what a field of config.json must be, where `value` is something else; else ""."""
    if key == "transformers_weights" and value is not None:
        return f"no such key; the weights are in {WEIGHTS}"
    if key == "max_position_embeddings" and value is not None and (type(value) is not int or value < 1):
        return "a whole number of at least 1"
    if isinstance(value, (int, float)) and re.search("dropout|pdrop", key) and not 0 <= value <= 1:
        return "a number from 0 to 1"
    most = next((most for counts, most in COUNTS if counts.fullmatch(key)), None)
    return f"at most {most}" if most is not None and isinstance(value, (int, float)) and not value <= most else ""
