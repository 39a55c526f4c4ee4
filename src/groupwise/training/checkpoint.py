"""Checkpoints: safetensors and JSON in a folder that appears complete or not at all, with a hash of every file."""

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from groupwise.core.errors import RunError, UsageError, disk_words
from groupwise.core.files.atomic import make_folder, open_regular, remove
from groupwise.core.files.json_text import json_value
from groupwise.core.settings import Changeable, Settings
from groupwise.models.load import load_policy, save_policy
from groupwise.models.shards import set_unsharded_state, unsharded_state
from groupwise.training.mesh import ALONE, Mesh
from groupwise.training.moments import HostAdamW
from groupwise.training.ranks.arrival import read_own_rows
from groupwise.training.ranks.parts import sha256_of, stored, sync, write_parts

MANIFEST, STATE, OPTIMIZER, POLICY = "manifest.json", "state.json", "optimizer.safetensors", "policy"
#: The place of the checkpoints in a run folder.
CHECKPOINTS = "checkpoints"
#: The name of a checkpoint's folder.
_NAME = re.compile(r"step-(\d{6,15})")
CRITIC, CRITIC_OPTIMIZER = "critic.safetensors", "critic-optimizer.safetensors"


class CheckpointSettings(Settings):
    """Checkpoints.

    every  steps between checkpoints; the last step always has one
    keep   number of checkpoints to keep, the newest ones
    """

    every: Changeable[int] = Field(default=50, ge=1)
    keep: Changeable[int] = Field(default=2, ge=1)


def folder_of(root: Path, step: int) -> Path:
    """Return root/step-000120."""
    return root / f"step-{step:06d}"


def save(root: Path, step: int, write: Callable[[Path], Mapping[str, str] | None], keep: int, every: int = 1) -> Path:
    """Make a checkpoint of `step`, filled by `write`; then all but the newest `keep` are removed.

    `write` returns the hashes, by name, of the files that are hashed already, because other ranks wrote them.

    One whose step is no multiple of `every` stays while it is the newest, and takes no other's place.

    Everything is written and synced beside its place and renamed at the end: a kill at any moment leaves either the
    checkpoint or none. Raises RunError, the older checkpoints untouched, if the disk refuses.
    """
    final = folder_of(root, step)
    partial = root / f".partial-{final.name}"
    try:
        remove(partial)
        partial.mkdir(parents=True)
        hashes = write(partial)
        seal(partial, hashes or {})
        remove(final)
        partial.rename(final)
        sync(root)
    except Exception as error:
        with suppress(OSError):
            remove(partial)
        if not disk_words(error):
            raise
        good, _ = newest_good(root)
        earlier = f"{good} is untouched" if good else "there is no earlier checkpoint"
        raise RunError(
            f"step {step}: the checkpoint cannot be saved: {disk_words(error)}; {earlier}. "
            f"Free space, then: groupwise train --resume {shlex.quote(str(root.parent))}"
        ) from None
    *before, newest = steps(root)
    regular = [one for one in (*before, newest) if one % every == 0]
    for old in sorted({*before} - {*regular[-keep:]}):
        remove(folder_of(root, old))
    return final


def remove_after(root: Path, step: int) -> None:
    """Remove the checkpoints after `step`, the newest first: a kill leaves none that has lost what is before it.

    Raises RunError if the disk refuses.
    """
    for later in reversed([one for one in steps(root) if one > step]):
        try:
            remove(folder_of(root, later))
        except OSError as error:
            raise RunError(f"{folder_of(root, later)}: cannot be removed: {error.strerror}") from None


def steps(root: Path) -> list[int]:
    """Return the steps that have a checkpoint, oldest first; what has another name or is no folder of its own is none.

    Raises RunError if the folder is there and cannot be read: a run must not take it for empty and start over.
    """
    try:
        inside = list(root.iterdir()) if os.path.lexists(root) else []
    except OSError as error:
        raise RunError(f"{root}: cannot be read: {error.strerror}; put the run's checkpoints back there") from None
    folders = {path.name for path in inside if path.is_dir() and not path.is_symlink()}
    numbers = {int(match[1]) for match in map(_NAME.fullmatch, folders) if match}
    return sorted(step for step in numbers if folder_of(root, step).name in folders)


def newest_good(root: Path) -> tuple[Path | None, list[str]]:
    """Return the newest checkpoint whose files match their hashes, and a line about each newer one that is damaged."""
    lines = []
    for step in reversed(steps(root)):
        damage = damaged(folder_of(root, step))
        if not damage:
            return folder_of(root, step), lines
        lines.append(f"{folder_of(root, step)} is damaged ({damage}); falling back to an older one")
    return None, lines


def damaged(folder: Path, needed: Sequence[str] = (STATE,)) -> str:
    """Say what is wrong with a sealed folder; "" if every file matches the manifest and no needed one is missing."""
    try:
        with open_regular(folder / MANIFEST) as file:
            hashes = {str(name): value for name, value in json.load(file)["sha256"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{MANIFEST} is missing or unreadable"
    files = {str(path.relative_to(folder)): path for path in _files(folder)}
    for name in sorted({*needed, *hashes}):
        if name not in files:
            return f"{name} is missing"
        if sha256_of(files[name]) != hashes.get(name):
            return f"{name} does not match its hash"
    return ""


def write_policy(folder: Path, model: nn.Module, tokenizer: Any, mesh: Mesh) -> None:
    """Write the policy as `from_pretrained` loads it; rank 0 alone writes."""
    weights = None if mesh.alone else unsharded_state(model, holds=mesh.leads)
    if mesh.leads:
        save_policy(model, tokenizer, folder, weights)


def read_policy(folder: Path, model: nn.Module, mesh: Mesh) -> None:
    """Put the weights of a policy's folder into the model, whole or in shards."""
    # As a model: the files of some name weights otherwise, such as each expert by itself that the model has as one.
    if mesh.alone:
        model.load_state_dict(load_policy(folder).model.state_dict())
    elif not read_own_rows(model, folder, mesh):
        saved = load_policy(folder).model.state_dict() if mesh.leads else {}
        set_unsharded_state(model, saved, mesh.tensors)


def write_parameters(folder: Path, model: nn.Module, name: str, mesh: Mesh = ALONE) -> dict[str, str]:
    """Write every parameter of a model by its name, as `write_parts` does."""
    return write_parts(folder, name, dict(model.named_parameters()), mesh)


def read_parameters(folder: Path, model: nn.Module, name: str) -> None:
    """Put a model's parameters back as they were saved, bit for bit. Raises ValueError if the model has others, or they
    are integers.
    """
    parameters = dict(model.named_parameters())
    with stored(folder, name) as saved, torch.no_grad():
        if {k: place.shape for k, place in saved.places.items()} != {k: tuple(p.shape) for k, p in parameters.items()}:
            raise ValueError(f"{name} holds other parameters than the model has")
        for key, parameter in parameters.items():
            value = saved.like(key, parameter)
            if not value.is_floating_point():
                raise ValueError(f"{name} holds {key} as {value.dtype}, which is no floating-point number")
            parameter.copy_(value)


def write_optimizer(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, name: str = OPTIMIZER, mesh: Mesh = ALONE
) -> dict[str, str]:
    """Write every optimizer tensor under the name `<parameter>/<entry>`, as `write_parts` does."""
    tensors: dict[str, Tensor] = {}
    for key, parameter in model.named_parameters():
        for entry, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{key}/{entry}"] = torch.as_tensor(value)
    return write_parts(folder, name, tensors, mesh)


def read_optimizer(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, name: str = OPTIMIZER) -> None:
    """Put the optimizer back as it was saved, bit for bit, whatever updates it has had.

    Raises ValueError if its moments are integers.
    """
    parameters = dict(model.named_parameters())
    optimizer.state.clear()
    with stored(folder, name) as saved:
        for key, place in saved.places.items():
            owner, entry = key.rsplit("/", 1)
            parameter = parameters[owner]
            # The fused AdamW counts its steps on the parameter's device, too; the count is no part of any shard.
            like = place.shape == tuple(parameter.shape)
            value = saved.like(key, parameter) if like else saved.whole(key).to(parameter.device)
            if not (value.is_floating_point() or value.dtype == torch.uint8 or not value.dim()):  # 8-bit ones, a count
                raise ValueError(f"{name} holds {key} as {value.dtype}, which is no number of an optimizer's")
            if isinstance(optimizer, HostAdamW):
                optimizer.keep(parameter, entry, value)
            else:  # an 8-bit AdamW counts its steps as a number of Python
                optimizer.state[parameter][entry] = int(value) if value.dtype == torch.int64 else value


def write_state(folder: Path, state: dict[str, Any]) -> None:
    (folder / STATE).write_text(json.dumps(state))


def read_state(folder: Path) -> dict[str, Any]:
    """Read what `write_state` wrote. Raises UsageError if the file holds something else."""
    state = json_value((folder / STATE).read_bytes(), str(folder / STATE))
    if not isinstance(state, dict) or type(state.get("step")) is not int:
        raise UsageError(
            f"{folder / STATE}: not the state of a checkpoint; remove {folder.name}, and an older one is used"
        )
    return state


def seal(folder: Path, hashed: Mapping[str, str] = MappingProxyType({})) -> None:
    """Sync every file to disk and write the manifest of their hashes last; some may be hashed already, by name."""
    files = _files(folder)
    for path in files:
        sync(path)
    names = {path: str(path.relative_to(folder)) for path in files}
    hashes = {name: hashed.get(name) or sha256_of(path) for path, name in names.items()}
    (folder / MANIFEST).write_text(json.dumps({"sha256": hashes}, indent=1))
    sync(folder / MANIFEST)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def cached_folder(folder: Path, write: Callable[[Path], object], what: str, note: Callable[[str], None]) -> None:
    """Let `write` fill a folder that is not there yet; one that does not match its hashes is made again, with a `note`.

    Raises RunError, naming `what`, if the disk refuses.
    """
    if folder.is_dir() and (damage := damaged(folder, needed=())):
        note(f"cache        {what} in {folder} is damaged ({damage}); it is made again")
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise RunError(f"{folder}: {what} cannot be removed: {disk_words(error)}; remove the folder") from None

    def sealed(target: Path) -> None:
        write(target)
        seal(target)

    make_folder(folder, sealed, what)
