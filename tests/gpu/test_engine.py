"""An engine on a GPU draws what one on the CPU draws, and a learner there says the same of every token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from groupwise.core.collate import collate
from groupwise.core.engine import Request, Sampling
from groupwise.core.records import Batch, Group, Prompt
from groupwise.core.samples import Sample
from groupwise.engines.local.engine import LocalEngine
from groupwise.models.forward.adjustment import adjustment_of
from groupwise.models.load import Policy, load_policy
from groupwise.models.tiny import TinySpec
from groupwise.training.learner import Learner, LearnerSettings
from tests.laws import moe_models
from tests.laws.test_engine_learner import LETTERS, OPTIONS, sampled_batch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("gpu") / "policy"
    TinySpec(initializer_range=0.4).build(LETTERS, place, seed=5)
    return place


@pytest.fixture(scope="module")
def policies(folder: Path) -> dict[str, Policy]:
    return {device: load_policy(folder, device=device) for device in ("cpu", "cuda")}


def sampled_on(policy: Policy, sampling: Sampling) -> Batch:
    engine = LocalEngine(policy.model, policy.eos, policy.pad, max_rows=20, decode=policy.decode)
    return sampled_batch(engine, policy, sampling)


@pytest.mark.parametrize("options", [{}, *OPTIONS], ids=repr)
def test_engine_and_learner_agree_and_the_tokens_are_those_of_a_cpu(
    options: dict[str, Any], policies: dict[str, Policy]
) -> None:
    """Each row has its own random numbers; two ids whose scores lie within rounding of a draw may change places."""
    sampling, policy = Sampling(max_new_tokens=24, **options), policies["cuda"]
    batch, cpus = (sampled_on(policies[device], sampling) for device in ("cuda", "cpu"))
    learner = Learner(
        policy.model,
        None,
        LearnerSettings(tokens_per_microbatch=500),
        sampling.temperature,
        1,
        adjustment=adjustment_of(sampling, policy.eos, policy.model.config.vocab_size),
    )
    old = learner.annotate(batch, old=True, ref=False).need("logp_old")
    assert float((old - batch.logp_engine)[batch.mask].abs().max()) < 1e-4
    same = [torch.equal(a, b) for a, b in zip(batch.tokens, cpus.tokens, strict=False)]
    assert sum(same) >= 0.9 * len(same)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gpu_samples_in_slots_by_recorded_graphs(precision: Any, compiled: bool, policies: dict[str, Policy]) -> None:
    """With the same answers again, and by an engine that is made anew."""
    policy, asked = policies["cuda"], [Request((4, 5 + i), 6, seed=i) for i in range(4)]

    def made() -> LocalEngine:
        return LocalEngine(policy.model, policy.eos, policy.pad, 20, precision=precision, compiled=compiled)

    engine = made()
    assert engine.how.startswith("slots")
    assert "CUDA graphs" in engine.how
    first = engine.generate(asked, Sampling(max_new_tokens=40))
    assert "no CUDA graphs" not in engine.how
    assert (
        first
        == engine.generate(asked, Sampling(max_new_tokens=40))
        == made().generate(asked, Sampling(max_new_tokens=40))
    )


@pytest.mark.parametrize("experts", ["eager", "batched_mm", "grouped_mm"])
@pytest.mark.parametrize("name", moe_models.BUILD)
def test_engine_and_learner_agree_on_mixtures_of_experts(name: str, experts: str) -> None:
    window: dict[str, Any] = {"sliding_window": 64} if name == "gpt_oss" else {}
    model = moe_models.build(name, seed=4, initializer_range=0.2, experts_implementation=experts, **window).cuda()
    engine = LocalEngine(model, frozenset({3}), 0, max_rows=20, routes=True)
    prompts = [Prompt(Sample("", "", ""), tuple(4 + (i * 5 + j) % 25 for j in range(1 + 3 * i))) for i in range(8)]
    answers = engine.generate([Request(p.tokens, 6, i) for i, p in enumerate(prompts)], Sampling(max_new_tokens=24))
    scored = [tuple(type(c)(**{**vars(c), "score": 0.0}) for c in group) for group in answers]
    batch = collate([Group(p, group) for p, group in zip(prompts, scored, strict=True)], 0)
    learner = Learner(model, None, LearnerSettings(tokens_per_microbatch=500), 1.0, 1)
    old = learner.annotate(batch, old=True, ref=False).need("logp_old")
    assert float((old - batch.logp_engine)[batch.mask].abs().max()) < 1e-4


def test_a_load_of_weights_is_seen_at_once(folder: Path, policies: dict[str, Policy]) -> None:
    """A step that was recorded for the weights of before answers with those of now."""
    one, other = load_policy(folder, device="cuda"), load_policy(folder, device="cuda")
    with torch.no_grad():
        for weight in other.model.parameters():
            weight.mul_(0.9)
    engine = LocalEngine(one.model, one.eos, one.pad, max_rows=20, decode=one.decode)
    before = sampled_batch(engine, one, Sampling(max_new_tokens=24))
    engine.load_weights(other.model.named_parameters(), version=1)
    after = sampled_batch(engine, one, Sampling(max_new_tokens=24))
    fresh = sampled_on(other, Sampling(max_new_tokens=24))
    assert not torch.equal(before.logp_engine[:, :30], after.logp_engine[:, :30])
    assert torch.equal(after.tokens, fresh.tokens)
    assert torch.equal(after.logp_engine, fresh.logp_engine)
