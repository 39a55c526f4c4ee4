"""Shared parts of the training tests: gradients that an optimizer steps with, and what started ranks are told."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn


def stepped_with(adamw: torch.optim.Optimizer, model: nn.Module) -> list[dict[str, Tensor]]:
    """A list that each step will add its gradients to, by the parameters' names: they are freed after it."""
    seen: list[dict[str, Tensor]] = []

    def keep(*_: object) -> None:
        seen.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})

    adamw.register_step_pre_hook(keep)
    return seen


def norm_of(gradients: dict[str, Tensor]) -> float:
    """Of all of them together."""
    return float(torch.cat([gradient.flatten() for gradient in gradients.values()]).norm())


def told() -> tuple[int, int, Path]:
    """Rank, port and folder of a process that tests/two_ranks.py has started."""
    parser = argparse.ArgumentParser()
    for name, kind in (("rank", int), ("port", int), ("folder", Path)):
        parser.add_argument(name, type=kind)
    options = parser.parse_args()
    return options.rank, options.port, options.folder
