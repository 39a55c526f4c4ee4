"""A policy from a Hugging Face folder: model, tokenizer, and every id that ends an answer."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from groupwise.core.errors import UsageError
from groupwise.models.heads import check_halves


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
    def positions(self) -> int:
        """The longest prompt and completion together that the model takes, tokens."""
        return positions(self.model)

    def decode(self, tokens: tuple[int, ...]) -> str:
        """A completion's text, without special tokens."""
        return self.tokenizer.decode(tokens, skip_special_tokens=True)


def model_folder(model: str) -> Path:
    """A model's folder, from its path or its id on a model hub (which is downloaded once, then read from the cache).

    Raises UsageError where there is no such folder and no such id.
    """
    if Path(model).is_dir():
        return Path(model)
    try:
        with quiet():
            return Path(snapshot_download(model))
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"model = {model!r}: no such folder, and as an id it cannot be had: {error_line(error)}"
        ) from None


def load_policy(folder: Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Policy:
    """The policy saved in `folder`, dropout off.

    Raises UsageError, naming the folder, where it is missing, is no model, has no tokenizer, or where the tokenizer
    can produce ids that the model has no embedding for.
    """
    where = f"model = {str(folder)!r}"
    if not folder.is_dir():
        raise UsageError(f"{where}: there is no such folder")
    require_config(folder, where)
    tokenizer = load_tokenizer(folder)
    model = from_pretrained(AutoModelForCausalLM, folder, where, "causal language model", dtype=dtype)
    embeddings = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > embeddings:
        raise UsageError(
            f"{where}: the tokenizer has {len(tokenizer)} ids but the model only {embeddings} embeddings; they do not "
            "belong together"
        )
    model.eval().to(device)
    check_halves(model)
    eos = end_ids(model, tokenizer)
    if not eos:
        raise UsageError(f"{where}: no end-of-sequence id in model, generation config or tokenizer")
    pad = tokenizer.pad_token_id
    return Policy(model, tokenizer, eos, min(eos) if pad is None else int(pad))


def require_config(folder: Path, where: str) -> None:
    """Raises UsageError, `where` first, for a folder that holds no model."""
    if not (folder / "config.json").is_file():
        raise UsageError(f"{where}: no config.json; expected a Hugging Face model folder")


def from_pretrained(kind: Any, folder: Path, where: str, expected: str, **options: Any) -> Any:
    """What transformers' `kind` loads from a folder. Raises UsageError, `where` first, where it is not as expected."""
    try:
        with quiet():
            return kind.from_pretrained(folder, local_files_only=True, **options)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise UsageError(f"{where}: does not load as a {expected}: {error_line(error)}") from None


def with_backbone(kind: Any, config: Any, backbone: nn.Module) -> Any:
    """A model of transformers' `kind` with a copy of `backbone`, its type and device, under a head that is random."""
    weight = next(backbone.parameters())
    with quiet(), torch.random.fork_rng(devices=[]):  # the caller's random stream stays where it is
        model = kind.from_config(config, dtype=weight.dtype)
    model.base_model.load_state_dict(backbone.state_dict())
    return model.eval().to(weight.device)


def positions(model: Any) -> int:
    """The longest prompt and completion together that a model takes, tokens."""
    return int(getattr(model.config, "max_position_embeddings", 0)) or 1 << 30


def prompt_ids(tokenizer: Any, prompts: list[str]) -> list[list[int]]:
    """Ids of prompts that a completion will follow: with the tokenizer's BOS, without an end id it may add."""
    end = tokenizer.eos_token_id
    return [ids[:-1] if ids and ids[-1] == end else ids for ids in tokenizer(prompts)["input_ids"]]


def save_policy(model: Any, tokenizer: Any, folder: Path) -> None:
    """A Hugging Face folder that `from_pretrained` loads, tokenizer included."""
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def end_ids(model: nn.Module, tokenizer: object) -> frozenset[int]:
    """Every id that ends an answer: of the model's configuration, its generation configuration, and the tokenizer."""
    generation = getattr(model, "generation_config", None)
    ends: set[int] = set()
    for owner in (model.config, generation, tokenizer):
        ids = getattr(owner, "eos_token_id", None)
        ends.update(ids if isinstance(ids, (list, tuple)) else [] if ids is None else [ids])
    return frozenset(int(i) for i in ends)


def digest(model: nn.Module) -> str:
    """A short hash of every weight: two policies with one digest are the same policy, bit for bit."""
    total = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        total.update(name.encode())
        total.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:12]


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer saved in `folder`. Raises UsageError, naming the folder, where it is missing or does not load."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        raise UsageError(f"model = {str(folder)!r}: no tokenizer (tokenizer.json) in it; save the tokenizer there too")
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"model = {str(folder)!r}: its tokenizer does not load: {error_line(error)}") from None


def error_line(error: Exception) -> str:
    """A library's message as one line of bounded length."""
    return " ".join(str(error).split())[:300]


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, transformers shows no progress bars and no warnings: a run has its own."""
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
