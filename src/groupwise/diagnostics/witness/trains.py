"""Tokens that train against those who wrote them: mask and versions, minibatches of a pass, aggregate weights."""

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from groupwise.algorithms.parts.aggregate import Aggregate, Constant, SequenceMean, TokenMean, TokenSum, Totals
from groupwise.core.records import Batch
from groupwise.diagnostics.witness.again import asked_again
from groupwise.diagnostics.witness.reading import (
    Disagreement,
    Reading,
    Said,
    StepSeen,
    Unmeasured,
    apart,
    differs,
)
from groupwise.health.checks import TRAINS_WHAT_WAS_SAID

#: Of weights, times the number of trained tokens, so that one token's is of the order of 1.
CLOSE = 1e-6
#: Columns of a minibatch that must be the batch's, row by row.
COLUMNS = (
    "tokens",
    "mask",
    "group",
    "advantage",
    "returns",
    "reward",
    "logp_engine",
    "logp_old",
    "logp_ref",
    "value",
    "ref_top",
    "engine_top",
)


class TrainsReading(Reading):
    """Each token that the policy wrote trains once a pass, with the weight of the aggregate's definition."""

    subject = TRAINS_WHAT_WAS_SAID
    rests = True

    def __init__(self, aggregate: Aggregate) -> None:
        self._aggregate = aggregate
        self._trained = torch.zeros(0, dtype=torch.long)
        self._parts = 0

    def begin(self, seen: StepSeen) -> Said:
        """Compare mask, versions and supports with the spans of the records."""
        self._trained, self._parts = torch.zeros(len(seen.rows.completions), dtype=torch.long), 0
        batch, rows = seen.batch, seen.rows
        look = "1 where the policy wrote a token of a completion that trains; look at spans and at the mask in collate"
        if not torch.equal(batch.mask, rows.mask):
            yield apart(rows.place, batch.mask.long(), rows.mask.long(), 0.0, look)
        if batch.token_version is not None:
            look = "the weights that sampled the token; look at spans and at collate"
            yield apart(rows.place, batch.token_version, rows.version, 0.0, look)
        oldest = torch.where(rows.own, rows.version, rows.version.max()).amin(1)
        yield apart(rows.place, batch.version, oldest, 0.0, "the oldest weights that sampled it")
        if batch.support is not None and not seen.rules.truncates:
            words = "the engine left ids out, and [sampling] asks for all of them; look at what the engine is asked for"
            yield differs("the support of the step's tokens", words)
        if batch.engine_ids is not None and batch.engine_top is not None:
            tops = [completion.top for completion in rows.completions if completion.top is not None]
            for theirs, name in ((batch.engine_ids, "ids"), (batch.engine_top, "logp")):
                ours = torch.cat([getattr(top, name) for top in tops])
                look = f"{name} of the sampler's most likely ids, as its completions have them; look at collate"
                yield apart(lambda at: f"sampled token {at[0]} of the step", theirs[rows.own], ours, 0.0, look)
        for name, column in (("support", batch.support), ("routes", batch.routes_engine)):
            for row, (theirs, completion) in enumerate(zip(column or (), rows.completions, strict=False)):
                if theirs is not getattr(completion, name):
                    yield differs(rows.words(row), f"its {name} are another completion's; look at collate")
                    break

    def minibatch(self, seen: StepSeen, minibatch: Batch) -> Said:
        """Compare a minibatch's rows with the batch's, and its weights with their definition; count what trains."""
        if minibatch.row is None or not len(self._trained):
            return
        rows = minibatch.row
        if seen.slow:
            yield from self._rows(seen, minibatch, rows)
        yield from self._whole_groups(seen, rows)
        yield self._weights(seen, minibatch)
        self._trained.index_add_(0, rows, torch.ones_like(rows))
        self._parts += 1
        due = min(seen.rules.parts, len(seen.result.groups))
        if self._parts % due == 0:
            yield from self._each_once(seen, self._parts // due)

    def end(self, seen: StepSeen) -> Said:
        """Compare the number of minibatches with that of the passes."""
        due = min(seen.rules.parts, len(seen.result.groups)) * seen.rules.passes
        if self._parts != due:
            yield differs("the step", f"{self._parts} minibatches trained, of {due} in {seen.rules.passes} passes")

    def _rows(self, seen: StepSeen, minibatch: Batch, rows: Tensor) -> Iterator[Disagreement]:
        width = minibatch.tokens.shape[1]
        beyond = rows[seen.rows.lengths[rows] > width].tolist()
        if beyond:
            yield differs(seen.rows.words(beyond[0]), f"it is cut to {width} columns; look at Batch.rows")
        for name in COLUMNS:
            theirs, whole = getattr(minibatch, name), getattr(seen.batch, name)
            if theirs is None or whole is None:
                continue
            ours = whole[rows, :width] if whole.dim() > 1 else whole[rows]
            if not torch.equal(theirs, ours) and not torch.equal(theirs.nan_to_num(), ours.nan_to_num()):
                other = (theirs != ours).reshape(len(rows), -1).any(1).nonzero()[:, 0]
                look = "in its minibatch is not that of the batch; look at how minibatches are cut"
                yield differs(seen.rows.words(int(rows[other[0]])), f"its column {name} {look}")

    def _whole_groups(self, seen: StepSeen, rows: Tensor) -> Iterator[Disagreement]:
        groups = seen.result.groups
        here = seen.rows.groups_of[rows].bincount(minlength=len(groups))
        part = ((here > 0) & (here != seen.rows.groups_of.bincount(minlength=len(groups)))).nonzero()[:, 0].tolist()
        if part:
            group = groups[part[0]]
            words = f"a minibatch has {int(here[part[0]])} rows of its group of {len(group.completions)}"
            yield differs(f"the prompt {group.prompt.sample.prompt[-40:]!r}", words)
            return
        due, count = min(seen.rules.parts, len(groups)), int((here > 0).sum())
        if not len(groups) // due <= count <= math.ceil(len(groups) / due):
            yield differs("a minibatch", f"it has {count} of {len(groups)} groups, in {due} parts")

    def _each_once(self, seen: StepSeen, passes: int) -> Iterator[Disagreement]:
        other = (self._trained != passes).nonzero()[:, 0].tolist()
        if other:
            count = int(self._trained[other[0]])
            words = f"it trained {count} times in {passes} passes; look at how minibatches are cut"
            yield differs(seen.rows.words(other[0]), words)

    def _weights(self, seen: StepSeen, minibatch: Batch) -> Disagreement | Unmeasured:
        rows, weight = minibatch.row, minibatch.need("weight").double()
        assert rows is not None
        mask = seen.rows.mask[rows][:, : weight.shape[1]]
        lengths = mask.sum(1)
        completions, tokens = int((lengths > 0).sum()), int(lengths.sum())
        if (definition := WEIGHTS.get(type(self._aggregate))) is not None:
            ours = definition(self._aggregate, mask, completions, tokens)
        elif seen.slow:
            totals = Totals(completions, tokens)
            again = asked_again(self._aggregate, lambda own: own(mask, totals))
            if again is None:
                return Unmeasured(f"{type(self._aggregate).__name__} gives other weights when it is asked again")
            ours = again.double()
        else:
            return Unmeasured(f"{type(self._aggregate).__name__} is asked again in slow readings alone")
        ours = torch.where(mask, ours, 0.0)
        scale = 1 / (float(ours.abs().max()) or 1.0)

        def place(at: tuple[int, ...]) -> str:
            return seen.rows.place((int(rows[at[0]]), *at[1:]))

        look = f"times {1 / scale:.3g}, of the column weight ({self._aggregate.equation}); look at the aggregate"
        return apart(place, scale * weight, scale * ours, CLOSE, look)


def sequence_mean(part: SequenceMean, mask: Tensor, completions: int, tokens: int) -> Tensor:
    """1 / (N |o_i|)."""
    return (1.0 / (completions * mask.sum(1).double()))[:, None].expand(mask.shape)


def token_mean(part: TokenMean, mask: Tensor, completions: int, tokens: int) -> Tensor:
    """1 / trained tokens."""
    return torch.full(mask.shape, 1.0 / tokens if tokens else 0.0, dtype=torch.float64)


def constant(part: Constant, mask: Tensor, completions: int, tokens: int) -> Tensor:
    """1 / (N limit)."""
    return torch.full(mask.shape, 1.0 / (completions * part.limit) if completions else 0.0, dtype=torch.float64)


def token_sum(part: TokenSum, mask: Tensor, completions: int, tokens: int) -> Tensor:
    """1."""
    return torch.ones(mask.shape, dtype=torch.float64)


WEIGHTS: Mapping[type, Callable[..., Tensor]] = {
    SequenceMean: sequence_mean,
    TokenMean: token_mean,
    Constant: constant,
    TokenSum: token_sum,
}
