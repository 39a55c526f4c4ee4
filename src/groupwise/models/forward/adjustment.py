"""Adjustment of logits before they are divided by the temperature, as engine and learner both make it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from groupwise.core.engine import Sampling
from groupwise.core.errors import UsageError, listed


@dataclass(frozen=True)
class Adjustment:
    """x_j = z_j + bias_j, and -inf for the end ids j of a completion's first `least` tokens. By default nothing.

    bias   [V] float32, or None if nothing is added
    ends   [E] int64, the ids that end a completion
    least  tokens
    """

    bias: Tensor | None = None
    ends: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    least: int = 0

    def on(self, device: torch.device) -> "Adjustment":
        """Move its tensors to a device."""
        bias = None if self.bias is None else self.bias.to(device)
        return Adjustment(bias, self.ends.to(device), self.least)

    def barred(self, sampled: Tensor) -> tuple[Tensor, Tensor] | None:
        """Map [N,T] bool, the tokens that were sampled -> for each of them, [M] bool, whether it could be no end,
        and the end ids; None if nothing is barred.

        >>> adjustment = Adjustment(ends=torch.tensor([3]), least=1)
        >>> adjustment.barred(torch.tensor([[False, True, True], [False, False, True]]))
        (tensor([ True, False,  True]), tensor([3]))
        """
        if not self.least or not len(self.ends):
            return None
        return (sampled.cumsum(-1) <= self.least)[sampled], self.ends.to(sampled.device)


UNADJUSTED = Adjustment()


def adjustment_of(sampling: Sampling, eos: Iterable[int], vocabulary: int) -> Adjustment:
    """Return the adjustment of a sampling, for a model of so many ids, which `eos` end.

    Raises UsageError, beginning with the key, for ids that the model does not have, or where nothing could be sampled.
    """
    for key, ids in (("stop_ids", sampling.stop_ids), ("logit_bias", sampling.logit_bias)):
        if outside := [i for i in ids if i >= vocabulary]:
            raise UsageError(f"{key}: {listed(map(str, outside))}: the model's ids are 0 to {vocabulary - 1}")
    ends = sorted({*eos, *sampling.stop_ids})
    if sampling.min_new_tokens and len(ends) == vocabulary:
        raise UsageError(f"min_new_tokens = {sampling.min_new_tokens}: every id of the model ends a completion")
    bias = torch.zeros(vocabulary) if sampling.logit_bias else None
    for token, added in sampling.logit_bias.items():
        bias[token] = added  # type: ignore[index]
    return Adjustment(bias, torch.tensor(ends, dtype=torch.long), sampling.min_new_tokens)
