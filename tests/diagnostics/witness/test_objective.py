"""The second reading of objectives: silent on what is right, and loud on each part that is not its equation."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import groupwise
from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.catalog import CATALOG
from groupwise.algorithms.parts.kl import K1, K3, Full, K3Ratio, TopK
from groupwise.algorithms.parts.mismatch import TIS, IcePop, SequenceMIS
from groupwise.algorithms.parts.ratio import SequenceRatio, SequenceTokenRatio, TokenRatio, TurnRatio, bounded
from groupwise.algorithms.parts.rejection import Veto
from groupwise.algorithms.parts.trust import Cispo, Clip, Geometric, NoTrust, SoftGate, Surrogate
from groupwise.core.masked import keep
from groupwise.core.numbers.metrics import Mean
from groupwise.core.updates import UpdateRecord, UpdateResult
from groupwise.diagnostics.witness.plain.objective import ObjectiveReading
from groupwise.diagnostics.witness.plain.trials import critic_trials, trials
from groupwise.health.checks import LOSS_BY_DEFINITION
from tests.laws.test_split import make_batch


def found(said: Any) -> list[str]:
    return [one.about for one in said if one.real]


@pytest.mark.parametrize("name", CATALOG)
def test_the_parts_of_every_row_are_their_equations(name):
    settings: list[dict[str, Any]] = [{}, {"mismatch.kind": "tis", "rejection.kind": "veto"}]
    settings += [{"trust.kind": kind, "ratio.level": "sequence-token"} for kind in ("none", "clip", "soft", "cispo")]
    loss = {"kl.beta": 0.1, "kl.place": "loss", "entropy_coefficient": 0.02}
    settings += [{"kl.estimator": kind, **loss} for kind in ("k1", "k2", "k3", "k3-ratio", "full")]
    settings += [
        {"kl.estimator": "top-k", "kl.tail": tail, "kl.mixture": b, **loss} for tail in (True, False) for b in (0, 0.3)
    ]
    for given in settings:
        try:
            row = groupwise.algorithm(name, given)
        except groupwise.UsageError:
            continue  # parts that do not go together
        assert not found(trials(row)), (name, given)


#: (settings of a row, kind of part, how it is broken: the true call and what it was given -> its answer)
BREAKAGES: dict[str, tuple[dict[str, Any], type, Any]] = {
    "clip is a maximum": (
        {},
        Clip,
        lambda true, part, z, a, live, mask: Surrogate(
            -true(part, z, -a, live, mask).value, true(part, z, a, live, mask).share
        ),
    ),
    "epsilons are exchanged": (
        {"trust.epsilon_high": 0.28},
        Clip,
        lambda true, part, *given: true(Clip(part.epsilon_high, part.epsilon_low), *given),
    ),
    "dual clip is off": ({"trust.dual_clip": 3.0}, Clip, lambda true, part, *given: true(Clip(0.2, 0.2), *given)),
    "share is 1": (
        {},
        Clip,
        lambda true, part, z, a, live, mask: Surrogate(true(part, z, a, live, mask).value, mask.double()),
    ),
    "taus are exchanged": (
        {"trust.kind": "soft"},
        SoftGate,
        lambda true, part, *given: true(SoftGate(part.tau_negative, part.tau_positive), *given),
    ),
    "cispo's ratio has a gradient": (
        {"trust.kind": "cispo"},
        Cispo,
        lambda true, part, z, a, live, mask: true(part, z, a, live, mask)._replace(
            value=keep(z.exp().clamp(max=part.cap) * a * live, mask)
        ),
    ),
    "a divergence is taken the other way": (
        {"kl.estimator": "full", "kl.beta": 0.1},
        Full,
        lambda true, part, log_p, log_q: true(part, log_q, log_p),
    ),
    "a tail is left out": (
        {"kl.estimator": "top-k", "kl.beta": 0.1},
        TopK,
        lambda true, part, *given: true(dataclasses.replace(part, tail=False), *given),
    ),
    "geometric does not clip": (
        {"trust.kind": "geometric"},
        Geometric,
        lambda true, part, *given: true(Geometric(50.0, 50.0), *given),
    ),
    "no trust is detached": (
        {"trust.kind": "none"},
        NoTrust,
        lambda true, part, z, *given: true(part, z.detach(), *given),
    ),
    "token ratio is the other way round": (
        {},
        TokenRatio,
        lambda true, part, live, old, mask: true(part, old, live, mask),
    ),
    "sequence ratio is a sum": (
        {"ratio.level": "sequence"},
        SequenceRatio,
        lambda true, part, live, old, mask: bounded(true(part, live, old, mask) * mask.sum(1, keepdim=True)),
    ),
    "sequence-token has the sequence's gradient": (
        {"ratio.level": "sequence-token"},
        SequenceTokenRatio,
        lambda true, part, *given: SequenceRatio()(*given),
    ),
    "turns are one": ({"ratio.level": "turn"}, TurnRatio, lambda true, part, *given: SequenceRatio()(*given)),
    "k3 is the other way round": ({}, K3, lambda true, part, live, ref, z: true(part, ref, live, z)),
    "k3-ratio without its ratio": ({"kl.estimator": "k3-ratio"}, K3Ratio, lambda true, part, *given: K3()(*given)),
    "k1 is negative": ({"kl.estimator": "k1"}, K1, lambda true, part, *given: -true(part, *given)),
    "tis without a cap": ({"mismatch.kind": "tis"}, TIS, lambda true, part, *given: true(TIS(cap=1e6), *given)),
    "icepop without a floor": (
        {"mismatch.kind": "icepop"},
        IcePop,
        lambda true, part, *given: true(IcePop(cap=part.cap, floor=0.0), *given),
    ),
    "sequence-mis by token": (
        {"mismatch.kind": "sequence-mis"},
        SequenceMIS,
        lambda true, part, *given: IcePop(cap=part.cap, floor=part.floor)(*given),
    ),
    "veto lets through": (
        {"rejection.kind": "veto", "rejection.floor": 0.5},
        Veto,
        lambda true, part, *given: torch.ones_like(given[0]),
    ),
}


@pytest.mark.parametrize("name", BREAKAGES)
def test_a_part_that_is_not_its_equation_is_found(name, monkeypatch):
    settings, kind, broken = BREAKAGES[name]
    row, true = groupwise.algorithm("grpo", settings), kind.__call__
    assert not found(trials(row))
    monkeypatch.setattr(kind, "__call__", lambda part, *given: broken(true, part, *given))
    assert found(trials(row))


@pytest.mark.parametrize("term", ["kl", "entropy_coefficient", "weight", "correction"])
def test_a_loss_that_is_not_the_sum_of_its_terms_is_found(term, monkeypatch):
    row = groupwise.algorithm("grpo", {"entropy_coefficient": 0.1, "mismatch.kind": "tis"})
    true = Algorithm.objective

    def objective(self: Algorithm, weight: Any, *given: Any, **named: Any):
        if term == "kl":
            self = dataclasses.replace(self, kl=dataclasses.replace(self.kl, beta=0.0))
        if term == "entropy_coefficient":
            self = dataclasses.replace(self, entropy_coefficient=-self.entropy_coefficient)
        if term == "correction":
            named["correction"] = None
        return true(self, weight / (2 if term == "weight" else 1), *given, **named)

    monkeypatch.setattr(Algorithm, "objective", objective)
    assert any("the loss" in about for about in found(trials(row)))


def read(row: Algorithm, sign: float = 1.0, **tampered: Any) -> list[str]:
    """What is found of an update that is recorded in float32; `sign` is the KL's."""
    batch = make_batch()
    minibatch = row.weigh(row.credit(batch))
    numbers = torch.Generator().manual_seed(1)
    live = (batch.logp_old + 0.3 * torch.randn(batch.mask.shape, generator=numbers, dtype=torch.float64)).float()
    entropy = torch.rand(batch.mask.shape, generator=numbers)
    signed = dataclasses.replace(row, kl=dataclasses.replace(row.kl, beta=abs(row.kl.beta)))
    columns = {name: minibatch.need(name) for name in ("weight", "logp_old", "advantage", "mask", "logp_ref")}
    out = signed.objective(logp_live=live, correction=minibatch.correction, entropy=entropy, **columns)
    loss = float(out.value) + (sign - 1) * row.kl.beta * float((minibatch.need("weight") * out.kl).sum())
    columns = {"logp_live": live, "log_ratio": out.log_ratio, "share": out.share, "entropy": entropy, "kl": out.kl}
    seen = UpdateRecord(**{**columns, **{name: change(columns[name]) for name, change in tampered.items()}})
    reading, update = ObjectiveReading(LOSS_BY_DEFINITION, row, {}), UpdateResult(loss, 1.0, 1e-3, True, seen)
    slow: Any = SimpleNamespace(slow=True)
    return found(reading.updated(slow, minibatch, update))


def test_the_loss_of_an_update_is_read_from_its_columns():
    row = groupwise.algorithm("grpo", {"entropy_coefficient": 0.01, "mismatch.kind": "tis"})
    assert not read(row)
    assert read(row, sign=-1.0) == ["the loss of an update"]
    for name in ("share", "kl", "log_ratio"):
        assert any(name in about for about in read(row, **{name: lambda x: x * 0.9}))


def test_an_update_that_ran_nothing_has_nothing_to_train():
    row = groupwise.algorithm("dapo")
    right = row.weigh(row.credit(make_batch()))
    reading, update = ObjectiveReading(LOSS_BY_DEFINITION, row, {}), UpdateResult(0.0, 0.0, 1e-3, True, None)
    assert found(reading.updated(None, right, update))  # type: ignore[arg-type]
    silent = dataclasses.replace(right, advantage=torch.zeros_like(right.need("advantage")))
    assert not found(reading.updated(None, silent, update))  # type: ignore[arg-type]


def test_the_larger_of_the_critics_losses_is_taken(monkeypatch):
    assert not found(critic_trials(0.2))
    assert not found(critic_trials(0.0))
    monkeypatch.setattr(
        "groupwise.diagnostics.witness.plain.trials.value_loss",
        lambda value, old, returns, mask, clip: (
            torch.minimum((value - returns) ** 2, (value.clamp(old - clip, old + clip) - returns) ** 2) / 2
        ),
    )
    assert found(critic_trials(0.2))


def test_the_critics_first_loss_is_of_each_rows_own_returns():
    row, mask = groupwise.algorithm("reinforce"), make_batch().mask
    batch = row.credit(make_batch()).add(value=torch.rand(mask.shape, generator=torch.Generator().manual_seed(2)))
    for rows, wrong in ((torch.arange(len(mask)), False), (torch.arange(len(mask)).roll(1), True)):
        returns = batch.need("returns")[rows].where(mask[rows], 0.0)
        loss = float(((batch.need("value") - returns)[mask] ** 2).mean()) / 2
        reading = ObjectiveReading(LOSS_BY_DEFINITION, row, {})
        said = reading.critic_updated(None, batch, {"value_loss": Mean(loss, 1)})  # type: ignore[arg-type]
        assert bool(found(said)) is wrong
