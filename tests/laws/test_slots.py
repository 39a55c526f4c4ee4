"""The laws of every slot: the catalog's parts obey them all, and each law names a part that breaks it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from groupwise.algorithms.laws.slots import LAWS, tried
from groupwise.algorithms.own_parts import BASES, slot_of
from groupwise.algorithms.parts.advantage import Advantage, GroupMean, LeaveOneOut
from groupwise.algorithms.parts.aggregate import Constant, TokenMean
from groupwise.algorithms.parts.filters import DropUniform, Filter, KeepAll, Signal, Verdict
from groupwise.algorithms.parts.gae import GAE, MonteCarlo, OneStepTD, Return
from groupwise.algorithms.parts.kl import K2, Estimator
from groupwise.algorithms.parts.mismatch import MIS, TIS, IcePop, Mismatch, SequenceMIS, SequenceTIS
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
class Summed(Clip):
    def __call__(self, log_ratio, advantage, logp_live, mask):
        value, share = super().__call__(log_ratio, advantage, logp_live, mask)
        return Surrogate(value.sum(1), share)


@dataclass(frozen=True)
class Leaking(Trust):
    equation = "S = r A"

    def __call__(self, log_ratio, advantage, logp_live, mask):
        value = bounded(log_ratio).exp() * advantage
        return Surrogate(value, torch.ones_like(value))


@dataclass(frozen=True)
class Widths(Clip):
    def __call__(self, log_ratio, advantage, logp_live, mask):
        value, share = super().__call__(log_ratio, advantage, logp_live, mask)
        return Surrogate(value / mask.shape[1], share)


@dataclass(frozen=True)
class FirstRow(Clip):
    def __call__(self, log_ratio, advantage, logp_live, mask):
        value, share = super().__call__(log_ratio, advantage, logp_live, mask)
        return Surrogate(value * torch.linspace(1, 2, len(mask), dtype=value.dtype)[:, None], share)


@dataclass(frozen=True)
class InPlace(Clip):
    def __call__(self, log_ratio, advantage, logp_live, mask):
        with torch.no_grad():
            advantage.clamp_(-0.1, 0.1)
        return super().__call__(log_ratio, advantage, logp_live, mask)


@dataclass(frozen=True)
class Overflowing(Trust):
    equation = "S = r A"

    def __call__(self, log_ratio, advantage, logp_live, mask):
        value = torch.where(mask, torch.where(mask, log_ratio, 0).exp() * torch.where(mask, advantage, 0), 0)
        return Surrogate(value, mask.to(value.dtype))


@dataclass(frozen=True)
class Detached(Clip):
    def __call__(self, log_ratio, advantage, logp_live, mask):
        value, share = super().__call__(log_ratio, advantage, logp_live, mask)
        return Surrogate(value.detach(), share)


@dataclass(frozen=True)
class Pushing(Clip):
    def __call__(self, log_ratio, advantage, logp_live, mask):
        return super().__call__(log_ratio, advantage + (advantage == 0), logp_live, mask)


@dataclass(frozen=True)
class Boasting(Clip):
    def __call__(self, log_ratio, advantage, logp_live, mask):
        value, share = super().__call__(log_ratio, advantage, logp_live, mask)
        return Surrogate(value, mask.to(share.dtype))


@dataclass(frozen=True)
class Whole(Clip):
    per_completion = True


@dataclass(frozen=True)
class Shifted(TokenRatio):
    def __call__(self, logp_live, logp_old, mask):
        return super().__call__(logp_live, logp_old, mask) + 0.1 * mask


@dataclass(frozen=True)
class WholeRatio(TokenRatio):
    per_completion = True


@dataclass(frozen=True)
class TurnRatioByToken(TokenRatio):
    per_turn = True


@dataclass(frozen=True)
class Attached(Mismatch):
    equation = "c = k"

    def __call__(self, logp_old, logp_engine, mask):
        difference = torch.where(mask, logp_old, 0.0) - torch.where(mask, logp_engine, 0.0)
        return torch.where(mask, bounded(difference).exp(), 1.0)


@dataclass(frozen=True)
class Steady(TIS):
    varies = False


@dataclass(frozen=True)
class Halved(TokenBand):
    def __call__(self, logp_old, logp_engine, mask):
        return torch.where(mask, super().__call__(logp_old, logp_engine, mask) / 2, 1.0)


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


@dataclass(frozen=True)
class Alone(GroupMean):
    def __call__(self, reward, value, mask, group, step_end):
        advantage, returns = super().__call__(reward, value, mask, group, step_end)
        lone = (group[:, None] == group[None, :]).sum(1) < 2
        return torch.where(mask & lone[:, None], reward.nan_to_num(), advantage), returns


@dataclass(frozen=True)
class Fractions(LeaveOneOut):
    def __call__(self, reward, value, mask, group, step_end):
        return super().__call__(
            reward.mul_(1.5) if not reward.is_floating_point() else reward, value, mask, group, None
        )


@dataclass(frozen=True)
class Doubled(TokenMean):
    def declared(self, totals):
        return 2.0


@dataclass(frozen=True)
class Local(TokenMean):
    def __call__(self, mask, totals):
        return mask.double() / mask.sum().clamp(min=1)


@dataclass(frozen=True)
class Offset(K2):
    def __call__(self, logp_live, logp_ref, token_log_ratio):
        return (super().__call__(logp_live, logp_ref, token_log_ratio) + 1.0).detach()


@dataclass(frozen=True)
class Dense(OutcomeReward):
    def __call__(self, batch):
        return super().__call__(batch) + at_step_ends(batch)


@dataclass(frozen=True)
class Centred(OutcomeReward):
    def __call__(self, batch):
        return super().__call__(batch) - batch.mask * batch.score.mean()


@dataclass(frozen=True)
class Talkative(Filter):
    equation = "the first is right"
    max_rounds = 0

    def __call__(self, group):
        return (group.scores[0] >= 1, "right")  # type: ignore[return-value]


@dataclass(frozen=True)
class First(KeepAll):
    def __call__(self, group):
        return Verdict(group.scores[0] >= 1, Signal.MIXED)


@dataclass(frozen=True)
class Nothing(DropUniform):
    def __call__(self, group):
        return Verdict(False, Signal.MIXED)


#: A part that breaks a law, the beginning of the law, and what is said of it.
BREAKS: list[tuple[Any, str, str]] = [
    (Silent(), "it prints itself", "does not name Silent"),
    (Wordy(), "it says its equation", "its equation is 'S = r A\\nor so'"),
    (Loose(), "it is a frozen value", "factor can be changed"),
    (Homeless(), "another process can have it", "it raised NotPlain"),
    (Summed(), "it answers with numbers", "value has the shape [8]; [N,T] is [8, 12]"),
    (Leaking(), "masked positions change nothing", "masked value[0, 0] is"),
    (Widths(), "padding changes nothing", "value[1, 1] is 0.00260861 instead of 0.00326077"),
    (FirstRow(), "the order of rows", "value["),
    (InPlace(), "it changes no input in place", "it changes advantage in place"),
    (Overflowing(), "at log-ratios of +-50", "value is inf"),
    (Detached(), "at log-ratio 0 its gradient", "detached from the policy"),
    (Pushing(), "an advantage of 0 has no gradient", "gradient at advantage 0["),
    (Boasting(), "share is from 0 to 1", "gradient["),
    (Whole(), "per_completion says", "per_completion is True, and it is False"),
    (Shifted(), "it is 0 where the policy has not moved", "is 0.1 instead of 0"),
    (WholeRatio(), "per_completion and per_turn say", "per_completion is True, and it is False"),
    (TurnRatioByToken(), "per_completion and per_turn say", "per_turn is True, and it is False"),
    (Attached(), "a correction has no gradient", "detach it"),
    (Steady(), "varies says", "varies is False"),
    (Halved(), "a rejection is 1 or 0", "numbers other than 0 and 1"),
    (TokenBand(cap=0.9), "where the engine agrees, every token", "a token with k = 1 is rejected"),
    (Divided(), "where it compares within a group, ties", "the advantage of equal rewards["),
    (Alone(), "where it compares within a group, a lone", "of a completion alone in its group[3, 0] is 0.5"),
    (Divided(), "a reward that is NaN", "advantage["),
    (Fractions(), "rewards may be whole numbers", "it raised RuntimeError"),
    (Doubled(), "the weights add up", "the sum of the weights is 1 instead of 2"),
    (Local(), "the weights of shards", "the weight in a shard["),
    (Doubled(), "without a trained token", "declared is 2 instead of 0"),
    (Offset(), "it is 0 where the policy is its reference", "is 1 instead of 0"),
    (Offset(), "its gradient reaches the policy", "no gradient reaches logp_live"),
    (Dense(), "it needs scores of steps only", "it raised ValueError"),
    (Centred(), "a row that could not be scored", "reward at trained tokens is nan"),
    (Talkative(), "it says keep or drop", "it says (True, 'right')"),
    (First(), "the order of completions", "in another order"),
    (Nothing(), "it keeps groups of some kind", "it drops groups of every kind"),
    (Talkative(), "max_rounds is at least 1", "max_rounds is 0"),
]


@pytest.mark.parametrize(("part", "words", "said"), BREAKS, ids=[f"{type(p).__name__}: {w}" for p, w, _ in BREAKS])
def test_a_part_that_breaks_a_law_is_told_which_and_how(part: Any, words: str, said: str) -> None:
    broken = {law.words: seen for law, seen in tried(part) if seen}
    (law,) = (law.words for law in LAWS[slot_of(type(part))] if law.words.startswith(words))
    told = broken.get(law, f"it holds; broken are {broken}")
    assert said in told
    (remedy,) = (one.remedy for one in LAWS[slot_of(type(part))] if one.words == law)
    assert told.endswith(f". {remedy}")
    assert len(remedy) > 20


@dataclass(frozen=True)
class Bare(Trust):
    equation = "S = r A"

    def __call__(self, log_ratio, advantage, logp_live, mask):
        return log_ratio.exp() * advantage


@dataclass(frozen=True)
class Shorter(Trust):
    equation = "S = r A"

    def __call__(self, log_ratio, advantage):
        return Surrogate(log_ratio, advantage)


@dataclass(frozen=True)
class Yes(Clip):
    def __call__(self, log_ratio, advantage, logp_live, mask):
        return Surrogate(super().__call__(log_ratio, advantage, logp_live, mask).value, mask)


@dataclass(frozen=True)
class Rounded(TokenRatio):
    def __call__(self, logp_live, logp_old, mask):
        return super().__call__(logp_live, logp_old, mask).long()


@dataclass(frozen=True)
class One(GroupMean):
    def __call__(self, reward, value, mask, group, step_end):
        return reward


@dataclass(frozen=True)
class Void(K2):
    def __call__(self, logp_live, logp_ref, token_log_ratio):
        return None


@dataclass(frozen=True)
class Careful(Clip):
    def __call__(self, log_ratio, advantage, logp_live, mask):
        raise ValueError("never again.")


UNDUE: list[tuple[Any, str]] = [
    (Bare(), "it answers with Tensor. Return value, share: tensors [N,T] of floating-point numbers."),
    (Shorter(), "given. It is called as part(log_ratio, advantage, logp_live, mask), on batches of any size: mend the"),
    (Yes(), "share is of torch.bool; floating-point numbers are due. Write mask.to(log_ratio.dtype), say."),
    (Rounded(), "log_ratio is of torch.int64; floating-point numbers are due. Write "),
    (
        One(),
        "it answers with Tensor. Return advantage, returns: tensors [N,T] of",
    ),
    (Void(), "it answers with NoneType. Return kl: tensors [N,T] of floating"),
    (Careful(), "it raised ValueError: never again"),
    (Summed(), "value has the shape [8]; [N,T] is [8, 12]. A number a row becomes"),
]


@pytest.mark.parametrize(("part", "said"), UNDUE, ids=[type(part).__name__ for part, _ in UNDUE])
def test_a_part_whose_answer_is_none_of_its_slots_is_told_once_what_is_due(part: Any, said: str) -> None:
    broken = [seen for _, seen in tried(part) if seen]
    assert said in broken[0]
    assert {*broken[1:]} == {"not tried. Mend what breaks this first: it answers with numbers of the shape [N,T]."}


@dataclass(frozen=True)
class Narrow(Clip):
    def __call__(self, log_ratio, advantage, logp_live, mask):
        value, share = super().__call__(log_ratio.float(), advantage.float(), logp_live.float(), mask)
        return Surrogate(value.double(), share.double())


def test_numbers_that_differ_are_printed_so_that_they_do() -> None:
    told = next(seen for _, seen in tried(Narrow()) if "instead of" in seen)
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
