"""Columns of the sampler, for laws that hold of every row of the catalog."""

from __future__ import annotations

from torch import Tensor

import groupwise


def of_sampler(algo: groupwise.Algorithm, engine: Tensor) -> dict[str, Tensor]:
    """What a row that centers tokens reads besides [N,T]: where the sampler is the policy, nothing is subtracted."""
    return {"logp_engine": engine, "centre": engine * 0} if algo.trust.sampler_top else {}
