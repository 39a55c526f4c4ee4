"""What one of two ranks does with its mesh: run as `python -m tests.training.rank_acts RANK PORT FOLDER`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import time
from pathlib import Path

import torch

from groupwise.core.errors import UsageError, disk_words
from groupwise.core.processes.network import _listening
from groupwise.training.mesh import Mesh, connect, rendezvous
from groupwise.training.ranks.parts import write_parts
from tests.training.made import told

#: Seconds that one rank waits for another here.
DEADLINE = 1.0
#: A tensor of each kind, with what a sum of numbers would not bring over as it is.
TENSORS = {
    "float64": torch.tensor([1.5, -0.0, math.nan, -math.inf, 1e-320], dtype=torch.float64),
    "bfloat16": torch.tensor([[0.1, -2.0]], dtype=torch.bfloat16),
    "int64": torch.tensor([2**62 + 1, -1]),
    "bool": torch.tensor([True, False, True]),
    "none": torch.empty(0, 3),
    "one": torch.tensor(7.25),
}


def own_part(x: torch.Tensor, rank: int) -> torch.Tensor:
    """The numbers at every other place, zeros elsewhere."""
    part = torch.zeros_like(x).flatten()
    part[rank::2] = x.flatten()[rank::2]
    return part.view(x.shape)


def bits(x: torch.Tensor) -> list[int]:
    return x.contiguous().view(-1).view(torch.uint8).tolist()


def acts(mesh: Mesh, folder: Path) -> dict[str, object]:
    """What the mesh gives this rank."""
    leads = mesh.leads
    plain = {"text": "é", "numbers": [1, 2.5, None], "empty": {}}
    arrived = mesh.tensors(TENSORS if leads else {})
    return {
        "sums": mesh.sums([0.1 * (mesh.rank + 1), mesh.rank]),
        "not_finite": math.isnan(mesh.sums([math.nan if mesh.rank else 1.0])[0]),
        "of_a_card": of_a_card(dataclasses.replace(mesh, device=f"cuda:{mesh.rank}")),
        "joined": {name: bits(mesh.joined(own_part(x, mesh.rank))) == bits(x) for name, x in TENSORS.items()},
        "arrived": {
            name: bits(arrived[name]) == bits(x) and arrived[name].shape == x.shape for name, x in TENSORS.items()
        },
        "plain": mesh.plain(plain if leads else None) == plain,
        "all_agree": [mesh.all_agree(True), mesh.all_agree(leads), mesh.all_agree(False)],
        "dealt": list(mesh.dealt([10, 11, 12])),
        "of_each": mesh.of_each({"rank": mesh.rank, "text": "é" * (1 + mesh.rank)}),
        "listens": sorted(_listening()),
        "refused": refused(mesh, folder),
        "late": waits(mesh),
    }


def of_a_card(mesh: Mesh) -> list[object]:
    """What passes beside a model's tensors, of ranks whose models are on GPUs: it stays on the processor."""
    told = mesh.tensors({"x": TENSORS["bfloat16"]} if mesh.leads else {})["x"]
    joined = mesh.joined(own_part(TENSORS["int64"], mesh.rank))
    devices = {x.device.type for x in (told, joined)}
    return [
        mesh.sums([1.0]),
        mesh.all_agree(True),
        mesh.of_each(mesh.rank),
        bits(joined) == bits(TENSORS["int64"]),
        *devices,
    ]


def refused(mesh: Mesh, folder: Path) -> str:
    """What both ranks say where rank 1 cannot write its file, in whose place a folder is."""
    (folder / "x.00002-of-00002.safetensors").mkdir(exist_ok=True)
    try:
        write_parts(folder, "x.safetensors", {"step": torch.tensor(1.0)}, mesh)
    except OSError as error:
        return disk_words(error)
    return ""


def fails_alone() -> None:
    """An attempt to meet another rank, which does not come; it must not hinder the next one."""
    with contextlib.suppress(UsageError):
        connect(rendezvous("127.0.0.1", 0, 2, leads=True), 0, 2, seconds=0.2)


def waits(mesh: Mesh) -> float:
    """Rank 1 does not come: seconds after which rank 0 gives up on it."""
    if not mesh.leads:
        time.sleep(DEADLINE + 1.5)
        return 0.0
    begin = time.monotonic()
    try:
        mesh.sums([1.0])
    except RuntimeError:
        return time.monotonic() - begin
    return math.inf


def main() -> None:
    rank, port, folder = told()
    if rank == 0:
        fails_alone()
    store = rendezvous("127.0.0.1", port, 2, leads=False, seconds=30)
    mesh = connect(store, rank, 2, seconds=DEADLINE)
    (folder / f"rank-{rank}.json").write_text(json.dumps(acts(mesh, folder)))
    mesh.close()


if __name__ == "__main__":
    main()
