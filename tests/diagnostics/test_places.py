"""The gap between engine and learner by place: ranges are a partition, noise passes them, a late fault does not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from groupwise.core.numbers.metrics import Mean, read
from groupwise.diagnostics.checks import learner_equals_engine
from groupwise.diagnostics.places import PlacedGap
from groupwise.diagnostics.tolerance import NumericalNoise, Tolerance
from groupwise.diagnostics.updates import engine_gap
from groupwise.health.watch import Watch

ROUNDING = NumericalNoise(mean=0.004, spread=0.008)
ROWS, PROMPT, LONGEST = 24, 9, 700


def batch(seed: int, spread: float = ROUNDING.mean, late: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of learner and engine and the mask, [N,T]; few rows are long, and have larger gaps there."""
    chance = torch.Generator().manual_seed(seed)
    lengths = (20 * (LONGEST / 20) ** torch.rand(ROWS, 1, generator=chance) ** 2).long()
    place = torch.arange(PROMPT + LONGEST) - PROMPT
    mask = (place >= 0) & (place < lengths)
    engine = -torch.rand(mask.shape, generator=chance, dtype=torch.float64)
    # Half of the tokens are nearly certain and round little, as those of a policy do.
    noise = torch.randn(mask.shape, generator=chance, dtype=torch.float64) * spread / 0.4
    noise = noise * (torch.rand(mask.shape, generator=chance) < 0.5)
    return engine + noise * torch.where(place >= 256, late, 1.0), engine, mask


def metrics(learner: Tensor, engine: Tensor, mask: Tensor, rounding: NumericalNoise | None) -> dict[str, float]:
    return read(PlacedGap.of(learner, engine, mask, mask).metrics(rounding))


def test_ranges_of_each_kind_are_a_partition_of_the_compared_tokens() -> None:
    learner, engine, mask = batch(0)
    mask[:, PROMPT + 30 : PROMPT + 33] = mask[:, PROMPT + 90 : PROMPT + 91] = False  # an environment spoke twice
    compared = mask & (torch.arange(ROWS) % 5 > 0)[:, None]
    whole = engine_gap(learner, engine, compared)["engine_gap_mean"]
    placed = PlacedGap.of(learner, engine, mask, compared).metrics(None)
    for kind, begins in (("token", [0, 64, 128, 256]), ("turn", [1, 2])):
        ranges = {name: value for name, value in placed.items() if name.startswith(f"engine_gap_from_{kind}.")}
        assert [int(name.rpartition(".")[2]) for name in ranges] == begins
        means = [value for value in ranges.values() if isinstance(value, Mean)]
        assert isinstance(whole, Mean)
        assert sum(mean.weight for mean in means) == whole.weight == int(compared.sum())
        assert sum(mean.sum for mean in means) == pytest.approx(whole.sum, rel=1e-12)
        judged = metrics(learner, engine, mask & compared, ROUNDING)
        for begin, mean in zip(begins, means, strict=True):
            limit = ROUNDING.limit(int(mean.weight))
            of_limit = judged[f"engine_gap_of_limit_from_{kind}.{begin}"]
            assert of_limit == pytest.approx(mean.read() / limit, rel=1e-12), "each range has the limit of its tokens"


def test_a_token_is_in_the_range_of_its_own_place() -> None:
    mask = torch.ones(1, 300, dtype=torch.bool)
    mask[0, :5] = mask[0, 70:72] = mask[0, 80:81] = False  # a prompt, and an environment that spoke twice
    for at, token, turn in (
        (5, 0, 1),
        (68, 0, 1),
        (69, 64, 1),
        (72, 64, 2),
        (132, 64, 2),
        (133, 128, 2),
        (299, 256, 2),
    ):
        learner = torch.zeros(1, 300).index_fill(1, torch.tensor(at), -1.0)
        placed = metrics(learner, torch.zeros(1, 300), mask, None)
        hit = {name for name, value in placed.items() if value and "of_limit" not in name}
        assert hit == {f"engine_gap_from_token.{token}", f"engine_gap_from_turn.{turn}"}, at


def test_one_range_alone_says_nothing_that_the_mean_does_not() -> None:
    one = torch.zeros(4, 60)
    assert metrics(one, one, torch.ones(4, 60, dtype=torch.bool), None) == {}


@pytest.mark.parametrize(("rounding", "spread"), [(ROUNDING, ROUNDING.mean), (None, 2e-6)])
@pytest.mark.parametrize("steps", [40, pytest.param(2000, marks=pytest.mark.slow)])
def test_rounding_raises_nothing(rounding: NumericalNoise | None, spread: float, steps: int) -> None:
    watch, said = Watch(), []
    for step in range(1, steps + 1):
        said += watch({"step": step, **metrics(*batch(step, spread), rounding)})
    assert [finding.words for finding in said] == []


def test_a_late_fault_that_the_mean_over_all_tokens_lets_pass_is_found() -> None:
    watch, told = Watch(), []
    for step in (1, 2):
        learner, engine, mask = batch(step, late=4.0)
        size, *_ = learner_equals_engine(learner, engine, mask, Tolerance(engine=ROUNDING))
        assert not size.failed
        assert not watch({"step": step, "engine_gap_mean": size.value}), "nothing else says it"
        told += watch({"step": step, **metrics(learner, engine, mask, ROUNDING)})
    assert [finding.name for finding in told] == ["engine gap grows"]
