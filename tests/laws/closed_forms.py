"""The papers' equations in plain loops over completions and tokens, written without looking at the package.

A `Form` maps one completion's log-ratios x, advantages a and log-probabilities l (trained tokens only) to one `Token`
each: the surrogate's value, its derivative with respect to that token's log-probability divided by the token's weight
(the coefficients of the papers' gradient equations, never autograd), the share of gradient that passes, the log-ratio.
`loss` adds them up with a weight for each completion's tokens and a KL estimator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class Token(NamedTuple):
    value: float
    coefficient: float
    share: float
    log_ratio: float


Form = Callable[[list[float], list[float], list[float]], list[Token]]
Weights = Callable[[list[int]], list[float]]  # trained tokens of each completion -> weight of one of its tokens
Penalty = Callable[[float, float, float], tuple[float, float]]  # live, ref, old -> KL estimate, its derivative in live
Correction = Callable[[list[float]], list[float]]  # old - engine of one completion -> factor of each token


def sign(a: float) -> int:
    return (a > 0) - (a < 0)


def clip_token(x: float, a: float, low: float, high: float, dual: float = math.inf) -> Token:
    """min(r A, clip(r, 1-low, 1+high) A), from below by dual * A where A < 0; the gradient is r A or nothing."""
    r = math.exp(x)
    clipped = (a > 0 and r > 1 + high) or (a < 0 and (r < 1 - low or r > dual))
    value = min(r * a, min(max(r, 1 - low), 1 + high) * a)
    if a < 0 and dual < math.inf:
        value = max(value, dual * a)
    return Token(value, 0.0 if clipped else r * a, 0.0 if clipped else 1.0, x)


def free_token(x: float, a: float) -> Token:
    return Token(math.exp(x) * a, math.exp(x) * a, 1.0, x)


def sapo_token(x: float, a: float, positive: float = 1.0, negative: float = 1.05) -> Token:
    """f = 4/tau sigma(tau (r-1)); coefficient r A 4 p (1-p)."""
    tau = positive if a > 0 else negative
    z = tau * (math.exp(x) - 1)
    p, q = sigmoid(z), sigmoid(-z)
    return Token(4 / tau * p * a, math.exp(x) * a * 4 * p * q, 4 * p * q, x)


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z)) if z >= 0 else (math.exp(z) if z > -700 else 0.0) / (1 + math.exp(max(z, -700)))


def clip(low: float, high: float, dual: float = math.inf) -> Form:
    return lambda x, a, _: [clip_token(xt, at, low, high, dual) for xt, at in zip(x, a, strict=True)]


def free(x: list[float], a: list[float], _: list[float]) -> list[Token]:
    return [free_token(xt, at) for xt, at in zip(x, a, strict=True)]


def soft(x: list[float], a: list[float], _: list[float]) -> list[Token]:
    return [sapo_token(xt, at) for xt, at in zip(x, a, strict=True)]


def product(x: list[float], a: list[float], _: list[float]) -> list[Token]:
    """r = exp(sum x). One r A a completion; every token moves the whole of it, hence |o| times under 1/(N |o|)."""
    one = [free_token(math.fsum(x), at) for at in a]
    return [t._replace(coefficient=len(x) * t.coefficient) for t in one]


def geometric_ratio(low: float, high: float) -> Form:
    """GSPO (eq 5, 7, 10) and GSPO-token (eq 13, 14, 17): s_i = exp(mean x), clipped by the sign of each token's A."""
    return lambda x, a, _: [clip_token(math.fsum(x) / len(x), at, low, high) for at in a]


def cispo(cap: float) -> Form:
    """sg[min(r, cap)] A log pi."""

    def tokens(x: list[float], a: list[float], logp: list[float]) -> list[Token]:
        capped = [min(math.exp(xt), cap) for xt in x]
        rows = zip(x, a, logp, capped, strict=True)
        return [Token(c * at * lt, c * at, min(1.0, cap / math.exp(xt)), xt) for xt, at, lt, c in rows]

    return tokens


def gmpo(low: float, high: float) -> Form:
    """(prod |min(r A, clip(r, e^-low, e^high) A)|)^(1/|o|) sgn(A): A times the mean of sign-clipped ratios."""

    def tokens(x: list[float], a: list[float], _: list[float]) -> list[Token]:
        kept = [min(xt, high) if at > 0 else max(xt, -low) if at < 0 else xt for xt, at in zip(x, a, strict=True)]
        mean = math.exp(math.fsum(kept) / len(kept))
        same = [float(k == xt) for k, xt in zip(kept, x, strict=True)]
        return [Token(mean * at, mean * at * s, s, xt) for xt, at, s in zip(x, a, same, strict=True)]

    return tokens


def binary_kl(old: float, new: float) -> float:
    """KL(old || new) of one token against all others, 1e-8 beside the others' probabilities."""
    others = (1 - old) * math.log((1 - old + 1e-8) / (1 - new + 1e-8))
    return others + (old * (math.log(old) - math.log(new)) if old > 0 else 0.0)


def dppo(low: float, high: float, cap: float, distance: Callable[[float, float], float]) -> Form:
    """sg[min(r, cap)] A log pi where p has not moved with A by more than the distance allows, else 0."""

    def tokens(x: list[float], a: list[float], logp: list[float]) -> list[Token]:
        out = []
        for xt, at, lt in zip(x, a, logp, strict=True):
            new, old, r = math.exp(min(lt, 0.0)), math.exp(min(min(lt, 0.0) - xt, 0.0)), math.exp(xt)
            stopped = (at > 0 and new > old and distance(old, new) > high) or (
                at < 0 and new < old and distance(old, new) > low
            )
            w = 0.0 if stopped else min(r, cap)
            out.append(Token(w * at * lt, w * at, w / r, xt))
        return out

    return tokens


def drpo(epsilon: float) -> Form:
    """r A - |A| p_old (r - 1)^2 / (2 epsilon); coefficient r A (1 - sgn(A) p_old (r - 1) / epsilon)."""

    def tokens(x: list[float], a: list[float], logp: list[float]) -> list[Token]:
        out = []
        for xt, at, lt in zip(x, a, logp, strict=True):
            r, old = math.exp(xt), math.exp(min(min(lt, 0.0) - xt, 0.0))
            share = 1 - sign(at) * old * math.expm1(xt) / epsilon
            value = r * at - abs(at) * old * math.expm1(xt) ** 2 / (2 * epsilon)
            out.append(Token(value, r * at * share, min(1.0, max(0.0, share)), xt))
        return out

    return tokens


def likelihood(weight: Callable[[float, float], float], whole: bool) -> Form:
    """sg[w(log r, A)] A log pi, r of the token or, whole, of its completion."""

    def tokens(x: list[float], a: list[float], logp: list[float]) -> list[Token]:
        far = [math.fsum(x)] * len(x) if whole else x
        rows = [(weight(xt, at), xt, at, lt) for xt, at, lt in zip(far, a, logp, strict=True)]
        return [Token(w * at * lt, w * at, min(1.0, w / math.exp(xt)), xt) for w, xt, at, lt in rows]

    return tokens


def topr(x: float, a: float) -> float:
    return 1.0 if a > 0 else min(math.exp(x), 1.0)


def vespo(x: float, a: float) -> float:
    k, rate = (2.0, 3.0) if a >= 0 else (3.0, 2.0)
    w = min(max(math.exp(x), 1e-8), math.exp(20.0))
    return math.exp(rate + k * math.log(w) - rate * w)


def masked_completion(form: Form, delta: float) -> Form:
    """0 for worse tokens of a completion with -mean x > delta."""

    def tokens(x: list[float], a: list[float], logp: list[float]) -> list[Token]:
        left = -math.fsum(x) / len(x) > delta
        rows = zip(form(x, a, logp), a, strict=True)
        return [t._replace(value=0.0, coefficient=0.0, share=0.0) if left and at < 0 else t for t, at in rows]

    return tokens


def fipo(form: Form) -> Form:
    """w_t times a form, w_t = clip(exp(sum_(k>=t) 2^(-(k-t)/32) x_k), 1, 1.2), or 0.8 to 1 where A < 0 and r > 4."""

    def tokens(x: list[float], a: list[float], logp: list[float]) -> list[Token]:
        out = []
        for t, (token, xt, at) in enumerate(zip(form(x, a, logp), x, a, strict=True)):
            f = math.fsum(2 ** (-(k - t) / 32) * x[k] for k in range(t, len(x)))
            low, high = (0.8, 1.0) if at < 0 and math.exp(xt) > 4 else (1.0, 1.2)
            w = min(max(math.exp(min(max(f, -60.0), 60.0)), low), high)
            out.append(Token(w * token.value, w * token.coefficient, min(1.0, w * token.share), xt))
        return out

    return tokens


def sequence_mean(lengths: list[int]) -> list[float]:
    votes = sum(n > 0 for n in lengths)
    return [1 / (votes * n) if n else 0.0 for n in lengths]


def token_mean(lengths: list[int]) -> list[float]:
    return [1 / sum(lengths) for _ in lengths]


def constant(limit: int) -> Weights:
    return lambda lengths: [1 / (sum(n > 0 for n in lengths) * limit) for _ in lengths]


def k1(live: float, ref: float, old: float) -> tuple[float, float]:
    return live - ref, 1.0


def k2(live: float, ref: float, old: float) -> tuple[float, float]:
    return (live - ref) ** 2 / 2, live - ref


def k3(live: float, ref: float, old: float) -> tuple[float, float]:
    return math.expm1(ref - live) - (ref - live), -math.expm1(ref - live)


def k3_ratio(live: float, ref: float, old: float) -> tuple[float, float]:
    """r k3; d/dlive = r k3 + r (1 - ref/live) = r (live - ref): the KL's own gradient under samples from old."""
    return math.exp(live - old) * k3(live, ref, old)[0], math.exp(live - old) * (live - ref)


def tis(m: list[float]) -> list[float]:
    return [min(math.exp(x), 2.0) for x in m]


def mis(m: list[float]) -> list[float]:
    return [math.exp(x) if math.exp(x) <= 2.0 else 0.0 for x in m]


def sequence_mis(m: list[float]) -> list[float]:
    k = math.exp(math.fsum(m))
    return [k if k <= 2.0 else 0.0 for _ in m]


def icepop(m: list[float]) -> list[float]:
    return [math.exp(x) if 0.5 <= math.exp(x) <= 5.0 else 0.0 for x in m]


class Loss(NamedTuple):
    """What the closed form says; gradient, share, log_ratio and kl as [N][T] lists, 0 where masked."""

    value: float
    size: float  # sum of the absolute terms: what rounding is relative to
    gradient: list[list[float]]
    share: list[list[float]]
    log_ratio: list[list[float]]
    kl: list[list[float]]


def loss(
    form: Form,
    weights: Weights,
    live: Tensor,
    old: Tensor,
    advantage: Tensor,
    mask: Tensor,
    penalty: tuple[float, Penalty] | None = None,
    ref: Tensor | None = None,
    correction: Correction | None = None,
    engine: Tensor | None = None,
) -> Loss:
    """-sum_i w_i sum_t (correction surrogate - beta kl); advantage [N] or [N,T]. Masked positions are never read."""
    n, width = mask.shape
    out = Loss(0.0, 0.0, *([[0.0] * width for _ in range(n)] for _ in range(4)))
    terms: list[float] = []
    for i, w in enumerate(weights(mask.sum(-1).tolist())):
        at = mask[i].nonzero()[:, 0].tolist()
        if not at:
            continue
        a = advantage[i, at].tolist() if advantage.dim() == 2 else [advantage[i].item()] * len(at)
        factor = [1.0] * len(at)
        if correction is not None and engine is not None:
            factor = correction((old - engine)[i, at].tolist())
        tokens = form((live - old)[i, at].tolist(), a, live[i, at].tolist())
        for t, token, c in zip(at, tokens, factor, strict=True):
            terms.append(-w * c * token.value)
            out.gradient[i][t] = -w * c * token.coefficient
            out.share[i][t], out.log_ratio[i][t] = token.share, token.log_ratio
            if penalty is not None and ref is not None:
                beta, estimator = penalty
                out.kl[i][t], slope = estimator(live[i, t].item(), ref[i, t].item(), old[i, t].item())
                terms.append(w * beta * out.kl[i][t])
                out.gradient[i][t] += w * beta * slope
    return out._replace(value=math.fsum(terms), size=math.fsum(map(abs, terms)))


def sample_deviation(values: list[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def zscore(values: list[float]) -> list[float]:
    mean, deviation = math.fsum(values) / len(values), sample_deviation(values)
    return [(v - mean) / (deviation + 1e-6) for v in values]


def centred(values: list[float]) -> list[float]:
    return [v - math.fsum(values) / len(values) for v in values]


def leave_one_out(values: list[float]) -> list[float]:
    return [v - (math.fsum(values) - v) / (len(values) - 1) for v in values]


def whitened(values: list[float]) -> list[float]:
    mean, variance = math.fsum(values) / len(values), sample_deviation(values) ** 2
    return [(v - mean) / math.sqrt(variance + 1e-8) for v in values]


def by_group(rule: Callable[[list[float]], list[float]], rewards: list[float], groups: list[int]) -> list[float]:
    """The rule over the votes of each group: NaN does not vote; under two votes, or a range within 1e-6, all are 0."""
    out = [0.0] * len(rewards)
    for group in set(groups):
        votes = [i for i, g in enumerate(groups) if g == group and not math.isnan(rewards[i])]
        values = [rewards[i] for i in votes]
        if len(votes) > 1 and max(values) - min(values) > 1e-6:
            for i, a in zip(votes, rule(values), strict=True):
                out[i] = a
    return out
