"""Sampling rules of one call of the engine, and what they do to logits."""

from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise.core.engine import Sampling
from groupwise.engines.stop_strings import StopStrings
from groupwise.models.forward.adjustment import Adjustment


@dataclass(frozen=True)
class Rules:
    """Sampling rules of one call of the engine.

    adjustment  of logits, on the engine's device
    stops       [V] bool, the ids that end a completion
    strings     the texts that end a completion; None without any
    top         how many of the most likely ids are kept of each draw
    """

    sampling: Sampling
    adjustment: Adjustment
    stops: Tensor
    strings: StopStrings | None
    top: int = 0

    def adjusted(self, logits: Tensor, had: Tensor | None, age: Tensor, youngest: int = 0) -> Tensor:
        """Turn a step's logits [R,V] into those that are divided by the temperature (core/engine.py: Distribution).

        had       [R,V] bool, the ids that each row has had; None where nothing asks for them
        age       [R] tokens that each row has drawn
        youngest  no row has drawn fewer
        """
        logits = logits.float()
        if self.adjustment.bias is not None:
            logits = logits + self.adjustment.bias
        if had is not None:
            penalty = self.sampling.repetition_penalty
            penalised = torch.where(logits > 0, logits / penalty, logits * penalty)
            logits = torch.where(had, penalised, logits)
        if youngest < self.adjustment.least:
            early, ends = (age < self.adjustment.least)[:, None], self.adjustment.ends
            logits = logits.index_copy(1, ends, logits[:, ends].masked_fill(early, -torch.inf))
        return logits
