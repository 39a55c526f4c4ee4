"""What torch's collectives do on one card: NCCL with one rank and with two, gloo with two ranks on the device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gpu_parts.measuring import Context
from groupwise.rewards.isolation import die_with_parent

DEADLINE = 60
SHAPES = (("nccl", 1), ("nccl", 2), ("gloo", 2))
#: Printed by a rank, before what it found.
FOUND = "FOUND "


def measure(context: Context) -> None:
    for backend, ranks in SHAPES:
        context.measure({"backend": backend, "ranks": ranks}, partial(together, context, backend, ranks))


def together(context: Context, backend: str, ranks: int) -> dict[str, Any]:
    """What each collective and a step of a model in shards did, over ranks that all have device 0."""
    if backend == "nccl" and context.device == "cpu":
        return {"said": {"start": "NCCL needs a GPU"}}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "gpu_parts.several", backend, str(ranks), context.device, folder]
        processes = [
            subprocess.Popen(
                [*command, str(rank)],
                cwd=Path(__file__).parents[1],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                preexec_fn=die_with_parent,
            )
            for rank in range(ranks)
        ]
        said = [outcome(process) for process in processes]
    return {"said": said[0]}


def outcome(process: subprocess.Popen[str]) -> dict[str, str]:
    """What a rank found, by what it did."""
    try:
        out, errors = process.communicate(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        process.kill()
        out, errors = process.communicate()
        errors += f"\nno answer in {DEADLINE} s"
    found = [json.loads(line.removeprefix(FOUND)) for line in out.splitlines() if line.startswith(FOUND)]
    if process.returncode and len(found) < len(ACTS) + 1:
        found.append({"end": (errors.strip().splitlines() or ["no words"])[-1][:300]})
    return {name: text for each in found for name, text in each.items()}


def all_reduce(rank: int, ranks: int, device: str) -> str:
    total = torch.full((1 << 20,), float(rank + 1), device=device)
    dist.all_reduce(total)
    return "right" if bool((total == ranks * (ranks + 1) / 2).all()) else f"wrong: {total[0]:g}"


def broadcast(rank: int, ranks: int, device: str) -> str:
    told = torch.full((1 << 20,), float(rank), device=device)
    dist.broadcast(told, 0)
    return "right" if bool((told == 0).all()) else f"wrong: {told[0]:g}"


def shards(rank: int, ranks: int, device: str) -> str:
    """A step of FSDP2 against the same step of the whole model."""
    from torch.distributed.fsdp import fully_shard

    rows = torch.arange(8.0, device=device).reshape(2, 4)
    weights = []
    for sharded in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).to(device)
        if sharded:
            fully_shard(model)
        model(rows).square().mean().backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
        weights.append([w.full_tensor() if sharded else w.detach() for w in model.parameters()])  # pyright: ignore
    apart = max(float((a - b).abs().max()) for a, b in zip(*weights, strict=True))
    return "right" if apart < 1e-5 else f"wrong: {apart:.2g} apart"


ACTS: tuple[Callable[[int, int, str], str], ...] = (all_reduce, broadcast, shards)


def rank_main(backend: str, ranks: int, device: str, folder: str, rank: int) -> None:
    """One rank: each act's outcome is printed as it ends."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if device != "cpu":
        torch.cuda.set_device(0)
    store = dist.FileStore(str(Path(folder) / "store"), ranks)  # pyright: ignore
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks)
    print(FOUND + json.dumps({"start": "right"}), flush=True)
    for act in ACTS:
        try:
            text = act(rank, ranks, device)
        except (RuntimeError, NotImplementedError) as error:
            text = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
        print(FOUND + json.dumps({act.__name__: text}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    rank_main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]))
