"""A row's parts on made-up columns, value and gradient against their definitions.

A batch's own numbers hide slips: at its first update every ratio is 1, the KL is 0, and a clip that is a maximum gives
the gradient of one that is a minimum. The columns here have ratios far below and far above each bound, both signs of
the advantage, tokens far from reference and engine, turns, and numbers that are none where nothing trains.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.parts.critic import value_loss
from groupwise.algorithms.parts.kl import DIVERGENCES, K3
from groupwise.algorithms.parts.mismatch import NoMismatch
from groupwise.algorithms.parts.ratio import SequenceSum, TokenRatio
from groupwise.algorithms.parts.rejection import NoRejection
from groupwise.algorithms.parts.trust import NoTrust
from groupwise.diagnostics.witness.plain import definitions
from groupwise.diagnostics.witness.plain.centering import centre_of
from groupwise.diagnostics.witness.plain.definitions import Columns, loss_terms
from groupwise.diagnostics.witness.reading import Disagreement

#: Of a number: float64 gives both readings to 1e-12.
LIMIT = 1e-7
#: Nats around which the made-up log-ratios lie, beside the bounds of the row's own parts.
CENTRES = (0.0, 1e-4, 0.05, 0.3, 0.7, 1.5, 4.0)
WIDTH = 12


def own_parts(row: Algorithm) -> list[str]:
    """Name the slots that have no definition here: a user's own parts."""
    return [slot for slot, (part, known, _) in _slots(row).items() if type(part) not in known]


def trials(row: Algorithm) -> Iterator[Disagreement]:
    """Compare a row's parts, and its loss of them, with their definitions.

    A user's own part is called on the batches that train, and not on made-up ones: a plain part stands in for it.
    """
    slots = _slots(row)
    known = {slot: plain for slot, (part, kinds, plain) in slots.items() if type(part) not in kinds and slot != "kl"}
    if "kl" in own_parts(row):
        known["kl"] = dataclasses.replace(row.kl, estimator=K3())
    row = dataclasses.replace(row, **known)  # type: ignore[arg-type]
    given = made_up(row)
    c = given.exact()
    live = c.live.requires_grad_()
    yield from _both(
        f"ratio.level ({row.ratio})",
        row.ratio(live, given.old, c.mask),
        definitions.log_ratio(row.ratio, live, c.old, c.mask),
        live,
    )
    z = definitions.log_ratio(row.ratio, live, c.old, c.mask).detach().requires_grad_()
    theirs, ours = (
        find(z, c.advantage, live, c.mask)
        for find in (row.trust, lambda *columns: definitions.trust(row.trust, *columns))
    )
    name = f"trust.kind ({row.trust})"
    yield from _both(name, theirs[0], ours[0], z, live)
    yield _same(f"{name}: its share", theirs[1], ours[1])
    if row.trust.sampler_top:
        log_p, log_q = (given.live.nan_to_num()[:9, i : i + 6].log_softmax(-1)[:, :4] for i in (1, 2))
        own = log_p.requires_grad_()
        of_part = (find(own, log_q) for find in (row.trust.centre, partial(centre_of, row.trust)))
        yield from _both(f"{name}: what is subtracted", *of_part, own)
    if row.kl.divergence is not None:
        log_p, log_q = (given.live.nan_to_num()[:9, i : i + 6].log_softmax(-1) for i in (1, 2))
        own = log_p.requires_grad_()
        names = (find(own, log_q) for find in (row.kl.divergence, partial(definitions.distance, row.kl.divergence)))
        yield from _both(f"kl.estimator ({row.kl.estimator})", *names, own)
    elif row.kl.beta > 0:
        assert c.ref is not None
        asked = (live, c.ref, definitions.held(live - c.old))
        kl = row.kl(*asked), definitions.divergence(row.kl.estimator, *asked)
        yield from _both(f"kl.estimator ({row.kl.estimator})", *(x.masked_fill(~c.mask, 0.0) for x in kl), live)
    assert given.engine is not None
    for slot, part in row.corrections:
        if part.reads_engine:
            alone = dataclasses.replace(row, **{"mismatch": NoMismatch(), "rejection": NoRejection(), slot: part})
            ours = definitions.correction(alone, c.old, c.engine, c.mask)
            yield _same(f"{slot}.kind ({part})", part(given.old, given.engine, c.mask).where(c.mask, 1.0), ours)
    yield from _of_loss(row, given)


def critic_trials(clip: float) -> Iterator[Disagreement]:
    """Compare the critic's loss with its definition, of values near to and far from what they were, and returns on
    either side.
    """
    far = torch.tensor([x * (clip or 1.0) for x in (-3.0, -1.5, -0.5, 0.0, 0.6, 1.7, 4.0)], dtype=torch.float64)
    moved, left = torch.meshgrid(far, far * 1.1 + 0.01, indexing="ij")
    old, mask = torch.full_like(moved, 0.3), torch.ones_like(moved, dtype=torch.bool)
    value = (old + moved).requires_grad_()
    losses = [find(value, old, old + left, mask, clip) for find in (value_loss, _critic_loss)]
    yield from _both(f"critic.clip = {clip:g}: the critic's loss", *losses, value)


def _critic_loss(value: Tensor, old: Tensor, returns: Tensor, mask: Tensor, clip: float) -> Tensor:
    return definitions.critic_loss(value, old, returns, clip)


def _of_loss(row: Algorithm, given: Columns) -> Iterator[Disagreement]:
    live, exact = given.live.clone().requires_grad_(), given.exact()
    out = row.objective(
        given.weight,
        live,
        given.old,
        given.advantage,
        given.mask,
        logp_ref=given.ref,
        correction=definitions.correction(row, exact.old, exact.engine, given.mask),
        entropy=given.entropy,
        likelihood=given.likelihood,
        divergence=given.divergence,
        logp_engine=given.engine,
        centre=given.centre,
    )
    again = given.live.clone().requires_grad_()
    terms = loss_terms(row, given._replace(live=again))
    words = "the loss of these parts: -(weight * (correction * surrogate - beta * kl + c * entropy)).sum()"
    theirs, ours, size = (float(x.detach()) for x in (out.value, terms.value, terms.size))
    yield Disagreement(words, f"{theirs:.6g}, by definition {ours:.6g}", abs(theirs - ours) / max(1.0, size), LIMIT)
    slopes = (torch.autograd.grad(value, x)[0] for value, x in ((out.value, live), (terms.value, again)))
    yield _same(f"{words}: its gradient", *slopes)


def made_up(row: Algorithm) -> Columns:
    """Make columns [N,12] in float64: a row for each centre and sign of log-ratio and advantage.

    Rows start with a prompt, some have two turns, one trains nothing; what is not trained is NaN.
    """
    numbers = torch.Generator().manual_seed(7)
    bounds = [bound for part in (row.trust, row.mismatch, row.rejection) for bound in _bounds(part)]
    centres = [*CENTRES, *(factor * b for b in bounds for factor in (0.6, 1.6))]
    centre = torch.tensor([s * x for x in centres for s in (1, -1)], dtype=torch.float64).repeat_interleave(2)[:, None]
    shape = (len(centre), WIDTH)

    def draw(least: float, most: float) -> Tensor:
        return torch.rand(shape, generator=numbers, dtype=torch.float64) * (most - least) + least

    place, index = torch.arange(WIDTH), torch.arange(len(centre))[:, None]
    mask = (place >= 1 + index % 3) & (place < WIDTH - index % 4)
    mask &= ~((index % 5 == 1) & (place >= 5) & (place < 7))
    mask[-1] = False
    # Of a product over tokens the bounds are those of the sum.
    shares = mask.sum(1, keepdim=True).clamp(min=1) if _sums_up(row) else 1
    old, sign = draw(-4.0, -0.2), 1 - 2 * (index % 2)
    far = centre * (1 + draw(-0.05, 0.05)) / shares
    advantage = sign * (0.3 + index % 7 / 5.0).expand(shape)
    shared = row.ratio.per_completion or row.ratio.per_turn or row.trust.per_completion
    if not shared:
        advantage = advantage * torch.where(place % 3 == 0, -1.0, 1.0)
    mixed = torch.randperm(len(centre), generator=numbers)
    columns = (draw(0.1, 1.0), old + far, old, advantage, old - draw(-1.5, 1.5), old - far[mixed], draw(0.0, 3.0))
    none = torch.tensor(math.nan, dtype=torch.float64)
    weight, live, old, advantage, ref, engine, entropy = (torch.where(mask, x, none) for x in columns)
    others = {"entropy": entropy, "likelihood": mask / mask.sum(), "divergence": entropy / 2, "centre": entropy / 3}
    return Columns(weight.nan_to_num(0.0), live, old, advantage, mask, ref, engine, **others)


def _bounds(part: Any) -> list[float]:
    """Find the log-ratios at which a part's numbers may bind, nats."""
    values = [v for v in vars(part).values() if isinstance(v, float) and v > 0]
    return [x for v in values for x in (math.log1p(v), abs(math.log(v))) if 1e-6 < x < 12]


def _sums_up(row: Algorithm) -> bool:
    """Tell whether a row's log-ratios, or corrections, are sums over a completion."""
    return isinstance(row.ratio, SequenceSum)


def _slots(row: Algorithm) -> dict[str, tuple[Any, Any, Any]]:
    """Return of each slot its part, the kinds that are defined here, and the plain one."""
    return {
        "ratio": (row.ratio, definitions.RATIOS, TokenRatio()),
        "trust": (row.trust, definitions.TRUSTS, NoTrust()),
        "kl": (row.kl.estimator, {**definitions.ESTIMATORS, **dict.fromkeys(DIVERGENCES)}, K3()),
        "mismatch": (row.mismatch, definitions.CORRECTIONS, NoMismatch()),
        "rejection": (row.rejection, definitions.CORRECTIONS, NoRejection()),
    }


def _both(about: str, theirs: Tensor, ours: Tensor, *leaves: Tensor) -> Iterator[Disagreement]:
    """Compare values, and the gradients of a sum in which every token has a weight of its own."""
    yield _same(about, theirs, ours)
    spread = torch.linspace(0.5, 1.5, ours.numel(), dtype=torch.float64).view(ours.shape)
    slopes: list[Callable[[], Any]] = []
    for x in (theirs, ours):
        if not x.requires_grad:
            slopes.append(lambda: [torch.zeros_like(leaf) for leaf in leaves])
        else:
            total = (x * spread).sum()
            slopes.append(lambda total=total: torch.autograd.grad(total, leaves, retain_graph=True, allow_unused=True))
    for their, own in zip(slopes[0](), slopes[1](), strict=True):
        if their is not None or own is not None:
            zero = torch.zeros_like(leaves[0])
            yield _same(f"{about}: its gradient", zero if their is None else their, zero if own is None else own)


def _same(about: str, theirs: Tensor, ours: Tensor) -> Disagreement:
    """Compare two columns number by number."""
    theirs, ours = theirs.detach().double(), ours.detach().double()
    scale = torch.maximum(theirs.abs(), ours.abs()) + 1e-6
    distance = ((theirs - ours).abs() / scale).nan_to_num(nan=math.inf)
    value, place = distance.flatten().max(0)
    there, own = float(theirs.flatten()[place]), float(ours.flatten()[place])
    return Disagreement(about, f"on made-up columns {there:.6g}, by definition {own:.6g}", float(value), LIMIT)
