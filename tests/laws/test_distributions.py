"""Laws of divergences over the vocabulary, made in the chunks of the head: against whole logits and plain autograd."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import groupwise
from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.parts.kl import TAIL, Full, TopK
from groupwise.core.records import Batch, Support
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.models.forward.chunks import Top
from groupwise.models.forward.fused_layers import FusedLayers
from groupwise.models.forward.heads import LogitChange
from groupwise.models.forward.logprobs import Teacher, token_logprobs
from groupwise.planning.activations import LiveBytes
from groupwise.training.learner import AdaptedLearner, Learner, LearnerSettings
from tests.laws.test_split import make_batch
from tests.tiny_models import causal

MIXTURES = (0.0, 0.3, 0.5, 1.0)
VOCABULARY = 15
#: Loss, KL [N,T] and the whole gradient of a minibatch.
Found = tuple[float, Tensor, Tensor]


def by_definition(p: Tensor, q: Tensor, mixture: float) -> Tensor:
    """The divergence of probabilities [..., ids], written out."""

    def kl(a: Tensor, b: Tensor) -> Tensor:
        return (a * (a / b).log()).sum(-1)

    m = mixture * q + (1 - mixture) * p
    return {0.0: kl(q, p), 1.0: kl(p, q)}.get(mixture, mixture * kl(q, m) + (1 - mixture) * kl(p, m))


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("mixture", MIXTURES)
def test_a_divergence_is_its_definition_and_is_least_where_both_are_one(mixture: float) -> None:
    x, y = (2 * draw(seed, 7, 11) for seed in (0, 1))
    p, q = x.softmax(-1), y.softmax(-1)
    torch.testing.assert_close(Full(mixture)(p.log(), q.log()), by_definition(p, q, mixture), rtol=1e-12, atol=1e-14)
    for part in (Full(mixture), TopK(11, mixture), TopK(11, mixture, tail=False)):
        same = x.clone().requires_grad_()
        value = part(same.log_softmax(-1), x.log_softmax(-1))
        (gradient,) = torch.autograd.grad(value.sum(), same)
        torch.testing.assert_close(value.detach(), torch.zeros(7, dtype=torch.float64), rtol=0, atol=1e-14)
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-14)
        assert (part(x.log_softmax(-1), y.log_softmax(-1)) > 0.01).all()


@pytest.mark.parametrize("mixture", MIXTURES)
def test_what_lies_outside_the_top_is_one_id_or_nothing(mixture: float) -> None:
    p, q = (draw(seed, 5, 9).softmax(-1) for seed in (2, 3))
    p3, q3 = p[:, :3], q[:, :3]
    inside = TopK(3, mixture)(p3.log(), q3.log())
    bucketed = [torch.cat([x, 1 - x.sum(-1, keepdim=True)], -1) for x in (p3, q3)]
    torch.testing.assert_close(inside, by_definition(bucketed[0], bucketed[1], mixture), rtol=1e-12, atol=1e-14)
    renormalised = [x / x.sum(-1, keepdim=True) for x in (p3, q3)]
    without = TopK(3, mixture, tail=False)(p3.log(), q3.log())
    torch.testing.assert_close(
        without, by_definition(renormalised[0], renormalised[1], mixture), rtol=1e-12, atol=1e-14
    )
    assert (inside <= Full(mixture)(p.log(), q.log()) + 1e-12).all()  # data processing


def test_a_tail_that_rounding_makes_negative_has_the_floor() -> None:
    over = torch.tensor([[0.6, 0.4 + 1e-7]]).log()
    assert TAIL == 1e-6
    assert TopK(2)(over, over).item() == 0.0
    assert TopK(2, 0.5)(over, torch.tensor([[0.5, 0.4]]).log()).isfinite().all()


CHANGES = (None, LogitChange(scale=0.3), LogitChange(1.7, 2.0))


@pytest.mark.parametrize("part", [*map(Full, MIXTURES), TopK(4, 0.3), TopK(13, 1.0)], ids=str)
@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("bars", [False, True])
def test_chunks_of_the_head_are_plain_logits_value_and_gradient(part: Any, change: Any, bars: bool) -> None:
    """With a temperature, what changes or is added to logits, barred ids, and a teacher of more ids."""
    states, frozen = draw(0, 23, 5).requires_grad_(), draw(1, 23, 6)
    torch.manual_seed(0)
    head, other = nn.Linear(5, 13).double(), nn.Linear(6, 16, bias=False).double()
    added, targets = draw(2, 13), torch.randint(3, 13, (23,))
    barred = (torch.arange(23) % 2 == 0, torch.tensor([0, 2])) if bars else None
    up, changed = draw(3, 23), change or (lambda x: x)

    def log_softmax(logits: Tensor, change: Any) -> Tensor:
        logits = change(logits) + added
        if barred is not None:
            logits = logits.masked_fill(barred[0][:, None] & (torch.arange(13) < 3) & (torch.arange(13) != 1), -1e30)
        return (logits / 0.7).log_softmax(-1)

    log_q = log_softmax(other(frozen)[:, :13], LogitChange(0.5)).detach()
    top = log_q.topk(part.k or 13).indices

    def plain() -> tuple[Tensor, Tensor, Tensor]:
        log_p = log_softmax(head(states), changed)
        mine, theirs = (log_p, log_q) if not part.k else (log_p.gather(1, top), log_q.gather(1, top))
        return log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(1), part(mine, theirs)

    def chunked(rows: int) -> tuple[Tensor, Tensor, Tensor]:
        ways: dict[str, Any] = {"chunk_elements": rows * 13, "added": added, "barred": barred, "temperature": 0.7}
        teacher = Teacher(frozen, other.weight.detach(), None, LogitChange(0.5), part)
        given: dict[str, Any] = {"among": top} if part.k else {"teacher": teacher}
        out = token_logprobs(head, states, targets, entropy_gradient=True, change=change, **ways, **given)
        divergence = part(out.among, log_q.gather(1, top)) if part.k else out.divergence
        assert divergence is not None
        return out.logp, out.entropy, divergence

    def with_slopes(found: tuple[Tensor, Tensor, Tensor]) -> list[Tensor]:
        total = torch.stack([up.roll(i) @ x for i, x in enumerate(found)]).sum()
        return [*found, *torch.autograd.grad(total, [states, *head.parameters()])]

    expected = with_slopes(plain())
    for rows in (1, 7, 100):
        for ours, theirs in zip(with_slopes(chunked(rows)), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("part", [*map(Full, MIXTURES), TopK(4, 0.3)], ids=str)
def test_the_gradient_is_that_of_finite_differences(part: Any) -> None:
    torch.manual_seed(1)
    head, other, frozen = nn.Linear(3, 6).double(), nn.Linear(3, 6).double(), draw(1, 4, 3)
    targets, top = torch.zeros(4, dtype=torch.long), (other(frozen) / 1.3).topk(part.k or 6).indices
    log_q = (other(frozen) / 1.3).log_softmax(-1).detach()
    given: dict[str, Any] = {"teacher": Teacher(frozen, other.weight, other.bias, None, part)}
    given = {"among": top} if part.k else given

    def divergence(states: Tensor) -> Tensor:
        out = token_logprobs(head, states, targets, 1.3, chunk_elements=12, **given)
        whole = part(out.among, log_q.gather(1, top)) if part.k else out.divergence
        assert whole is not None
        return whole.sum()

    states, step = draw(0, 4, 3), 1e-5
    (found,) = torch.autograd.grad(divergence(one := states.clone().requires_grad_()), one)
    for i in range(states.numel()):
        there, back = (
            states.flatten().index_add(0, torch.tensor([i]), torch.tensor([s * step], dtype=torch.float64))
            for s in (1, -1)
        )
        slope = (divergence(there.view(4, 3)) - divergence(back.view(4, 3))) / (2 * step)
        torch.testing.assert_close(found.flatten()[i], slope.detach(), rtol=1e-9, atol=2e-10)


def test_a_whole_table_of_logits_is_never_held() -> None:
    head, other = nn.Linear(8, 4000), nn.Linear(8, 4000)
    whole = 2000 * 4000 * 4
    with LiveBytes() as live:
        states = torch.randn(2000, 8, requires_grad=True)
        teacher = Teacher(torch.randn(2000, 8), other.weight, other.bias, None, Full(0.5))
        out = token_logprobs(head, states, torch.zeros(2000).long(), chunk_elements=10 * 4000, teacher=teacher)
        assert out.divergence is not None
        out.divergence.sum().backward()
    assert live.peak < whole / 8


def test_the_most_likely_ids_are_found_below_a_number() -> None:
    torch.manual_seed(0)
    head, states = nn.Linear(5, 12).double(), draw(0, 9, 5)
    out = token_logprobs(head, states, torch.zeros(9).long(), chunk_elements=24, among=Top(4, 10))
    log_p = head(states).log_softmax(-1)
    assert torch.equal(out.ids, log_p[:, :10].topk(4).indices)
    torch.testing.assert_close(out.among, log_p.gather(1, out.ids), rtol=1e-12, atol=0)


def test_a_support_that_left_ids_out_is_refused() -> None:
    support = Support(torch.tensor([0, 1], dtype=torch.int32), torch.tensor([0, 2]))
    with pytest.raises(ValueError, match="sampling left ids out"):
        token_logprobs(nn.Linear(2, 3), torch.zeros(1, 2), torch.zeros(1).long(), support=support, among=Top(2, 3))


def model(seed: int = 0, **changes: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return causal("llama", **{"vocab_size": VOCABULARY, **changes}).double()


def algorithm(part: Any, **more: Any) -> Algorithm:
    named = {"kl.estimator": "top-k" if part.k else "full", **{f"kl.{k}": v for k, v in vars(part).items()}}
    return groupwise.algorithm("opd", {"kl.place": "loss", "kl.beta": 0.7, **named, **more})


def require_same(found: Found, expected: Found) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    torch.testing.assert_close(found[1].double(), expected[1].double(), rtol=1e-6, atol=1e-7)  # a record, in float32
    torch.testing.assert_close(found[2], expected[2], rtol=1e-11, atol=1e-13)


def bare() -> Batch:
    """Rows whose group shares a prompt and two sampled tokens, so that a packed pass computes these once."""
    batch = make_batch()
    batch.tokens[:, :6] = batch.tokens[4 * batch.group, :6]
    return dataclasses.replace(batch, logp_old=None, logp_ref=None)


def learned(learner: Learner, algo: Algorithm, batch: Batch) -> Found:
    minibatch = algo.weigh(algo.credit(learner.annotate(batch, old=True, ref=True, top=algo.kl.top)))
    learner.model.zero_grad(set_to_none=True)
    loss, seen = learner.gradients(minibatch, algo)
    assert seen is not None
    assert seen.kl is not None
    return loss, seen.kl, torch.cat([p.grad.flatten() for p in learner.model.parameters() if p.grad is not None])


def whole_logits(policy: Any, teacher: Any, part: Any, batch: Batch, algo: Algorithm) -> Found:
    """The same, of padded logits [N,T,V] that are all held, by plain autograd."""
    policy.zero_grad(set_to_none=True)
    with FusedLayers(policy, teacher).running():  # transformers' own norms are in float32
        log_p, log_q = ((each(batch.tokens).logits[:, :-1] / 0.8).log_softmax(-1) for each in (policy, teacher))
    log_q = log_q.detach()
    if part.k:
        top = log_q.topk(min(part.k, VOCABULARY)).indices
        log_p, log_q = log_p.gather(-1, top), log_q.gather(-1, top)
    kl = torch.where(batch.mask[:, 1:], part(log_p, log_q), 0.0)
    kl = torch.cat([torch.zeros(len(kl), 1, dtype=kl.dtype), kl], 1)
    loss = 0.7 * (algo.weigh(batch).need("weight") * kl).sum()
    loss.backward()
    return float(loss.detach()), kl.detach(), torch.cat([p.grad.flatten() for p in policy.parameters()])


WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"shared_prefixes": False},
    {"tokens_per_microbatch": 40, "chunk_logits": 3 * VOCABULARY},
    {"recompute": True, "held_logits": 0},
)


@pytest.mark.parametrize("part", [Full(0.3), Full(1.0), TopK(4, 0.3), TopK(4, 0.0, tail=False)], ids=str)
def test_a_learner_has_the_gradient_of_whole_logits_however_rows_are_run(part: Any) -> None:
    policy, teacher = model(0), model(1, hidden_size=16, num_hidden_layers=1)
    expected = whole_logits(policy, teacher, part, bare(), algorithm(part))
    assert expected[2].norm() > 1e-3
    for ways in WAYS:
        learner = Learner(policy, teacher, LearnerSettings(**ways), 0.8, 1)
        require_same(learned(learner, algorithm(part), bare()), expected)
    assert all(p.grad is None for p in teacher.parameters())


def test_all_ids_of_the_teacher_are_the_whole_vocabulary() -> None:
    learner = Learner(model(0), model(1), LearnerSettings(), 0.8, 1)
    for mixture in (0.0, 0.5):
        require_same(*(learned(learner, algorithm(part), bare()) for part in (TopK(99, mixture), Full(mixture))))


@pytest.mark.parametrize("part", [Full(0.5), TopK(4)], ids=str)
def test_a_teacher_that_is_the_policy_teaches_nothing(part: Any) -> None:
    own = model(0)
    loss, kl, gradient = learned(Learner(own, copy.deepcopy(own), LearnerSettings(), 0.8, 1), algorithm(part), bare())
    assert abs(loss) < 1e-14
    assert kl.abs().max() < 1e-13
    assert gradient.norm() < 1e-5 if part.k else gradient.norm() < 1e-13  # a tail below its floor has no gradient


def test_adapters_that_are_off_are_the_teacher() -> None:
    settings, algo, part = LearnerSettings(tokens_per_microbatch=40), algorithm(Full(0.3)), Full(0.3)
    learner = AdaptedLearner(model(0), AdapterSettings(rank=3), 0, settings, 0.8, 8)
    for i, matrix in enumerate(learner.adapters.matrices.values()):
        matrix.data.copy_(0.2 * draw(i, *matrix.shape))
    loss, kl, gradient = learned(learner, algo, bare())
    log_p = (learner.model(bare().tokens).logits[:, :-1] / 0.8).log_softmax(-1)
    log_q = (model(0)(bare().tokens).logits[:, :-1] / 0.8).log_softmax(-1)
    mask = bare().mask
    due = part(log_p, log_q)[mask[:, 1:]].detach().float()
    torch.testing.assert_close(kl[:, 1:][mask[:, 1:]], due, rtol=1e-5, atol=1e-5)
    assert loss > 1e-4
    assert gradient.norm() > 1e-4


@pytest.mark.parametrize("part", [Full(0.5), TopK(4)], ids=str)
def test_in_bfloat16_it_is_near(part: Any) -> None:
    policy, teacher = (model(seed).float() for seed in (0, 1))
    exact, rounded = (
        learned(Learner(policy, teacher, LearnerSettings(precision=p), 0.8, 1), algorithm(part), bare())
        for p in ("fp32", "bf16")
    )
    assert abs(rounded[0] / exact[0] - 1) < 0.05
    assert float((rounded[2] - exact[2]).norm() / exact[2].norm()) < 0.2


def test_a_learner_without_a_reference_says_so() -> None:
    algo, learner = algorithm(Full()), Learner(model(0), None, LearnerSettings(), 0.8, 1)
    minibatch = algo.weigh(algo.credit(make_batch()))
    with pytest.raises(ValueError, match="compares the policy with a reference, and there is none"):
        learner.gradients(minibatch, algo)


REFUSED = [
    ({"kl.place": "reward", "kl.estimator": "full"}, r'kl\.place = "reward": .* take place = "loss"'),
    ({"kl.estimator": "full", "kl.against": "old"}, r'kl\.against = "old": .* take against = "reference"'),
    ({"kl.estimator": "full", "kl.mixture": 1.5}, r"kl\.mixture = 1.5: must be from 0 to 1"),
    ({"kl.estimator": "top-k", "kl.k": 0}, r"kl\.k = 0: must be from 1"),
    ({"kl.estimator": "full", "kl.k": 3}, r"kl\.k: kl 'full' has no such key"),
    ({"kl.estimator": "k3", "kl.mixture": 0.5}, r"kl\.mixture: kl 'k3' has no such key"),
]


@pytest.mark.parametrize(("settings", "words"), REFUSED)
def test_keys_that_do_not_go_together_are_one_line(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(groupwise.UsageError, match=rf"^algorithm\.{words}"):
        groupwise.algorithm("grpo", settings)


def test_a_loss_of_columns_takes_the_divergence() -> None:
    algo, mask = algorithm(Full()), torch.ones(1, 2, dtype=torch.bool)
    logp, divergence = torch.zeros(1, 2), torch.tensor([[0.5, 0.25]])
    assert algo.loss(logp, logp, torch.zeros(1), mask, divergence=divergence).value.item() == pytest.approx(0.7 * 0.375)
    with pytest.raises(ValueError, match=r"needs divergence \[N,T\]"):
        algo.loss(logp, logp, torch.zeros(1), mask, logp_ref=logp)
