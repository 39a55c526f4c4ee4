"""What sampling does to logits, against transformers' own processors and closed forms."""

from __future__ import annotations

import pytest
import torch
from transformers import LogitsProcessorList, MinNewTokensLengthLogitsProcessor, RepetitionPenaltyLogitsProcessor

from groupwise.core.engine import Request, Sampling
from groupwise.core.errors import UsageError
from groupwise.engines.local.engine import LocalEngine
from groupwise.engines.local.sampler import support_mask
from tests.engines.local.made import EOS, REQUESTS, VOCABULARY, build

MODEL = build()


@pytest.fixture(scope="module")
def engines() -> dict[int, LocalEngine]:
    """By how many rows they sample at a time."""
    return {
        rows: LocalEngine(MODEL, EOS, pad=0, max_rows=rows, decode=lambda ids: "".join(chr(97 + i) for i in ids))
        for rows in (2, 64)
    }


def replayed(prompt: tuple[int, ...], tokens: tuple[int, ...], how: Sampling) -> torch.Tensor:
    """[tokens,V] log-probabilities that each token was drawn with, by transformers' processors."""
    with torch.no_grad():
        logits = MODEL(input_ids=torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 :]
    bias = torch.zeros(VOCABULARY)
    for token, added in how.logit_bias.items():
        bias[token] = added
    ends = sorted({*EOS, *how.stop_ids})
    processors = LogitsProcessorList(
        [
            MinNewTokensLengthLogitsProcessor(len(prompt), how.min_new_tokens, ends),  # type: ignore[arg-type]
            RepetitionPenaltyLogitsProcessor(how.repetition_penalty),
        ]
    )
    rows = []
    for count in range(len(tokens)):
        changed = processors(torch.tensor([prompt + tokens[:count]]), logits[count : count + 1] + bias)
        rows.append(torch.log_softmax(changed / how.temperature, -1)[0])
    return torch.stack(rows)


HOWS = [
    Sampling(repetition_penalty=1.5),
    Sampling(repetition_penalty=0.5, temperature=0.7),
    Sampling(logit_bias={5: 3.0, 9: -100.0}),
    Sampling(min_new_tokens=5, stop_ids=(4,)),
    Sampling(min_new_tokens=3, repetition_penalty=1.3, logit_bias={3: 2.0}, temperature=1.2),
]


@pytest.mark.parametrize("how", HOWS, ids=repr)
@pytest.mark.parametrize("max_rows", [2, 64])
def test_the_log_probabilities_are_those_of_transformers_processors(
    how: Sampling, max_rows: int, engines: dict[int, LocalEngine]
) -> None:
    """With few rows at a time, completions move from row to row, and what each has had must go with it."""
    groups = engines[max_rows].generate(REQUESTS, how.replace(max_new_tokens=14))
    for request, group in zip(REQUESTS, groups, strict=True):
        for done in group:
            expected = replayed(request.tokens, done.tokens, how).gather(1, torch.tensor(done.tokens)[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(done.logp_engine).float(), expected, rtol=0, atol=2e-5)


def test_greedy_sampling_takes_the_most_likely_of_the_changed_logits(engines: dict[int, LocalEngine]) -> None:
    how = Sampling(temperature=0, repetition_penalty=2.0, logit_bias={5: 1.0}, max_new_tokens=8, min_new_tokens=8)
    [[done]] = engines[64].generate([Request((5, 9, 11), 1, seed=0)], how)
    expected = replayed((5, 9, 11), done.tokens, how.replace(temperature=1.0)).argmax(-1)
    assert done.tokens == tuple(expected.tolist())


@pytest.mark.parametrize("key", ["min_p", "logit_bias", "repetition_penalty", "min_new_tokens", "stop", "stop_ids"])
def test_every_option_changes_what_is_sampled(key: str, engines: dict[int, LocalEngine]) -> None:
    values = {"min_p": 0.2, "logit_bias": {4: 5.0}, "repetition_penalty": 2.0, "min_new_tokens": 9, "stop_ids": (11,)}
    before = Sampling(max_new_tokens=20)
    changed = before.replace(**{key: values.get(key, ("l",))})
    one, other = ([c.tokens for g in engines[64].generate(REQUESTS, how) for c in g] for how in (before, changed))
    assert one != other


@pytest.mark.parametrize("min_p", [0.01, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("others", [(0, 1.0), (7, 1.0), (0, 0.8), (9, 0.6)])
def test_min_p_keeps_what_is_likely_beside_the_most_likely(min_p: float, others: tuple[int, float]) -> None:
    logits = 3 * torch.randn(50, 40, generator=torch.Generator().manual_seed(2))
    logits[3] = 1.0  # all alike
    probability = logits.double().softmax(-1)
    expected = probability >= min_p * probability.amax(-1, keepdim=True) - 1e-7
    kept = support_mask(logits, *others, min_p)
    assert torch.equal(kept, expected & support_mask(logits, *others))
    assert kept.gather(1, logits.argmax(-1, keepdim=True)).all()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (Sampling(stop_ids=(4, 30)), "stop_ids: 30: the model's ids are 0 to 29"),
        (Sampling(logit_bias={99: 1.0, 1: 1.0}), "logit_bias: 99: the model's ids are 0 to 29"),
        (Sampling(stop_ids=tuple(range(30)), min_new_tokens=1), "min_new_tokens = 1: every id of the model ends a"),
    ],
)
def test_ids_that_the_model_does_not_have_are_refused_though_nothing_is_asked_for(
    how: Sampling, words: str, engines: dict[int, LocalEngine]
) -> None:
    with pytest.raises(UsageError, match=f"^{words}"):
        engines[2].generate((), how)
