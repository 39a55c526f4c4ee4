"""Laws of the log-ratios, and of the engine-mismatch corrections, which are made of them."""

from typing import Any

import torch
from torch import Tensor

from groupwise.algorithms.laws import columns, every, extremes
from groupwise.algorithms.laws.columns import Columns, Trial
from groupwise.algorithms.laws.draws import Draw, like
from groupwise.algorithms.laws.law import Law, differs


def given(part: Any, batch: Draw) -> dict[str, Tensor]:
    return {"logp_live": batch.live, "logp_old": batch.old, "mask": batch.mask}


def given_of_engine(part: Any, batch: Draw) -> dict[str, Tensor]:
    return {"logp_old": batch.old, "logp_engine": batch.old + like(batch, seed=11, scale=0.5), "mask": batch.mask}


def call(part: Any, given: Columns) -> Any:
    return part(*given.values())


RATIO = Trial(given, call, ("log_ratio",), moving=("logp_live",))
MISMATCH = Trial(given_of_engine, call, ("correction",), masked=1.0)


def begins_at_zero(part: Any, batch: Draw) -> str:
    """Demand 0, with a gradient that is not 0, if the policy has not moved."""
    answers = RATIO.tried(part, {**given(part, batch), "logp_live": batch.old})
    if not answers["gradient"].any():
        return "no gradient reaches logp_live: nothing would train"
    return differs("log_ratio where live is old", answers["log_ratio"], torch.zeros_like(batch.old))


def moves_as_it_declares(part: Any, batch: Draw) -> str:
    """Try whether a token's log-probability moves another token's ratio, in the same turn and in another."""
    mask = torch.zeros_like(batch.mask)
    mask[:, :2] = mask[:, 3:5] = True
    live = batch.live.clone().requires_grad_(True)
    value = part(live, batch.old, mask)[0, 0]
    slope = torch.autograd.grad(value, live)[0][0] if value.requires_grad else torch.zeros_like(batch.live[0])
    whole, turn = bool(slope[3] != 0), bool(slope[1] != 0) and not bool(slope[3] != 0)
    if whole != part.per_completion:
        return f"per_completion is {part.per_completion}, and it is {whole}"
    return "" if turn == part.per_turn else f"per_turn is {part.per_turn}, and it is {turn}"


def carries_no_gradient(part: Any, batch: Draw) -> str:
    """Demand a detached correction: it weighs, and does not train."""
    old, engine, mask = given_of_engine(part, batch).values()
    answer = part(old.clone().requires_grad_(True), engine.float().requires_grad_(True), mask)
    return "its correction has a gradient; detach it" if answer.requires_grad else ""


def varies_as_it_declares(part: Any, batch: Draw) -> str:
    """Try whether tokens of one completion have different corrections."""
    old, engine, mask = given_of_engine(part, batch).values()
    answer = part(old, engine, mask)
    varied = any(len(answer[i][mask[i]].unique()) > 1 for i in range(len(mask)))
    return "" if varied <= part.varies else "varies is False, and corrections differ inside a completion"


def is_zero_or_one(part: Any, batch: Draw) -> str:
    """Demand 0 or 1: a rejection does not weigh."""
    old, engine, mask = given_of_engine(part, batch).values()
    answer = part(old, engine, mask)[mask]
    return "" if bool(((answer == 0) | (answer == 1)).all()) else "it answers numbers other than 0 and 1"


def accepts_what_agrees(part: Any, batch: Draw) -> str:
    """Demand that no token is lost if the engine agrees with the learner."""
    return "" if bool((part(batch.old, batch.old, batch.mask) == 1).all()) else "a token with k = 1 is rejected"


RATIO_LAWS = (
    *every.LAWS,
    *columns.laws(RATIO),
    extremes.law(RATIO, "logp_live", "logp_old"),
    Law(
        "it is 0 where the policy has not moved, with a gradient",
        begins_at_zero,
        "Make it of logp_live - logp_old, and detach logp_old alone.",
    ),
    Law(
        "per_completion and per_turn say whether tokens share one number",
        moves_as_it_declares,
        "Set them as lines of the class: per_completion = True where all tokens of a completion share one ratio, "
        "per_turn = True where those of a turn do.",
    ),
)
MISMATCH_LAWS = (
    *every.LAWS,
    *columns.laws(MISMATCH),
    extremes.law(MISMATCH, "logp_old", "logp_engine"),
    Law("a correction has no gradient", carries_no_gradient, "Make it of logp_old.detach() and logp_engine.detach()."),
    Law(
        "varies says whether a completion's tokens have different corrections",
        varies_as_it_declares,
        "Set it as a line of the class: varies = True where they do, and every ratio of one number then refuses it.",
    ),
)
REJECTION_LAWS = (
    *MISMATCH_LAWS,
    Law("a rejection is 1 or 0", is_zero_or_one, "Answer (k <= cap).to(k.dtype); what weighs belongs to mismatch."),
    Law(
        "where the engine agrees, every token is accepted",
        accepts_what_agrees,
        "Accept k = pi_old / pi_engine = 1: the bounds lie around 1.",
    ),
)
