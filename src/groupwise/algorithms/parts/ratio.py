"""Log-ratio between the policy being trained and the policy that is held fixed while training on a batch."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from groupwise.algorithms.parts import Part
from groupwise.core.masked import begins, by_run, keep, real, row_mean, row_sum

#: Beyond this a log-ratio is clamped and has no gradient: exp(60) is still finite in float32.
LOG_RATIO_LIMIT = 60.0


class Ratio(Part, Protocol):
    """(logp_live [N,T], logp_old [N,T], mask [N,T]) -> log_ratio [N,T]; sequence ratios are broadcast.

    per_completion  whether all tokens of a completion share one number, gradient included
    per_turn        whether those of a turn do, each run of trained tokens being one
    """

    per_completion: bool = False
    per_turn: bool = False

    def __call__(self, logp_live: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class TokenRatio(Ratio):
    """log r_it = logp_live - logp_old, token by token. Source: PPO (1707.06347), DeepSeekMath (2402.03300) eq 3.

    >>> import torch
    >>> TokenRatio()(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -2.0]]), torch.tensor([[True, True]]))
    tensor([[0.5000, 0.0000]])
    """

    equation = "log r_t = log pi_live(t) - log pi_old(t)"

    def __call__(self, logp_live: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor:
        return bounded(_difference(logp_live, logp_old, mask))


@dataclass(frozen=True)
class SequenceRatio(Ratio):
    """log s_i = mean over the completion's trained tokens of log r_it, the same for each of them.

    s_i is the geometric mean of the token ratios: a power 1/|o_i| of the sequence's probability ratio, not that ratio.
    Source: GSPO (2507.18071) eq 7.

    >>> import torch
    >>> SequenceRatio()(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -2.0]]), torch.tensor([[True, True]]))
    tensor([[0.2500, 0.2500]])
    """

    equation = "log s_i = mean_t log r_t"
    per_completion = True

    def __call__(self, logp_live: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor:
        return _broadcast(bounded(row_mean(_difference(logp_live, logp_old, mask), mask)), mask)


@dataclass(frozen=True)
class SequenceTokenRatio(Ratio):
    """log s_it = sg[log s_i] + logp_live - sg[logp_live]: the sequence's value, the gradient of the own token.

    Equal to the sequence ratio in value, clipping and gradient where a completion has one advantage; it takes
    advantages and corrections per token where that one does not. Source: GSPO (2507.18071) eq 14.
    """

    equation = "log s_t = sg[mean_t log r_t] + log pi_live(t) - sg[log pi_live(t)]"

    def __call__(self, logp_live: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor:
        live = keep(real(logp_live), mask)
        mean = row_mean(_difference(logp_live, logp_old, mask), mask)
        return bounded(_broadcast(mean.detach(), mask) + (live - live.detach()))


@dataclass(frozen=True)
class SequenceSum(Ratio):
    """log r_i = sum over the completion's trained tokens of log r_it, the same for each of them.

    r_i is the probability ratio of the whole completion, so at ratio 1 the gradient of each token is |o_i| times that
    of the token ratio: under a mean over sequences it is A_i / N. Source: RLOO (2402.14740).

    >>> import torch
    >>> SequenceSum()(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -2.5]]), torch.tensor([[True, True]]))
    tensor([[1., 1.]])
    """

    equation = "log r_i = sum_t log r_t"
    per_completion = True

    def __call__(self, logp_live: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor:
        return _broadcast(bounded(row_sum(_difference(logp_live, logp_old, mask), mask)), mask)


@dataclass(frozen=True)
class TurnRatio(Ratio):
    """log s_k = mean over the trained tokens of turn k of log r_it, the same for each of them.

    A turn is a run of trained tokens: between two of them an environment spoke. With one turn it is the sequence ratio;
    with several, what one turn's tokens have become does not clip the others'. Source: GSPO (2507.18071) eq 7, by turn.

    >>> import torch
    >>> mask = torch.tensor([[True, True, False, True]])
    >>> TurnRatio()(torch.tensor([[-1.0, -2.0, 9.0, -3.0]]), torch.tensor([[-1.5, -2.0, 9.0, -2.0]]), mask)
    tensor([[ 0.2500,  0.2500,  0.0000, -1.0000]])
    """

    equation = "log s_k = mean of log r_t over the tokens of turn k"
    per_turn = True

    def __call__(self, logp_live: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor:
        difference = _difference(logp_live, logp_old, mask)
        total = by_run(difference, mask, mask)
        tokens = by_run(torch.ones_like(difference), mask, mask).clamp(min=1)
        return keep(bounded(total / tokens).gather(1, begins(mask).cumsum(-1)), mask)


def bounded(log_ratio: Tensor) -> Tensor:
    """Clamp a log-ratio beyond the limit, with zero gradient there. Same shape, nats."""
    return real(log_ratio).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def _difference(logp_live: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor:
    return keep(real(logp_live), mask) - keep(real(logp_old), mask)


def _broadcast(per_row: Tensor, mask: Tensor) -> Tensor:
    """[N] -> [N,T] over the trained tokens, 0 elsewhere."""
    return keep(per_row[:, None].expand(mask.shape), mask)
