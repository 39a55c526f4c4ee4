"""Log-probabilities, values, losses by definition and their gradients, by plain forwards and plain autograd."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from groupwise.algorithms.algorithm import Algorithm
from groupwise.core.records import Batch
from groupwise.diagnostics.tolerance import SIGMAS, NumericalNoise
from groupwise.diagnostics.witness.plain.centering import centre_of
from groupwise.diagnostics.witness.plain.definitions import Columns, critic_loss, loss_terms
from groupwise.diagnostics.witness.plain.forward import Answer, Plain, budget, chunks, values
from groupwise.models.forward.adjustment import Adjustment
from groupwise.models.forward.forwards import can_recompute, recomputed
from groupwise.models.forward.heads import halves
from groupwise.models.on_host import on_device

#: Trained weights up to which all of a model's gradients are read; of a larger one those of a few parameters.
FEW_WEIGHTS, LARGEST = 1 << 21, 1 << 24

#: Of a probability or a value, in float32 after some layers; and of a log-probability, nats (docs/concepts/checks.md).
ROUNDING, DRIFT = 1e-6, 5e-5
#: Times that rounding in 16 bits is drawn.
DRAWS = 8


class ReadLearner(Protocol):
    """Learner, as far as its models are read."""

    model: Any
    reference: Any
    temperature: float
    adjustment: Adjustment
    routers: Any
    routing: Any
    mesh: Any
    device: torch.device
    bf16: bool
    packs: bool
    recompute: bool
    optimizer: Any
    tokens_per_microbatch: int

    def gradients(self, minibatch: Batch, algorithm: Algorithm) -> tuple[float, Any]: ...


class ReadCritic(Protocol):
    """Critic, as far as its model is read."""

    model: Any
    mesh: Any
    device: torch.device
    bf16: bool
    clip: float
    optimizer: Any


@dataclass
class Found:
    """Findings of a plain reading of a minibatch.

    rows       of the minibatch that were read, with their weights of the whole minibatch
    whole      whether they are all that have a weight
    loss       by definition; the routers' own losses included
    names      of the parameters that are watched in the update
    gradients  of those parameters; empty if there is none to compare
    noise      of those gradients, the part that rounding may have made of them
    slack      of the loss, what rounding in 16 bits may have made of it
    """

    rows: Batch
    whole: bool
    answer: Answer
    loss: float = 0.0
    names: tuple[str, ...] = ()
    gradients: dict[str, Tensor] = field(default_factory=dict)
    noise: float = 0.0
    slack: float = 0.0


def read_policy(
    plain: Plain,
    rows: Batch,
    whole: bool,
    row: Algorithm,
    learner: ReadLearner,
    trains: bool,
    gradient: bool,
    old_from_engine: bool = False,
    rounding: NumericalNoise | None = None,
) -> Found:
    """Read rows of a weighted minibatch: log-probabilities, and, if it trains, loss and gradients of some weights.

    rounding  of the learner's passes in 16 bits
    """
    merged = not learner.mesh.alone and getattr(learner, "adapters", None) is not None
    watched = watched_parameters(plain.model, plain.routers) if trains and not merged else {}
    for parameter in watched.values() if not learner.mesh.alone else ():
        parameter.requires_grad_()
    if not watched or not gradient:
        with torch.no_grad():
            return Found(rows, whole, read_rows(plain, rows, learner), names=tuple(watched))
    slopes = {name: torch.zeros_like(parameter) for name, parameter in watched.items()}
    total, losses = 0.0, learner.routing.losses if whole else {}
    tokens = int((rows.length - 1).sum())
    shares = _shares(rows, plain.routers) if "balance_loss" in losses else []

    def each(part: Batch, answer: Answer) -> None:
        nonlocal total
        value = loss_terms(row, _columns(row, part, answer, old_from_engine)).value
        for name, (coefficient, _) in losses.items():
            value = value + coefficient * _router_loss(name, answer.logits, shares, tokens)
        total += float(value.detach())
        if value.requires_grad:
            found = torch.autograd.grad(value, list(watched.values()), allow_unused=True)
            for slope, one in zip(slopes.values(), found, strict=True):
                if one is not None:
                    slope += one

    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        answer = read_rows(plain, rows, learner, each, bool(losses))
    drift = rounding.limit(int(rows.mask.sum())) if rounding else 0.0
    kl = row.kl.beta * float((rows.need("weight") * rows.mask).sum()) if row.kl.in_loss else 0.0
    noise, slack = noise_of(row, rows, answer, max(DRIFT, drift)), drift * kl
    if rounding:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):  # a user's own part may draw
            undecided, spread = of_rounding(row, rows, _columns(row, rows, answer, old_from_engine), rounding)
        noise, slack = noise + undecided, slack + SIGMAS * spread
    return Found(rows, whole, answer, total, tuple(slopes), slopes, noise, slack)


def noise_of(row: Algorithm, rows: Batch, answer: Answer, off: float = DRIFT) -> float:
    """Estimate what part of a policy's gradient rounding may be: much, if all that trains is a KL of almost 0, or if
    every token is almost certain, so that its gradient is a difference of two numbers near 1.

    off  nats, by which rounding moves a log-probability
    """
    mask, weight = rows.mask, rows.need("weight").double()
    open_ = (1 - answer.logp.exp()).clamp(min=0)
    pushed = row.reinforced * weight * rows.need("advantage").double().abs()
    if rows.likelihood is not None:
        pushed = pushed + row.likelihood_coefficient * rows.likelihood
    signal, rounding = pushed * open_, ROUNDING * pushed
    if row.kl.in_loss:
        drift = weight * row.kl.beta * (answer.logp - rows.need("logp_ref").double()).abs()
        signal, rounding = signal + drift * open_, rounding + off * row.kl.beta * weight
    signal = signal + abs(row.entropy_coefficient) * weight * answer.entropy
    total = float(signal[mask].sum())
    return float(rounding[mask].sum()) / total if total else math.inf


def of_rounding(row: Algorithm, rows: Batch, columns: Columns, rounding: NumericalNoise) -> tuple[float, float]:
    """Draw what rounding of two passes makes of log-probabilities -> the part of a policy's gradient that the trust
    region stops or passes by it alone, and the standard deviation of the loss.

    rows, columns  of N completions of at most T tokens, [N,T] each; rounding is in nats

    GSPO's clip lies at 3e-4, nearer to 1 than rounding in 16 bits; and far from its reference a KL is as steep as it is
    large.
    """
    exact, numbers = loss_terms(row, columns), torch.Generator().manual_seed(0)
    pushed = row.reinforced * rows.need("weight").double() * rows.need("advantage").double().abs()
    signal = (pushed * (1 - columns.live.exp()).clamp(min=0)).masked_fill(~rows.mask, 0.0)
    size, moved, turned = math.hypot(rounding.mean, rounding.spread), 0.0, 0.0
    for _ in range(DRAWS):
        of_live, of_ref = size * torch.randn(2, *columns.live.shape, dtype=torch.float64, generator=numbers)
        ref = None if columns.ref is None else columns.ref + of_ref
        terms = loss_terms(row, columns._replace(live=columns.live + of_live, ref=ref))
        moved += float((terms.value - exact.value).square()) / DRAWS
        turned += float((signal * (terms.share - exact.share).abs()).sum()) / DRAWS
    total = float(signal.sum())
    return turned / total if total else 0.0, moved**0.5


def read_rows(
    plain: Plain,
    rows: Batch,
    learner: ReadLearner,
    each: Callable[[Batch, Answer], None] = lambda part, answer: None,
    router_losses: bool = False,
) -> Answer:
    """Read rows chunk by chunk, `each` of which is given its rows and the answer -> the answers, without gradient."""
    logp, entropy = torch.zeros(2, *rows.mask.shape, dtype=torch.float64)
    routes: list[Any] = [None] * len(rows)
    backbone, most = halves(plain.model)[0], budget(learner.tokens_per_microbatch)
    for index in chunks(rows, learner.tokens_per_microbatch):
        part = rows.rows(index)
        long = learner.recompute or (int(part.length.sum()) > most and can_recompute(backbone))
        with recomputed(backbone) if long and torch.is_grad_enabled() else nullcontext():
            answer = plain.read(part, router_losses)
            each(part, answer)
        for table, column in ((logp, answer.logp), (entropy, answer.entropy)):
            table[index, : part.mask.shape[1]] = column.detach().double()
        for i, own in zip(index.tolist(), answer.routes, strict=False):
            routes[i] = own
    return Answer(logp, entropy, tuple(routes) if plain.routers else ())


def read_critic(critic: ReadCritic, rows: Batch, tokens: int) -> Found:
    """Read the critic's values of a minibatch, its loss by definition, and gradients of some of its weights."""
    watched = watched_parameters(critic.model, ())
    slopes, total = {name: torch.zeros_like(p) for name, p in watched.items()}, 0.0
    table, trained = torch.zeros(rows.mask.shape, dtype=torch.float64), max(1, int(rows.mask.sum()))
    with on_device(critic.model, critic.device), torch.enable_grad():
        for index in chunks(rows, tokens):
            part = rows.rows(index)
            long = int(part.length.sum()) > budget(tokens) and can_recompute(critic.model)
            with recomputed(critic.model) if long else nullcontext():
                value = values(critic.model, part)
            table[index, : part.mask.shape[1]] = value.detach().double()
            old, returns, exact = (x.double().masked_fill(~part.mask, 0.0) for x in (*_targets(part), value))
            loss = critic_loss(exact, old, returns, critic.clip)[part.mask].sum() / trained
            total += float(loss.detach())
            for slope, one in zip(
                slopes.values(), torch.autograd.grad(loss, list(watched.values()), allow_unused=True), strict=True
            ):
                slope += 0 if one is None else one
    error = (table - rows.need("returns").double())[rows.mask]
    size, largest = float(error.square().mean().sqrt()), float(table.abs().max())
    noise = ROUNDING * (1 + largest) / size if size else math.inf
    return Found(rows, True, Answer(table, table), total, tuple(slopes), slopes, noise)


def _targets(part: Batch) -> tuple[Tensor, Tensor]:
    return part.need("value"), part.need("returns")


def _columns(row: Algorithm, part: Batch, answer: Answer, old_from_engine: bool) -> Columns:
    live, centre = answer.logp, None
    if row.trust.sampler_top and answer.among is not None:
        centre = centre_of(row.trust, answer.among.double(), part.need("engine_top").double())
    return Columns(
        weight=part.need("weight"),
        live=live,
        old=part.need("logp_old") if old_from_engine else live.detach(),  # it is read before the first update
        advantage=part.need("advantage"),
        mask=part.mask,
        ref=part.logp_ref,
        engine=part.logp_engine,
        entropy=answer.entropy,
        correction=part.correction,
        likelihood=part.likelihood,
        centre=centre,
    )


def _router_loss(name: str, logits: tuple[Tensor, ...], shares: list[Tensor], tokens: int) -> Tensor:
    """Give some tokens' part of a routers' loss, the mean over layers: E sum_e f_e P_e, or the mean of logsumexp^2."""
    if name == "z_loss":
        layers = [x.double().exp().sum(1).log().square().sum() / tokens for x in logits]
    else:
        layers = [
            x.shape[1] * (x.double().softmax(1).sum(0) * f.to(x.device)).sum() / tokens
            for x, f in zip(logits, shares, strict=True)
        ]
    return (sum(layers) / len(layers)).cpu()  # type: ignore[union-attr]


def _shares(rows: Batch, by_layer: Any) -> list[Tensor]:
    """Count which share of the batch's choices fell on each expert, a layer each."""
    assert rows.routes is not None
    every = torch.cat([route.long() for route in rows.routes])
    counts = [torch.zeros(r.experts, dtype=torch.float64) for r in by_layer]
    for layer, count in enumerate(counts):
        chosen = every[:, layer].flatten()
        count.index_add_(0, chosen, torch.full((len(chosen),), 1 / max(1, len(chosen)), dtype=torch.float64))
    return counts


def watched_parameters(model: nn.Module, by_layer: Any) -> dict[str, nn.Parameter]:
    """Choose the trained weights whose gradients are read: all of a small model; else a norm of the first layer, a
    matrix of the middle one, the last of each, a router, and of adapters both matrices.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if sum(p.numel() for p in trained.values()) <= FEW_WEIGHTS:
        return trained
    embedding = getattr(model, "get_input_embeddings", lambda: None)()
    wide = id(getattr(embedding, "weight", None))
    fitting = [n for n, p in trained.items() if p.numel() <= LARGEST and id(p) != wide]
    vectors, matrices = ([n for n in fitting if (trained[n].dim() == 1) is flat] for flat in (True, False))
    chosen = [*vectors[:1], *vectors[-1:], *matrices[len(matrices) // 2 :][:1], *matrices[-1:]]
    chosen += [n.replace("lora_A", "lora_B") for n in chosen] + [n.replace("lora_B", "lora_A") for n in chosen]
    of_routers = {id(p) for router in by_layer[:1] for p in router.module.parameters()}
    chosen += [n for n, p in trained.items() if id(p) in of_routers]
    return {name: trained[name] for name in dict.fromkeys(chosen)}
