"""The predictions of a forward that are read: where they are made, and to which token each belongs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from groupwise.core.numbers.transfer import columns_to_device, to_device
from groupwise.core.records import Support
from groupwise.models.forward.adjustment import UNADJUSTED, Adjustment
from groupwise.models.forward.layout import Layout


@dataclass(frozen=True)
class Predictions:
    """The predictions of a forward that are read: M of them, for the W tokens [N,T] that are wanted.

    places   [M] where in what is run each is made
    targets  [M] the token that it is of
    row      [W] of each wanted token, in [N,T]
    column   [W]
    each     [W] which prediction is its own; None: one after the other
    shape    [N,T]
    support  the ids that sampling kept for each, on the CPU; None where it left none out
    barred   as Scoring has it
    """

    places: Tensor
    targets: Tensor
    row: Tensor
    column: Tensor
    each: Tensor | None
    shape: torch.Size
    support: Support | None = None
    barred: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(
        cls,
        tokens: Tensor,
        mask: Tensor,
        layout: Layout,
        supports: Sequence[Support | None] | None = None,
        adjustment: Adjustment = UNADJUSTED,
        each_own: bool = False,
    ) -> "Predictions":
        """Find those of the tokens [N,T] in the mask [N,T]. How many there are is a number: a device is waited for.

        each_own  each token has a prediction of its own, even if two read and predict the same
        """
        wanted = mask.clone()
        wanted[:, 0] = False
        places, targets = layout.predecessors(wanted), tokens[wanted]
        support, each = None if supports is None else _join(supports, wanted), None
        barred = adjustment.barred(wanted)
        if layout.line is not None and support is None and barred is None and len(targets) and not each_own:
            # Of the predictions only those that differ, and for each wanted token which of these is its own.
            ids = int(targets.max()) + 1
            pairs, each = (places * ids + targets).unique(return_inverse=True)
            places, targets = pairs // ids, pairs % ids
        row, column = wanted.nonzero(as_tuple=True)
        return cls(places, targets, row, column, each, wanted.shape, support, barred)

    def on(self, device: torch.device) -> "Predictions":
        """Send them to a device, without waiting for it."""
        barred = None if self.barred is None else tuple(to_device(x, device) for x in self.barred)
        return replace(columns_to_device(self, device), barred=barred)

    def spread(self, values: Tensor) -> Tensor:
        """Map the predictions' values [M] or [M,K] -> [N,T] or [N,T,K], 0 where no token is wanted."""
        values = values if self.each is None else values.index_select(0, self.each)
        return values.new_zeros(*self.shape, *values.shape[1:]).index_put((self.row, self.column), values)

    def of_each(self, column: Tensor) -> Tensor:
        """Map a column [N,T,K] -> its values at the wanted tokens [W,K]."""
        return column[self.row, self.column]


def _join(supports: Sequence[Support | None], wanted: Tensor) -> Support:
    """Return the supports of the rows that have a wanted token, as one. Raises ValueError if a token has none."""
    ids, starts, offset = [torch.empty(0, dtype=torch.int32)], [torch.zeros(1, dtype=torch.long)], 0
    for row, tokens in zip(supports, wanted.sum(-1).tolist(), strict=True):
        if not tokens:
            continue
        if row is None or len(row.start) != tokens + 1:
            raise ValueError(f"a completion of {tokens} tokens came without the ids its sampling kept for each")
        ids.append(row.ids)
        starts.append(row.start[1:] + offset)
        offset += int(row.start[-1])
    return Support(torch.cat(ids), torch.cat(starts))
