"""The reading of objectives: the loss of each update by its definition from the columns that it recorded, and once, on
made-up columns, of the row's parts.
"""

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from groupwise.algorithms.algorithm import Algorithm
from groupwise.core.numbers.metrics import Value
from groupwise.core.records import Batch
from groupwise.core.updates import UpdateRecord, UpdateResult
from groupwise.diagnostics.witness.plain.definitions import Columns, Terms, correction, loss_terms, trust
from groupwise.diagnostics.witness.plain.trials import critic_trials, own_parts, trials
from groupwise.diagnostics.witness.reading import Disagreement, Reading, Said, StepSeen
from groupwise.health.checks import Invariant

#: Of the sum of the absolute values of a loss's terms: what float32 may lose of them (docs/concepts/checks.md).
ROUNDING = 2e-6
#: Of a number of a column, in its size and 1.
COLUMN = 1e-4
#: Of the critic's loss: what is added to its size, and the limit if the critic computes in 16 bits.
SMALL, ROUNDED = 1e-3, 0.05
#: Of a log-ratio: rounding puts a token that is so near to a bound on either side of it.
NEAR = 1e-5


class ObjectiveReading(Reading):
    """Reads what is minimised: each update's loss, and the parts that it is made of.

    losses  the routers' own losses by name: the coefficient of each
    rounds  whether the critic computes in 16 bits
    clip    the critic's; None where there is none
    """

    rests = True

    def __init__(
        self,
        subject: Invariant,
        row: Algorithm,
        losses: Mapping[str, float],
        rounds: bool = False,
        clip: float | None = None,
    ) -> None:
        self.subject, self._row, self._losses, self._rounds, self._clip = subject, row, losses, rounds, clip
        self._tried = self._valued = False

    def begin(self, seen: StepSeen) -> Said:
        """Try the row's parts on made-up columns, once; and read the correction of the batch."""
        self._valued = False
        if seen.slow and not self._tried:
            self._tried = True
            yield from trials(self._row)
            if self._clip is not None:
                yield from critic_trials(self._clip)
        yield from self._corrected(seen.batch)

    def _corrected(self, batch: Batch) -> Said:
        if not self._row.corrects or batch.logp_old is None:
            return
        mask, given = batch.mask, (batch.logp_old.double(), batch.logp_engine.double())
        own, theirs = (x.masked_fill(~mask, 0.0) for x in given), batch.need("correction").masked_fill(~mask, 1.0)
        old, engine = own
        least, most = _around(lambda factor: correction(self._row, factor * (old - engine), 0 * engine, mask))
        yield _within("the correction for the engine", theirs, least, most, mask, COLUMN)

    def updated(self, seen: StepSeen, minibatch: Batch, update: UpdateResult) -> Said:
        """Read an update's loss, and the columns that it was made of, from the log-probabilities that it saw."""
        if update.seen is None:
            reads_all = self._row.kl.in_loss or self._row.entropy_coefficient
            trains = minibatch.mask & (minibatch.need("weight") != 0)
            signal = minibatch.need("advantage") != 0
            trains &= torch.ones_like(trains) if reads_all or minibatch.likelihood is not None else signal
            yield Disagreement(
                "an update that ran no row, as if none had a gradient",
                "tokens have a weight and an advantage all the same; look at Algorithm.trained_rows",
                float(trains.sum()),
                0.0,
            )
            return
        given = columns_of(minibatch, update.seen)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):  # a user's own part may draw
            terms = loss_terms(self._row, given)
            yield self._of_loss(terms, minibatch, update)
            if seen.slow:  # they are what is shown of an update; what trains is in its loss
                yield from self._of_columns(terms, given, update.seen)

    def _of_loss(self, terms: Terms, minibatch: Batch, update: UpdateResult) -> Disagreement:
        assert update.seen is not None
        routing = update.seen.routing
        of_routers = {} if routing is None else {n: self._losses[n] * x for n, x in routing.losses.items()}
        theirs, ours = update.loss - math.fsum(of_routers.values()), float(terms.value)
        farthest = float(terms.log_ratio.abs().max()) if terms.log_ratio.numel() else 0.0
        size = float(terms.size) * (1 + farthest) + sum(map(abs, of_routers.values()))
        distance = abs(theirs - ours) / size if size else abs(theirs - ours)
        own = f"; {', '.join(own_parts(self._row))} of a user's own called again" if own_parts(self._row) else ""
        return Disagreement(
            "the loss of an update",
            f"it minimised {theirs:.8g}; from its own columns it is {ours:.8g} by definition{own}; look at the sign of "
            "a term, at the weights, and at which columns the loss was given",
            distance if math.isfinite(update.loss) else 0.0,  # what is not finite is skipped, and counted, elsewhere
            ROUNDING,
        )

    def _of_columns(self, terms: Terms, given: Columns, recorded: UpdateRecord) -> Iterator[Disagreement]:
        exact, row = given.exact(), self._row
        yield _within("log_ratio", recorded.log_ratio, terms.log_ratio, terms.log_ratio, given.mask, COLUMN)
        least, most = _around(
            lambda factor: trust(row.trust, factor * terms.far, exact.advantage, exact.live, exact.mask)[1]
        )
        yield _within("share, what the trust region passes", recorded.share, least, most, given.mask, COLUMN)
        if terms.kl is not None and recorded.kl is not None:
            yield _within("kl", recorded.kl, terms.kl, terms.kl, given.mask, COLUMN)

    def critic_updated(self, seen: StepSeen, minibatch: Batch, metrics: Mapping[str, Value]) -> Said:
        """Read the loss of the critic's first update on a batch, in which its values are still those of the batch."""
        if self._valued:
            return
        self._valued, mask = True, minibatch.mask
        value, returns = (minibatch.need(n).double()[mask] for n in ("value", "returns"))
        squares = (value - returns) ** 2 / 2
        ours, theirs = float(squares.mean()) if len(squares) else 0.0, metrics["value_loss"].read()
        size = ours + SMALL + (float((value**2 + returns**2).mean()) if self._rounds and len(value) else 0.0)
        yield Disagreement(
            "the loss of the critic's first update",
            f"it minimised {theirs:.8g}; of its values and returns it is {ours:.8g} by definition; look at whose "
            "returns each row is given",
            abs(theirs - ours) / size if math.isfinite(theirs) else 0.0,
            ROUNDED if self._rounds else COLUMN,
        )


def columns_of(minibatch: Batch, recorded: UpdateRecord) -> Columns:
    """Gather what an update's loss was made of."""
    live = recorded.logp_live
    return Columns(
        weight=minibatch.need("weight"),
        live=live,
        old=live if minibatch.logp_old is None else minibatch.logp_old,
        advantage=minibatch.need("advantage"),
        mask=minibatch.mask,
        ref=minibatch.logp_ref,
        engine=minibatch.logp_engine,
        entropy=recorded.entropy,
        likelihood=minibatch.likelihood,
        divergence=recorded.kl,
        centre=recorded.centre,
    )


def _around(find: Callable[[float], Tensor]) -> tuple[Tensor, Tensor]:
    """Return the least and the largest of a column, if the log-ratios that it is made of are rounded up or down."""
    several = torch.stack([find(factor) for factor in (1 - NEAR, 1.0, 1 + NEAR)])
    return several.amin(0), several.amax(0)


def _within(about: str, theirs: Tensor, least: Tensor, most: Tensor, mask: Tensor, limit: float) -> Disagreement:
    """Compare a column with the range that its definition gives, at its worst trained token."""
    theirs = theirs.double().masked_fill(~mask, 0.0)
    outside = torch.maximum(least - theirs, theirs - most).masked_fill(~mask, 0.0) / (1 + most.abs())
    outside = outside.nan_to_num(nan=math.inf)
    value, place = outside.flatten().max(0) if outside.numel() else (torch.zeros(()), torch.zeros((), dtype=torch.long))
    row, column = divmod(int(place), max(1, mask.shape[1]))
    if float(value) <= limit:
        return Disagreement(about, "", float(value), limit)
    numbers = f"{float(theirs[row, column]):.6g}, by definition {float(most[row, column]):.6g}"
    return Disagreement(f"row {row}, column {column} of an update: {about}", numbers, float(value), limit)
