"""The laws of every slot: the catalog's parts obey them all, and each law names a part that breaks it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from groupwise.algorithms.laws import LAWS, tried
from groupwise.algorithms.own_parts import BASES, slot_of
from groupwise.algorithms.parts.advantage import Advantage, GroupMean, LeaveOneOut
from groupwise.algorithms.parts.aggregate import Constant, TokenMean
from groupwise.algorithms.parts.filters import DropUniform, KeepAll, Signal, Verdict
from groupwise.algorithms.parts.gae import GAE, MonteCarlo, OneStepTD, Return
from groupwise.algorithms.parts.kl import K2, Estimator
from groupwise.algorithms.parts.mismatch import MIS, TIS, IcePop, SequenceMIS, SequenceTIS
from groupwise.algorithms.parts.ratio import Ratio, TokenRatio, bounded
from groupwise.algorithms.parts.rejection import GeometricBand, SequenceBand, TokenBand, Veto
from groupwise.algorithms.parts.shaping import OutcomeReward, Shaping, Steps, at_step_ends
from groupwise.algorithms.parts.trust import Cispo, Clip, Geometric, SoftGate, Surrogate, Trust
from groupwise.algorithms.settings import CATALOG, ESTIMATORS, KINDS

BY_DEFAULT = [kind() for kinds in (*KINDS.values(), ESTIMATORS) for kind in kinds.values() if kind is not Constant]
OF_ROWS = [part for row in CATALOG.values() for slot, part in row.parts.items() if slot != "kl"]
VARIANTS = [
    Clip(0.2, 0.28, dual_clip=3.0),
    SoftGate(0.5, 4.0),
    Cispo(cap=0.0, epsilon_high=0.2),
    Geometric(0.1, 0.3),
    TIS(cap=0.5),
    MIS(cap=1.5, floor=0.8),
    SequenceMIS(9.0, 0.1),
    *(kind(cap=math.inf) for kind in (TIS, MIS, SequenceMIS, SequenceTIS, TokenBand, SequenceBand)),
    GeometricBand(cap=1.1, floor=0.9),
    Veto(floor=0.5),
    IcePop(floor=0.0, cap=math.inf),
    GroupMean(whiten=True),
    *(kind(gamma=0.9, whiten=white) for kind in (GAE, OneStepTD, MonteCarlo, Return) for white in (True, False)),
    OutcomeReward(overlong_cache=0.5, limit=8, step_scale=3.0),
    Steps(scale=2.0),
]
PARTS = list({repr(part): part for part in (*BY_DEFAULT, *OF_ROWS, *VARIANTS)}.values())


@pytest.mark.parametrize("part", PARTS, ids=repr)
def test_the_catalogs_parts_obey_every_law_of_their_slot(part: Any) -> None:
    assert {law.words: seen for law, seen in tried(part) if seen} == {}


@dataclass(frozen=True, repr=False)
class Silent(Clip):
    def __repr__(self):
        return "a clip"


@dataclass(frozen=True)
class Wordy(Clip):
    equation = "S = r A\nor so"  # type: ignore[assignment]


@dataclass
class Loose(Trust):
    equation = "S = r A"
    factor: float = 1.0

    def __call__(self, log_ratio, advantage, logp_live, mask):
        return Clip()(log_ratio, advantage, logp_live, mask)


@dataclass(frozen=True)
class Homeless(Clip):
    name: Any = field(default=lambda: 0)


@dataclass(frozen=True)
class Divided(Advantage):
    """Over the deviation alone, which rounding fills where a group is tied, and which a lone completion has not."""

    equation = "A_i = (R_i - mean R) / std R"
    compares_within_group = True

    def __call__(self, reward, value, mask, group, step_end):
        total = torch.where(mask, reward, 0.0).nan_to_num().sum(1)
        same = group[:, None] == group[None, :]
        mean = (same * total[None, :]).sum(1) / same.sum(1)
        spread = (same * (total[None, :] - mean[:, None]) ** 2).sum(1).sqrt()
        return torch.where(mask, ((total - mean) / (spread + 1e-30))[:, None], 0.0), torch.where(mask, reward, 0.0)


def changed(kind: type, call: Callable[..., Any], **members: Any) -> Any:
    """A part of another class, whose answer to its arguments is `call(real, *arguments)`; `real` is the kind's."""

    def answered(self: Any, *given: Any) -> Any:
        return call(partial(kind.__call__, self), *given)  # type: ignore[operator]

    members = {"__module__": __name__, "__call__": answered, "equation": kind.equation, **members}  # type: ignore[attr-defined]
    return dataclass(frozen=True)(type("Changed", (kind,), members))()


def of_value(call: Callable[..., Any]) -> Any:
    """A clip whose value is `call(value, *arguments)`."""

    def answered(real: Any, *given: Any) -> Surrogate:
        value, share = real(*given)
        return Surrogate(call(value, *given), share)

    return changed(Clip, answered)


def fallen(logp_old: Tensor, logp_engine: Tensor, mask: Tensor) -> Tensor:
    """pi_old / pi_engine, 1 where masked, with the gradient of what it is made of."""
    difference = torch.where(mask, logp_old, 0.0) - torch.where(mask, logp_engine, 0.0)
    return torch.where(mask, bounded(difference).exp(), 1.0)


def of_a_lone_completion(real: Any, reward: Tensor, value: Any, mask: Tensor, group: Tensor, ends: Any) -> Any:
    advantage, returns = real(reward, value, mask, group, ends)
    lone = (group[:, None] == group[None, :]).sum(1) < 2
    return torch.where(mask & lone[:, None], reward.nan_to_num(), advantage), returns


def overflowing(real: Any, log_ratio: Tensor, advantage: Tensor, logp_live: Tensor, mask: Tensor) -> Surrogate:
    value = torch.where(mask, torch.where(mask, log_ratio, 0).exp() * torch.where(mask, advantage, 0), 0)
    return Surrogate(value, mask.to(value.dtype))


def in_place(real: Any, log_ratio: Tensor, advantage: Tensor, *others: Tensor) -> Surrogate:
    with torch.no_grad():
        advantage.clamp_(-0.1, 0.1)
    return real(log_ratio, advantage, *others)


SUMMED = of_value(lambda value, *given: value.sum(1))
LEAKING = changed(Clip, lambda real, ratio, a, *others: Surrogate(bounded(ratio).exp() * a, torch.ones_like(a)))
FIRST_ROW = of_value(lambda value, *given: value * torch.linspace(1, 2, len(value), dtype=value.dtype)[:, None])
PUSHING = changed(Clip, lambda real, ratio, a, *others: real(ratio, a + (a == 0), *others))
BOASTING = changed(Clip, lambda real, *given: Surrogate(real(*given).value, given[-1].to(given[0].dtype)))
SHIFTED = changed(TokenRatio, lambda real, *given: real(*given) + 0.1 * given[-1])
STILL = {"call": lambda real, *given: real(*given)}
HALVED = changed(TokenBand, lambda real, *given: torch.where(given[-1], real(*given) / 2, 1.0))
WHOLE_NUMBERS = changed(
    LeaveOneOut, lambda real, r, *others: real(r if r.is_floating_point() else r.mul_(1.5), *others)
)
DOUBLED = changed(TokenMean, **STILL, declared=lambda part, totals: 2.0)
LOCAL = changed(TokenMean, lambda real, mask, totals: mask.double() / mask.sum().clamp(min=1))
OFFSET = changed(K2, lambda real, *given: (real(*given) + 1.0).detach())
TALKATIVE = changed(KeepAll, lambda real, group: (group.scores[0] >= 1, "right"), max_rounds=0)

#: A part that breaks a law, the beginning of the law, and what is said of it.
BREAKS: list[tuple[Any, str, str]] = [
    (Silent(), "it prints itself", "does not name Silent"),
    (Wordy(), "it says its equation", "its equation is 'S = r A\\nor so'"),
    (Loose(), "it is a frozen value", "factor can be changed"),
    (Homeless(), "another process can have it", "it raised NotPlain"),
    (SUMMED, "it answers with numbers", "value has the shape [8]; [N,T] is [8, 12]"),
    (LEAKING, "masked positions change nothing", "masked value[0, 0] is"),
    (of_value(lambda value, *given: value / value.shape[1]), "padding changes nothing", "value[1, 1] is 0.00260861"),
    (FIRST_ROW, "the order of rows", "value["),
    (changed(Clip, in_place), "it changes no input in place", "it changes advantage in place"),
    (changed(Clip, overflowing), "at log-ratios of +-50", "value is inf"),
    (of_value(lambda value, *given: value.detach()), "at log-ratio 0 its gradient", "detached from the policy"),
    (PUSHING, "an advantage of 0 has no gradient", "gradient at advantage 0["),
    (BOASTING, "share is from 0 to 1", "gradient["),
    (changed(Clip, **STILL, per_completion=True), "per_completion says", "per_completion is True, and it is False"),
    (SHIFTED, "it is 0 where the policy has not moved", "is 0.1 instead of 0"),
    (changed(TokenRatio, **STILL, per_completion=True), "per_completion and per_turn say", "per_completion is True"),
    (changed(TokenRatio, **STILL, per_turn=True), "per_completion and per_turn say", "per_turn is True, and it is"),
    (changed(TIS, lambda real, *given: fallen(*given)), "a correction has no gradient", "detach it"),
    (changed(TIS, **STILL, varies=False), "varies says", "varies is False"),
    (HALVED, "a rejection is 1 or 0", "numbers other than 0 and 1"),
    (TokenBand(cap=0.9), "where the engine agrees, every token", "a token with k = 1 is rejected"),
    (Divided(), "where it compares within a group, ties", "the advantage of equal rewards["),
    (changed(GroupMean, of_a_lone_completion), "where it compares within a group, a lone", "[3, 0] is 0.5"),
    (Divided(), "a reward that is NaN", "advantage["),
    (WHOLE_NUMBERS, "rewards may be whole numbers", "it raised RuntimeError"),
    (DOUBLED, "the weights add up", "the sum of the weights is 1 instead of 2"),
    (LOCAL, "the weights of shards", "the weight in a shard["),
    (DOUBLED, "without a trained token", "declared is 2 instead of 0"),
    (OFFSET, "it is 0 where the policy is its reference", "is 1 instead of 0"),
    (OFFSET, "its gradient reaches the policy", "no gradient reaches logp_live"),
    (
        changed(OutcomeReward, lambda real, batch: real(batch) + at_step_ends(batch)),
        "it needs scores of steps only",
        "it raised ValueError",
    ),
    (
        changed(OutcomeReward, lambda real, batch: real(batch) - batch.mask * batch.score.mean()),
        "a row that could not be scored",
        "reward at trained tokens is nan",
    ),
    (TALKATIVE, "it says keep or drop", "it says (True, 'right')"),
    (
        changed(KeepAll, lambda real, group: Verdict(group.scores[0] >= 1, Signal.MIXED)),
        "the order of completions",
        "in another order",
    ),
    (
        changed(DropUniform, lambda real, group: Verdict(False, Signal.MIXED)),
        "it keeps groups of some kind",
        "it drops groups of every kind",
    ),
    (TALKATIVE, "max_rounds is at least 1", "max_rounds is 0"),
]


@pytest.mark.parametrize(("part", "words", "said"), BREAKS, ids=[words for _, words, _ in BREAKS])
def test_a_part_that_breaks_a_law_is_told_which_and_how(part: Any, words: str, said: str) -> None:
    broken = {law.words: seen for law, seen in tried(part) if seen}
    (law,) = (law for law in LAWS[slot_of(type(part))] if law.words.startswith(words))
    told = broken.get(law.words, f"it holds; broken are {broken}")
    assert said in told
    assert told.endswith(f". {law.remedy}")
    assert len(law.remedy) > 20


def careful(real: Any, *given: Any) -> Any:
    raise ValueError("never again.")


#: A part whose answer is none of its slot's, and what is said of it.
UNDUE: list[tuple[Any, str]] = [
    (changed(Clip, lambda real, ratio, a, *others: ratio.exp() * a), "it answers with Tensor. Return value, share: "),
    (changed(Clip, lambda real, log_ratio, advantage: Surrogate(log_ratio, advantage)), "It is called as part("),
    (changed(Clip, lambda real, *given: Surrogate(real(*given).value, given[-1])), "share is of torch.bool; "),
    (changed(TokenRatio, lambda real, *given: real(*given).long()), "log_ratio is of torch.int64; floating-point"),
    (changed(GroupMean, lambda real, reward, *others: reward), "Return advantage, returns: tensors [N,T] of"),
    (changed(K2, lambda real, *given: None), "it answers with NoneType. Return kl: tensors [N,T] of floating"),
    (changed(Clip, careful), "it raised ValueError: never again"),
    (SUMMED, "value has the shape [8]; [N,T] is [8, 12]. A number a row becomes"),
]


@pytest.mark.parametrize(("part", "said"), UNDUE, ids=[said for _, said in UNDUE])
def test_a_part_whose_answer_is_none_of_its_slots_is_told_once_what_is_due(part: Any, said: str) -> None:
    broken = [seen for law, seen in tried(part) if seen and law.words != "another process can have it"]
    assert said in broken[0]
    assert {*broken[1:]} == {"not tried. Mend what breaks this first: it answers with numbers of the shape [N,T]."}


def test_numbers_that_differ_are_printed_so_that_they_do() -> None:
    def narrow(real: Any, *given: Tensor) -> Surrogate:
        return Surrogate(*(column.double() for column in real(*(one.float() for one in given[:-1]), given[-1])))

    told = next(seen for _, seen in tried(changed(Clip, narrow)) if "instead of" in seen)
    here, due = told.partition(" instead of ")[0].split()[-1], told.partition(" instead of ")[2].split(",")[0]
    assert here != due
    assert "as float32 would be: compute in the type given" in told


def test_every_law_is_broken_by_one_of_them() -> None:
    named = {law.words for laws in LAWS.values() for law in laws if any(law.words.startswith(w) for _, w, _ in BREAKS)}
    assert named == {law.words for laws in LAWS.values() for law in laws}


def test_every_slot_has_laws_and_every_part_a_slot() -> None:
    assert LAWS.keys() == BASES.keys() == {*KINDS, "kl"}
    for slot, kinds in {**KINDS, "kl": ESTIMATORS}.items():
        assert all(BASES[slot] in kind.__mro__ for kind in kinds.values())
    assert {slot_of(kind) for kind in (Shaping, Ratio, Estimator, int)} == {"shaping", "ratio", "kl", ""}
