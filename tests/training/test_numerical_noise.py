"""The tolerance of a run, measured on a real policy: what is compared, and what must not widen it."""

from __future__ import annotations

import dataclasses
from functools import partial
from statistics import fmean

import pytest
import torch

from groupwise.core.engine import Request, Sampling
from groupwise.core.records import Prompt
from groupwise.core.samples import Sample
from groupwise.diagnostics.checks import CheckVerdict, Probe
from groupwise.diagnostics.tolerance import FLOAT32, Limits, NumericalNoise, Tolerance
from groupwise.engines.local.engine import LocalEngine
from groupwise.models.load import Policy
from groupwise.training.learner import Learner, LearnerSettings
from groupwise.training.numerical_noise import Passes, Precisions, measured_tolerance, sampled_completions, tolerance_of

PROMPTS = [Prompt(Sample(text, text, ""), tuple(range(2, 6 + i))) for i, text in enumerate("abcd")]


def parts(policy: Policy, precisions: Precisions) -> tuple[Learner, LocalEngine]:
    learner = Learner(policy.model, None, LearnerSettings(precision=precisions.learner), 1.0, 1)
    return learner, LocalEngine(policy.model, policy.eos, policy.pad, precision=precisions.engine)


def test_each_comparison_has_the_rounding_of_its_own_two_sides():
    exact = torch.tensor([-1.0, -2.0, -3.0], dtype=torch.float64)
    live, engine, reference = exact + 0.1, exact + torch.tensor([0.0, 0.2, 0.1]), exact - 0.3
    passes = Passes(live=live, exact=exact, engine=engine, reference=reference)
    every = tolerance_of(passes, Precisions("bf16", "bf16", "bf16"))
    assert every.passes is not None
    assert every.engine is not None
    assert every.reference is not None
    assert (every.passes.mean, every.passes.spread) == (pytest.approx(0.1 * 2**0.5), pytest.approx(0, abs=1e-9))
    assert every.engine.mean == pytest.approx(0.2 / 3)
    assert every.engine.spread == pytest.approx((0.01 * 2 / 3 - (0.2 / 3) ** 2) ** 0.5)
    assert every.probe == every.engine
    assert every.reference.mean == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("precisions", "measured"),
    [
        (Precisions("fp32", "fp32", "fp32"), set()),
        (Precisions("bf16", "fp32"), {"passes", "engine", "reference"}),
        (Precisions("fp32", "bf16", "fp32"), {"engine", "probe"}),
        (Precisions("fp32", "fp32", "bf16"), {"reference"}),
        (Precisions("fp32", "fp16", "bf16"), {"engine", "probe", "reference"}),
        (Precisions("bf16", "bf16", "bf16"), {"passes", "engine", "probe", "reference"}),
    ],
    ids=["all float32", "bf16 learner", "bf16 engine", "bf16 reference", "two short ones", "bf16 all"],
)
def test_what_is_float32_on_both_sides_keeps_its_limit_on_each_token(policy: Policy, precisions, measured):
    learner, engine = parts(policy, precisions)
    completions = sampled_completions(engine, PROMPTS, Sampling(), seed=0)
    tolerance = measured_tolerance(policy, learner, precisions, PROMPTS, completions)
    assert (tolerance is FLOAT32) == (not measured)
    sizes = {name: getattr(tolerance, name) for name in ("passes", "engine", "probe", "reference")}
    assert {name for name, rounding in sizes.items() if rounding is not None} == measured
    assert all(1e-4 < rounding.mean < 0.1 for rounding in sizes.values() if rounding is not None)
    if precisions.engine == "fp16" and tolerance.engine and tolerance.reference:
        assert tolerance.engine.mean < 0.3 * tolerance.reference.mean, "11 significant bits against 8"


def test_measuring_leaves_weights_and_random_numbers_alone_and_hears_nothing_of_the_engine(policy: Policy):
    """A fault of the engine's that is there from the start must not be taken for rounding."""
    precisions = Precisions("bf16", "bf16", "bf16")
    learner, engine = parts(policy, precisions)
    request = Request(PROMPTS[0].tokens, 4, seed=5)
    weights = {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}
    state, before = torch.get_rng_state(), engine.generate([request], Sampling())
    completions = sampled_completions(engine, PROMPTS, Sampling(), seed=5)
    wrong = [tuple(dataclasses.replace(c, logp_engine=(-9.0,) * len(c.tokens)) for c in g) for g in completions]
    sound, same = (measured_tolerance(policy, learner, precisions, PROMPTS, each) for each in (completions, wrong))
    assert sound == same
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(tensor, weights[name]) for name, tensor in policy.model.state_dict().items())
    assert [c.logp_engine for c in engine.generate([request], Sampling())[0]] == [c.logp_engine for c in before[0]]


@pytest.mark.parametrize(("by", "verdict"), [(1e-7, CheckVerdict.PASS), (0.05, CheckVerdict.FAIL)])
def test_a_bf16_engine_that_answers_as_before_has_old_weights_only_where_they_surely_moved(policy: Policy, by, verdict):
    """An update below bfloat16's last digit changes none of its answers, and that is no fault."""
    probe = asked(policy, NumericalNoise(mean=1.0, spread=1.0))
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1 + by * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    probe.ask()
    assert probe.judge().verdict is verdict


def test_a_probe_counts_words_that_answers_have_in_common_once(policy: Policy):
    """Answers that begin alike round alike: by their number of tokens the limit would be too low for them."""
    rounding = NumericalNoise(mean=0.01, spread=0.02)
    probe = asked(policy, rounding, samples=64)
    learner = probe.logprobs(probe.groups)
    answers = [(i, c) for i, group in enumerate(probe.groups) for c in group.completions]
    gaps: dict[tuple[int, tuple[int, ...]], list[float]] = {}
    for (i, completion), own in zip(answers, learner, strict=True):
        for t, logp in enumerate(own.tolist()):
            gaps.setdefault((i, completion.tokens[:t]), []).append(abs(logp - completion.logp_engine[t]))
    tokens = sum(map(len, gaps.values()))
    check = probe.judge()
    assert len(gaps) < tokens / 2
    assert check.limit == pytest.approx(rounding.limit(len(gaps)), rel=1e-9)
    assert check.value == pytest.approx(fmean(map(fmean, gaps.values())), rel=1e-4)


def asked(policy: Policy, rounding: NumericalNoise, samples: int = 4) -> Probe:
    """A probe of a float32 learner and a bf16 engine, with this much rounding between them."""
    learner, engine = parts(policy, Precisions("fp32", "bf16"))
    return Probe(
        engine,
        partial(learner.completion_logprobs, pad=policy.pad),
        prompts=PROMPTS[:2],
        samples=samples,
        tokens=4,
        seed=0,
        sampling=Sampling(),
        limits=Limits(Tolerance(probe=rounding), lambda _: FLOAT32, lambda _: None),
    )
