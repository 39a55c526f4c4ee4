"""What the engine says of a token is what the learner says of it, whatever the sampling."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from groupwise.collate import collate
from groupwise.engines.base import Request, Sampling
from groupwise.engines.local import LocalEngine
from groupwise.learner import Learner, LearnerSettings
from groupwise.models.load import Policy, load_policy
from groupwise.models.tiny import TinySpec
from groupwise.records import Group, Prompt
from groupwise.samples import Sample

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


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
@pytest.mark.parametrize("truncation", [{}, {"top_p": 0.9}, {"top_k": 20}, {"top_p": 0.9, "top_k": 20}], ids=repr)
def test_engine_and_learner_agree_on_every_token(temperature: float, truncation: dict[str, float], two_ends: Policy):
    sampling = Sampling(temperature=temperature, max_new_tokens=24, **truncation)  # type: ignore[arg-type]
    engine = LocalEngine(two_ends.model, two_ends.eos, two_ends.pad, max_rows=20)
    prompts = [
        Prompt(Sample(text, text, ""), two_ends.encode(text)) for text in ("a", "hello", LETTERS, "xyzzy99", "Q0")
    ]
    answers = engine.generate([Request(p.tokens, 8, seed) for seed, p in enumerate(prompts)], sampling)
    scored = [tuple(type(c)(**{**vars(c), "score": 0.0}) for c in group) for group in answers]
    batch = collate([Group(p, completions) for p, completions in zip(prompts, scored, strict=True)], two_ends.pad)
    assert (batch.kept is not None) == bool(truncation)
    learner = Learner(two_ends.model, None, LearnerSettings(tokens_per_microbatch=500), temperature, 1)
    old = learner.annotate(batch, old=True, ref=False).need("logp_old")
    assert float((old - batch.logp_engine)[batch.mask].abs().max()) < 1e-4
    ends = {c.tokens[-1] for group in answers for c in group if c.finish == "stop"}
    assert ends == {1, 7}
    assert torch.isfinite(old).all()
