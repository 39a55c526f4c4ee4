"""Adapters on disk: A and B in one file, and beside it what they belong to."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from groupwise.core.errors import UsageError, one_line, shortened
from groupwise.core.files.json_text import json_value
from groupwise.models.adapters.lora import Adapters
from groupwise.models.files.folder import ADAPTERS
from groupwise.models.shards import unsharded

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
        _require_same(json_value(path.read_bytes(), str(path)), adapters, path)
        adapters.load(load_file(folder / MATRICES))
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise UsageError(f"{folder}: not adapters of this model: {shortened(one_line(error))}") from None


def _require_same(saved: Any, adapters: Adapters, path: Path) -> None:
    """Raise UsageError if the adapters that were saved have other settings or another base than these."""
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
