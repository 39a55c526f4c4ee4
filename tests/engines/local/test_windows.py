"""Layers with sliding windows: the engine samples from what the model's own forward gives, at any length."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from benchmarks.architectures.build import small_config
from benchmarks.architectures.trial import batch_of, gap, own_logprobs

from groupwise.core.engine import Request, Sampling
from groupwise.core.records import Batch, Completion
from groupwise.engines.local.engine import LocalEngine
from groupwise.models.context import EVERY
from groupwise.training.learner import Learner, LearnerSettings
from tests.engines.local.test_held import assert_same, turns_of
from tests.models.test_what_is_refused import SIZES, config_of, gemma3, model_of

WINDOW = 5
EOS = frozenset({1})
LONG: dict[str, Any] = {
    **SIZES,
    "max_position_embeddings": 256,
    "num_hidden_layers": 2,
    "sliding_window": WINDOW,
    "initializer_range": 0.3,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
#: Architectures by what is special: all layers windowed, some of them, sinks, a cap or a scale, experts, a tower.
WINDOWED = {
    "mistral": config_of("Mistral", **LONG),
    "ministral3": config_of("Ministral3", **LONG, head_dim=8),
    "phi3": config_of("Phi3", **LONG),
    "mixtral": config_of("Mixtral", **LONG, num_local_experts=4),
    "qwen2": config_of("Qwen2", **LONG, use_sliding_window=True, max_window_layers=1),
    "gemma3": config_of("Gemma3Text", **{**LONG, "num_hidden_layers": 6}, head_dim=8),
    "gemma3 with a tower": gemma3(**{**LONG, "num_hidden_layers": 6}),
    "olmo3": config_of("Olmo3", **LONG),
    "exaone4": config_of("Exaone4", **LONG, sliding_window_pattern=2),
    "gpt-oss": config_of("GptOss", **LONG, **EXPERTS, head_dim=8),
    "gemma2": config_of("Gemma2", **LONG, head_dim=8),
    "cohere2": config_of("Cohere2", **LONG, sliding_window_pattern=2),
    "gemma4 whose last layers take keys of earlier ones": small_config("gemma4_text", sliding_window=WINDOW),
    "gemma3n, too": small_config("gemma3n_text", sliding_window=WINDOW),
}
#: Prompts below, at and beyond the window, in an order in which rows come and go.
LENGTHS = ((3, 2), (20, 2), (4, 1), (5, 1), (6, 1), (48, 1))


def asked() -> list[Request]:
    numbers = torch.Generator().manual_seed(0)
    return [
        Request(
            tuple(torch.randint(2, 40, (n,), generator=numbers).tolist()), s, seed=n, max_new_tokens=10 * WINDOW + n
        )
        for n, s in LENGTHS
    ]


def worst_gap(model: Any, answers: list[tuple[Completion, ...]], requests: list[Request]) -> float:
    """Return the largest difference, nats, from the model's own forward over each whole sequence."""
    pairs = [(request, one) for request, group in zip(requests, answers, strict=True) for one in group]
    plain = [own_logprobs(model, request.tokens, one) for request, one in pairs]
    return gap([torch.tensor(one.logp_engine) for _, one in pairs], plain)


def learned(model: Any, batch: Batch, tokens_per_microbatch: int) -> torch.Tensor:
    """The learner's log-probabilities [N,T] of it."""
    learner = Learner(model, None, LearnerSettings(tokens_per_microbatch=tokens_per_microbatch), 1.0, 1)
    return learner.annotate(batch, old=True, ref=False).need("logp_old")


def some(names: Iterable[str]) -> list[Any]:
    """The names, of which all but one of each kind are slow tests."""
    first = ("mistral", "olmo3", "gemma2", "gemma4 whose last layers take keys of earlier ones")
    return [name if name in first else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", some(WINDOWED))
def test_ten_windows_are_sampled_as_model_and_learner_compute_them(name: str) -> None:
    model = model_of(WINDOWED[name])
    answers = LocalEngine(model, EOS, pad=0, max_rows=5).generate(asked(), Sampling())
    lengths = [len(r.tokens) + c.length for r, group in zip(asked(), answers, strict=True) for c in group]
    assert max(lengths) > 9 * WINDOW
    assert worst_gap(model, answers, asked()) < 1e-4
    batch = batch_of(asked(), answers)
    old = learned(model, batch, tokens_per_microbatch=300)
    assert float((old - batch.logp_engine)[batch.mask].abs().max()) < 1e-4


@pytest.mark.parametrize("name", ["mistral", "olmo3"])
def test_turns_go_on_from_what_is_held_within_the_window_and_are_run_anew_beyond_it(name: str) -> None:
    config = WINDOWED[name].__class__(**{**WINDOWED[name].to_dict(), "sliding_window": 24})
    engine = LocalEngine(model_of(config), EOS, pad=0, max_rows=3)
    played = turns_of(engine, Sampling(max_new_tokens=6), holds=True, turns=6)
    assert_same(played, turns_of(engine, Sampling(max_new_tokens=6), holds=False, turns=6))
    assert max(len(request.tokens) for request, _ in played) > 2 * 24


def test_slots_sample_what_fits_the_window_and_rows_what_does_not() -> None:
    model = model_of(WINDOWED["olmo3"].__class__(**{**WINDOWED["olmo3"].to_dict(), "sliding_window": 40}))
    engine = LocalEngine(model, EOS, pad=0, slots=True)
    assert engine._slots is not None
    for most, used in ((30, True), (80, False)):
        engine._slots.clear()
        answers = engine.generate([Request((4, 5, 6), 3, 0)], Sampling(max_new_tokens=most))
        rows = LocalEngine(model, EOS, pad=0).generate([Request((4, 5, 6), 3, 0)], Sampling(max_new_tokens=most))
        assert [c.tokens for c in answers[0]] == [c.tokens for c in rows[0]]
        assert (engine._slots.tables is not None) == used
    assert engine._windows.shortest == 40 < EVERY
