"""What an environment says trains nothing and changes nothing of what the policy's own tokens are trained with."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

import groupwise
from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.catalog import CATALOG
from groupwise.core.collate import collate
from groupwise.core.records import Completion, Group
from tests.laws.episodes import episodes, placed, said

#: Parts that know turns, in rows of others.
OTHERS = [
    ("ppo", {"advantage.level": "turn", "advantage.gamma": 0.9}),
    ("grpo", {"advantage.kind": "gigpo"}),
    ("gspo", {"ratio.level": "turn", "advantage.kind": "turn-to-go"}),
    ("grpo", {"advantage.kind": "turn-to-go"}),
    ("rloo", {"advantage.kind": "turn-to-go", "advantage.gamma": 0.5, "ratio.level": "token"}),
]
CASES = [*((name, {}) for name in CATALOG), *OTHERS]
EVERY = pytest.mark.parametrize(("name", "settings"), CASES, ids=str)


def right_or_wrong(one: Completion) -> Completion:
    return dataclasses.replace(one, score=None if one.score is None else float(one.score > 0))


def credited(row: Algorithm, groups: list[Group], elsewhere: float) -> dict[str, torch.Tensor]:
    """What each of the policy's tokens is trained with, in order, and the gradient everywhere else."""
    if row.advantage.binary:
        groups = [dataclasses.replace(g, completions=tuple(map(right_or_wrong, g.completions))) for g in groups]
    batch = collate(groups, pad=0, steps=row.needs_steps, states=row.advantage.reads_states)
    draws = torch.Generator().manual_seed(4)
    columns = {
        name: placed(batch, torch.randn(said(groups).shape, generator=draws, dtype=torch.float64) - 3, elsewhere)
        for name in ("logp_old", "logp_ref", "value", "live", "entropy")
    }
    live, entropy = columns.pop("live").requires_grad_(True), columns.pop("entropy")
    engine = columns["logp_old"] + 0.1 * columns["value"]
    batch = row.weigh(row.credit(dataclasses.replace(batch, **columns, logp_engine=engine)))
    centered = {"logp_engine": engine, "centre": 0.25 * live} if row.trust.sampler_top else {}
    loss = row.objective(
        batch.need("weight"),
        live,
        batch.need("logp_old"),
        batch.need("advantage"),
        batch.mask,
        batch.logp_ref,
        batch.correction,
        entropy,
        **centered,
    )
    (gradient,) = torch.autograd.grad(loss.value, live)
    own = {name: batch.need(name)[batch.mask] for name in ("reward", "advantage", "returns", "weight")}
    own |= {"gradient": gradient[batch.mask], "loss": loss.value.detach(), "ratio": loss.log_ratio[batch.mask]}
    own |= {"share": loss.share[batch.mask]} | ({} if loss.kl is None else {"kl": loss.kl[batch.mask]})
    own |= {} if batch.correction is None else {"correction": batch.correction[batch.mask]}
    return own | {"elsewhere": gradient[~batch.mask], "unscored": batch.need("advantage")[~batch.mask]}


def cases(name: str, settings: dict[str, object]) -> Algorithm:
    overlong = {"shaping.limit": 6} if name in ("dapo", "cispo") else {}
    return groupwise.algorithm(name, {"entropy_coefficient": 0.01, **overlong, **settings})


@EVERY
def test_no_token_of_an_environment_has_a_gradient_or_an_advantage(name, settings):
    for seed in range(3):
        trained = credited(cases(name, settings), episodes(seed, seed), elsewhere=math.nan)
        assert len(trained["elsewhere"]) > 0
        assert (trained["elsewhere"] == 0).all()
        assert (trained["unscored"] == 0).all()
        assert trained["gradient"].isfinite().all()
        assert trained["gradient"].any()


@EVERY
def test_what_an_environment_says_between_them_changes_nothing_of_the_policys_tokens(name, settings):
    row = cases(name, settings)
    for seed in range(3):
        plain = credited(row, episodes(seed, 0), elsewhere=math.nan)
        for between in (1, 2, 3):
            other = credited(row, episodes(seed, between), elsewhere=1e30)
            for column in plain.keys() - {"elsewhere", "unscored"}:
                torch.testing.assert_close(other[column], plain[column], rtol=1e-12, atol=1e-12, msg=column)


@pytest.mark.parametrize("settings", [{"mismatch.kind": "tis"}, {"mismatch.kind": "sequence-mis"}], ids=str)
def test_nor_of_what_corrects_for_the_engine(settings):
    row = groupwise.algorithm("grpo", settings)
    plain, other = (credited(row, episodes(5, between), elsewhere=math.nan) for between in (0, 1))
    torch.testing.assert_close(other["correction"], plain["correction"], rtol=1e-12, atol=0)
    torch.testing.assert_close(other["gradient"], plain["gradient"], rtol=1e-12, atol=1e-15)


def test_the_episodes_of_these_laws_differ_in_what_the_environment_says_alone():
    one, two = episodes(0, 0), episodes(0, 1)
    for a, b in zip((c for g in one for c in g.completions), (c for g in two for c in g.completions), strict=True):
        assert [t for s in a.spans if s.own for t in a.tokens[s.start : s.stop]] == [
            t for s in b.spans if s.own for t in b.tokens[s.start : s.stop]
        ]
    assert [c.tokens for g in one for c in g.completions] != [c.tokens for g in two for c in g.completions]
    assert max(len(c.turns) for g in one for c in g.completions) > 2
