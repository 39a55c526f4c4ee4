"""A policy from a Hugging Face folder: model, tokenizer, and every id that ends an answer; and a model like another, of
its description.
"""

import copy
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoTokenizer, GenerationConfig

from groupwise.core.errors import UsageError
from groupwise.core.files.atomic import temporary_folder
from groupwise.core.files.json_text import writable
from groupwise.core.machine.hub import caches_alone_if_unreachable, unreachable_words
from groupwise.core.numbers.reproducible import prepare
from groupwise.models.causal import CausalLM, is_multimodal
from groupwise.models.context import positions
from groupwise.models.files.folder import (
    ADAPTERS,
    error_line,
    loading,
    quiet,
    read_config,
    read_generation,
    read_tokenizer,
    require_finite,
    require_floating,
    require_room,
    require_whole,
    weight_files,
)
from groupwise.models.files.gguf import how_to_make
from groupwise.models.files.tokenizer_trial import excess
from groupwise.models.forward.heads import check_halves, check_runs
from groupwise.models.multimodal import text_of, whole_class, whole_of
from groupwise.models.unread import Weights, device_of, is_unread, parameters_without_memory, running, unread_model

#: Characters of a token: a completion of tokens that are longer fills memory.
LONGEST_TOKEN = 4096


@dataclass(frozen=True)
class Policy:
    """A causal language model with its tokenizer.

    eos   every id that ends a completion: the model's, its generation configuration's and the tokenizer's
    pad   the id that fills rows up; it is never trained
    """

    model: Any
    tokenizer: Any
    eos: frozenset[int]
    pad: int

    @property
    def device(self) -> torch.device:
        """The device that it computes on."""
        return device_of(self.model)

    @property
    def positions(self) -> int:
        """The longest prompt and completion together that the model takes, tokens."""
        return positions(self.model.config)

    def decode(self, tokens: tuple[int, ...]) -> str:
        """Return a completion's text, without special tokens."""
        return self.tokenizer.decode(tokens, skip_special_tokens=True)

    def decode_all(self, tokens: tuple[int, ...]) -> str:
        """Decode with special tokens written out."""
        return self.tokenizer.decode(tokens, skip_special_tokens=False)


def model_folder(model: str) -> Path:
    """Return a model's folder, from its path or its id on a model hub (which is downloaded once, then read from the
    cache).

    Raises UsageError if there is no such folder and no such id.
    """
    if os.path.isdir(model):
        return Path(model)
    if command := how_to_make(model):
        raise UsageError(f"model = {model!r}: there is no such folder; make it with: {command}")
    what = f"model = {model!r}: no such folder, and no model of that id can be downloaded"
    with caches_alone_if_unreachable():
        try:
            with loading(what):
                return Path(snapshot_download(model))
        except UsageError:
            if not (unreachable := unreachable_words()):
                raise
            raise UsageError(f"{what}: {unreachable}; set model to a folder") from None


def load_policy(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    training: bool = False,
    sampled_only: bool = False,
    in_files: bool = False,
) -> Policy:
    """Return the policy saved in `folder`, dropout off; for `training`, one that can be saved again.

    sampled_only  no log-probability is computed from its head, which may be followed by a cap or a scale
    in_files      its weights stay in the files where they can, on the processor (models/unread.py)

    Raises UsageError, naming the folder, if it is missing, is no model, has no tokenizer, lacks weights or has
    others, or where the tokenizer can produce ids that the model has no embedding for.
    """
    where = f"model = {str(folder)!r}"
    if not os.path.isdir(folder):
        raise UsageError(f"{where}: there is no such folder")
    require_config(folder, where)
    what = f"{where}: does not load as a causal language model"
    config = read_config(folder, what)
    tokenizer = load_tokenizer(folder, config)
    eos = end_ids(config, read_generation(folder, what), tokenizer, where)
    if not eos:
        raise UsageError(f"{where}: no end-of-sequence id in model, generation config or tokenizer")
    unread = _unread(folder, what, config, dtype) if in_files else None
    model = _read(folder, what, config, dtype) if unread is None else unread
    embeddings = model.get_input_embeddings().weight.shape[0]
    vocabulary = tokenizer.get_vocab()
    if (longest := max(map(len, vocabulary), default=0)) > LONGEST_TOKEN:
        raise UsageError(
            f"{where}: its tokenizer has a token of {longest:,} characters; {LONGEST_TOKEN:,} are the most"
        )
    ids = max([len(tokenizer), *(i + 1 for i in (*vocabulary.values(), *tokenizer("")["input_ids"]))])
    if ids > embeddings:
        raise UsageError(
            f"{where}: the tokenizer has {ids} ids but the model only {embeddings} embeddings; they do not "
            "belong together"
        )
    prepare(device)
    with loading(f"{where}: does not run"):
        if unread is None:
            (check_runs if sampled_only else check_halves)(model.to(device))
    if training:
        with loading(f"{where}: cannot be saved again"), temporary_folder("trial") as trial:
            whole = whole_of(model)  # no weights: they are what is sure to be saved as it loads
            (model if whole is None else whole.frame).save_pretrained(trial, state_dict={})
            tokenizer.save_pretrained(trial)
    pad = tokenizer.pad_token_id
    return Policy(model, tokenizer, eos, min(eos) if pad is None else int(pad))


def _read(folder: Path, what: str, config: Any, dtype: torch.dtype) -> Any:
    """Load a folder's causal language model: of a multimodal model its text."""
    if is_multimodal(config):
        return text_of(from_pretrained(whole_class(config, what), folder, what, config, dtype)[0], folder, what)
    return from_pretrained(CausalLM, folder, what, config, dtype)[0]


def _unread(folder: Path, what: str, config: Any, dtype: torch.dtype) -> Any:
    """Make a folder's policy with its weights in the files; None if it has to be read whole, which says why."""
    if is_multimodal(config):
        return None
    model = unread_model(CausalLM, folder, what, config, dtype)
    try:
        if model is not None:
            with running(model), loading(what):
                check_halves(model)
    except UsageError:
        return None
    return model


def require_config(folder: Path, where: str) -> None:
    """Raise UsageError, `where` first, for a folder that holds no model."""
    if (folder / ADAPTERS).exists():
        raise UsageError(
            f"{where}: it holds adapters and no model; groupwise export RUN FOLDER makes a model of a run that has "
            "adapters, and such a run goes on with the adapter.rank that it began with"
        )
    if not (folder / "config.json").exists():
        raise UsageError(f"{where}: no config.json; expected a Hugging Face model folder")


def from_pretrained(
    kind: Any, folder: Path, what: str, config: Any, dtype: torch.dtype, other_head: bool = False
) -> tuple[Any, dict[str, Any]]:
    """Return the model of transformers' `kind` in a folder, dropout off, and what transformers says about its loading.

    other_head  beside the backbone the files may hold another layer, or none: then it is random
    Raises UsageError, `what` first, if it does not load so.
    """
    files = weight_files(folder, what)
    with loading(what):
        with torch.device("meta"):
            empty = kind.from_config(copy.deepcopy(config), dtype=dtype, trust_remote_code=False)
        require_room(empty, files, what)
        require_floating(empty, files, what)
        model, info = kind.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # so that they are said by name
            output_loading_info=True,
        )
    require_whole(model, info, what, other_head)
    require_finite(model, what)
    other = {str(p.dtype) for p in model.parameters()} - {str(dtype)}
    if other:
        raise UsageError(f"{what}: of its weights some are {', '.join(sorted(other))} where {dtype} was asked for")
    return model.eval(), info


def with_backbone(kind: Any, config: Any, backbone: nn.Module, what: str) -> Any:
    """Return a model of transformers' `kind` with a copy of `backbone`, its type and device, under a head that is
    random.

    If the weights of `backbone` are in its files, the copy's are there too, and the head is zeros.

    Raises UsageError, `what` first, if there is none.
    """
    weight = next(backbone.parameters())
    if is_unread(backbone):
        with loading(what), parameters_without_memory():
            model = kind.from_config(config, dtype=weight.dtype, trust_remote_code=False)
        for module in model.children():
            if module is not model.base_model:
                module.to_empty(device="cpu")
        return model.eval()
    with loading(what), torch.random.fork_rng(devices=[]):  # the caller's random stream stays where it is
        model = kind.from_config(config, dtype=weight.dtype, trust_remote_code=False)
    model.base_model.load_state_dict(backbone.state_dict())
    return model.eval().to(weight.device)


def prompt_ids(tokenizer: Any, prompts: list[str], where: str = "") -> list[list[int]]:
    """Return the ids of prompts that a completion will follow: with the tokenizer's BOS, without an end id it may add.

    Raises UsageError, `where` first, if the tokenizer cannot read one.
    """
    end = tokenizer.eos_token_id
    rows = _each_once(tokenizer, prompts, where)
    return [ids[:-1] if ids and ids[-1] == end else ids for ids in rows]


def text_ids(tokenizer: Any, texts: list[str], where: str = "") -> list[list[int]]:
    """Return the ids of texts as they are, without what the tokenizer adds to a prompt.

    Raises UsageError, `where` first, if the tokenizer cannot read one.
    """
    return _each_once(tokenizer, texts, where, add_special_tokens=False)


def _each_once(tokenizer: Any, texts: list[str], where: str, **how: bool) -> list[list[int]]:
    """Return the ids of texts, encoding each once: tens of thousands of demonstrations have a few thousand texts."""
    different = list(dict.fromkeys(texts))
    with reading(where):
        ids = dict(zip(different, tokenizer(different, **how)["input_ids"], strict=True))
    return [list(ids[text]) for text in texts]


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Raise UsageError, `where` first, for whatever a tokenizer raises over a text."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a bare Exception for a character it does not have; a panic in Rust is not even one
        raise UsageError(f"{where}the model's tokenizer cannot read it: {error_line(error)}") from None


def save_policy(model: Any, tokenizer: Any, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write a Hugging Face folder that `from_pretrained` loads, tokenizer included; of a multimodal model all of it.

    weights  every entry of the model's state, whole, where the model itself is in shards
    Raises UsageError if the folder's name holds bytes that are no text, to which no tokenizer can be written.
    """
    if writable(os.fspath(folder)) != os.fspath(folder):
        raise UsageError(
            f"{folder}: its path holds bytes that are no text, where no tokenizer can be written; rename it"
        )
    with quiet():
        if (whole := whole_of(model)) is None:
            model.save_pretrained(folder, state_dict=weights)
        else:
            whole.save(weights or model.state_dict(), folder)
        tokenizer.save_pretrained(folder)


def end_ids(config: Any, generation: GenerationConfig | None, tokenizer: Any, where: str) -> frozenset[int]:
    """Return every id that ends an answer: of the model's configuration, its generation configuration, and the
    tokenizer.

    Raises UsageError, `where` first, for what is no id of the vocabulary.
    """
    with loading(f"{where}: config.json"):
        size = config.get_text_config().vocab_size
    ends: set[int] = set()
    for name, owner in (("config.json", config), ("generation_config.json", generation)):
        ids = getattr(owner, "eos_token_id", None)
        ids = ids if isinstance(ids, (list, tuple)) else [] if ids is None else [ids]
        if wrong := [i for i in ids if type(i) is not int or not 0 <= i < size]:
            raise UsageError(f"{where}: {name}: eos_token_id = {wrong[0]!r:.40}: expected ids from 0 to {size - 1}")
        ends.update(ids)
    return frozenset({*ends, tokenizer.eos_token_id} - {None})


def digest(model: nn.Module) -> str:
    """Return a short hash of every weight: two policies with one digest are the same policy, bit for bit."""
    total, weights, around = hashlib.sha256(), Weights(model), whole_of(model)
    own = ((name, weights.whole(tensor)) for name, tensor in sorted(model.state_dict(keep_vars=True).items()))
    for name, tensor in chain(own, around.untrained() if around else ()):  # one at a time is in memory
        total.update(name.encode())
        total.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:12]


def load_tokenizer(folder: Path, config: Any) -> Any:
    """Return the tokenizer saved in `folder`, beside the model's `config`.

    Raises UsageError, naming the folder, if it is missing or does not load.
    """
    require_tokenizer(folder)
    what = f"model = {str(folder)!r}: its tokenizer does not load"
    with loading(what):
        if wrong := excess(read_tokenizer(folder, what)):
            raise UsageError(f"{what}: its tokenizer.json {wrong}; take another tokenizer")
        tokenizer = AutoTokenizer.from_pretrained(folder, config=config, local_files_only=True, trust_remote_code=False)
        tokenizer.decode(tokenizer("")["input_ids"])
        # How long a prompt may be is checked, and said, where prompts are chosen.
        tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


def has_tokenizer(folder: Path) -> bool:
    """Tell whether a model's folder holds a tokenizer."""
    return any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model"))


def require_tokenizer(folder: Path) -> None:
    """Raise UsageError, naming the folder, if it holds no tokenizer."""
    if not has_tokenizer(folder):
        raise UsageError(f"model = {str(folder)!r}: no tokenizer (tokenizer.json) in it; save the tokenizer there too")


def description(model: Any) -> dict[str, Any]:
    """Describe what `model_like` makes one of the same class, configuration and arithmetic of."""
    return {
        "config": json.loads(model.config.to_json_string(use_diff=False)),
        "name": model.config.name_or_path,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "attention": model.config._attn_implementation,
        "experts": model.config._experts_implementation,
    }


def model_like(kind: Any, described: Mapping[str, Any], device: str = "cpu") -> Any:
    """Return a model of transformers' `kind` with random weights, dropout off, without touching anyone's random
    numbers.

    device  "meta": a model without memory
    Raises UsageError if this process cannot make one.
    """
    with loading("the model of another rank"), torch.random.fork_rng(devices=[]), torch.device(device):
        config = CONFIG_MAPPING[described["config"]["model_type"]].from_dict(dict(described["config"]))
        config.name_or_path = described["name"]
        model = kind.from_config(
            config,
            dtype=getattr(torch, described["dtype"]),
            attn_implementation=described["attention"],
            experts_implementation=described["experts"],
        )
    return model.eval()
