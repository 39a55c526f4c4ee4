"""Running and waiting completions, and the row and columns in which each one lives.

Shapes: R live rows, N completions, L the longest limit.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from groupwise.core.engine import Request
from groupwise.engines.local.cache import Held, PrefilledPrompts, RowCache, Store
from groupwise.engines.local.outputs import Outputs
from groupwise.engines.local.sampler import END, Draw, uniforms
from groupwise.engines.stop_strings import StopStrings

# Rows are dropped, and waiting ones admitted, once these shares of them are free: each has a cost of its own.
DROP_SHARE = 1 / 16
ADMIT_SHARE = 1 / 8
# A column that no completion reaches.
FAR = 2**62


class Take(NamedTuple):
    """`count` completions of a request, from number `first` on."""

    request: int
    first: int
    count: int


class Queue:
    """Completions that wait, in order. Completion i of request r has the slot offset[r] + i.

    past     what each request goes on from, until its prompt is run; None if nothing is held of it
    carried  the prompt of a request that is admitted in part
    """

    def __init__(self, requests: Sequence[Request], limits: Sequence[int], held: Store | None = None) -> None:
        self.requests = requests
        self.limits = limits
        held = held or {}
        self.past = [held.get(r.tokens[: r.held - 1]) if r.held else None for r in requests]
        *self.offset, self.count = accumulate((request.samples for request in requests), initial=0)
        self.carried: PrefilledPrompts | None = None
        self._request = 0
        self._sample = 0

    def by_slot(self) -> Iterator[Request]:
        """Return the request of each completion."""
        return (request for request in self.requests for _ in range(request.samples))

    def number(self, slot: int) -> int:
        """Tell which request a completion is of."""
        return bisect_right(self.offset, slot) - 1

    @property
    def longest(self) -> int:
        """Tokens of the longest completion that there may be, those drawn before included."""
        return max(request.drawn + limit for request, limit in zip(self.requests, self.limits, strict=True))

    @property
    def waiting(self) -> bool:
        return self._request < len(self.requests)

    def take(self, room: int) -> list[Take]:
        """Return the next completions, at most `room`."""
        takes = []
        while room and self.waiting:
            samples = self.requests[self._request].samples
            take = Take(self._request, self._sample, min(room, samples - self._sample))
            takes.append(take)
            room -= take.count
            self._sample += take.count
            if self._sample == samples:
                self._request, self._sample = self._request + 1, 0
        return takes

    def unfinished(self, take: Take) -> bool:
        return take.first + take.count < self.requests[take.request].samples


class Scheduler:
    """The rows being sampled: which completion each is, and where it began and ends, in columns of the cache.

    A row is (slot, born, ended): its completion, the column of the first sampled token, and the column of the last one,
    which is the limit's while the row lives. What was drawn before lies in columns before the row's first, so that a
    token's number is its column less `born` there too.

    strings  texts that end a completion, though not among its first `least` tokens; None without any
    had      [R,V] bool, the ids that each row has had, its prompt's among them; None unless `history` asks for it
    live     rows that are not finished, once `record` has been called
    held     what was computed for completions that have ended and are to be held
    """

    def __init__(
        self,
        queue: Queue,
        outputs: Outputs,
        cache: RowCache,
        max_rows: int,
        strings: StopStrings | None = None,
        least: int = 0,
        history: bool = False,
    ) -> None:
        self.queue, self.cache, self.held = queue, cache, Store()
        hold = [request.hold for request in queue.by_slot()]
        self._hold = torch.tensor(hold) if any(hold) else None
        self._strings, self._least = strings, least
        self._outputs, self._max_rows = outputs, max_rows
        self._device = outputs.stops.device
        self.had = outputs.stops.new_zeros(0, len(outputs.stops)) if history else None
        self._table = torch.zeros(0, 3, dtype=torch.long, device=self._device)
        # [N,L] one number for each token that may be drawn; shorter limits read the front of their row.
        streams = ((r.seed, r.first + i) for r in queue.requests for i in range(r.samples))
        self._uniforms = torch.from_numpy(uniforms(streams, queue.longest)).to(self._device)
        self._horizon = 0
        self.live = 0
        self._next_end = 0
        self._last_born = 0

    @property
    def count(self) -> int:
        return self._table.shape[0]

    @property
    def ahead(self) -> int:
        """Columns that the longest row may still need."""
        return self._horizon - self.cache.column

    @property
    def age(self) -> Tensor:
        """[R] tokens that each row has drawn."""
        return self.cache.column - self._table[:, 1]

    @property
    def youngest(self) -> int:
        """Tokens that the row admitted last has drawn here; no row has drawn fewer."""
        return self.cache.column - self._last_born

    @property
    def admits(self) -> bool:
        """True if completions wait and enough rows are free for them."""
        free = self._max_rows - self.count
        return self.queue.waiting and (self.count == 0 or free >= self._max_rows * ADMIT_SHARE)

    def uniform(self) -> Tensor:
        """Look up [R] the number that each row's next token is drawn with."""
        # A finished row runs past its numbers until it is dropped; what it draws is not used.
        return self._uniforms[self._table[:, 0], self.age.clamp_(max=self._uniforms.shape[1] - 1)]

    def record(self, draw: Draw, end_sum: Tensor) -> bool:
        """Log a draw -> whether all logits were sound. `end_sum` [] is the sampler's count of rows that it may end."""
        self._outputs.append(draw)
        column, total = self.cache.column, end_sum.item()  # the one look at the device
        may_end = total > self.count + END / 2
        if may_end:
            ended = self._table[:, 2]
            ended.masked_fill_(self._outputs.stops[draw.tokens] & (ended > column), column)
        if self._strings is not None:
            may_end |= self._end_with(self._strings, draw.tokens)
        if self.had is not None:
            self.had.scatter_(1, draw.tokens[:, None], True)
        if may_end or column >= self._next_end:
            self._count_live(column)
        return math.isfinite(total)

    def _end_with(self, strings: StopStrings, tokens: Tensor) -> bool:
        """End the rows whose last token completes a stop string -> whether there are any."""
        column = self.cache.column
        rows = torch.tensor(strings.rows(tokens.tolist()), dtype=torch.long, device=self._device)
        _, born, ended = self._table[rows].unbind(1)
        rows = rows[(ended >= column) & (column - born >= self._least)]
        if not len(rows):
            return False
        self._flush(column + 1)
        slots, lengths = self._table[rows, 0], column + 1 - self._table[rows, 1]
        completed = [strings.completed(sampled) for sampled in self._outputs.sampled(slots, lengths)]
        at = [place for place, stop in enumerate(completed) if stop]
        if at:
            self._table[rows[at], 2] = column
            self._outputs.end(slots[at], lengths[at], [completed[place] for place in at])
        return bool(at)

    def retire(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Drop finished rows once they are enough -> the last tokens [R] of the rows left, the slots of the dropped."""
        finished = self.count - self.live
        if self.live and finished < max(1, self.count * DROP_SHARE):
            return tokens, self._table[:0, 0]
        return self._drop(tokens, self.live)

    def _count_live(self, column: int) -> None:
        """Count how many rows go on after `column`, and the first column in which one of them reaches its limit."""
        ended = self._table[:, 2]
        beyond = torch.where(ended > column, ended, FAR)
        self.live, self._next_end = torch.stack([(ended > column).sum(), beyond.amin()]).tolist()

    def _drop(self, tokens: Tensor, live: int) -> tuple[Tensor, Tensor]:
        """Put live rows in the places of finished ones -> the tokens of the rows left, the slots of the others."""
        self._flush(self.cache.column + 1)
        alive = self._table[:, 2] > self.cache.column
        dropped = self._table[~alive, 0]
        self._hold_rows((~alive).nonzero()[:, 0])
        to = (~alive[:live]).nonzero()[:, 0]
        origin = alive[live:].nonzero()[:, 0] + live
        self.cache.move(to, origin, live)
        if self.had is not None:
            self.had[to] = self.had[origin]
            self.had = self.had[:live]
        self._table[to], tokens[to] = self._table[origin], tokens[origin]
        self._table = self._table[:live]
        return tokens[:live], dropped

    def _hold_rows(self, rows: Tensor) -> None:
        """Hold what was computed for those of these finished rows that are to be: all but their last tokens."""
        if self._hold is None:
            return
        rows = rows[self._hold[self._table[rows, 0].cpu()].to(rows.device)]
        rows = rows[self.cache.has_whole(rows)]
        if not len(rows):
            return
        slots, born, ended = self._table[rows].unbind(1)
        lengths = ended + 1 - born
        sampled = self._outputs.sampled(slots, lengths)
        memory = self.cache.sequences(rows, ended)
        for slot, own, keys_values in zip(slots.tolist(), sampled, memory, strict=True):
            request = self.queue.requests[self.queue.number(slot)]
            tokens = request.tokens[: len(request.tokens) - request.drawn] + own[:-1]
            self.held[tokens] = Held(tokens, keys_values, self._outputs.routes(slot, len(own)))

    def admit(self) -> list[Take]:
        """Add new rows behind the live ones, as many as are free; their prompts' keys and values come by `begin`."""
        takes = self.queue.take(self._max_rows - self.count)
        if self.count:
            self._flush(self.cache.column)
        column, counts = self.cache.column, [t.count for t in takes]
        first = np.array([self.queue.offset[t.request] + t.first for t in takes])
        limit = np.array([self.queue.limits[t.request] for t in takes])
        born = column - np.array([self.queue.requests[t.request].drawn for t in takes])
        self._horizon = max(self._horizon, column + int(limit.max()))
        before = np.cumsum(counts) - counts
        slots = np.arange(sum(counts)) + np.repeat(first - before, counts)
        new = np.stack([slots, np.repeat(born, counts), np.repeat(column + limit - 1, counts)], 1)
        self._table = torch.cat([self._table, torch.from_numpy(new).to(self._device)])
        self._last_born = column
        if self.had is not None:
            new_rows = self.had.new_zeros(len(takes), self.had.shape[1])
            for row, take in zip(new_rows, takes, strict=True):
                row[list(set(self.queue.requests[take.request].tokens))] = True
            repeats = torch.tensor(counts, device=self._device)
            self.had = torch.cat([self.had, new_rows.repeat_interleave(repeats, 0)])
        self._count_live(column - 1)
        return takes

    def begin(self, prompts: PrefilledPrompts, source: Tensor) -> None:
        """Begin the next admitted rows with these prompts: row i with prompt source[i]."""
        first = self.cache.rows
        self.cache.insert(prompts, source, self.ahead, rows=self.count)
        if prompts.routes:
            slots = self._table[first : self.cache.rows, 0].tolist()
            self._outputs.begin(slots, [prompts.routes[i] for i in source.tolist()])

    def advance(self, routes: Tensor | None) -> None:
        """Go on, once the rows' last tokens have been through the model and chosen the experts `routes` [R,L,K]."""
        if routes is not None:
            self._outputs.append_routes(routes)
        self.cache.advance()

    def _flush(self, drawn: int) -> None:
        """Write what was drawn for the columns before `drawn`; the cache's column is the first that was not run."""
        slot, born, ended = self._table.unbind(1)
        self._outputs.flush(slot, drawn - born, ended - born + 1, self.cache.column - born)
