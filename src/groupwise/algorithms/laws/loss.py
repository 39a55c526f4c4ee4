"""Laws of what makes the loss of a batch: ratios, mismatch corrections, rejections, trust regions, KL, weights."""

from typing import Any

import torch
from torch import Tensor

from groupwise.algorithms.laws.draws import Draw, like
from groupwise.algorithms.laws.law import Columns, Trial, differs, first_of, gradient, law
from groupwise.algorithms.parts.aggregate import count
from groupwise.algorithms.parts.ratio import bounded
from groupwise.core.masked import keep


def _in_order(part: Any, given: Columns) -> Any:
    return part(*given.values())


def _of_ratio(batch: Draw) -> dict[str, Tensor]:
    return {"logp_live": batch.live, "logp_old": batch.old, "mask": batch.mask}


RATIO = Trial(_of_ratio, _in_order, ("log_ratio",), moving=("logp_live",), far=("logp_live", "logp_old"))


@law(
    "it is 0 where the policy has not moved, with a gradient",
    "Make it of logp_live - logp_old, and detach logp_old alone.",
)
def begins_at_zero(part: Any, batch: Draw) -> str:
    answers = RATIO.tried(part, {**_of_ratio(batch), "logp_live": batch.old})
    if not answers["gradient"].any():
        return "no gradient reaches logp_live: nothing would train"
    return differs("log_ratio where live is old", answers["log_ratio"], torch.zeros_like(batch.old))


@law(
    "per_completion and per_turn say whether tokens share one number",
    "Set them as lines of the class: per_completion = True where all tokens of a completion share one ratio, "
    "per_turn = True where those of a turn do.",
)
def ratio_moves_as_it_declares(part: Any, batch: Draw) -> str:
    """Try whether a token's log-probability moves another token's ratio, in the same turn and in another."""
    mask = torch.zeros_like(batch.mask)
    mask[:, :2] = mask[:, 3:5] = True
    live = batch.live.clone().requires_grad_(True)
    slope = gradient(part(live, batch.old, mask)[0, 0], live)[0]
    whole, turn = bool(slope[3] != 0), bool(slope[1] != 0) and not bool(slope[3] != 0)
    if whole != part.per_completion:
        return f"per_completion is {part.per_completion}, and it is {whole}"
    return "" if turn == part.per_turn else f"per_turn is {part.per_turn}, and it is {turn}"


RATIO_LAWS = (*RATIO.laws(), begins_at_zero, ratio_moves_as_it_declares)


def _of_engine(batch: Draw) -> dict[str, Tensor]:
    return {"logp_old": batch.old, "logp_engine": batch.old + like(batch, seed=11, scale=0.5), "mask": batch.mask}


MISMATCH = Trial(_of_engine, _in_order, ("correction",), masked=1.0, far=("logp_old", "logp_engine"))


@law("a correction has no gradient", "Make it of logp_old.detach() and logp_engine.detach().")
def carries_no_gradient(part: Any, batch: Draw) -> str:
    old, engine, mask = _of_engine(batch).values()
    answer = part(old.clone().requires_grad_(True), engine.float().requires_grad_(True), mask)
    return "its correction has a gradient; detach it" if answer.requires_grad else ""


@law(
    "varies says whether a completion's tokens have different corrections",
    "Set it as a line of the class: varies = True where they do, and every ratio of one number then refuses it.",
)
def varies_as_it_declares(part: Any, batch: Draw) -> str:
    answer = part(*_of_engine(batch).values())
    varied = any(len(row[own].unique()) > 1 for row, own in zip(answer, batch.mask, strict=True))
    return "" if varied <= part.varies else "varies is False, and corrections differ inside a completion"


MISMATCH_LAWS = (*MISMATCH.laws(), carries_no_gradient, varies_as_it_declares)


@law("a rejection is 1 or 0", "Answer (k <= cap).to(k.dtype); what weighs belongs to mismatch.")
def is_zero_or_one(part: Any, batch: Draw) -> str:
    answer = part(*_of_engine(batch).values())[batch.mask]
    return "" if bool(((answer == 0) | (answer == 1)).all()) else "it answers numbers other than 0 and 1"


@law("where the engine agrees, every token is accepted", "Accept k = pi_old / pi_engine = 1: the bounds lie around 1.")
def accepts_what_agrees(part: Any, batch: Draw) -> str:
    return "" if bool((part(batch.old, batch.old, batch.mask) == 1).all()) else "a token with k = 1 is rejected"


REJECTION_LAWS = (*MISMATCH_LAWS, is_zero_or_one, accepts_what_agrees)


def _of_trust(batch: Draw) -> dict[str, Tensor]:
    ratio = {"log_ratio": batch.live - batch.old, "advantage": like(batch, seed=4)}
    return {**ratio, "logp_live": batch.live, "mask": batch.mask}


TRUST = Trial(
    _of_trust, _in_order, ("value", "share"), moving=("log_ratio", "logp_live"), far=("log_ratio", None)
)  # fmt: skip


@law(
    "at log-ratio 0 its gradient is the advantage, and passes whole",
    "Begin from log_ratio.exp() * advantage, whose slope there is the advantage, and share = 1 at trained tokens; both "
    "are 0 where masked.",
)
def starts_as_the_advantage(part: Any, batch: Draw) -> str:
    advantage = torch.where(batch.mask, batch.advantage[:, None], 0.0)
    lengths = batch.mask.sum(1, keepdim=True).clamp(min=1)  # a mean over sequences, as one of a completion expects
    moving = [torch.zeros_like(batch.old).requires_grad_(True), batch.old.clone().requires_grad_(True)]
    answer = part(moving[0], batch.advantage[:, None].expand_as(batch.mask), moving[1], batch.mask)
    if not answer[0].requires_grad:
        return "its value is detached from the policy: nothing would train"
    of_part = gradient((answer[0] / lengths).sum(), *moving) * lengths
    return first_of(differs("gradient", of_part, advantage), differs("share", answer[1], batch.mask.double()))


@law(
    "an advantage of 0 has no gradient",
    "Make value proportional to the advantage; what acts without one belongs to the KL term.",
)
def trains_nothing_without_an_advantage(part: Any, batch: Draw) -> str:
    # The learner runs such rows without a backward pass.
    answers = TRUST.tried(part, {**_of_trust(batch), "advantage": torch.zeros_like(batch.live)})
    return differs("gradient at advantage 0", answers["gradient"], torch.zeros_like(batch.live))


@law(
    "share is from 0 to 1, and the part of the gradient that passes",
    "share = (d value / d logp_live) / (r A), from 0 to 1 at most: 1 where nothing is stopped, 0 without a gradient.",
)
def shares_what_it_passes(part: Any, batch: Draw) -> str:
    """Try, of a part that looks at tokens one by one, whether share is (d value / d logp_live) / (r A), from 0 to 1."""
    columns = _of_trust(batch)
    answers = TRUST.tried(part, columns)
    outside = (answers["share"] < 0) | (answers["share"] > 1)
    if outside.any():
        return f"share is {float(answers['share'][outside][0]):g}; it lies from 0 to 1"
    if part.per_completion:
        return ""
    whole = torch.where(batch.mask, columns["log_ratio"].exp() * columns["advantage"], 0.0)
    passed, along = answers["share"] * whole, answers["gradient"] * whole.sign()
    beyond = ((answers["share"] == 1) & (along > whole.abs())) | ((answers["share"] == 0) & (along < 0))
    return differs("gradient", torch.where(beyond, passed, answers["gradient"]), passed)


@law(
    "per_completion says whether tokens share one number",
    "Set it as a line of the class: per_completion = True where a token's value reads other tokens' ratios.",
)
def trust_moves_as_it_declares(part: Any, batch: Draw) -> str:
    row = torch.tensor([[0.05, -0.05]], dtype=torch.float64)
    moving = [row.clone().requires_grad_(True), torch.zeros_like(row).requires_grad_(True)]
    answer = part(moving[0], torch.ones_like(row), moving[1], torch.ones_like(row, dtype=torch.bool))
    shared = bool(gradient(answer[0][0, 0], *moving)[0, 1] != 0)
    return "" if shared == part.per_completion else f"per_completion is {part.per_completion}, and it is {shared}"


TRUST_LAWS = (
    *TRUST.laws(),
    starts_as_the_advantage,
    trains_nothing_without_an_advantage,
    shares_what_it_passes,
    trust_moves_as_it_declares,
)


def _of_kl(batch: Draw) -> dict[str, Tensor]:
    masked = {"logp_live": batch.live, "logp_ref": batch.ref, "logp_old": batch.old}
    return {**{name: keep(column, batch.mask) for name, column in masked.items()}, "mask": batch.mask}


def _kl(part: Any, given: Columns) -> Any:
    """Call an estimator as an algorithm does: it sees no mask, and what it is given is 0 where the mask is False."""
    live, ref, old = (keep(given[name], given["mask"]) for name in ("logp_live", "logp_ref", "logp_old"))
    return part(live, ref, bounded(live - old))


KL = Trial(_of_kl, _kl, ("kl",), moving=("logp_live",), far=("logp_live", "logp_ref"))


@law(
    "it is 0 where the policy is its reference",
    "Make it of x = logp_ref - logp_live so that x = 0 gives 0, as exp(x) - x - 1 does.",
)
def is_zero_at_the_reference(part: Any, batch: Draw) -> str:
    columns = _of_kl(batch)
    answers = KL.tried(part, {**columns, "logp_ref": columns["logp_live"]})
    return differs("kl where live is ref", answers["kl"], torch.zeros_like(batch.live))


@law("its gradient reaches the policy", "Leave out detach() and no_grad() on logp_live.")
def has_a_gradient(part: Any, batch: Draw) -> str:
    moves = KL.tried(part, _of_kl(batch))["gradient"].any()
    return "" if moves else "no gradient reaches logp_live: as a term of the loss it would do nothing"


KL_LAWS = (
    *KL.laws("It is given zeros where the mask is False: answer 0 where logp_live = logp_ref."),
    is_zero_at_the_reference,
    has_a_gradient,
)


AGGREGATE = Trial(
    lambda batch: {"mask": batch.mask}, lambda part, given: part(given["mask"], count(given["mask"])), ("weight",)
)


@law(
    "the weights add up to the total that it declares",
    "Write declared(self, totals): what the weights of a whole batch add up to; without it that is 1, a mean.",
)
def reaches_its_total(part: Any, batch: Draw) -> str:
    totals = count(batch.mask)
    declared = torch.tensor(part.declared(totals), dtype=torch.float64)
    return differs("the sum of the weights", part(batch.mask, totals).double().sum(), declared)


@law(
    "the weights of shards are those of the whole",
    "Divide by totals.tokens or totals.completions, which are of the whole batch; the mask may be a part of it.",
)
def adds_up_over_shards(part: Any, batch: Draw) -> str:
    totals = count(batch.mask)
    shards = torch.cat([part(rows, totals) for rows in batch.mask.tensor_split(3)])
    return differs("the weight in a shard", shards, part(batch.mask, totals), rounding=0)


@law("without a trained token all weights are 0", "Divide by max(count, 1), and declare 0.0 where totals.tokens is 0.")
def is_quiet_without_tokens(part: Any, batch: Draw) -> str:
    none = torch.zeros_like(batch.mask)
    weight = part(none, count(none))
    declared = torch.tensor(float(part.declared(count(none))))
    return first_of(differs("weight", weight, torch.zeros_like(weight), 0), differs("declared", declared, declared * 0))


AGGREGATE_LAWS = (*AGGREGATE.laws(), reaches_its_total, adds_up_over_shards, is_quiet_without_tokens)
