"""Every catalog row against its paper's equations: value, gradient coefficient, share, log-ratio, KL, advantages.

The closed forms (closed_forms.py) are loops in Python floats, gradients by the papers' coefficients. Batches have
unequal lengths, holes in the masks, a row without any trained token, and NaN in every masked position.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
import torch

import groupwise
from groupwise.algorithms.catalog import CATALOG
from tests.laws import closed_forms as cf
from tests.laws.sampler import of_sampler


@dataclass(frozen=True)
class Row:
    form: cf.Form
    weights: cf.Weights
    penalty: tuple[float, cf.Penalty] | None = None
    per_token: bool = True  # whether an advantage of its own for every token has a meaning
    settings: dict[str, object] = field(default_factory=dict)
    against_old: bool = False


ROWS = {
    "ppo": Row(cf.clip(0.2, 0.2), cf.token_mean),
    "reinforce": Row(cf.free, cf.token_mean),
    "rloo": Row(cf.product, cf.sequence_mean, per_token=False),
    "reinforce++": Row(cf.clip(0.2, 0.2), cf.token_mean),
    "reinforce++-baseline": Row(cf.clip(0.2, 0.2), cf.token_mean, (0.001, cf.k2)),
    "grpo": Row(cf.clip(0.2, 0.2), cf.sequence_mean, (0.04, cf.k3)),
    "grpo-process": Row(cf.clip(0.2, 0.2), cf.sequence_mean, (0.04, cf.k3)),
    "dr-grpo": Row(cf.clip(0.2, 0.2), cf.constant(24), settings={"aggregate.limit": 24}),
    "dapo": Row(cf.clip(0.2, 0.28), cf.token_mean),
    "gspo": Row(cf.geometric_ratio(3e-4, 4e-4), cf.sequence_mean, per_token=False),
    "gspo-token": Row(cf.geometric_ratio(3e-4, 4e-4), cf.sequence_mean),
    "sapo": Row(cf.soft, cf.sequence_mean),
    "cispo": Row(cf.cispo(5.0), cf.token_mean),
    "gmpo": Row(cf.gmpo(0.4, 0.4), cf.sequence_mean, per_token=False),
    "dppo-tv": Row(cf.dppo(0.15, 0.15, 20.0, lambda old, new: abs(new - old)), cf.token_mean),
    "dppo-kl": Row(cf.dppo(0.05, 0.05, 20.0, cf.binary_kl), cf.token_mean),
    "drpo": Row(cf.drpo(12.5), cf.token_mean),
    "maxrl": Row(cf.clip(0.2, 0.2), cf.token_mean),
    "deepseek-v3.2": Row(
        cf.masked_completion(cf.clip(0.2, 0.2), 0.5), cf.sequence_mean, (0.001, cf.k3_ratio), per_token=True
    ),
    "gdpo": Row(cf.clip(0.2, 0.2), cf.token_mean),
    "vespo": Row(cf.likelihood(cf.vespo, whole=True), cf.token_mean),
    "luspo": Row(cf.geometric_ratio(2e-3, 2.5e-3), cf.constant(1), per_token=False),
    "topr": Row(cf.likelihood(cf.topr, whole=True), cf.sequence_mean),
    "fipo": Row(cf.fipo(cf.clip(0.2, 0.28)), cf.token_mean),
    "dro": Row(cf.likelihood(lambda x, a: 1.0, whole=False), cf.token_mean, (0.05, cf.k2), against_old=True),
    "opo": Row(cf.free, cf.token_mean),
    # Without what is subtracted, which test_centering.py has.
    "score-centering": Row(cf.likelihood(lambda x, a: 1.0, whole=False), cf.token_mean),
    "opd": Row(cf.dppo(0.2, 0.2, math.inf, lambda old, new: abs(new - old)), cf.token_mean),
    "reinforce-rej": Row(cf.clip(0.2, 0.2), cf.sequence_mean),
}
#: Rows whose ratio is that of a whole completion, and rows that let nearly every gradient pass.
WHOLE, FREE = {"rloo", "vespo", "topr"}, {"reinforce", "rloo", "opo", "drpo"}
SPREADS = [0.0005, 0.01, 0.5, 5.0, 50.0]


@dataclass
class Columns:
    live: torch.Tensor  # [N,T] nats, as the next five
    old: torch.Tensor
    ref: torch.Tensor
    engine: torch.Tensor
    mask: torch.Tensor
    advantage: torch.Tensor  # [N]
    token_advantage: torch.Tensor  # [N,T]


def columns(seed: int, spread: float, whole_completion: bool = False) -> Columns:
    """Random columns; |live - old| and |ref - live| stay under 50 (their sums too, for ratios of whole completions)."""
    g = torch.Generator().manual_seed(seed)
    n, width = int(torch.randint(6, 14, (), generator=g)), int(torch.randint(5, 16, (), generator=g))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    lengths = torch.randint(1, width + 1, (n, 1), generator=g)
    mask = (torch.arange(width) < lengths) & (torch.rand(n, width, generator=g) < 0.8)
    mask[seed % n], mask[(seed + 1) % n, 0] = False, True
    old = -3 * torch.rand(n, width, generator=g, dtype=torch.float64)
    step = (spread * normal(n, width)).clamp(-49.9, 49.9)
    if whole_completion:
        step = step * (49.9 / (step * mask).sum(-1, keepdim=True).abs()).clamp(max=1.0)
    live = old + step
    ref = live + (old + 0.3 * normal(n, width) - live).clamp(-49.9, 49.9)
    advantage, token_advantage = normal(n), normal(n, width)
    advantage[(seed + 2) % n] = 0.0
    drawn = [live, old, ref, old - 0.8 * normal(n, width), mask, advantage, token_advantage]
    holes = [c if c.dim() == 1 or c is mask else torch.where(mask, c, math.nan) for c in drawn]
    return Columns(*holes)


def agree(algo, c: Columns, expected: cf.Loss, advantage: torch.Tensor, **more: torch.Tensor) -> None:
    live = c.live.clone().requires_grad_(True)
    out = algo.loss(live, c.old, advantage, c.mask, **{**of_sampler(algo, c.old), **more})
    out.value.backward()
    assert abs(out.value.item() - expected.value) <= 1e-10 * expected.size + 1e-14
    compared = {"gradient": live.grad, "share": out.share, "log_ratio": out.log_ratio}
    for name, column in compared.items():
        close(column, getattr(expected, name), name)
    if algo.kl.in_loss:
        close(out.kl, expected.kl, "kl")
    else:
        assert out.kl is None


def close(column: torch.Tensor, expected: list[list[float]], name: str) -> None:
    wanted = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(column, wanted, rtol=1e-10, atol=1e-12, msg=lambda m: f"{name}: {m}")


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("name", ROWS)
def test_row_is_its_papers_equation(name, spread):
    row, algo = ROWS[name], groupwise.algorithm(name, ROWS[name].settings)
    for seed in range(4):
        c = columns(seed, spread, whole_completion=name in WHOLE)
        ref = c.old if row.against_old else c.ref
        for advantage in [c.advantage, c.token_advantage] if row.per_token else [c.advantage]:
            expected = cf.loss(row.form, row.weights, c.live, c.old, advantage, c.mask, row.penalty, ref)
            agree(algo, c, expected, advantage, logp_ref=c.ref)


def test_the_catalog_is_whole_here():
    assert {*ROWS} == {*CATALOG}


def test_the_draws_reach_both_sides_of_every_trust_region():
    """Otherwise the comparison above would say nothing about clipping."""
    for name, row in ROWS.items():
        passed = set()
        for spread in SPREADS:
            c = columns(0, spread)
            expected = cf.loss(row.form, row.weights, c.live, c.old, c.advantage, c.mask)
            passed |= {expected.share[i][t] < 0.9 for i, t in c.mask.nonzero().tolist()}
        assert passed == ({False} if name in FREE else {False, True})


@pytest.mark.parametrize("step", [-70.0, 70.0])
@pytest.mark.parametrize("name", ["ppo", "reinforce", "rloo", "gspo", "gspo-token", "sapo"])
def test_beyond_sixty_a_log_ratio_is_held_and_passes_no_gradient(name, step):
    """The completion that left is held at 60 and still; the one beside it, at log-ratio 0, keeps its gradient."""
    mask, old = torch.ones(2, 1, dtype=torch.bool), torch.full((2, 1), -1.0, dtype=torch.float64)
    live = (old + torch.tensor([[step], [0.0]])).requires_grad_(True)
    for a in (-1.0, 1.0):
        out = groupwise.algorithm(name).loss(live, old, torch.full((2,), a, dtype=torch.float64), mask)
        gradient = torch.autograd.grad(out.value, live)[0]
        assert out.value.isfinite()
        assert out.log_ratio.tolist() == [[math.copysign(60.0, step)], [0.0]]
        assert gradient.tolist() == [[0.0], [-a / 2]]


MISMATCH = {"tis": cf.tis, "mis": cf.mis, "sequence-mis": cf.sequence_mis, "icepop": cf.icepop}


@pytest.mark.parametrize("spread", [0.3, 5.0])
@pytest.mark.parametrize("kind", MISMATCH)
def test_engine_mismatch_multiplies_the_surrogate_alone(kind, spread):
    """k = exp(old - engine), detached: neither the KL, nor the trust region, nor the weights move."""
    algo, row = groupwise.algorithm("grpo", {"mismatch.kind": kind}), ROWS["grpo"]
    for seed in range(4):
        c = columns(seed, spread)
        for advantage in (c.advantage, c.token_advantage):
            expected = cf.loss(
                row.form, row.weights, c.live, c.old, advantage, c.mask, row.penalty, c.ref, MISMATCH[kind], c.engine
            )
            agree(algo, c, expected, advantage, logp_ref=c.ref, logp_engine=c.engine)


def test_a_sequence_mismatch_goes_with_a_sequence_ratio():
    algo, row, c = groupwise.algorithm("gspo", {"mismatch.kind": "sequence-mis"}), ROWS["gspo"], columns(2, 0.001)
    expected = cf.loss(
        row.form, row.weights, c.live, c.old, c.advantage, c.mask, correction=cf.sequence_mis, engine=c.engine
    )
    agree(algo, c, expected, c.advantage, logp_engine=c.engine)


MIXES = [
    ("sapo", {"trust.kind": "soft", "aggregate.kind": "token-mean"}, Row(cf.soft, cf.token_mean)),
    ("dapo", {"trust.kind": "soft", "aggregate.kind": "token-mean"}, Row(cf.soft, cf.token_mean)),
    ("dapo", {"trust.dual_clip": 3.0}, Row(cf.clip(0.2, 0.28, 3.0), cf.token_mean)),
    ("ppo", {"trust.dual_clip": 3.0, "trust.epsilon_high": 0.4}, Row(cf.clip(0.2, 0.4, 3.0), cf.token_mean)),
    ("dapo", {"aggregate.kind": "constant", "aggregate.limit": 7}, Row(cf.clip(0.2, 0.28), cf.constant(7))),
    *(
        (
            "gmpo",
            {"trust.epsilon_low": low, "trust.epsilon_high": high},
            Row(cf.gmpo(low, high), cf.sequence_mean, per_token=False),
        )
        for low, high in ((0.1, 0.3), (99.0, 99.0))
    ),
    ("grpo", {"kl.estimator": "k1", "kl.beta": 0.3}, Row(cf.clip(0.2, 0.2), cf.sequence_mean, (0.3, cf.k1))),
    ("grpo", {"kl.estimator": "k2"}, Row(cf.clip(0.2, 0.2), cf.sequence_mean, (0.04, cf.k2))),
    ("grpo", {"kl.estimator": "k3-ratio"}, Row(cf.clip(0.2, 0.2), cf.sequence_mean, (0.04, cf.k3_ratio))),
    (
        "gspo-token",
        {"kl.beta": 0.5, "kl.estimator": "k3-ratio", "kl.place": "loss"},
        Row(cf.geometric_ratio(3e-4, 4e-4), cf.sequence_mean, (0.5, cf.k3_ratio)),
    ),
]


@pytest.mark.parametrize(("name", "settings", "row"), MIXES, ids=lambda x: str(x) if not isinstance(x, Row) else "")
def test_mixes_are_the_equations_put_together(name, settings, row):
    algo = groupwise.algorithm(name, settings)
    for seed, spread in ((0, 0.0005), (1, 0.5), (2, 5.0), (3, 50.0)):
        c = columns(seed, spread)
        for advantage in [c.advantage, c.token_advantage] if row.per_token else [c.advantage]:
            expected = cf.loss(row.form, row.weights, c.live, c.old, advantage, c.mask, row.penalty, c.ref)
            agree(algo, c, expected, advantage, logp_ref=c.ref)


RULES = {
    "grpo": cf.zscore,
    "dapo": cf.zscore,
    "gspo": cf.zscore,
    "gspo-token": cf.zscore,
    "sapo": cf.zscore,
    "cispo": cf.zscore,
    "gmpo": cf.zscore,
    **dict.fromkeys(("dppo-tv", "dppo-kl", "drpo", "vespo", "luspo", "fipo"), cf.zscore),
    "dr-grpo": cf.centred,
    **dict.fromkeys(("deepseek-v3.2", "topr", "dro"), cf.centred),
    "rloo": cf.leave_one_out,
}


def rewards_and_groups(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Groups of 1 to 7 completions in mixed order, ids any integers, one group tied, one reward NaN."""
    g = torch.Generator().manual_seed(seed)
    groups = torch.cat([torch.full((size,), 1000 * size - 2500) for size in range(1, 8)])
    groups = groups[torch.randperm(len(groups), generator=g)]
    rewards = 3 * torch.randn(len(groups), generator=g, dtype=torch.float64)
    rewards[groups == 2500] = 0.3
    rewards[(groups == 1500).nonzero()[0]] = math.nan
    return rewards, groups


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", RULES)
def test_group_advantages(name, seed):
    rewards, groups = rewards_and_groups(seed)
    settings: dict[str, object] = {"aggregate.limit": 8} if name == "dr-grpo" else {}
    advantage = groupwise.algorithm(name, settings).advantages(rewards, groups)
    expected = cf.by_group(RULES[name], rewards.tolist(), groups.tolist())
    torch.testing.assert_close(advantage, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-12)
    assert (advantage[groups == 2500] == 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_maxrl_divides_by_the_mean_and_takes_only_right_and_wrong(seed):
    rewards, groups = rewards_and_groups(seed)
    right = torch.where(rewards.isnan(), rewards, (rewards > 0).double())
    expected = cf.by_group(
        lambda v: [(x - sum(v) / len(v)) / (sum(v) / len(v)) for x in v], right.tolist(), groups.tolist()
    )
    advantage = groupwise.algorithm("maxrl").advantages(right, groups)
    torch.testing.assert_close(advantage, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-12)
    with pytest.raises(ValueError, match=r"is for rewards of 0 and 1, and there is one of "):
        groupwise.algorithm("maxrl").advantages(rewards, groups)


def test_maxrl_in_expectation_is_the_gradient_of_the_log_of_the_pass_rate():
    """Sum over all outcomes of G draws: E[mean_i A_i dlog p(o_i)] = (1 - (1 - p)^(G - 1)) / p, which is d log p / dp as
    G grows; the plain mean as baseline gives (G - 1) / G whatever p is.
    """
    p, size = 0.3, 12
    total = plain = 0.0
    for right in range(size + 1):
        chance = math.comb(size, right) * p**right * (1 - p) ** (size - right)
        rewards = torch.tensor([1.0] * right + [0.0] * (size - right), dtype=torch.float64)
        score = rewards / p - (1 - rewards) / (1 - p)  # d log p(outcome) / dp
        one = torch.zeros(size, dtype=torch.long)
        total += chance * float((groupwise.algorithm("maxrl").advantages(rewards, one) * score).mean())
        plain += chance * float((groupwise.algorithm("opo").advantages(rewards, one) * score).mean())
    assert total == pytest.approx((1 - (1 - p) ** (size - 1)) / p, rel=1e-12)
    assert plain == pytest.approx((size - 1) / size, rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_opo_weighs_its_baseline_by_length(seed):
    g = torch.Generator().manual_seed(seed)
    groups = torch.arange(20) % 5
    mask = torch.arange(6) < torch.randint(1, 7, (20, 1), generator=g)
    rewards = torch.randn(20, generator=g, dtype=torch.float64)
    rewards[groups == 3] = 0.3
    lengths, expected = mask.sum(-1).tolist(), torch.zeros(20, dtype=torch.float64)
    for i, own in enumerate(groups.tolist()):
        of = [j for j, other in enumerate(groups.tolist()) if other == own]
        baseline = math.fsum(lengths[j] * rewards[j].item() for j in of) / sum(lengths[j] for j in of)
        expected[i] = 0.0 if own == 3 else rewards[i].item() - baseline
    at_the_end = rewards[:, None] * (torch.arange(6) == mask.sum(-1, keepdim=True) - 1)
    advantage = groupwise.algorithm("opo").advantages(at_the_end, groups, mask)
    torch.testing.assert_close(advantage, torch.where(mask, expected[:, None], 0.0), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_gdpo_of_one_reward_whitens_the_z_scores(seed):
    g = torch.Generator().manual_seed(seed)
    groups, rewards = torch.arange(24) % 6, torch.randn(24, generator=g, dtype=torch.float64)
    rewards[groups == 3] = 0.3
    z = cf.by_group(cf.zscore, rewards.tolist(), groups.tolist())
    expected = torch.tensor(cf.whitened(z), dtype=torch.float64)
    expected[groups == 3] = 0.0
    advantage = groupwise.algorithm("gdpo").advantages(rewards, groups)
    torch.testing.assert_close(advantage, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_baseline_form_whitens_what_the_group_mean_leaves(seed):
    """A = whiten(R - group mean) over the batch: over completions alone, over trained tokens with a mask; ties 0."""
    g = torch.Generator().manual_seed(seed)
    groups = (torch.arange(24) % 6)[torch.randperm(24, generator=g)]
    rewards = torch.randn(24, generator=g, dtype=torch.float64)
    rewards[groups == 3] = 0.3
    algo = groupwise.algorithm("reinforce++-baseline")
    rest = cf.by_group(cf.centred, rewards.tolist(), groups.tolist())
    expected = torch.tensor(cf.whitened(rest), dtype=torch.float64)
    expected[groups == 3] = 0.0
    torch.testing.assert_close(algo.advantages(rewards, groups), expected, rtol=1e-10, atol=1e-12)

    mask = torch.arange(5) < torch.randint(1, 6, (24, 1), generator=g)
    spread_out = [a for a, n in zip(rest, mask.sum(-1).tolist(), strict=True) for _ in range(n)]
    rows = iter(cf.whitened(spread_out))
    by_token = [[next(rows) if inside else 0.0 for inside in row] for row in mask.tolist()]
    expected = torch.tensor(by_token, dtype=torch.float64)
    expected[groups == 3] = 0.0
    at_the_end = rewards[:, None] * (torch.arange(5) == mask.sum(-1, keepdim=True) - 1)
    torch.testing.assert_close(algo.advantages(at_the_end, groups, mask), expected, rtol=1e-10, atol=1e-12)


def test_reinforce_plus_plus_whitens_the_return_to_go():
    g = torch.Generator().manual_seed(5)
    mask = (torch.arange(6) < torch.randint(1, 7, (9, 1), generator=g)) & (torch.rand(9, 6, generator=g) < 0.8)
    rewards = torch.where(mask, torch.randn(9, 6, generator=g, dtype=torch.float64), math.nan)
    where = mask.nonzero().tolist()
    to_go = [math.fsum(rewards[i, u].item() for j, u in where if j == i and u >= t) for i, t in where]
    expected = torch.zeros(9, 6, dtype=torch.float64)
    for (i, t), a in zip(where, cf.whitened(to_go), strict=True):
        expected[i, t] = a
    algo = groupwise.algorithm("reinforce++")
    torch.testing.assert_close(algo.advantages(rewards, torch.arange(9), mask), expected, rtol=1e-10, atol=1e-12)
    scores = torch.randn(9, generator=g, dtype=torch.float64)
    wanted = torch.tensor(cf.whitened(scores.tolist()), dtype=torch.float64)
    torch.testing.assert_close(algo.advantages(scores, torch.arange(9)), wanted, rtol=1e-10, atol=1e-12)
