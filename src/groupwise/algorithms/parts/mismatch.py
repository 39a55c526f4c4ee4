"""Corrections for a sampler whose probabilities differ from the learner's: a weight a token, k = pi_old / pi_engine.

A correction carries no gradient, is never renormalised and multiplies the surrogate only: the trust region, the KL
and the aggregation weights do not see it. k stays within the bounds of every log-ratio. What is rejected besides is a
slot of its own (parts/rejection.py): the correction that trains is the product of both.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from groupwise.algorithms.parts import Part
from groupwise.algorithms.parts.ratio import bounded
from groupwise.core.masked import keep, real, row_sum


class Mismatch(Part, Protocol):
    """(logp_old [N,T], logp_engine [N,T], mask [N,T]) -> correction [N,T], no gradient, 1 where masked.

    reads_engine  whether logp_old and logp_engine are read
    varies        whether tokens of one completion may have different corrections
    """

    reads_engine: bool = True
    varies: bool = True

    def __call__(self, logp_old: Tensor, logp_engine: Tensor, mask: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class NoMismatch(Mismatch):
    """correction = 1: the sampler's probabilities count as the learner's."""

    equation = "c = 1"

    reads_engine = False
    varies = False

    def __call__(self, logp_old: Tensor, logp_engine: Tensor, mask: Tensor) -> Tensor:
        return torch.ones_like(logp_old)


@dataclass(frozen=True)
class TIS(Mismatch):
    """correction = min(k, cap), token by token. Source: truncated importance sampling, Yao et al. 2025.

    cap  the largest correction; above 0

    >>> old, engine = torch.tensor([[0.5, 0.9]]).log(), torch.tensor([[0.1, 0.6]]).log()
    >>> TIS(cap=2.0)(old, engine, torch.tensor([[True, True]]))
    tensor([[2.0000, 1.5000]])
    """

    equation = "c = min(k, cap),  k_t = pi_old(t) / pi_engine(t)"

    cap: float = 2.0

    def __post_init__(self) -> None:
        require_band(0.0, self.cap)

    def __call__(self, logp_old: Tensor, logp_engine: Tensor, mask: Tensor) -> Tensor:
        return self._capped(log_k(logp_old, logp_engine, mask), mask)

    def _capped(self, log_weight: Tensor, mask: Tensor) -> Tensor:
        k = bounded(log_weight).exp()
        return torch.where(mask, k.clamp(max=self.cap), torch.ones_like(k))


@dataclass(frozen=True)
class SequenceTIS(TIS):
    """correction = min(K, cap), K the product of k over the completion's trained tokens.

    One number a completion, so it goes with every ratio. Unbiased if no K reaches the cap; its variance grows with
    the length. Source: truncated importance sampling of whole sequences, Liu & Li 2025.

    >>> old, engine = torch.tensor([[0.5, 0.9]]).log(), torch.tensor([[0.4, 0.6]]).log()
    >>> SequenceTIS(cap=3.0)(old, engine, torch.tensor([[True, True]]))
    tensor([[1.8750, 1.8750]])
    """

    equation = "c = min(k_i, cap),  k_i = prod_t pi_old(t) / pi_engine(t)"

    varies = False

    def __call__(self, logp_old: Tensor, logp_engine: Tensor, mask: Tensor) -> Tensor:
        return self._capped(log_product(logp_old, logp_engine, mask), mask)


@dataclass(frozen=True)
class MIS(Mismatch):
    """correction = k where floor <= k <= cap, 0 elsewhere, token by token.

    A rejected token loses its gradient and keeps its place in the normaliser.

    cap    the largest k that counts; above 0
    floor  the smallest; from 0 to cap
    Source: masked importance sampling, Liu & Li 2025.

    >>> old, engine = torch.tensor([[0.5, 0.9]]).log(), torch.tensor([[0.1, 0.6]]).log()
    >>> MIS(cap=2.0)(old, engine, torch.tensor([[True, True]]))
    tensor([[0.0000, 1.5000]])
    """

    equation = "c = k where floor <= k <= cap, else 0;  k_t = pi_old(t) / pi_engine(t)"

    cap: float = 2.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        require_band(self.floor, self.cap)

    def __call__(self, logp_old: Tensor, logp_engine: Tensor, mask: Tensor) -> Tensor:
        return _within(log_k(logp_old, logp_engine, mask), self.floor, self.cap, mask)


@dataclass(frozen=True)
class SequenceMIS(MIS):
    """correction = K where floor <= K <= cap, 0 elsewhere, K the product of k over the completion's trained tokens.

    One number a completion, so it goes with every ratio. Source: masked importance sampling, Liu & Li 2025.
    """

    equation = "c = k_i where floor <= k_i <= cap, else 0;  k_i = prod_t pi_old(t) / pi_engine(t)"

    varies = False

    def __call__(self, logp_old: Tensor, logp_engine: Tensor, mask: Tensor) -> Tensor:
        return _within(log_product(logp_old, logp_engine, mask), self.floor, self.cap, mask)


@dataclass(frozen=True)
class IcePop(MIS):
    """MIS with both sides bounded: correction = k where floor <= k <= cap, 0 elsewhere, token by token.

    Source: IcePop, Ring-1T report, eq 1 to 3.
    """

    cap: float = 5.0
    floor: float = 0.5


def log_k(logp_old: Tensor, logp_engine: Tensor, mask: Tensor) -> Tensor:
    """log k [N,T] nats, 0 where masked, without gradient; the engine's column may have another precision."""
    old = keep(real(logp_old.detach()), mask)
    return old - keep(logp_engine.detach(), mask).to(old.dtype)


def log_product(logp_old: Tensor, logp_engine: Tensor, mask: Tensor) -> Tensor:
    """log K [N,T] nats, the sum of log k over the completion's trained tokens at each of its places."""
    return row_sum(log_k(logp_old, logp_engine, mask), mask)[:, None].expand(mask.shape)


def accepted(log_weight: Tensor, floor: float, cap: float, mask: Tensor) -> Tensor:
    """[N,T] 1 where floor <= exp(log_weight) <= cap, and where masked; else 0."""
    weight = bounded(log_weight).exp()
    return (((weight >= floor) & (weight <= cap)) | ~mask).to(weight.dtype)


def require_band(floor: float, cap: float) -> None:
    """Raise ValueError for bounds that nothing can lie between."""
    if cap <= 0:
        raise ValueError(f"cap = {cap}: must be above 0")
    if not 0 <= floor <= cap:
        raise ValueError(f"floor = {floor}: must be at least 0 and at most cap = {cap}")


def _within(log_weight: Tensor, floor: float, cap: float, mask: Tensor) -> Tensor:
    weight = torch.where(mask, bounded(log_weight).exp(), torch.ones_like(log_weight))
    return weight * accepted(log_weight, floor, cap, mask)
