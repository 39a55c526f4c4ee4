"""Adapters on disk: A and B in one file, and beside it what they belong to."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from groupwise.core.errors import UsageError
from groupwise.core.json_text import json_value
from groupwise.models.adapters.lora import Adapters
from groupwise.models.folder import ADAPTERS

MATRICES = "adapters.safetensors"


def holds_adapters(folder: Path) -> bool:
    """Whether a folder holds adapters in the place of a model."""
    return (folder / ADAPTERS).is_file()


def write_adapters(folder: Path, adapters: Adapters, base: str) -> None:
    """Only A and B, with their settings and the base that they were trained over, whose folder was `base`."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: m.detach().cpu().contiguous() for name, m in adapters.matrices.items()}, folder / MATRICES)
    (folder / ADAPTERS).write_text(json.dumps(_description(adapters) | {"base": base}, indent=1))


def read_adapters(folder: Path, adapters: Adapters) -> None:
    """A and B as they were saved, bit for bit.

    Raises UsageError where there are none, or those are of other settings or of another base; ValueError where the
    file holds something else.
    """
    path = folder / ADAPTERS
    if not holds_adapters(folder):
        rank = adapters.settings.rank
        raise UsageError(
            f"{folder}: every weight was trained here, without adapters; a run cannot go on with adapter.rank = {rank}: "
            "set it to 0"
        )
    saved: Any = json_value(path.read_bytes(), str(path))
    for key, value in _description(adapters).items():
        if saved[key] == value:
            continue
        if key == "digest":
            raise UsageError(
                f"{path}: the adapters are of policy {saved[key]}, and the base now is {value}; it was {saved['base']}, "
                "take the model folder, library versions and number of threads that it had"
            )
        raise UsageError(
            f"{path}: adapter.{key} = {value} and these adapters have {saved[key]}: it cannot change in a run; set it "
            "back, or start another run"
        )
    adapters.load(load_file(folder / MATRICES))


def _description(adapters: Adapters) -> dict[str, Any]:
    settings = adapters.settings
    targets = list(settings.targets)
    return {"rank": settings.rank, "alpha": settings.alpha, "targets": targets, "digest": adapters.base_digest}
