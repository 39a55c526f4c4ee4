"""Ratio, trust region, KL and engine correction from the papers' equations, for a second reading of a loss.

None of this is made from the parts that train (algorithms/parts): a slip in one of them is not here as well. It is
plain and in float64; masked positions hold 0. Where a part is a user's own there is no second definition, and the part
itself is asked.

    z   log-ratio of live to old, nats      r = exp(z)      A advantage      k = pi_old / pi_engine
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.parts.divergence import BinaryKL, Quadratic, TotalVariation
from groupwise.algorithms.parts.kl import K1, K2, K3, K3Ratio, TopK
from groupwise.algorithms.parts.mismatch import MIS, TIS, IcePop, NoMismatch, SequenceMIS, SequenceTIS
from groupwise.algorithms.parts.off_policy import FutureKL, GammaWeight, OffPolicyMask, Tapered
from groupwise.algorithms.parts.ratio import SequenceRatio, SequenceSum, SequenceTokenRatio, TokenRatio, TurnRatio
from groupwise.algorithms.parts.rejection import GeometricBand, NoRejection, SequenceBand, TokenBand, Veto
from groupwise.algorithms.parts.trust import Cispo, Clip, Geometric, NoTrust, SoftGate
from groupwise.diagnostics.witness.plain.centering import CENTRES, centered

#: Nats beyond which a log-ratio is held, without gradient.
FARTHEST = 60.0


class Columns(NamedTuple):
    """Columns that a loss is made of, [N,T] each, of one optimizer batch; None where nothing reads it.

    correction  for the engine, where it is known; else it is made of `old` and `engine`
    divergence  of whole distributions, as it was recorded
    centre      subtracted from the log-likelihood of a trust region that centers it, as it was recorded
    """

    weight: Tensor
    live: Tensor
    old: Tensor
    advantage: Tensor
    mask: Tensor
    ref: Tensor | None = None
    engine: Tensor | None = None
    entropy: Tensor | None = None
    correction: Tensor | None = None
    likelihood: Tensor | None = None
    divergence: Tensor | None = None
    centre: Tensor | None = None

    def exact(self) -> "Columns":
        """Return the columns in float64, 0 where masked."""
        wide = (x if x is None or x is self.mask else x.double().masked_fill(~self.mask, 0.0) for x in self)
        return Columns(*wide)  # type: ignore[arg-type]


class Terms(NamedTuple):
    """The terms of a loss, [N,T] each; value = -(weight * (correction * surrogate - beta * kl + c * entropy)).sum()

    size  the sum of the terms' absolute values, on which rounding depends
    far   the log-ratio that the trust region reads: to the old policy, or to the sampler
    """

    value: Tensor
    size: Tensor
    log_ratio: Tensor
    share: Tensor
    correction: Tensor
    kl: Tensor | None
    far: Tensor


def loss_terms(row: Algorithm, given: Columns) -> Terms:
    """Compute a row's loss by its definition from columns, differentiable in `live`."""
    c = given.exact()
    z = log_ratio(row.ratio, c.live, c.old, c.mask)
    far = z
    if row.trust.sampler_top:
        assert c.engine is not None
        far = held(c.live - c.engine).masked_fill(~c.mask, 0.0)
    surrogate, share = trust(row.trust, far, c.advantage, c.live, c.mask)
    if row.trust.sampler_top and c.centre is not None:
        surrogate = surrogate - c.advantage * c.centre
    correct = correction(row, c.old, c.engine, c.mask) if c.correction is None else c.correction
    term = row.reinforced * correct * surrogate
    size = term.abs()
    kl = None
    if row.kl.beta > 0 and row.kl.place == "loss":
        kl = c.divergence if row.kl.divergence is not None else _estimate(row, c)
        assert kl is not None
        term, size = term - row.kl.beta * kl, size + row.kl.beta * (kl.abs() + 1)
    if row.entropy_coefficient:
        assert c.entropy is not None
        bonus = row.entropy_coefficient * c.entropy
        term, size = term + bonus, size + bonus.abs()
    value, total = -(c.weight * term).sum(), (c.weight.abs() * size).sum()
    if row.likelihood_coefficient:
        assert c.likelihood is not None
        right = (row.likelihood_coefficient * c.likelihood * c.live).sum()
        value, total = value - right, total + right.abs()
    return Terms(value, total, z, share, correct, kl, far)


def _estimate(row: Algorithm, c: Columns) -> Tensor:
    ref = c.old if row.kl.against == "old" else c.ref
    assert ref is not None
    return divergence(row.kl.estimator, c.live, ref, held(c.live - c.old)).masked_fill(~c.mask, 0.0)


def held(log_ratio: Tensor) -> Tensor:
    """Hold log-ratios within FARTHEST nats of 0."""
    return log_ratio.clamp(-FARTHEST, FARTHEST)


def log_ratio(part: Any, live: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """Compute z [N,T]; 0 where masked."""
    define = RATIOS.get(type(part))
    z = part(live, old, mask) if define is None else held(define(live, old, mask))
    return z.masked_fill(~mask, 0.0)


def trust(part: Any, z: Tensor, advantage: Tensor, live: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Compute surrogate and share [N,T]; 0 where masked."""
    define = TRUSTS.get(type(part))
    value, share = part(z, advantage, live, mask) if define is None else define(part, z, advantage, live, mask)
    return value.masked_fill(~mask, 0.0), share.masked_fill(~mask, 0.0)


def divergence(part: Any, live: Tensor, ref: Tensor, token_log_ratio: Tensor) -> Tensor:
    """Compute the estimate of KL(live || ref) [N,T], nats."""
    define = ESTIMATORS.get(type(part))
    return part(live, ref, token_log_ratio) if define is None else define(live, ref, token_log_ratio)


def distance(part: Any, log_p: Tensor, log_q: Tensor) -> Tensor:
    """Compute the divergence of distributions [..., ids], nats: b KL(q || m) + (1 - b) KL(p || m), m = b q + (1 - b) p;
    at b = 1 KL(p || q), at b = 0 KL(q || p). Of the likeliest ids, the others are one more, or nothing.
    """
    p, q, b = log_p.exp(), log_q.exp(), part.mixture
    if isinstance(part, TopK):
        inside = [x.sum(-1, keepdim=True) for x in (p, q)]
        pairs = zip((p, q), inside, strict=True)
        p, q = (torch.cat([x, (1 - s).clamp(min=1e-6)], -1) if part.tail else x / s for x, s in pairs)
    if b in (0, 1):
        return (p * (p / q).log() if b else q * (q / p).log()).sum(-1)
    m = b * q + (1 - b) * p
    return (b * q * (q / m).log() + (1 - b) * p * (p / m).log()).sum(-1)


def correction(row: Algorithm, old: Tensor, engine: Tensor | None, mask: Tensor) -> Tensor:
    """Compute how much each token counts for an engine that is not the learner [N,T], without gradient."""
    total = torch.ones_like(old)
    for part in (row.mismatch, row.rejection):
        if not part.reads_engine:
            continue
        assert engine is not None
        define = CORRECTIONS.get(type(part))
        log_k = (old - engine).detach().masked_fill(~mask, 0.0)
        factor = part(old, engine, mask) if define is None else define(part, log_k, mask)
        total = total * factor.double().masked_fill(~mask, 1.0)
    return total


def critic_loss(value: Tensor, old: Tensor, returns: Tensor, clip: float) -> Tensor:
    """Compute the larger of two squares: of the value, and of the value held within `clip` of what it was."""
    plain = (value - returns) ** 2
    if not clip:
        return plain / 2
    near = old + (value - old).clamp(-clip, clip)
    far = (near - returns) ** 2
    return torch.where(far > plain, far, plain) / 2


def means(x: Tensor, mask: Tensor) -> Tensor:
    """Spread each row's mean over its trained tokens [N,T]."""
    return (sums(x, mask) / mask.sum(1, keepdim=True).clamp(min=1)).expand(x.shape)


def sums(x: Tensor, mask: Tensor) -> Tensor:
    """Spread each row's sum over its trained tokens [N,T]."""
    return x.masked_fill(~mask, 0.0).sum(1, keepdim=True).expand(x.shape)


def _turn_means(x: Tensor, mask: Tensor) -> Tensor:
    """Spread the mean of each run of trained tokens over it, run by run."""
    turn, total = (mask & ~mask.roll(1, 1)).long(), torch.zeros_like(x)
    turn[:, 0] = mask[:, 0].long()
    number = turn.cumsum(1) * mask
    for k in range(1, int(number.max()) + 1 if number.numel() else 1):
        total = total + means(x, number == k).masked_fill(number != k, 0.0)
    return total


def _own_gradient(live: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """Give the sequence's mean in value and the token's own gradient (GSPO eq 14)."""
    mean = means(live - old, mask).detach()
    return mean + live - live.detach()


def _plain(part: NoTrust, z: Tensor, a: Tensor, live: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return z.exp() * a, torch.ones_like(z)


def _clip(part: Clip, z: Tensor, a: Tensor, live: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Give r A, held where r has gone beyond the side to which A pushes it (PPO; dual clip of 1912.09729)."""
    high, low = 1 + part.epsilon_high, 1 - part.epsilon_low
    r = z.exp()
    above, below = (a > 0) & (r > high), (a < 0) & (r < low)
    value = torch.where(above, high * a, torch.where(below, low * a, r * a))
    passes = ~above & ~below
    if part.dual_clip:
        far = (a < 0) & (r > part.dual_clip)
        value, passes = torch.where(far, part.dual_clip * a, value), passes & ~far
    return value, passes.double()


def _soft(part: SoftGate, z: Tensor, a: Tensor, live: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Give f(r) A, f = 4 / tau sigmoid(tau (r - 1)) (SAPO eq 5, 6); its share is 1 / cosh^2(tau (r - 1) / 2), eq 16."""
    tau = torch.full_like(z, part.tau_negative).masked_fill(a > 0, part.tau_positive)
    x = tau * (z.exp() - 1)
    value = 4 / tau * a / (1 + (-x).clamp(max=700.0).exp())
    return value, 1 / (x / 2).clamp(-300.0, 300.0).cosh() ** 2


def _cispo(part: Cispo, z: Tensor, a: Tensor, live: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Give sg[min(r, c)] A log pi (MiniMax-M1 eq 4)."""
    most = part.cap if part.cap else 1 + part.epsilon_high
    r = z.detach().exp()
    return torch.where(r > most, most, r) * a * live, torch.where(r > most, most / r, torch.ones_like(r))


def _geometric(part: Geometric, z: Tensor, a: Tensor, live: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Give the geometric mean of ratios that are held one by one, times A (GMPO)."""
    above, below = (a > 0) & (z > part.epsilon_high), (a < 0) & (z < -part.epsilon_low)
    kept = torch.where(above, part.epsilon_high, torch.where(below, -part.epsilon_low, z))
    kept = torch.where(a == 0, 0.0, kept)
    return means(kept, mask).exp() * a, (~above & ~below).double()


def _moved(p: Tensor, before: Tensor) -> Tensor:
    """Give the KL of two probabilities of one token against all others, before || now (DPPO)."""
    rest, rest_before = 1 - p + 1e-8, 1 - before + 1e-8
    return torch.xlogy(before, before / p) + (1 - before) * (rest_before / rest).log()


def _probabilities(z: Tensor, live: Tensor) -> tuple[Tensor, Tensor]:
    """Give the probability of the sampled token now and before; at most 1, whatever columns say."""
    now = live.detach().clamp(max=0)
    return now.exp(), (now - z.detach()).clamp(max=0).exp()


def _probability_mask(part: Any, z: Tensor, a: Tensor, live: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Give M sg[min(r, c)] A log pi, M by how far the token's probability has moved (DPPO)."""
    p, before = _probabilities(z, live)
    r = z.detach().exp()
    weight = torch.minimum(r, torch.full_like(r, part.cap)) if part.cap else r
    away = (p - before).abs() if isinstance(part, TotalVariation) else _moved(p, before)
    stopped = ((a > 0) & (p > before) & (away > part.delta_high)) | ((a < 0) & (p < before) & (away > part.delta_low))
    weight = torch.where(stopped, 0.0, weight)
    return weight * a * live, weight / r


def _quadratic(part: Quadratic, z: Tensor, a: Tensor, live: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Give r A - |A| p_old (r - 1)^2 / (2 epsilon) (DRPO)."""
    _, before = _probabilities(z, live)
    value = z.exp() * a - a.abs() * before * torch.expm1(z) ** 2 / (2 * part.epsilon)
    return value, (1 - torch.sign(a) * before * torch.expm1(z.detach()) / part.epsilon).clamp(0, 1)


def _likelihood(weight: Tensor, z: Tensor, a: Tensor, live: Tensor) -> tuple[Tensor, Tensor]:
    """Give w A log pi, and the part of r A that w is."""
    return weight * a * live, torch.minimum(weight / z.detach().exp(), torch.ones_like(weight))


def _tapered(part: Tapered, z: Tensor, a: Tensor, live: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Give sg[clip(r, low, high)] A log pi, bounds by the sign of A (TOPR eq 8)."""
    low = torch.full_like(z, part.low_negative).masked_fill(a > 0, part.low_positive)
    high = torch.full_like(z, part.high_negative).masked_fill(a > 0, part.high_positive)
    return _likelihood(torch.maximum(low, torch.minimum(high, z.detach().exp())), z, a, live)


def _gamma(part: GammaWeight, z: Tensor, a: Tensor, live: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Give sg[W^k exp(lambda (1 - W))] A log pi (VESPO)."""
    k = torch.full_like(z, part.k_negative).masked_fill(a >= 0, part.k_positive)
    rate = torch.full_like(z, part.lambda_negative).masked_fill(a >= 0, part.lambda_positive)
    w = z.detach().exp().clamp(1e-8, math.exp(20.0))
    return _likelihood(w**k * (rate * (1 - w)).exp(), z, a, live)


def _sequence_mask(part: OffPolicyMask, z: Tensor, a: Tensor, live: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Give the clip, 0 for worse tokens of a completion that the policy has left (DeepSeek-V3.2)."""
    value, passes = _clip(part, z, a, live, mask)
    stays = ~((a < 0) & (means(-z.detach(), mask) > part.delta))
    return torch.where(stays, value, 0.0), passes * stays


def _future(part: FutureKL, z: Tensor, a: Tensor, live: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Give the clip times clip(exp(sum_(k>=t) gamma^(k-t) log r_k), low, high) (FIPO)."""
    value, passes = _clip(part, z, a, live, mask)
    place = mask.long().cumsum(1)
    ahead = place[:, None, :] - place[:, :, None]
    discount = 0.5 ** (ahead.double() / part.half_life) * (ahead >= 0) * mask[:, None, :]
    f = held((discount * z.detach()[:, None, :]).sum(2)).exp()
    weight = torch.where((z > math.log(part.far)) & (a < 0), f.clamp(part.low_far, 1), f.clamp(part.low, part.high))
    return weight * value, (weight * passes).clamp(max=1)


def _inside(part: Any, log_weight: Tensor) -> Tensor:
    """Find where floor <= exp(log_weight) <= cap, 1 or 0."""
    weight = held(log_weight).exp()
    return ((weight >= part.floor) & (weight <= part.cap)).double()


def _capped(part: Any, log_weight: Tensor) -> Tensor:
    """Give exp(log_weight), at most the cap."""
    return held(log_weight).exp().clamp(max=part.cap)


def _banded(part: Any, log_weight: Tensor) -> Tensor:
    """Give exp(log_weight) from floor to cap, 0 elsewhere."""
    return held(log_weight).exp() * _inside(part, log_weight)


def _vetoed(part: Veto, log_k: Tensor, mask: Tensor) -> Tensor:
    """Give 0 for a row that has a k below floor, else 1."""
    return (held(log_k).amin(1, keepdim=True).exp() >= part.floor).double().expand(log_k.shape)


RATIOS: Mapping[type, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    TokenRatio: lambda live, old, mask: live - old,
    SequenceRatio: lambda live, old, mask: means(live - old, mask),
    SequenceSum: lambda live, old, mask: sums(live - old, mask),
    SequenceTokenRatio: _own_gradient,
    TurnRatio: lambda live, old, mask: _turn_means(live - old, mask),
}
TRUSTS: Mapping[type, Callable[..., tuple[Tensor, Tensor]]] = {
    NoTrust: _plain,
    Clip: _clip,
    SoftGate: _soft,
    Cispo: _cispo,
    Geometric: _geometric,
    TotalVariation: _probability_mask,
    BinaryKL: _probability_mask,
    Quadratic: _quadratic,
    Tapered: _tapered,
    GammaWeight: _gamma,
    OffPolicyMask: _sequence_mask,
    FutureKL: _future,
    **dict.fromkeys(CENTRES, centered),
}
ESTIMATORS: Mapping[type, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    K1: lambda live, ref, z: held(live - ref),
    K2: lambda live, ref, z: held(live - ref) ** 2 / 2,
    K3: lambda live, ref, z: torch.expm1(held(ref - live)) - held(ref - live),
    K3Ratio: lambda live, ref, z: z.exp() * (torch.expm1(held(ref - live)) - held(ref - live)),
}
CORRECTIONS: Mapping[type, Callable[[Any, Tensor, Tensor], Tensor]] = {
    NoMismatch: lambda part, log_k, mask: torch.ones_like(log_k),
    NoRejection: lambda part, log_k, mask: torch.ones_like(log_k),
    TIS: lambda part, log_k, mask: _capped(part, log_k),
    SequenceTIS: lambda part, log_k, mask: _capped(part, sums(log_k, mask)),
    MIS: lambda part, log_k, mask: _banded(part, log_k),
    IcePop: lambda part, log_k, mask: _banded(part, log_k),
    SequenceMIS: lambda part, log_k, mask: _banded(part, sums(log_k, mask)),
    TokenBand: lambda part, log_k, mask: _inside(part, log_k),
    SequenceBand: lambda part, log_k, mask: _inside(part, sums(log_k, mask)),
    GeometricBand: lambda part, log_k, mask: _inside(part, means(log_k, mask)),
    Veto: _vetoed,
}
