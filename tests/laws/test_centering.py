"""Laws of score centering: against plain sums over a vocabulary, and from the sampler's draw to the gradient."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import groupwise
from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.parts.off_policy import Centered, CenteredMIS, CenteredTIS
from groupwise.core.collate import collate
from groupwise.core.engine import Request, Sampling
from groupwise.core.errors import RunError, UsageError
from groupwise.core.records import Batch, Completion, Group, Prompt, SamplerTop, Span
from groupwise.core.samples import Sample
from groupwise.core.stream import Cohort
from groupwise.diagnostics.witness.plain.centering import centre_of
from groupwise.engines.local.engine import LocalEngine
from groupwise.models.forward.adjustment import adjustment_of
from groupwise.models.forward.fused_layers import FusedLayers
from groupwise.models.load import Policy, load_policy
from groupwise.models.tiny import TinySpec
from groupwise.rollout.segments import Segment, advance, goes_on
from groupwise.training.learner import Learner, LearnerSettings
from tests.tiny_models import causal

PARTS = (Centered(k=4), CenteredTIS(k=4, cap=1.5), CenteredMIS(k=4, cap=1.8, floor=0.58))
KINDS = {Centered: "centered", CenteredTIS: "centered-tis", CenteredMIS: "centered-mis"}


def weight(part: Any, ratio: float) -> float:
    """f(r), written out."""
    if isinstance(part, CenteredMIS):
        return ratio if part.floor <= ratio <= part.cap else 0.0
    return min(ratio, part.cap) if isinstance(part, CenteredTIS) else 1.0


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def row(part: Any, **more: Any) -> Algorithm:
    named = {"trust.kind": KINDS[type(part)], **{f"trust.{k}": v for k, v in vars(part).items()}}
    return groupwise.algorithm("score-centering", {**named, **more})


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_the_loss_is_the_papers(part: Any) -> None:
    """L = -A (f(p_y / q_y) log p_y - sum_H sg[q f(p / q) - alpha p] log p), in Python floats, with its gradient."""
    p, q, drawn = [0.5, 0.2, 0.2, 0.06], [0.3, 0.35, 0.15, 0.1], 1
    rho = (1 - math.fsum(q)) / (1 - math.fsum(p))
    alpha = rho * weight(part, 1 / rho)
    coefficients = [qv * weight(part, pv / qv) - alpha * pv for pv, qv in zip(p, q, strict=True)]
    expected = weight(part, p[drawn] / q[drawn]) * math.log(p[drawn]) - math.fsum(
        c * math.log(pv) for c, pv in zip(coefficients, p, strict=True)
    )
    log_p, log_q = (torch.tensor([[x]], dtype=torch.float64).log().requires_grad_() for x in (p, q))
    live, engine = log_p[..., drawn], log_q[..., drawn].detach()
    algo = row(part)
    for advantage in (1.7, -0.4):
        centre = algo.trust.centre(log_p, log_q.detach())
        old, given = live.detach() - 3.0, torch.tensor([advantage], dtype=torch.float64)  # whatever the old policy was
        out = algo.loss(live, old, given, [[True]], logp_engine=engine, centre=centre)
        assert out.value.item() == pytest.approx(-advantage * expected, abs=1e-9)
        (slope,) = torch.autograd.grad(out.value, log_p)
        due = [advantage * c for c in coefficients]
        due[drawn] -= advantage * weight(part, p[drawn] / q[drawn])
        assert slope[0, 0].tolist() == pytest.approx(due, abs=1e-9)


def mean_over(q: Tensor, logits: Tensor, part: Any, ids: Tensor, advantage: Tensor, centred: bool = True) -> Tensor:
    """The gradient [V] of E_(y from q)[A_y (f(p_y / q_y) log p_y - C)] with respect to the policy's logits."""
    x = logits.clone().requires_grad_()
    log_p = x.log_softmax(-1)
    far = (log_p - q.log()).detach()
    score = part.weight(far) * log_p - (part.centre(log_p[ids], q[ids].log()) if centred else 0.0)
    return torch.autograd.grad((q * advantage * score).sum(), x)[0]


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_without_a_reward_the_sampler_pulls_the_policy_nowhere(part: Any) -> None:
    """Over the whole vocabulary whatever q is; over its likeliest ids where the rest of q is in proportion to p's."""
    one = torch.ones(9, dtype=torch.float64)
    pulls = []
    for seed in range(5):
        logits, q = draw(seed, 9), (1.5 * draw(seed + 50, 9)).softmax(-1)
        pulls.append(mean_over(q, logits, part, torch.arange(9), one, centred=False).abs().max())
        assert mean_over(q, logits, part, torch.arange(9), one).abs().max() < 1e-14
        ids, p = q.topk(4).indices, logits.softmax(-1)
        rest = torch.ones(9, dtype=torch.bool).index_fill(0, ids, False)
        tail = torch.where(rest, p * (1 - q[ids].sum()) / p[rest].sum(), q)
        assert mean_over(tail, logits, part, ids, one).abs().max() < 1e-14
    assert max(pulls) > 0.05, "without what is subtracted"


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_where_the_sampler_is_the_policy_nothing_is_subtracted(part: Any) -> None:
    """The expected gradient is the policy gradient's, and each token's own gradient too."""
    logits, advantage = draw(3, 9), draw(4, 9)
    q, ids = logits.softmax(-1), logits.topk(4).indices
    log_p = logits.log_softmax(-1).requires_grad_()
    (slope,) = torch.autograd.grad(part.centre(log_p[ids], q[ids].log()), log_p)
    assert slope.abs().max() < 1e-15
    found, plain = (mean_over(q, logits, part, ids, advantage, centred=c) for c in (True, False))
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-15)
    assert plain.abs().max() > 1e-2


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_a_second_definition_is_the_first(part: Any) -> None:
    """That of the witness; an id that could not be drawn, which has no probability at either end, changes nothing."""
    log_p, log_q = ((2 * draw(seed, 6, 9)).log_softmax(-1)[:, :4] for seed in (0, 1))
    torch.testing.assert_close(part.centre(log_p, log_q), centre_of(part, log_p, log_q), rtol=1e-12, atol=1e-14)
    barred, out = torch.full((6, 1), -1e30, dtype=torch.float64), torch.full((6, 1), -torch.inf, dtype=torch.float64)
    own = torch.cat([log_p, barred], 1).requires_grad_()
    with_barred = part.centre(own, torch.cat([log_q, out], 1))
    torch.testing.assert_close(with_barred.detach(), part.centre(log_p, log_q), rtol=1e-12, atol=1e-14)
    (slope,) = torch.autograd.grad(with_barred.sum(), own)
    assert slope.isfinite().all()
    assert not slope[:, 4].any()


def test_certain_and_far_tokens_stay_finite_in_float32() -> None:
    log_p = torch.tensor([[0.0, -90.0], [-90.0, 0.0], [-1e-8, -18.0]])
    for part in PARTS:
        assert part.centre(log_p, log_p.flip(0)).isfinite().all()


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    folder: Path = tmp_path_factory.mktemp("centering") / "policy"
    TinySpec(initializer_range=0.4).build("0123456789+-=abcdefghij", folder, seed=5)
    return load_policy(folder)


SAMPLINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "colder": {"temperature": 0.6},
    "with biases, not to end early": {"logit_bias": {3: 1.5, 7: -2.0}, "min_new_tokens": 5, "temperature": 1.3},
}


def engine_of(policy: Policy, slots: bool = False) -> LocalEngine:
    return LocalEngine(policy.model, policy.eos, policy.pad, max_rows=7, decode=policy.decode, slots=slots)


def batch_of(policy: Policy, engine: Any, sampling: Sampling, top: int) -> Batch:
    prompts = [Prompt(Sample(str(i), str(i), ""), (4, 5 + i, 6)) for i in range(3)]
    answers = engine.generate([Request(p.tokens, 4, seed, top=top) for seed, p in enumerate(prompts)], sampling)
    scored = [tuple(dataclasses.replace(c, score=float(i % 2)) for i, c in enumerate(group)) for group in answers]
    return collate([Group(p, own) for p, own in zip(prompts, scored, strict=True)], policy.pad)


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("options", SAMPLINGS.values(), ids=SAMPLINGS)
def test_the_column_is_what_the_learner_says_of_the_same_ids(policy: Policy, options: Any, slots: bool) -> None:
    """Of the distribution drawn from, a drawn id among them included; they are the most likely ones, in order."""
    sampling, size = Sampling(max_new_tokens=12, **options), policy.model.config.vocab_size
    batch = batch_of(policy, engine_of(policy, slots), sampling, top=6)
    ids, top, inside = batch.need("engine_ids"), batch.need("engine_top"), batch.mask
    assert ids.shape == top.shape == (*batch.tokens.shape, 6)
    assert not top[~inside].any()
    drawn = ids == batch.tokens[..., None]
    assert drawn[inside].any(-1).float().mean() > 0.5
    torch.testing.assert_close(top[drawn & inside[..., None]], batch.logp_engine[(drawn.any(-1)) & inside])
    adjustment = adjustment_of(sampling, policy.eos, size)
    learner = Learner(policy.model, None, LearnerSettings(), sampling.temperature, 1, adjustment=adjustment)
    everything = learner._scored(training_pass(learner, batch), size)  # ids by likelihood, all of them
    order = everything["ids"].long()
    by_id = torch.zeros_like(everything["among"]).scatter(-1, order, everything["among"])
    own = by_id.gather(-1, ids.long())
    assert (own - top)[inside].abs().max() < 1e-4
    assert (everything["among"][..., :6] - top)[inside].abs().max() < 1e-4
    assert (top[inside].diff(dim=-1) <= 0).all()


def training_pass(learner: Learner, batch: Batch) -> Any:
    from groupwise.training.microbatch import Pass

    return Pass(learner.model, batch)


def test_rows_and_slots_keep_the_same_ids_and_a_vocabulary_gives_all_it_has(policy: Policy) -> None:
    sampling, size = Sampling(max_new_tokens=9), policy.model.config.vocab_size
    for top, kept in ((3, 3), (size, size), (999, size)):
        one, other = (batch_of(policy, engine_of(policy, slots), sampling, top) for slots in (False, True))
        assert torch.equal(one.tokens, other.tokens)
        assert torch.equal(one.need("engine_ids"), other.need("engine_ids"))
        assert one.need("engine_ids").shape[-1] == kept
        torch.testing.assert_close(one.need("engine_top"), other.need("engine_top"), rtol=1e-5, atol=1e-5)
    assert float((one.need("engine_top")[one.mask].exp().sum(-1) - 1).abs().max()) < 1e-5
    engine = engine_of(policy)
    (greedy,), (unasked,) = (
        engine.generate([Request((4, 5), 1, 0, top=top)], Sampling(max_new_tokens=3, temperature=t))
        for top, t in ((4, 0.0), (0, 1.0))
    )
    assert greedy[0].top is unasked[0].top is None


def top_of(completion: Completion) -> SamplerTop:
    assert completion.top is not None
    return completion.top


def test_segments_and_turns_keep_each_tokens_own(policy: Policy) -> None:
    """A completion in segments has the ids of one that was sampled whole; an environment's tokens have none."""
    engine, prompts = engine_of(policy), tuple(Prompt(Sample(str(i), str(i), ""), (4, 5 + i)) for i in range(3))
    segment = Segment(4, Sampling(max_new_tokens=12, logit_bias={1: -100.0}), 5, top=4)
    parts = whole = [Cohort(prompts, (1, 2, 3))]
    while not parts[0].completions or any(goes_on(c, 12) for group in parts[0].completions for c in group):
        parts = advance(engine, parts, segment)
    whole = advance(engine, whole, dataclasses.replace(segment, tokens=None))
    for one, other in zip(sum(parts[0].completions, ()), sum(whole[0].completions, ()), strict=True):
        assert one.tokens == other.tokens
        assert torch.equal(top_of(one).ids, top_of(other).ids)
        torch.testing.assert_close(top_of(one).logp, top_of(other).logp, rtol=1e-5, atol=1e-5)
    first = whole[0].completions[0][0]
    spans = (Span(0, 3, True, 0), Span(3, 5, False, 0), Span(5, 12, True, 0))
    logp = tuple(0.0 if 3 <= i < 5 else x for i, x in enumerate(first.logp_engine))
    top = SamplerTop(top_of(first).ids[:10], top_of(first).logp[:10])
    turns = dataclasses.replace(first, spans=spans, logp_engine=logp, top=top, score=1.0)
    batch = collate([Group(prompts[0], (turns, dataclasses.replace(first, score=0.0)))], 0)
    own = batch.mask[0]
    assert own.sum() == 10
    assert torch.equal(batch.need("engine_ids")[0][own], top.ids)
    assert torch.equal(batch.need("engine_top")[0][own], top.logp)
    assert not batch.need("engine_ids")[0][~own].any()
    bare = dataclasses.replace(first, top=None, score=0.0)
    with pytest.raises(RunError, match="1 of 2 completions came without the sampler's most likely ids"):
        collate([Group(prompts[0], (bare, dataclasses.replace(first, score=0.0)))], 0)


WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"shared_prefixes": False},
    {"tokens_per_microbatch": 40, "chunk_logits": 45},
    {"recompute": True, "held_logits": 0},
)


def sampled_elsewhere(top: int) -> Batch:
    """Rows that another policy sampled, whose q is known for all its ids; rows of a group share what comes first."""
    model, rows = double(9), torch.Generator().manual_seed(2)
    tokens = torch.randint(3, 15, (6, 10), generator=rows)
    tokens[:, :5] = tokens[0, :5]
    with torch.no_grad():
        log_q = (model(tokens).logits / 0.8).log_softmax(-1)[:, :-1]
    log_q = torch.cat([log_q[:, :1] * 0, log_q], 1)
    likely, ids = log_q.topk(top)
    mask = torch.ones(6, 10, dtype=torch.bool)
    mask[:, :3], mask[1, 8:], mask[4, 5] = False, False, False
    length = torch.full((6,), 10)
    return Batch(
        tokens=tokens, mask=mask, length=length, group=torch.zeros(6).long(), score=draw(5, 6), version=length * 0,
        logp_engine=log_q.gather(-1, tokens[..., None])[..., 0], engine_ids=ids.int(), engine_top=likely,
    )  # fmt: skip


def double(seed: int) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return causal("llama", vocab_size=15).double()


def learned(learner: Learner, algo: Algorithm, batch: Batch) -> tuple[float, Tensor]:
    minibatch = algo.weigh(algo.credit(batch))
    learner.model.zero_grad(set_to_none=True)
    loss, seen = learner.gradients(minibatch, algo)
    assert seen is not None
    assert seen.centre is not None
    return loss, torch.cat([p.grad.flatten() for p in learner.model.parameters() if p.grad is not None])


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_the_learners_gradient_is_that_of_finite_differences_of_the_head(part: Any) -> None:
    """However rows are run and the head is cut; what is under sg[] keeps the value that it has in the middle."""
    batch, algo, model = sampled_elsewhere(4), row(part), double(0)
    minibatch = algo.weigh(algo.credit(batch))
    found = [learned(Learner(model, None, LearnerSettings(**way), 0.8, 1), algo, batch) for way in WAYS]
    for value, gradient in found[1:]:
        assert value == pytest.approx(found[0][0], rel=1e-12)
        torch.testing.assert_close(gradient, found[0][1], rtol=1e-10, atol=1e-13)
    held, wide = list[Tensor](), torch.float64

    def loss() -> Tensor:
        """The paper's loss of whole logits, its weights as they are in the middle."""
        log_p = (model(batch.tokens).logits / 0.8).log_softmax(-1)[:, :-1]
        live = log_p.gather(-1, batch.tokens[:, 1:, None])[..., 0]
        likely = log_p.gather(-1, batch.need("engine_ids")[:, 1:].long())
        if not held:
            p, q = likely.exp(), batch.need("engine_top")[:, 1:].exp()
            rho = (1 - q.sum(-1)) / (1 - p.sum(-1))
            alpha = rho * torch.tensor([weight(part, float(1 / r)) for r in rho.flatten()], dtype=wide).view(rho.shape)
            w = torch.tensor([weight(part, float(r)) for r in (p / q).flatten()], dtype=wide).view(p.shape)
            far = (live - batch.logp_engine[:, 1:]).exp()
            own = torch.tensor([weight(part, float(r)) for r in far.flatten()], dtype=wide)
            held.extend((q * w - alpha[..., None] * p, own.view(live.shape)))
        score = held[1] * live - (held[0] * likely).sum(-1)
        advantage = minibatch.need("advantage")[:, 1:]
        return -torch.where(batch.mask[:, 1:], minibatch.need("weight")[:, 1:] * advantage * score, 0.0).sum()

    with torch.no_grad(), FusedLayers(model).running():  # transformers' own norms are in float32
        assert float(loss()) == pytest.approx(found[0][0], abs=1e-9)
        parameters = [p for p in model.parameters() if p.grad is not None]
        start, step = 0, 1e-5
        for parameter in parameters:
            flat = parameter.view(-1)
            for i in range(0, len(flat), max(1, len(flat) // 3)):
                before = float(flat[i])
                values = []
                for moved in (step, -step):
                    flat[i] = before + moved
                    values.append(float(loss()))
                flat[i] = before
                slope = (values[0] - values[1]) / (2 * step)
                assert slope == pytest.approx(float(found[0][1][start + i]), abs=2e-8, rel=1e-5)
            start += len(flat)


def test_beside_a_teachers_likely_ids_each_term_reads_its_own() -> None:
    """The gradient of both is the sum of each alone."""
    batch = sampled_elsewhere(4)
    teacher = {"kl.beta": 0.3, "kl.place": "loss", "kl.estimator": "top-k", "kl.k": 3}
    learner = Learner(double(0), double(1), LearnerSettings(), 0.8, 1)
    annotated = learner.annotate(batch, old=False, ref=True, top=3)
    both, alone = row(PARTS[0], **teacher), row(PARTS[0])
    of_teacher = groupwise.algorithm("opo", {**teacher, "aggregate.kind": "token-mean"})
    gradients = [learned(learner, both, annotated)[1], learned(learner, alone, batch)[1]]
    bare = dataclasses.replace(annotated, engine_ids=None, engine_top=None, score=0 * batch.score)
    minibatch = of_teacher.weigh(of_teacher.credit(bare))
    learner.model.zero_grad(set_to_none=True)
    learner.gradients(minibatch, of_teacher)
    last = torch.cat([p.grad.flatten() for p in learner.model.parameters() if p.grad is not None])
    assert last.norm() > 1e-4
    torch.testing.assert_close(gradients[0], gradients[1] + last, rtol=1e-8, atol=1e-12)


REFUSED = [
    ({"mismatch.kind": "tis"}, r"mismatch\.kind .* weighs each token for itself, after trust\.kind .* has centered it"),
    ({"rejection.kind": "token"}, r"rejection\.kind .* weighs each token for itself"),
    ({"ratio.level": "sequence"}, r"trust\.kind .* reads the probability of each token"),
    ({"trust.k": 0}, r"k = 0: must be from 1"),
    ({"trust.kind": "centered-tis", "trust.cap": 0.0}, r"cap = 0\.0: must be above 0"),
    ({"trust.kind": "centered-mis", "trust.floor": 3.0}, r"floor = 3\.0: must be at least 0 and at most cap = 2\.0"),
]


@pytest.mark.parametrize(("settings", "words"), REFUSED)
def test_what_would_not_be_centered_is_refused_in_a_line(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        groupwise.algorithm("score-centering", settings)
    assert "\n" not in str(refused.value)
    groupwise.algorithm("score-centering", {"rejection.kind": "geometric"})  # a completion is kept or dropped whole


def test_a_loss_without_the_samplers_columns_says_what_is_missing() -> None:
    one = torch.zeros(1, 1)
    with pytest.raises(ValueError, match=r"centers tokens .* and needs logp_engine and centre"):
        groupwise.algorithm("score-centering").loss(one, one, [1.0], [[True]], logp_engine=one)
