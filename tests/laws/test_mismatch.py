"""Laws of the engine-mismatch corrections, and of where they may and may not act."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import groupwise
from groupwise.algorithms.laws.draws import Draw
from groupwise.algorithms.parts.mismatch import MIS, TIS, IcePop, NoMismatch, SequenceMIS, SequenceTIS
from groupwise.algorithms.parts.rejection import GeometricBand, NoRejection, SequenceBand, TokenBand, Veto
from groupwise.core.errors import UsageError
from groupwise.core.records import Batch

ALL = [
    NoMismatch(),
    TIS(),
    TIS(cap=0.5),
    MIS(),
    MIS(cap=1.5, floor=0.8),
    SequenceMIS(),
    SequenceMIS(9.0, 0.1),
    IcePop(),
    SequenceTIS(),
    SequenceTIS(cap=0.5),
    NoRejection(),
    TokenBand(),
    SequenceBand(),
    SequenceBand(9.0, 0.1),
    GeometricBand(cap=1.1, floor=0.9),
    Veto(),
    Veto(floor=0.5),
]
KINDS = ["tis", "mis", "sequence-tis", "sequence-mis", "icepop", "geometric", "veto"]
VARYING = ["tis", "mis", "icepop"]
#: Settings of a kind under which the draws of these tests are corrected: their log-ratios have a deviation of 0.5.
SENSIBLE = {"veto": {"mismatch.floor": 0.5}}


def engine(b: Draw, spread: float = 0.5) -> Tensor:
    noise = torch.randn(b.mask.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(11))
    return b.old + spread * noise


def written_out(part, b: Draw, logp_engine: Tensor) -> Tensor:
    expected = torch.ones_like(b.old)
    for i in range(len(b.mask)):
        at = b.mask[i].nonzero()[:, 0].tolist()
        k = [math.exp(b.old[i, t] - logp_engine[i, t]) for t in at]
        if isinstance(part, SequenceMIS | SequenceTIS | SequenceBand):
            k = [math.prod(k)] * len(k)
        elif isinstance(part, GeometricBand):
            k = [math.prod(k) ** (1 / max(1, len(k)))] * len(k)
        elif isinstance(part, Veto):
            k = [min(k, default=1.0)] * len(k)
        for t, one in zip(at, k, strict=True):
            expected[i, t] = of_one(part, one)
    return expected


def of_one(part, k: float) -> float:
    """The correction of a token by the one number that decides of it."""
    if isinstance(part, NoMismatch | NoRejection):
        return 1.0
    if isinstance(part, TIS):
        return min(k, part.cap)
    if isinstance(part, Veto):
        return float(k >= part.floor)
    inside = part.floor <= k <= part.cap
    return float(inside) if isinstance(part, TokenBand) else k * inside


@pytest.mark.parametrize("part", ALL, ids=repr)
def test_correction_is_the_equation(part, batch):
    found = part(batch.old, engine(batch), batch.mask)
    torch.testing.assert_close(found, written_out(part, batch, engine(batch)), rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_it_scales_the_surrogate_and_nothing_else(kind, batch):
    """The loss with the correction minus the KL's and the entropy's share of it is the corrected surrogate."""
    parts = {"kl.beta": 0.3, "entropy_coefficient": 0.2}
    algo = groupwise.algorithm("grpo", {**parts, "mismatch.kind": kind, **SENSIBLE.get(kind, {})})
    plain = groupwise.algorithm("grpo", parts)
    entropy, sampled = torch.rand_like(batch.live), engine(batch)
    columns = (batch.live, batch.old, batch.advantage, batch.mask, batch.ref)
    out = algo.loss(*columns, logp_engine=sampled, entropy=entropy)
    before = plain.loss(*columns, entropy=entropy)
    for name in ("share", "log_ratio", "kl"):
        assert torch.equal(getattr(out, name), getattr(before, name))
    weight = algo.weigh(table(batch, sampled)).need("weight")
    log_ratio = torch.where(batch.mask, batch.live - batch.old, 0.0)
    surrogate, _ = plain.trust(log_ratio, batch.advantage[:, None].expand_as(log_ratio), batch.live, batch.mask)
    change = written_out(algo.mismatch, batch, sampled) - 1
    assert change.abs().max() > 0.1
    expected = before.value - (weight * change * surrogate).sum()
    torch.testing.assert_close(out.value, expected, rtol=1e-12, atol=1e-13)


def table(b: Draw, sampled: Tensor, **columns: Tensor) -> Batch:
    rows, width = b.mask.shape
    return Batch(
        tokens=torch.zeros(rows, width, dtype=torch.long),
        mask=b.mask,
        length=torch.full((rows,), width),
        group=b.group,
        score=torch.rand(rows, dtype=torch.float64, generator=torch.Generator().manual_seed(2)),
        version=torch.zeros(rows, dtype=torch.long),
        logp_engine=sampled,
        **columns,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_credited_batch_carries_the_correction_into_the_objective(kind, batch):
    algo, sampled = groupwise.algorithm("dapo", {"mismatch.kind": kind}), engine(batch)
    credited = algo.weigh(algo.credit(table(batch, sampled, logp_old=batch.old)))
    advantage, weight, correction = (credited.need(name) for name in ("advantage", "weight", "correction"))
    again = algo.objective(weight, batch.live, batch.old, advantage, batch.mask, correction=correction)
    out = algo.loss(batch.live, batch.old, advantage, batch.mask, logp_engine=sampled)
    assert torch.equal(again.value, out.value)
    assert groupwise.algorithm("dapo").credit(table(batch, sampled, logp_old=batch.old)).correction is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_column_is_named(kind, batch):
    algo = groupwise.algorithm("dapo", {"mismatch.kind": kind})
    assert algo.needs_old
    assert not groupwise.algorithm("dapo").needs_old
    with pytest.raises(ValueError, match="needs logp_old and logp_engine"):
        algo.loss(batch.live, batch.old, batch.advantage, batch.mask)
    with pytest.raises(ValueError, match="needs logp_old and logp_engine"):
        algo.credit(table(batch, batch.old))
    with pytest.raises(ValueError, match="correction has shape"):
        algo.objective(batch.old, batch.live, batch.old, batch.advantage, batch.mask, correction=batch.old[:1])


@pytest.mark.parametrize("kind", VARYING)
@pytest.mark.parametrize("name", ["gspo", "rloo", "gmpo"])
def test_token_corrections_are_refused_where_a_completion_is_one_number(kind, name):
    with pytest.raises(UsageError, match=r"mismatch\.kind .*sequence-mis.*ratio\.level = .sequence-token"):
        groupwise.algorithm(name, {"mismatch.kind": kind})
    assert groupwise.algorithm(name, {"mismatch.kind": "sequence-mis"}).mismatch == SequenceMIS()
    remedy = {"mismatch.kind": kind, "ratio.level": "sequence-token", "trust.kind": "clip"}
    for keys in (remedy, dict(reversed(remedy.items()))):
        assert groupwise.algorithm(name, keys).mismatch.varies


@pytest.mark.parametrize(
    ("kind", "fields", "told"),
    [
        (TIS, {"cap": 0.0}, "cap = 0.0: must be above 0"),
        (MIS, {"cap": 2.0, "floor": 3.0}, "floor = 3.0: must be at least 0 and at most cap"),
        (SequenceMIS, {"floor": -1.0}, "floor = -1.0"),
        (IcePop, {"cap": 0.4}, "floor = 0.5: must be at least 0 and at most cap = 0.4"),
        (SequenceTIS, {"cap": -1.0}, "cap = -1.0: must be above 0"),
        (GeometricBand, {"cap": 0.5}, "floor = 0.999: must be at least 0 and at most cap = 0.5"),
        (Veto, {"floor": 1.5}, "floor = 1.5: must be from 0 to 1"),
    ],
)
def test_constants_that_make_no_sense_are_refused(kind, fields, told):
    with pytest.raises(ValueError, match=told):
        kind(**fields)


WEIGHTS = {"none": NoMismatch(), "tis": TIS(), "sequence-tis": SequenceTIS(), "icepop": IcePop()}
REJECTIONS = {"token": TokenBand(), "sequence": SequenceBand(), "geometric": GeometricBand(1.2, 0.8), "veto": Veto(0.5)}


@pytest.mark.parametrize("rejection", REJECTIONS)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_weight_and_rejection_are_two_choices_and_their_product_trains(weight, rejection, batch):
    keys = {"mismatch.kind": weight, "rejection.kind": rejection}
    bounds = {f"rejection.{name}": value for name, value in vars(REJECTIONS[rejection]).items()}
    algo = groupwise.algorithm("dapo", {**keys, **bounds})
    assert algo.needs_old
    sampled = engine(batch)
    correction = algo.credit(table(batch, sampled, logp_old=batch.old)).need("correction")
    expected = written_out(WEIGHTS[weight], batch, sampled) * written_out(REJECTIONS[rejection], batch, sampled)
    torch.testing.assert_close(correction, expected, rtol=1e-12, atol=0)
    assert (correction[batch.mask] == 0).any()


@pytest.mark.parametrize(
    ("both", "one"),
    [
        ((TIS(math.inf), TokenBand(2.0, 0.0)), MIS(2.0, 0.0)),
        ((TIS(math.inf), TokenBand(5.0, 0.5)), IcePop()),
        ((SequenceTIS(math.inf), SequenceBand(2.0, 0.5)), SequenceMIS(2.0, 0.5)),
    ],
    ids=str,
)
def test_a_kind_that_weighs_and_rejects_is_the_product_of_the_two(both, one, batch):
    """mis, icepop and sequence-mis are rows of the two slots."""
    columns = batch.old, engine(batch), batch.mask
    weight, rejection = both
    assert torch.equal(weight(*columns) * rejection(*columns), one(*columns))


@pytest.mark.parametrize("name", ["gspo", "rloo", "gmpo"])
def test_a_rejection_of_tokens_is_refused_where_a_completion_is_one_number(name):
    with pytest.raises(UsageError, match=r"rejection\.kind .*rejection\.kind = .sequence.*ratio\.level"):
        groupwise.algorithm(name, {"rejection.kind": "token"})
    for kind in ("sequence", "geometric", "veto"):
        assert not groupwise.algorithm(name, {"rejection.kind": kind}).rejection.varies


def test_the_geometric_mean_does_not_see_the_length_and_the_product_does():
    """Every token 0.1 % more likely under the learner: both bands keep 10 tokens, only the mean's keeps 1,000."""
    for length, product in ((10, 1.0), (1000, 0.0)):
        mask = torch.ones(1, length, dtype=torch.bool)
        old = torch.full((1, length), -1.0, dtype=torch.float64)
        columns = old, old - math.log(1.001), mask
        assert SequenceBand(cap=2.0)(*columns).unique().tolist() == [product]
        assert GeometricBand(cap=1.002)(*columns).unique().tolist() == [1.0]
