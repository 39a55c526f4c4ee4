"""Laws of the estimators of KL(live || ref). They see no mask: what they are given is 0 where it is False."""

from typing import Any

import torch
from torch import Tensor

from groupwise.algorithms.laws import columns, every, extremes
from groupwise.algorithms.laws.columns import Columns, Trial
from groupwise.algorithms.laws.draws import Draw
from groupwise.algorithms.laws.law import Law, differs
from groupwise.algorithms.parts.ratio import bounded
from groupwise.core.masked import keep


def given(part: Any, batch: Draw) -> dict[str, Tensor]:
    masked = {"logp_live": batch.live, "logp_ref": batch.ref, "logp_old": batch.old}
    return {**{name: keep(column, batch.mask) for name, column in masked.items()}, "mask": batch.mask}


def call(part: Any, given: Columns) -> Any:
    live, ref, old = (keep(given[name], given["mask"]) for name in ("logp_live", "logp_ref", "logp_old"))
    return part(live, ref, bounded(live - old))


TRIAL = Trial(given, call, ("kl",), moving=("logp_live",))


def is_zero_at_the_reference(part: Any, batch: Draw) -> str:
    """Demand no penalty if the policy is its own reference."""
    columns_ = given(part, batch)
    answers = TRIAL.tried(part, {**columns_, "logp_ref": columns_["logp_live"]})
    return differs("kl where live is ref", answers["kl"], torch.zeros_like(batch.live))


def has_a_gradient(part: Any, batch: Draw) -> str:
    """Demand a gradient: a detached penalty in the loss would train nothing."""
    gradient = TRIAL.tried(part, given(part, batch))["gradient"]
    return "" if gradient.any() else "no gradient reaches logp_live: as a term of the loss it would do nothing"


LAWS = (
    *every.LAWS,
    *columns.laws(TRIAL, "It is given zeros where the mask is False: answer 0 where logp_live = logp_ref."),
    extremes.law(TRIAL, "logp_live", "logp_ref"),
    Law(
        "it is 0 where the policy is its reference",
        is_zero_at_the_reference,
        "Make it of x = logp_ref - logp_live so that x = 0 gives 0, as exp(x) - x - 1 does.",
    ),
    Law("its gradient reaches the policy", has_a_gradient, "Leave out detach() and no_grad() on logp_live."),
)
