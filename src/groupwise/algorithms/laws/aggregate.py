"""Laws of the aggregation weights."""

from typing import Any

import torch
from torch import Tensor

from groupwise.algorithms.laws import columns, every
from groupwise.algorithms.laws.columns import Columns, Trial
from groupwise.algorithms.laws.draws import Draw
from groupwise.algorithms.laws.law import Law, differs, first_of
from groupwise.algorithms.parts.aggregate import count


def given(part: Any, batch: Draw) -> dict[str, Tensor]:
    return {"mask": batch.mask}


def call(part: Any, given: Columns) -> Any:
    return part(given["mask"], count(given["mask"]))


TRIAL = Trial(given, call, ("weight",))


def reaches_its_total(part: Any, batch: Draw) -> str:
    """Compare the sum of a whole batch's weights with what `declared` says."""
    totals = count(batch.mask)
    declared = torch.tensor(part.declared(totals), dtype=torch.float64)
    return differs("the sum of the weights", part(batch.mask, totals).double().sum(), declared)


def adds_up_over_shards(part: Any, batch: Draw) -> str:
    """Parts of a batch, with the totals of the whole, have the whole's weights."""
    totals = count(batch.mask)
    shards = torch.cat([part(rows, totals) for rows in batch.mask.tensor_split(3)])
    return differs("the weight in a shard", shards, part(batch.mask, totals), rounding=0)


def is_quiet_without_tokens(part: Any, batch: Draw) -> str:
    """Demand weights of 0, and 0 declared, of a batch in which nothing is trained."""
    none = torch.zeros_like(batch.mask)
    weight = part(none, count(none))
    declared = torch.tensor(float(part.declared(count(none))))
    return first_of(differs("weight", weight, torch.zeros_like(weight), 0), differs("declared", declared, declared * 0))


LAWS = (
    *every.LAWS,
    *columns.laws(TRIAL),
    Law(
        "the weights add up to the total that it declares",
        reaches_its_total,
        "Write declared(self, totals): what the weights of a whole batch add up to; without it that is 1, a mean.",
    ),
    Law(
        "the weights of shards are those of the whole",
        adds_up_over_shards,
        "Divide by totals.tokens or totals.completions, which are of the whole batch; the mask may be a part of it.",
    ),
    Law(
        "without a trained token all weights are 0",
        is_quiet_without_tokens,
        "Divide by max(count, 1), and declare 0.0 where totals.tokens is 0.",
    ),
)
