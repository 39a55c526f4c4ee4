"""What the engine says of a token is what the learner says of it, whatever the sampling."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import groupwise
from groupwise.core.collate import collate
from groupwise.core.engine import Request, Sampling
from groupwise.core.records import Batch, Group, Prompt
from groupwise.core.samples import Sample
from groupwise.engines.local.engine import LocalEngine
from groupwise.models.forward.adjustment import adjustment_of
from groupwise.models.forward.layout import padded
from groupwise.models.load import Policy, load_policy, prompt_ids
from groupwise.models.moe.metrics import changed
from groupwise.models.moe.record import record_routes
from groupwise.models.moe.replay import place_routes
from groupwise.models.tiny import TinySpec
from groupwise.training.learner import Learner, LearnerSettings
from tests.engines.local.made import is_recorded
from tests.laws import moe_models

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


@pytest.fixture(scope="module")
def two_ends(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """A policy of 64 tokens, of which its generation configuration ends at two."""
    folder: Path = tmp_path_factory.mktemp("two") / "policy"
    TinySpec(initializer_range=0.4).build(LETTERS, folder, seed=5)
    policy = load_policy(folder)
    policy.model.generation_config.eos_token_id = [1, 7]
    policy.model.generation_config.save_pretrained(folder)
    return load_policy(folder)


BIAS = {3: 1.5, 20: -2.0, 1: 1.0}
OPTIONS: list[dict[str, Any]] = [
    *(
        {"temperature": t, **cut}
        for t in (0.6, 1.3)
        for cut in ({}, {"top_p": 0.9}, {"top_k": 20}, {"top_p": 0.9, "top_k": 20})
    ),
    {"min_p": 0.05, "temperature": 0.6},
    {"logit_bias": BIAS, "temperature": 1.3},
    {"min_new_tokens": 6},
    {"min_p": 0.02, "logit_bias": BIAS, "top_p": 0.9, "temperature": 1.3},
    {"min_p": 0.02, "logit_bias": BIAS, "top_k": 20, "min_new_tokens": 6, "stop": ("a", "Q0"), "stop_ids": (9,)},
    {"top_k": 63, "min_new_tokens": 3, "temperature": 0.6},
]


@pytest.fixture(scope="module")
def engine(two_ends: Policy) -> LocalEngine:
    return LocalEngine(two_ends.model, two_ends.eos, two_ends.pad, max_rows=20, decode=two_ends.decode)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("options", OPTIONS, ids=repr)
def test_engine_and_learner_agree_under_every_option_that_trains(
    options: dict[str, Any], shared: bool, engine: LocalEngine, two_ends: Policy
):
    """And the ratio of the first update is 1, with a finite entropy and gradient."""
    sampling = Sampling(max_new_tokens=24, **options)
    batch = sampled_batch(engine, two_ends, sampling)
    assert (batch.support is not None) == sampling.truncates
    learner = Learner(
        two_ends.model,
        None,
        LearnerSettings(tokens_per_microbatch=500, shared_prefixes=shared),
        sampling.temperature,
        1,
        adjustment=adjustment_of(sampling, two_ends.eos, two_ends.model.config.vocab_size),
    )
    old = learner.annotate(batch, old=True, ref=False).need("logp_old")
    assert float((old - batch.logp_engine)[batch.mask].abs().max()) < 1e-4
    if not options.get("logit_bias"):
        last = batch.tokens[torch.arange(len(batch)), batch.length - 1].tolist()
        assert {1, 7} <= set(last), "completions end at either end"
    algorithm = groupwise.algorithm("grpo", {"kl.beta": 0.0, "entropy_coefficient": 0.01})
    _, seen = learner.gradients(algorithm.weigh(algorithm.credit(batch.add(logp_old=old))), algorithm)
    assert float((seen.logp_live - old)[batch.mask].abs().max()) < 1e-5
    assert torch.isfinite(seen.entropy).all()
    assert all(torch.isfinite(p.grad).all() for p in two_ends.model.parameters() if p.grad is not None)


def sampled_batch(engine: LocalEngine, policy: Policy, sampling: Sampling) -> Batch:
    """A batch of scored completions of five prompts."""
    texts = ["a", "hello", LETTERS, "xyzzy99", "Q0"]
    prompts = [
        Prompt(Sample(text, text, ""), tuple(ids))
        for text, ids in zip(texts, prompt_ids(policy.tokenizer, texts), strict=True)
    ]
    answers = engine.generate([Request(p.tokens, 8, seed) for seed, p in enumerate(prompts)], sampling)
    scored = [tuple(dataclasses.replace(c, score=float(i % 2)) for i, c in enumerate(group)) for group in answers]
    return collate([Group(p, own) for p, own in zip(prompts, scored, strict=True)], policy.pad)


@pytest.mark.parametrize("experts", ["eager", "batched_mm", "grouped_mm"])
@pytest.mark.parametrize("name", moe_models.BUILD)
def test_engine_and_learner_agree_on_mixtures_of_experts(name: str, experts: str):
    """Log-probabilities, and the experts of every token; the engine may compute experts another way than the learner.

    Two experts whose scores are equal but for rounding may change places, so a thousandth is let go.
    """
    window = {"sliding_window": 64} if name == "gpt_oss" else {}
    model = moe_models.build(name, seed=4, initializer_range=0.2, experts_implementation=experts, **window)
    engine = LocalEngine(model, frozenset({3}), 0, max_rows=20, routes=True)
    prompts = [Prompt(Sample("", "", ""), tuple(4 + (i * 5 + j) % 25 for j in range(1 + 3 * i))) for i in range(8)]
    answers = engine.generate([Request(p.tokens, 3, i) for i, p in enumerate(prompts)], Sampling(max_new_tokens=12))
    assert all(map(is_recorded, engine._step._forward.values()))
    scored = [tuple(type(c)(**{**vars(c), "score": 0.0}) for c in group) for group in answers]
    batch = collate([Group(p, group) for p, group in zip(prompts, scored, strict=True)], 0)
    learner = Learner(model, None, LearnerSettings(tokens_per_microbatch=500), 1.0, 1)
    old = learner.annotate(batch, old=True, ref=False).need("logp_old")
    assert float((old - batch.logp_engine)[batch.mask].abs().max()) < 1e-5
    with torch.no_grad(), record_routes(model) as learners:
        model(input_ids=batch.tokens[:, :-1], attention_mask=torch.ones_like(batch.tokens[:, :-1]))
    layout = padded(batch.tokens, batch.length)
    engines, present = place_routes([c.routes for group in answers for c in group], layout)
    assert torch.equal(present.sum(1), batch.length - 1)
    assert float(changed(engines, learners.tensor)[present].mean()) <= 1e-3
