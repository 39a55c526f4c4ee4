"""Random batches in float64 for the laws: lengths, masks with holes, group sizes, log-ratios drawn anew per seed."""

from __future__ import annotations

import pytest

from groupwise.algorithms.laws.draws import Draw, draw


@pytest.fixture(params=range(5))
def batch(request: pytest.FixtureRequest) -> Draw:
    return draw(request.param)
