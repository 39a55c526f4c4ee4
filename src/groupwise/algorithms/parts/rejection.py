"""Rejection of tokens whose sampler is too far from the learner to train them, k = pi_old / pi_engine.

A rejection answers 1 or 0 and multiplies the correction of parts/mismatch.py: one says how much a token weighs, the
other whether it trains. A rejected token loses its gradient and keeps its place in the normaliser.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from groupwise.algorithms.parts.mismatch import Mismatch, accepted, log_k, log_product, require_band
from groupwise.core.masked import row_mean


class Rejection(Mismatch, Protocol):
    """(logp_old [N,T], logp_engine [N,T], mask [N,T]) -> accepted [N,T], 1 or 0, no gradient, 1 where masked.

    reads_engine  whether logp_old and logp_engine are read
    varies        whether it may take out some tokens of a completion and not others
    """


@dataclass(frozen=True)
class NoRejection(Rejection):
    """accepted = 1: every token trains."""

    equation = "a = 1"

    reads_engine = False
    varies = False

    def __call__(self, logp_old: Tensor, logp_engine: Tensor, mask: Tensor) -> Tensor:
        return torch.ones_like(logp_old)


@dataclass(frozen=True)
class TokenBand(Rejection):
    """accepted = 1 where floor <= k <= cap, token by token: with mismatch "tis" of the same cap it is "mis".

    cap    the largest k that trains; above 0
    floor  the smallest; from 0 to cap
    Source: masked importance sampling, Liu & Li 2025.

    >>> old, engine = torch.tensor([[0.5, 0.9]]).log(), torch.tensor([[0.1, 0.6]]).log()
    >>> TokenBand(floor=0.5, cap=2.0)(old, engine, torch.tensor([[True, True]]))
    tensor([[0., 1.]])
    """

    equation = "a = 1 where floor <= k <= cap, else 0,  k_t = pi_old(t) / pi_engine(t)"

    cap: float = 2.0
    floor: float = 0.5

    def __post_init__(self) -> None:
        require_band(self.floor, self.cap)

    def __call__(self, logp_old: Tensor, logp_engine: Tensor, mask: Tensor) -> Tensor:
        return accepted(log_k(logp_old, logp_engine, mask), self.floor, self.cap, mask)


@dataclass(frozen=True)
class SequenceBand(TokenBand):
    """accepted = 1 where floor <= K <= cap, K the product of k over the completion's trained tokens.

    Source: masked importance sampling, Liu & Li 2025.
    """

    equation = "a = 1 where floor <= k_i <= cap, else 0,  k_i = prod_t pi_old(t) / pi_engine(t)"

    varies = False

    def __call__(self, logp_old: Tensor, logp_engine: Tensor, mask: Tensor) -> Tensor:
        return accepted(log_product(logp_old, logp_engine, mask), self.floor, self.cap, mask)


@dataclass(frozen=True)
class GeometricBand(TokenBand):
    """accepted = 1 where floor <= K^(1/n) <= cap, the geometric mean of k over the completion's n trained tokens.

    A product's band lets fewer completions through the longer they are; the mean takes the length out, and leaves the
    noise of a mean of n numbers: of short completions a narrow band rejects most.

    Source: geometric rejection sampling, Liu & Li 2025; the bounds are those published with it.

    >>> old, engine = torch.tensor([[0.5, 0.6]]).log(), torch.tensor([[0.6, 0.5]]).log()
    >>> GeometricBand()(old, engine, torch.tensor([[True, True]]))
    tensor([[1., 1.]])
    """

    equation = "a = 1 where floor <= k_i <= cap, else 0,  k_i = (prod_t pi_old(t) / pi_engine(t))^(1 / |o_i|)"

    varies = False

    cap: float = 1.001
    floor: float = 0.999

    def __call__(self, logp_old: Tensor, logp_engine: Tensor, mask: Tensor) -> Tensor:
        mean = row_mean(log_k(logp_old, logp_engine, mask), mask)
        return accepted(mean[:, None].expand(mask.shape), self.floor, self.cap, mask)


@dataclass(frozen=True)
class Veto(Rejection):
    """accepted = 0 for a whole completion where any of its k is below floor: the learner all but excludes that token.

    floor  the smallest k that a completion may have; from 0 to 1
    Source: the veto of rollout corrections, Liu & Li 2025.

    >>> old, engine = torch.tensor([[1e-6, 0.9], [0.5, 0.9]]).log(), torch.tensor([[0.1, 0.6], [0.1, 0.6]]).log()
    >>> Veto()(old, engine, torch.ones(2, 2, dtype=torch.bool))
    tensor([[0., 0.],
            [1., 1.]])
    """

    equation = "a = 0 where min_t k_t < floor, else 1,  k_t = pi_old(t) / pi_engine(t)"

    varies = False

    floor: float = 1e-4

    def __post_init__(self) -> None:
        if not 0 <= self.floor <= 1:
            raise ValueError(f"floor = {self.floor}: must be from 0 to 1")

    def __call__(self, logp_old: Tensor, logp_engine: Tensor, mask: Tensor) -> Tensor:
        by_token = accepted(log_k(logp_old, logp_engine, mask), self.floor, math.inf, mask)
        return by_token.amin(-1, keepdim=True).expand(mask.shape).where(mask, torch.ones_like(by_token))
