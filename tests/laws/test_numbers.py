"""The numbers the papers and their readers quote, recomputed through the public surface."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import groupwise

NEEDED: dict[str, dict[str, object]] = {"dr-grpo": {"aggregate.limit": 1}}


def row(name: str, **settings: object):
    return groupwise.algorithm(name, {**NEEDED.get(name, {}), **{k.replace("__", "."): v for k, v in settings.items()}})


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def run(algo, log_ratio: Tensor, advantage: Tensor, mask: Tensor | None = None):
    """The loss at old = -1 nat everywhere, and its gradient in logp_live."""
    old = torch.full_like(log_ratio, -1.0)
    live = (old + log_ratio).requires_grad_(True)
    out = algo.loss(live, old, advantage, torch.ones_like(old, dtype=torch.bool) if mask is None else mask)
    return out, torch.autograd.grad(out.value, live)[0]


def one_token(algo, ratio: Tensor, sign: float) -> tuple[Tensor, Tensor]:
    """Gradient coefficient and share of single-token completions at these ratios, advantage +-1, weight 1."""
    out, gradient = run(algo, ratio.log()[:, None], torch.full_like(ratio, sign))
    return -gradient[:, 0] * len(ratio) * sign, out.share[:, 0]


def test_dilution_of_long_answers():
    """200 and 10 tokens: GRPO 1/400 and 1/20 a token (each completion half), DAPO 1/210 each (95.2 % and 4.8 %)."""
    mask = torch.arange(200) < torch.tensor([[200], [10]])
    still = torch.zeros(2, 200, dtype=torch.float64)
    _, grpo = run(row("grpo", kl__beta=0.0), still, f64(1.0, 1.0), mask)
    assert grpo[0].unique().tolist() == pytest.approx([-1 / 400])
    assert grpo[1][mask[1]].unique().tolist() == pytest.approx([-1 / 20])
    _, dapo = run(row("dapo"), still, f64(1.0, 1.0), mask)
    assert dapo[mask].unique().tolist() == pytest.approx([-1 / 210])
    assert (-dapo.sum(-1)).tolist() == pytest.approx([0.952, 0.048], abs=5e-4)


@pytest.mark.parametrize(("name", "bound"), [("grpo", 0.24), ("dapo", 0.256)])
def test_clip_higher_moves_the_bound_of_a_probability_of_one_fifth(name, bound):
    """0.2 may rise to 0.24 under epsilon 0.2, to 0.256 under 0.28; both may fall to 0.16."""
    algo = row(name, kl__beta=0.0)
    _, rising = one_token(algo, f64(bound - 1e-6, bound + 1e-6) / 0.2, 1.0)
    _, falling = one_token(algo, f64(0.16 + 1e-6, 0.16 - 1e-6) / 0.2, -1.0)
    assert rising.tolist() == falling.tolist() == [1.0, 0.0]


def test_overlong_penalty_of_dapo():
    lengths = torch.tensor([0, 1, 16384, 16385, 18432, 20480, 20481, 30000])
    penalty = groupwise.overlong_penalty(lengths, 20480, 4096)
    assert penalty.is_floating_point()
    assert penalty.tolist() == pytest.approx([0, 0, 0, -1 / 4096, -0.5, -1, -1, -1], abs=1e-7)
    assert round(float(penalty[3]), 6) == -0.000244
    assert groupwise.overlong_penalty(lengths.double(), 20480, 4096).tolist() == pytest.approx(penalty.tolist())


def random_columns(seed: int, spread: float = 3e-4, n: int = 8, width: int = 10):
    """Log-ratios, token advantages, masks with holes where a tool's tokens stand."""
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(n, width, generator=g) < 0.7
    mask[:, 0], mask[:, 3] = True, False
    log_ratio = spread * torch.randn(n, width, generator=g, dtype=torch.float64)
    return log_ratio, torch.randn(n, width, generator=g, dtype=torch.float64), mask


def test_gspo_token_is_gspo_exactly_where_advantages_are_equal():
    """In value, clip condition and gradient at A_it = A_i; with the same mean but unequal A_it, in none of them."""
    log_ratio, advantage, mask = random_columns(1, spread=1e-3)
    mean = torch.where(mask, advantage, 0.0).sum(-1) / mask.sum(-1)
    whole, whole_gradient = run(row("gspo"), log_ratio, mean, mask)
    assert 0 < whole.share[mask].mean() < 1
    for equal in (mean, mean[:, None].expand_as(mask)):
        out, gradient = run(row("gspo-token"), log_ratio, equal, mask)
        assert out.value.item() == pytest.approx(whole.value.item(), abs=1e-14)
        assert torch.equal(out.share, whole.share)
        torch.testing.assert_close(gradient, whole_gradient, rtol=1e-12, atol=1e-15)
    out, gradient = run(row("gspo-token"), log_ratio, advantage, mask)
    assert abs(out.value.item() - whole.value.item()) > 1e-6
    assert not torch.equal(out.share, whole.share)
    assert (gradient - whole_gradient).abs().max() > 1e-3


def shares_of_tied_groups(name: str, size: int, right: Tensor) -> Tensor:
    """For groups with these numbers of right answers: 1 where every advantage is exactly 0."""
    rewards = (torch.arange(size) < right[:, None]).double()
    groups = torch.arange(len(right)).repeat_interleave(size)
    return (row(name).advantages(rewards.flatten(), groups).view(-1, size) == 0).all(-1).double()


def binomial(size: int, p: float) -> Tensor:
    return f64(*(math.comb(size, k) * p**k * (1 - p) ** (size - k) for k in range(size + 1)))


@pytest.mark.parametrize("name", ["grpo", "dr-grpo", "rloo"])
@pytest.mark.parametrize("p", [0.05, 0.95])
@pytest.mark.parametrize(("size", "quoted"), [(4, 0.8145), (16, 0.4401), (64, 0.0375)])
def test_groups_without_signal(name, p, size, quoted):
    """p^G + (1-p)^G of the groups teach nothing: exactly, over every outcome, and in a sample of 4000 groups."""
    exact = float(binomial(size, p) @ shares_of_tied_groups(name, size, torch.arange(size + 1)))
    assert exact == pytest.approx(p**size + (1 - p) ** size, abs=1e-12)
    assert exact == pytest.approx(quoted, abs=5e-5)
    g = torch.Generator().manual_seed(size)
    right = (torch.rand(4000, size, generator=g) < p).sum(-1)
    noise = math.sqrt(exact * (1 - exact) / 4000)
    assert float(shares_of_tied_groups(name, size, right).mean()) == pytest.approx(exact, abs=4 * noise)


@pytest.mark.parametrize("size", [2, 4, 16, 64])
def test_without_the_deviation_the_policy_gradient_is_shrunk_by_a_known_factor(size):
    """GRPO without deviation = (G-1)/G RLOO; in expectation (G-1)/G p(1-p), where RLOO gives p(1-p) exactly."""
    rewards = torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
    groups = torch.zeros(size, dtype=torch.long)
    plain, left_out = (row(name).advantages(rewards, groups) for name in ("dr-grpo", "rloo"))
    torch.testing.assert_close(plain, (size - 1) / size * left_out, rtol=1e-12, atol=1e-14)
    p, probability = 0.05, binomial(size, 0.05)
    for name, factor in (("dr-grpo", (size - 1) / size), ("rloo", 1.0)):
        expected = 0.0
        for k in range(size + 1):
            scores = (torch.arange(size) < k).double()
            expected += float(probability[k]) * float((row(name).advantages(scores, groups) * scores).mean())
        assert expected == pytest.approx(factor * p * (1 - p), rel=1e-10)


def test_sapo_gate():
    """w = 4p(1-p): 1 at ratio 1 whatever tau, then the table for tau 1 (good answers) and 1.05 (bad answers)."""
    ratio = f64(1.0, 0.8, 1.2, 2.0, 3.0, 5.0)
    for sign, table in ((1.0, [1, 0.990, 0.990, 0.786, 0.420, 0.071]), (-1.0, [1, 0.989, 0.989, 0.768, 0.389, 0.058])):
        coefficient, share = one_token(row("sapo"), ratio, sign)
        assert share[0] == 1.0
        assert coefficient[0].item() == pytest.approx(1.0, abs=1e-14)
        assert share.tolist() == pytest.approx(table, abs=5e-4)
        torch.testing.assert_close(coefficient, share * ratio, rtol=1e-12, atol=0)
    for tau in (0.3, 7.0):
        _, share = one_token(row("sapo", trust__tau_positive=tau, trust__tau_negative=tau), f64(1.0, 1.5), 1.0)
        assert share.tolist() == pytest.approx([1.0, 1 / math.cosh(tau / 4) ** 2], rel=1e-12)


@pytest.mark.parametrize(("sign", "at", "most"), [(1.0, 2.06, 1.575), (-1.0, 1.99, 1.536)])
def test_sapo_never_passes_more_than_one_and_a_half(sign, at, most):
    """max over r of w r: 1.575 at 2.06 for tau 1, 1.536 at 1.99 for tau 1.05."""
    ratio = torch.linspace(0.01, 50, 500_000, dtype=torch.float64)
    coefficient, _ = one_token(row("sapo"), ratio, sign)
    assert coefficient.max().item() == pytest.approx(most, abs=5e-4)
    assert ratio[coefficient.argmax()].item() == pytest.approx(at, abs=5e-3)


def kl_estimate(estimator: str, sampler: Tensor, logits: Tensor, ref: Tensor) -> tuple[float, Tensor]:
    """Expected KL term and gradient in the logits, over every token of the vocabulary, sampled from `sampler`.

    A token is a completion of its own with advantage 0 and beta 1, so that the loss is the term and nothing else.
    """
    algo = row("grpo", kl__beta=1.0, kl__estimator=estimator)
    live, inside = logits.log_softmax(0), torch.ones(1, 1, dtype=torch.bool)
    value = torch.zeros((), dtype=torch.float64)
    for v, p in enumerate(sampler.exp().tolist()):
        cell = slice(v, v + 1)
        out = algo.loss(live[None, cell], sampler[None, cell], f64(0.0), inside, logp_ref=ref[None, cell])
        value = value + p * out.value
    return value.item(), torch.autograd.grad(value, logits)[0]


@pytest.mark.parametrize("on_policy", [True, False])
def test_which_gradient_each_kl_estimator_has(on_policy):
    """A vocabulary of 6, exact expectations.

    On policy: k1 none, k2 and k3-ratio that of KL(live||ref), k3 that of KL(ref||live).
    Off policy k1 pulls towards the sampler, k2 and k3 towards nothing named, k3-ratio still has KL(live||ref)'s.
    Values: k1 and k3 are unbiased on policy alone, k3-ratio always, k2 never.
    """
    g = torch.Generator().manual_seed(11)
    logits, ref, old = torch.randn(3, 6, generator=g, dtype=torch.float64).unbind()
    live, ref = logits.log_softmax(0), ref.log_softmax(0)
    old = live if on_policy else old.log_softmax(0)
    logits = logits.clone().requires_grad_(True)
    gap = live - ref
    kl = float((live.exp() * gap).sum())
    forward = live.exp() * (gap - kl)  # d KL(live||ref) / d logits
    backward = live.exp() - ref.exp()  # d KL(ref||live) / d logits
    found = {name: kl_estimate(name, old, logits, ref) for name in ("k1", "k2", "k3", "k3-ratio")}
    unbiased = {name for name, (value, _) in found.items() if abs(value - kl) < 1e-12}
    assert unbiased == ({"k1", "k3", "k3-ratio"} if on_policy else {"k3-ratio"})

    def pulled(slope: Tensor) -> Tensor:
        """E_old[slope d log live / d logits]."""
        return old.exp() * slope - live.exp() * (old.exp() * slope).sum()

    towards_sampler = live.exp() - old.exp()  # d KL(old||live) / d logits: 0 on policy
    expected = {"k1": -towards_sampler, "k2": pulled(gap), "k3": pulled(1 - (-gap).exp()), "k3-ratio": forward}
    for name, (_, gradient) in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-10, atol=1e-12)
    for name, named in (("k2", forward), ("k3", backward)):
        assert torch.allclose(expected[name], named, rtol=1e-10, atol=1e-12) == on_policy
