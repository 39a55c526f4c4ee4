"""Laws of the trust regions."""

from typing import Any

import torch
from torch import Tensor

from groupwise.algorithms.laws import columns, every, extremes
from groupwise.algorithms.laws.columns import Columns, Trial
from groupwise.algorithms.laws.draws import Draw, like
from groupwise.algorithms.laws.law import Law, differs, first_of, gradient


def given(part: Any, batch: Draw) -> dict[str, Tensor]:
    """Token ratios and an advantage a token."""
    ratio = {"log_ratio": batch.live - batch.old, "advantage": like(batch, seed=4)}
    return {**ratio, "logp_live": batch.live, "mask": batch.mask}


def call(part: Any, given: Columns) -> Any:
    return part(*given.values())


TRIAL = Trial(given, call, ("value", "share"), moving=("log_ratio", "logp_live"))


def starts_as_the_advantage(part: Any, batch: Draw) -> str:
    """Demand that at log-ratio 0 the gradient is the advantage, one a completion, and that all of it passes."""
    advantage = torch.where(batch.mask, batch.advantage[:, None], 0.0)
    lengths = batch.mask.sum(1, keepdim=True).clamp(min=1)  # a mean over sequences, as one of a completion expects
    moving = [torch.zeros_like(batch.old).requires_grad_(True), batch.old.clone().requires_grad_(True)]
    answer = part(moving[0], batch.advantage[:, None].expand_as(batch.mask), moving[1], batch.mask)
    if not answer[0].requires_grad:
        return "its value is detached from the policy: nothing would train"
    of_part = gradient((answer[0] / lengths).sum(), *moving) * lengths
    return first_of(differs("gradient", of_part, advantage), differs("share", answer[1], batch.mask.double()))


def trains_nothing_without_an_advantage(part: Any, batch: Draw) -> str:
    """Demand no gradient from an advantage of 0: the learner runs such rows without a backward pass."""
    answers = TRIAL.tried(part, {**given(part, batch), "advantage": torch.zeros_like(batch.live)})
    return differs("gradient at advantage 0", answers["gradient"], torch.zeros_like(batch.live))


def shares_what_it_passes(part: Any, batch: Draw) -> str:
    """Demand a share from 0 to 1 and, of a part that looks at tokens one by one, d value / d logp_live = share r A."""
    columns_ = given(part, batch)
    answers = TRIAL.tried(part, columns_)
    outside = (answers["share"] < 0) | (answers["share"] > 1)
    if outside.any():
        return f"share is {float(answers['share'][outside][0]):g}; it lies from 0 to 1"
    if part.per_completion:
        return ""
    whole = torch.where(batch.mask, columns_["log_ratio"].exp() * columns_["advantage"], 0.0)
    return differs("gradient", answers["gradient"], answers["share"] * whole)


def moves_as_it_declares(part: Any, batch: Draw) -> str:
    """Try whether a token's surrogate moves with another token's log-ratio."""
    row = torch.tensor([[0.05, -0.05]], dtype=torch.float64)
    moving = [row.clone().requires_grad_(True), torch.zeros_like(row).requires_grad_(True)]
    answer = part(moving[0], torch.ones_like(row), moving[1], torch.ones_like(row, dtype=torch.bool))
    shared = bool(gradient(answer[0][0, 0], *moving)[0, 1] != 0)
    return "" if shared == part.per_completion else f"per_completion is {part.per_completion}, and it is {shared}"


AT_ONE = (
    "Begin from log_ratio.exp() * advantage, whose slope there is the advantage, and share = 1 at trained tokens; both "
    "are 0 where masked."
)

LAWS = (
    *every.LAWS,
    *columns.laws(TRIAL),
    extremes.law(TRIAL, "log_ratio", None),
    Law("at log-ratio 0 its gradient is the advantage, and passes whole", starts_as_the_advantage, AT_ONE),
    Law(
        "an advantage of 0 has no gradient",
        trains_nothing_without_an_advantage,
        "Make value proportional to the advantage; what acts without one belongs to the KL term.",
    ),
    Law(
        "share is from 0 to 1, and the part of the gradient that passes",
        shares_what_it_passes,
        "share = (d value / d logp_live) / (r A): 1 where nothing is stopped, 0 where value has no gradient.",
    ),
    Law(
        "per_completion says whether tokens share one number",
        moves_as_it_declares,
        "Set it as a line of the class: per_completion = True where a token's value reads other tokens' ratios.",
    ),
)
