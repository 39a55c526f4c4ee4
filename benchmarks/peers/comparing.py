"""Batches, and the comparison of a catalog row with a peer's functions on them.

Both sides get one batch: scores, log-probabilities and a ragged mask. Each makes its advantages and its loss; compared
are the advantages, the loss and its gradient with respect to the live log-probabilities, in float32 and in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

import groupwise
from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.parts.shaping import at_last_token
from groupwise.core.masked import keep
from groupwise.core.records import Batch

#: Standard deviation of a token's log-ratio, nats: a usual second update, a far one, and one that every region stops.
SPREADS = (0.005, 0.2, 2.0)
#: Where the ratio is a product over a completion: in float32 the sum of log-ratios is rounded.
WHOLE = (0.005, 0.2, 0.5)
SEEDS = range(4)
#: Largest difference that counts as rounding: absolute in float32, and of the largest number in float64, where peers
#: add 1e-8 to counts and some make float32 of a column.
FLOAT32, FLOAT64 = 1e-6, 1e-6
#: A size that is no power of two: the mean of equal scores is rounded.
GROUPS, SIZE, WIDTH = 4, 6, 12


@dataclass(frozen=True)
class Draw:
    """Random batch of N completions of T columns, as either side reads it.

    scores [N,K] reward units, weights [K]; group [N]; mask [N,T] bool; live, old, ref [N,T] nats; values [N,T]. What
    stands where the mask is False is arbitrary and finite.
    """

    scores: Tensor
    weights: Tensor
    group: Tensor
    mask: Tensor
    live: Tensor
    old: Tensor
    ref: Tensor
    values: Tensor

    @property
    def score(self) -> Tensor:
        """Weighted sum of the scores [N]."""
        return (self.scores * self.weights).sum(1)

    @property
    def rewards(self) -> Tensor:
        """The score at the last trained token [N,T]."""
        return at_last_token(self.score, self.mask)

    @property
    def m(self) -> Tensor:
        """The mask as numbers [N,T]."""
        return self.mask.to(self.live.dtype)


@dataclass(frozen=True)
class Kind:
    """What scores and completions of a batch are like.

    binary, rewards  scores of 0 and 1; how many rewards a completion has
    tied, alone      whether a group has equal scores; whether one has a single completion
    holes            whether tokens inside a completion are not trained
    highest          the largest live log-probability, nats
    """

    binary: bool = False
    rewards: int = 1
    tied: bool = False
    alone: bool = False
    holes: bool = True
    highest: float = -1e-3


def draw(seed: int, spread: float, dtype: torch.dtype, kind: Kind) -> Draw:
    """Draw a batch; unless the kind says otherwise each group has unequal scores and each completion trained tokens."""
    g = torch.Generator().manual_seed(seed)
    n = GROUPS * SIZE
    normal = partial(torch.randn, generator=g, dtype=torch.float64)
    scores = normal(n, kind.rewards)
    if kind.binary:
        scores = (scores > 0).double()
    group = torch.arange(n) // SIZE
    scores[::SIZE] = scores[1::SIZE] + 1 if not kind.binary else 1 - scores[1::SIZE]
    if kind.tied:
        scores[:SIZE] = 0.3
    if kind.alone:
        group[0] = GROUPS
    columns = torch.arange(WIDTH)
    mask = columns < torch.randint(2, WIDTH + 1, (n, 1), generator=g)
    if kind.holes and seed % 2:
        mask = mask & ((torch.rand(n, WIDTH, generator=g) < 0.8) | (columns == 0))
    old = (-3 * torch.rand(n, WIDTH, generator=g, dtype=torch.float64) - 0.01).clamp(max=kind.highest)
    live = (old + spread * normal(n, WIDTH)).clamp(max=kind.highest)
    ref, values = live + 0.3 * normal(n, WIDTH), normal(n, WIDTH)
    weights = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)[: kind.rewards]
    floats = (column.to(dtype) for column in (live, old, ref, values))
    return Draw(scores.to(dtype), weights.to(dtype), group, mask, *floats)


#: A peer's side: (batch, live log-probabilities that carry the gradient) -> advantages [N] or [N,T], loss; None for
#: what the peer's functions do not make.
Side = Callable[[Draw, Tensor], tuple[Tensor | None, Tensor | None]]


@dataclass(frozen=True)
class Case:
    """Comparison of a catalog row with a peer.

    row, settings  ours: the row, and what is laid over it
    function       the peer's, as its package names them
    theirs         the peer's side
    dialect        whose constants both sides have
    spreads        of the log-ratio; (0,) is on policy
    value          whether the value of the loss is comparable: a peer may write the same gradient as another function
    words          why the two differ, and which of them is the paper's; none if they are equal
    """

    row: str
    function: str
    theirs: Side
    settings: Mapping[str, Any] = field(default_factory=dict)
    dialect: str = ""
    kind: Kind = Kind()
    spreads: Sequence[float] = SPREADS
    value: bool = True
    words: str = ""


def ours(case: Case, batch: Draw, live: Tensor) -> tuple[Tensor, Tensor]:
    """Credit and loss of the row, through what a run calls."""
    algo: Algorithm = groupwise.algorithm(case.row, case.settings)
    several = batch.scores.shape[1] > 1
    zeros = torch.zeros_like(batch.group)
    record = Batch(
        tokens=torch.zeros_like(batch.mask, dtype=torch.long), mask=batch.mask, length=batch.mask.sum(1),
        group=batch.group, score=batch.score, version=zeros, logp_engine=batch.old, logp_old=batch.old,
        logp_ref=batch.ref, value=batch.values, reward_scores=batch.scores if several else None,
    )  # fmt: skip
    credited = algo.weigh(algo.credit(record, batch.weights.tolist() if several else None))
    advantage = credited.need("advantage")
    ref = batch.ref if algo.kl.reads_reference else None
    out = algo.objective(credited.need("weight"), live, batch.old, advantage, batch.mask, logp_ref=ref)
    return advantage, out.value


def credited(row: str, batch: Draw) -> Tensor:
    """Advantages [N] of the row itself, for a peer that gets them."""
    limit = {"aggregate.limit": WIDTH} if row == "dr-grpo" else {}
    advantage = ours(Case(row, "", lambda draw, live: (None, None), limit), batch, batch.live)[0]
    return advantage.sum(1) / batch.mask.sum(1)


@dataclass
class Differences:
    """Largest differences over batches: absolute, and of the larger side's largest number. None: not compared."""

    advantage: float | None = None
    value: float | None = None
    gradient: float | None = None
    relative: float = 0.0

    def note(self, name: str, one: Tensor, other: Tensor) -> None:
        far = float((one - other).abs().max())
        setattr(self, name, max(getattr(self, name) or 0.0, far))
        size = 1.0 if name == "value" else float(other.abs().max())  # a sum of both signs may be near 0
        self.relative = max(self.relative, far / size if size else far)


def measure(case: Case, dtype: torch.dtype) -> Differences:
    """Run both sides on every batch."""
    found = Differences()
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # peers make constants of the default type
    try:
        for seed in SEEDS:
            for spread in case.spreads:
                batch = draw(seed, spread, dtype, case.kind)
                _note(found, case, batch)
    finally:
        torch.set_default_dtype(before)
    return found


def _note(found: Differences, case: Case, batch: Draw) -> None:
    mine, others = (batch.live.clone().requires_grad_() for _ in range(2))
    our_advantage, our_loss = ours(case, batch, mine)
    advantage, loss = case.theirs(batch, others)
    if advantage is not None:
        spread_out = advantage if advantage.dim() == 2 else advantage[:, None].expand_as(our_advantage)
        found.note("advantage", our_advantage, keep(spread_out, batch.mask))
    if loss is not None:
        our_loss.backward()
        loss.backward()
        assert mine.grad is not None
        assert others.grad is not None
        found.note("gradient", mine.grad, keep(others.grad, batch.mask))
        if case.value:
            found.note("value", our_loss.detach(), loss.detach())


def compared(case: Case) -> dict[str, Any]:
    """Make the row of a case: differences in float32, the relative one in float64, and the verdict."""
    single, double = measure(case, torch.float32), measure(case, torch.float64)
    numbers = {name: getattr(single, name) for name in ("advantage", "value", "gradient")}
    verdict = "differs"
    if double.relative <= FLOAT64:
        rounded = all(number is None or number <= FLOAT32 for number in numbers.values())
        verdict = "same" if rounded else "same in float64"
    return {
        "row": case.row,
        "function": case.function,
        "dialect": case.dialect,
        "settings": dict(case.settings),
        **numbers,
        "relative_float64": double.relative,
        "verdict": verdict,
        "words": case.words,
    }
