"""Laws of the slots that take log-ratios: far from the policy that sampled, numbers and gradients stay numbers."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from groupwise.algorithms.laws.columns import Trial
from groupwise.algorithms.laws.draws import Draw
from groupwise.algorithms.laws.law import Law, not_finite

#: Log-ratios, nats: within the limit of every part, at it, and beyond.
FAR = (50.0, 60.0, 61.0, 400.0, 1e6)


def stays_finite(trial: Trial, live: str, still: str | None, part: Any, batch: Draw) -> str:
    """`live` is far from `still` (None: it is a log-ratio itself), to both sides, mixed within completions."""
    for dtype in (torch.float64, torch.float32):
        columns = {name: _as(column, dtype) for name, column in trial.given(part, batch).items()}
        base = columns[still] if still else torch.zeros_like(columns[live])
        answers = trial.tried(part, {**columns, live: base + _far(batch).to(dtype)})
        for name, column in answers.items():
            if seen := not_finite(name, column):
                return f"{seen}, in {dtype}"
    return ""


BOUNDED = "Take log-ratios through bounded() of groupwise.algorithms.parts.ratio before exp(): it clamps at +-60."


def law(trial: Trial, live: str, still: str | None) -> Law:
    """Make the law of a trial whose input `live` is compared with `still`."""
    return Law("at log-ratios of +-50 and beyond, all is finite", partial(stays_finite, trial, live, still), BOUNDED)


def _far(batch: Draw) -> Tensor:
    g = torch.Generator().manual_seed(1)
    sizes = torch.tensor(FAR, dtype=torch.float64)[torch.randint(0, len(FAR), batch.mask.shape, generator=g)]
    return sizes * torch.randn(batch.mask.shape, generator=g).sign()


def _as(column: Tensor, dtype: torch.dtype) -> Tensor:
    return column.to(dtype) if column.is_floating_point() else column
