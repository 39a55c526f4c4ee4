"""Liger's side: the loss inside its fused head, LigerFusedLinearGRPOFunction, under advantages that it is given.

Its Triton kernels (`triton_grpo_loss`) need a GPU and are not compared.
"""

from __future__ import annotations

from typing import Any

import torch
from liger_kernel.chunked_loss.grpo_loss import (  # pyright: ignore
    LigerFusedLinearGRPOFunction,
    LigerFusedLinearGRPOLoss,
)
from torch import Tensor

from peers.comparing import WIDTH, Case, Draw, Kind, Side, credited

DISTRIBUTION = "liger-kernel"
FUNCTION = "ppo_loss_fn, "


def side(row: str, loss_type: str, **options: Any) -> Side:
    """Make Liger's side, under our advantages."""

    def run(batch: Draw, live: Tensor) -> tuple[None, Tensor]:
        value, _ = LigerFusedLinearGRPOFunction.ppo_loss_fn(
            live, batch.m, credited(row, batch), batch.m, ref_per_token_logps=batch.ref, old_per_token_logps=batch.old,
            loss_type=loss_type, max_completion_length=WIDTH, **{"beta": 0.0, **options},
        )  # fmt: skip
        return None, value

    return run


def fused(batch: Draw, live: Tensor) -> tuple[None, Tensor]:
    """Make the loss from hidden states: two tokens, one hidden number, so that log-probabilities are those given."""
    hidden = (live - torch.log(-torch.expm1(live)))[..., None]
    head = torch.tensor([[1.0], [0.0]])
    of_liger = LigerFusedLinearGRPOLoss(beta=0.0, compiled=False, use_ref_model=False, loss_type="grpo")
    chosen = torch.zeros_like(batch.mask, dtype=torch.long)
    return None, of_liger(hidden, head, chosen, batch.m, credited("grpo", batch), old_per_token_logps=batch.old)[0]


def case(row: str, loss_type: str, settings: dict[str, Any] | None = None, **options: Any) -> Case:
    more = ", level sequence" if "importance_sampling_level" in options else ""
    return Case(row, FUNCTION + loss_type + more, side(row, loss_type, **options), settings or {})


LEVEL: dict[str, Any] = {"importance_sampling_level": "sequence"}
CASES = (
    case("grpo", "grpo", beta=0.04),
    Case("grpo", "LigerFusedLinearGRPOLoss", fused, {"kl.beta": 0.0}, kind=Kind(highest=-0.2),
         words="from hidden states on"),
    case("dr-grpo", "dr_grpo", {"aggregate.limit": WIDTH}),
    case("dapo", "dapo", epsilon_high=0.28),
    case("gspo", "grpo", epsilon_low=3e-4, epsilon_high=4e-4, **LEVEL),
    case("sapo", "sapo"),
    case("cispo", "cispo", epsilon_high=5.0),
    case("vespo", "vespo"),
    case("luspo", "luspo", epsilon_low=2e-3, epsilon_high=2.5e-3, **LEVEL),
)  # fmt: skip

EDGES = (
    Case("luspo", FUNCTION + "luspo, beta", side("luspo", "luspo", beta=0.04, epsilon_low=2e-3, epsilon_high=2.5e-3,
         **LEVEL), {"kl.beta": 0.04, "kl.estimator": "k3", "kl.place": "loss"}, "a KL term", Kind(holes=False),
         words="Liger's luspo with a KL term sums padding as well and divides by its width; TRL masks first, as we do"),
)  # fmt: skip
#: No other loss_type is a row of the catalog, and no peer's function of it needs words.
WITHOUT: dict[str, str] = {}
