"""Products of hidden states with a head, for a chunk of the tokens at a time: the logits that are scored."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from groupwise.core.numbers.transfer import to_device
from groupwise.core.records import Support
from groupwise.models.forward.heads import LogitChange
from groupwise.models.precision import operand, wide_product

#: The logit of a barred id: exp of it is 0 in every precision, and its product with a gradient is finite.
BARRED = -1e30


class Top(NamedTuple):
    """The k most likely ids, of those below a number."""

    k: int
    below: int


@dataclass(frozen=True)
class Scoring:
    """Settings with which a head scores.

    temperature       T
    support           of the tokens, where sampling left ids out
    entropy_gradient  whether the entropy has a gradient
    rows              tokens of a chunk
    hold              whether p (or log p) of all chunks is kept for the backward, which is then possible once
    compute           what the matrix products are computed in
    among             ids [M,K], or which, whose log-probabilities are given too
    barred            of each token whether ids were barred from it, [M] bool, and these ids [E]; None if none was
    change            f of the model's logits; None if it changes none
    added             [V] what is added behind f; without an f it is part of the head's bias
    compared          with a teacher's distribution, where there is one
    """

    temperature: float
    support: Support | None
    entropy_gradient: bool
    rows: int
    hold: bool
    compute: torch.dtype
    among: Tensor | Top
    barred: tuple[Tensor, Tensor] | None = None
    change: LogitChange | None = None
    added: Tensor | None = None
    compared: "Compared | None" = None

    def chunks(self, count: int, device: torch.device) -> Iterator[tuple[slice, Tensor | None]]:
        """Yield slices of `count` tokens, and the part of the support of each: [m,K] ids, padded with -1."""
        for start in range(0, count, self.rows):
            stop = min(start + self.rows, count)
            yield (
                slice(start, stop),
                None if self.support is None else to_device(self.support.padded(start, stop), device),
            )


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type of scores: float32, or `dtype` itself if it is wider."""
    return torch.promote_types(dtype, torch.float32)


class Room:
    """Memory of one chunk, written over by the next: what is freed between them is fresh memory of the system again.

    logits    [m,V] of the product's type
    softmax   [m,V] of p or log p
    """

    def __init__(self, states: Tensor, weight: Tensor, how: Scoring) -> None:
        shape = min(how.rows, len(states)), len(weight)
        self.logits = states.new_empty(shape, dtype=operand(weight[:0], how.compute).dtype)
        self.softmax = states.new_empty(shape, dtype=wide(how.compute))

    def place(self, logits: Tensor) -> Tensor | None:
        """Return where p of these logits is written; None if sampling left ids out of them."""
        return self.softmax[: len(logits)] if logits.shape[1] == self.softmax.shape[1] else None


class Product:
    """Products of states with a head, for a slice of the tokens at a time; in the room, or in fresh memory each."""

    def __init__(
        self, states: Tensor, weight: Tensor, bias: Tensor | None, how: Scoring, room: Room | None = None
    ) -> None:
        self._states, self._bias, self._how, self._room = states, bias, how, room
        self._weight = operand(weight, how.compute)
        # On a GPU a product of 16 bits need not be rounded to them: an engine in slots does not (engines/local/slots).
        self._rounds = not weight.is_cuda or how.compute.itemsize > 2

    def changed(self, part: slice) -> Tensor:
        """Return f(W h + b), [m,V]."""
        how, rows = self._how, operand(self._states[part], self._how.compute)
        if self._rounds:
            place = None if self._room is None else self._room.logits[: len(rows)]
            out = torch.mm(rows, self._weight.T, out=place).to(how.compute)
        else:
            out = wide_product(rows, self._weight)
        out = out.to(wide(how.compute))
        out = out if self._bias is None else out.add_(self._bias)
        return out if how.change is None else how.change(out)

    def __call__(self, part: slice) -> Tensor:
        """Return the logits over the temperature, [m,V]."""
        how, out = self._how, self.changed(part)
        out = out if how.added is None else out.add_(how.added)
        out = out if how.temperature == 1 else out.div_(how.temperature)
        if how.barred is not None:
            rows, ids = how.barred
            out[:, ids] = out[:, ids].masked_fill_(rows[part, None], BARRED)
        return out


class Compared:
    """Divergence from what another product says of the same tokens, for a slice of them at a time."""

    def __init__(self, product: Product, divergence: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._product, self._divergence = product, divergence

    def __call__(self, part: slice, log_p: Tensor) -> Tensor:
        """Return the divergence [m] of log p [m,V]."""
        return self._divergence(log_p, self._product(part).log_softmax(-1))

    def slope(self, part: slice, logits: Tensor, up: Tensor) -> Tensor:
        """Return the derivative [m,V] of the divergence by the logits over the temperature, times `up` [m]."""
        with torch.enable_grad():
            x = logits.detach().requires_grad_()
            return torch.autograd.grad(self(part, x.log_softmax(-1)), x, up)[0]
