"""One draw: which tokens are kept, how often each is taken, and what its log-probability is said to be."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from groupwise.core.engine import Sampling
from groupwise.engines.local import sampler as module
from groupwise.engines.local.sampler import (
    BELOW_ONE,
    END,
    draw,
    end_sum,
    most_likely,
    support_mask,
    uniforms,
)


def reference_kept(logits: list[float], top_k: int, top_p: float) -> set[int]:
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    order = order[:top_k] if top_k else order
    weight = [math.exp(logits[i] - logits[order[0]]) for i in order]
    kept, reached = set(), 0.0
    for i, w in zip(order, weight, strict=True):
        kept.add(i)
        reached += w
        if reached >= top_p * sum(weight):
            break
    return kept


def uneven(rows: int, vocabulary: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("top_k", [0, 1, 5, 20, 500])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3, 1e-6])
def test_kept_sets_are_those_of_a_plain_reference(top_k: int, top_p: float) -> None:
    logits = uneven(40, 50)
    mask = support_mask(logits, top_k, top_p)
    for row, kept in zip(logits.tolist(), mask, strict=True):
        assert set(kept.nonzero()[:, 0].tolist()) == reference_kept(row, top_k, top_p)


def test_top_p_looks_further_where_the_most_likely_tokens_do_not_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_LOOK", 4)
    logits = torch.cat([uneven(5, 50), torch.zeros(1, 50)])
    mask = support_mask(logits, 0, 0.9)
    for row, kept in zip(logits.tolist(), mask, strict=True):
        assert set(kept.nonzero()[:, 0].tolist()) == reference_kept(row, 0, 0.9)


def test_top_p_stops_exactly_where_it_is_reached() -> None:
    quarters = torch.zeros(1, 4)
    assert support_mask(quarters, 0, 0.5).tolist() == [[True, True, False, False]]
    assert support_mask(quarters, 0, 0.500001).tolist() == [[True, True, True, False]]
    # Top-k first: of two tokens left, one is half.
    assert support_mask(quarters, 2, 0.5).tolist() == [[True, False, False, False]]


@pytest.mark.parametrize("count", [3, 7, 12])
def test_of_equal_logits_the_lower_id_comes_first(count: int) -> None:
    logits = torch.tensor([[1.0, -2.0, 1.0, 0.0, -0.0, 0.0, -2.0, 5.0, 5.0, -0.0, 1.0, -float("inf")]])
    values, ids = most_likely(logits, count)
    expected = sorted(range(12), key=lambda i: (-logits[0, i].item(), i))[:count]
    assert ids.tolist() == [expected]
    assert values.tolist() == [logits[0, expected].tolist()]


@pytest.mark.parametrize(
    "how",
    [
        Sampling(),
        Sampling(temperature=0.6),
        Sampling(temperature=1.3, top_p=0.9),
        Sampling(top_k=4),
        Sampling(temperature=0.8, top_p=0.9, top_k=6),
    ],
    ids=str,
)
def test_tokens_are_as_frequent_as_they_are_likely(how: Sampling) -> None:
    count, logits = 20_000, uneven(1, 12, seed=5) / 2
    drawn = draw(logits.expand(count, -1), torch.from_numpy(np.random.default_rng(1).random(count)), how)
    kept = sorted(reference_kept((logits[0] / how.temperature).tolist(), how.top_k, how.top_p))
    weight = (logits[0, kept].double() / how.temperature).exp()
    probability = weight / weight.sum()
    seen = torch.bincount(drawn.tokens, minlength=12)
    assert seen[kept].sum() == count
    expected = probability * count
    chi_square = ((seen[kept] - expected) ** 2 / expected).sum().item()
    freedom = len(kept) - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)
    said = torch.zeros(12, dtype=torch.float64)
    said[kept] = probability.log()
    torch.testing.assert_close(drawn.logp, said[drawn.tokens], atol=1e-6, rtol=0)


def test_greedy_takes_the_first_of_the_most_likely() -> None:
    drawn = draw(torch.tensor([[1.0, 3.0, 3.0], [2.0, 0.0, 1.0]]), torch.rand(2).double(), Sampling(temperature=0))
    assert drawn.tokens.tolist() == [1, 0]
    assert drawn.logp.tolist() == [0, 0]
    assert drawn.support is None


def test_the_ends_of_the_unit_interval_take_the_first_and_the_last_kept_token() -> None:
    logits = torch.tensor([[-float("inf"), 1.0, 2.0, 1.5, -float("inf"), -9.0]])
    low, high = torch.zeros(1, dtype=torch.float64), torch.full((1,), 1 - 2.0**-53, dtype=torch.float64)
    assert draw(logits, low, Sampling(top_k=3)).tokens.tolist() == [1]
    assert draw(logits, high, Sampling(top_k=3)).tokens.tolist() == [3]
    assert draw(logits, torch.ones(1, dtype=torch.float64), Sampling(top_k=3)).tokens.tolist() == [3]


@pytest.mark.parametrize("how", [Sampling(), Sampling(top_p=0.9), Sampling(temperature=0)], ids=str)
def test_bad_logits_are_reported_by_row(how: Sampling) -> None:
    inf = float("inf")
    logits = torch.tensor([[0.0, 1.0], [0.0, float("nan")], [inf, 0.0], [-inf, -inf], [-inf, 0.0]])
    total = draw(logits, torch.full((5,), 0.5).double(), how).total
    assert total.isfinite().tolist() == [True, False, False, False, True]


def test_a_stream_is_numpys_philox_keyed_by_seed_and_completion() -> None:
    streams = [(2**40 + 7, 3), (2**40 + 7, 4), (8, 4), (8, 3)]
    rows = uniforms(streams, length=5)
    for stream, row in zip(streams, rows, strict=True):
        key = np.array(stream, dtype=np.uint64)
        assert row.tolist() == np.random.Generator(np.random.Philox(key=key)).random(5).tolist()
    assert uniforms([(2**40 + 7, 3)], 9)[0, :5].tolist() == rows[0].tolist()
    assert len({tuple(r) for r in rows.tolist()}) == 4


@pytest.mark.parametrize(
    ("key", "value"), [("temperature", -1), ("top_p", 0), ("top_p", 1.1), ("top_k", -1), ("max_new_tokens", 0)]
)
def test_values_without_meaning_are_refused_by_name(key: str, value: float) -> None:
    with pytest.raises(ValidationError, match=key):
        Sampling.model_validate({key: value})


@pytest.mark.parametrize("vocabulary", [257, 1000, 1024])
def test_a_large_vocabulary_is_inverted_block_by_block_to_the_same_token(vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = 4 * torch.randn(400, vocabulary, generator=generator)
    logits[torch.rand(logits.shape, generator=generator) < 0.7] = -torch.inf
    chance = torch.softmax(logits, -1)
    uniform = torch.rand(400, generator=generator, dtype=torch.float64)
    uniform[0], uniform[1] = 0.0, BELOW_ONE
    tokens, total = module._invert_blocks(chance, uniform)
    plain, plain_total = module._invert(chance, uniform)
    assert (chance.gather(1, tokens[:, None]) > 0).all()
    assert tokens[0] == (chance[0] > 0).nonzero()[0]
    assert tokens[1] == (chance[1] > 0).nonzero()[-1]
    torch.testing.assert_close(total, plain_total, rtol=1e-6, atol=0)
    # Where they differ, the number lies on a border between two tokens, to the rounding of a float32 sum.
    cumulative = chance.cumsum(-1, dtype=torch.float64)
    border = (cumulative - (uniform * plain_total)[:, None]).abs().amin(-1)
    assert ((tokens == plain) | (border < 1e-6)).all()
    assert (tokens == plain).float().mean() > 0.99


@pytest.mark.parametrize(
    "how",
    [
        Sampling(),
        Sampling(temperature=1.3),
        Sampling(temperature=0.6, top_p=0.9),
        Sampling(top_k=3),
        Sampling(temperature=0),
    ],
    ids=str,
)
def test_the_number_counts_ends_and_is_finite_only_where_all_totals_are(how: Sampling) -> None:
    vocabulary, rows = 20, 700
    logits = uneven(rows, vocabulary)
    logits[:, ::7] = -torch.inf
    uniform = torch.rand(rows, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    drawn = draw(logits, uniform, how)
    once = int(drawn.tokens.bincount(minlength=vocabulary).argmin())
    for ends in ([], [once], [1, 2, 5]):
        stops = torch.zeros(vocabulary, dtype=torch.bool)
        stops[ends] = True
        ended = int(stops[drawn.tokens].sum())
        assert end_sum(drawn, stops).item() == pytest.approx(rows + END * ended, abs=END / 100)
    for value in (math.nan, math.inf):
        broken = logits.clone()
        broken[5, 3] = value
        assert not math.isfinite(end_sum(draw(broken, uniform, how), torch.zeros(vocabulary).bool()).item())
