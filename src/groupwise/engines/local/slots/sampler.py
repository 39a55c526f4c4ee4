"""The host's side of sampling in slots: who sits where, and what is done at each look.

Steps run in chunks of at most LOOK; then the host looks once: finished completions are handed out and their slots
emptied, stop strings are searched in what was drawn, and waiting completions are admitted. What a row draws past its
end is not used.

Shapes: as in step.py; N completions.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from groupwise.core.engine import Progress
from groupwise.engines.inputs import broken
from groupwise.engines.local.cache import Held, PrefilledPrompts, Store
from groupwise.engines.local.outputs import Outputs
from groupwise.engines.local.rules import Rules
from groupwise.engines.local.sampler import uniforms
from groupwise.engines.local.scheduler import ADMIT_SHARE, Queue, Take
from groupwise.engines.local.slots.memory import LEAST_COLUMNS, LEAST_PROMPT, SlotMemory, bucket_of
from groupwise.engines.local.slots.step import AGE, DONE, LOOK, NUMBER, SEAT, Bucket, SlotState, SlotStep, Tables

#: Runs the prompts of some requests, by their numbers.
RunPrompts = Callable[[Sequence[Take]], tuple[PrefilledPrompts, list[int]]]


@dataclass
class RunningRow:
    """A completion in a slot: its number, its request, the place of its prompt, and its tokens so far and at most.

    Tokens that were drawn before this call count too.
    """

    number: int
    request: int
    place: int
    age: int
    end: int


@dataclass
class PromptPlace:
    """A prompt in the memory: the requests that still wait for it are `open`, and `users` completions sit at it.

    logits  [V] of the first token that follows
    routes  [T,L,K] of the prompt, on the CPU; None where routes are not asked for
    """

    number: int
    logits: Tensor
    routes: Tensor | None
    open: set[int] = field(default_factory=set)
    users: int = 0


class SlotSampler:
    """Slots of one engine; memory and graphs stay from call to call."""

    def __init__(self, step: SlotStep, max_rows: int, progress: Progress) -> None:
        self.step, self.max_rows, self.progress = step, max_rows, progress
        self.tables: Tables | None = None

    def clear(self) -> None:
        """Give the memory back, and what was recorded for it."""
        self.tables = None
        self.step.forget()

    def sample(
        self,
        queue: Queue,
        outputs: Outputs,
        rules: Rules,
        version: int,
        announce: Callable[[Tensor], None],
        run_prompts: RunPrompts,
    ) -> tuple[Store, int]:
        """Sample every completion -> what is held, and how many tokens were run beside prompts.

        Raises RunError for broken logits.
        """
        run = SlotRun(self, queue, outputs, rules, run_prompts)
        with self.step.sampling():
            while run.live or queue.waiting:
                self.progress()
                if run.admits:
                    run.admit()
                with self.step.running():
                    steps = run.advance()
                sound, finished = run.look(steps)
                if not sound:
                    raise broken(version, self.step.precision)
                if finished:
                    announce(torch.tensor(finished, device=outputs.stops.device))
        return run.held, run.tokens_run


class SlotRun:
    """One call: the completions that wait, sit in slots, and have ended."""

    def __init__(
        self, sampler: SlotSampler, queue: Queue, outputs: Outputs, rules: Rules, run_prompts: RunPrompts
    ) -> None:
        self._sampler, self._queue, self._outputs, self._rules = sampler, queue, outputs, rules
        self._run_prompts, self._device = run_prompts, outputs.stops.device
        self._rows: dict[int, RunningRow] = {}
        self._places: dict[int, PromptPlace] = {}
        self._open: dict[int, PromptPlace] = {}
        self._free_places: list[int] = []
        self._seats = self._prompt_columns = 1
        self._most_places = 1
        streams = ((r.seed, r.first + i) for r in queue.requests for i in range(r.samples))
        self._uniforms = torch.from_numpy(uniforms(streams, queue.longest)).to(self._device)
        self.held, self.tokens_run = Store(), 0
        slots = min(bucket_of(queue.count), sampler.max_rows)
        if sampler.tables is None or sampler.tables.state.slots < slots:
            sampler.step.forget()
            sampler.tables = None if sampler.tables is None else sampler.tables.wider(slots)
        self._slots = slots
        if sampler.tables is not None:
            sampler.tables.state.empty()  # of the call before

    @property
    def live(self) -> int:
        return len(self._rows)

    @property
    def admits(self) -> bool:
        """True if completions wait and enough slots are free for them."""
        free = self._sampler.max_rows - self.live
        return self._queue.waiting and (not self._rows or free >= self._sampler.max_rows * ADMIT_SHARE)

    @property
    def _tables(self) -> Tables:
        assert self._sampler.tables is not None
        return self._sampler.tables

    def admit(self) -> None:
        """Seat as many waiting completions as there is room for."""
        takes = self._queue.take(self._sampler.max_rows - self.live)
        while takes:
            self._sampler.progress()
            opened = self._open.get(takes[0].request)
            if opened is not None:
                batch, places = takes[:1], [opened]
            else:
                prompts, which = self._run_prompts(takes)
                batch = takes[: len(which)]
                places = self._placed(prompts, which, batch)
            takes = takes[len(batch) :]
            for take, place in zip(batch, places, strict=True):
                self._seat(take, place)
        self._arrange()

    def _placed(self, prompts: PrefilledPrompts, which: Sequence[int], batch: Sequence[Take]) -> list[PromptPlace]:
        """Put the prompts of a batch into the memory; batch i has prompt which[i]."""
        order = sorted(set(which))
        new: dict[int, PromptPlace] = {}
        for index in order:
            number = heapq.heappop(self._free_places) if self._free_places else len(self._places)
            routes = prompts.routes[index] if prompts.routes else None
            new[index] = self._places[number] = PromptPlace(number, prompts.logits[index], routes)
        self._most_places = max(self._most_places, len(self._places) + len(self._free_places))
        self._prompt_columns = max(self._prompt_columns, prompts.width)
        self._reserve_prompts(prompts)
        numbers = torch.tensor([new[index].number for index in order], device=self._device)
        tables = self._tables
        tables.memory.put(prompts, order, numbers)
        tables.length[numbers] = prompts.length[torch.tensor(order, device=self._device)]
        for take, index in zip(batch, which, strict=True):
            new[index].open.add(take.request)
            self._open[take.request] = new[index]
        return [new[index] for index in which]

    def _seat(self, take: Take, place: PromptPlace) -> None:
        request, tables = self._queue.requests[take.request], self._tables
        taken = set(self._rows)
        slots = [slot for slot in range(self._sampler.max_rows) if slot not in taken][: take.count]
        first = self._queue.offset[take.request] + take.first
        end = request.drawn + self._queue.limits[take.request]
        for slot, number in zip(slots, range(first, first + take.count), strict=True):
            self._rows[slot] = RunningRow(number, take.request, place.number, request.drawn, end)
        place.users += take.count
        if not self._queue.unfinished(take):
            place.open.remove(take.request)
            del self._open[take.request]
        at = torch.tensor(slots, device=self._device)
        numbers = torch.arange(first, first + take.count, device=self._device)
        # The token is drawn before it is read, the seat is given by `_arrange`.
        for row, value in enumerate((0, numbers, 0, len(request.tokens), 0, request.drawn, end, 0)):
            tables.state.table[row, at] = value
        tables.state.logits[at] = place.logits
        if tables.state.had is not None:
            had = torch.zeros_like(tables.state.had[0])
            had[list(set(request.tokens))] = True
            tables.state.had[at] = had
        if place.routes is not None:
            self._outputs.begin(range(first, first + take.count), [place.routes] * take.count)

    def advance(self) -> int:
        """Run steps until the host has to look -> how many."""
        left = max(row.end - row.age for row in self._rows.values())
        steps = min(LOOK, left)
        own = max(row.age - self._queue.requests[row.request].drawn for row in self._rows.values()) + steps
        bucket = Bucket(
            slots=min(bucket_of(max(self._rows) + 1), self._tables.state.slots),
            columns=bucket_of(max(own, LEAST_COLUMNS)),
            places=bucket_of(self._most_places),
            seats=bucket_of(self._seats),
            prompt_columns=bucket_of(max(self._prompt_columns, LEAST_PROMPT)),
        )
        tables = self._tables
        if tables.memory.reserve_own(tables.state.slots, bucket.columns):
            self._sampler.step.forget()
        numbers, ages = tables.state.table[NUMBER, : bucket.slots], tables.state.table[AGE, : bucket.slots]
        ahead = ages[:, None] + torch.arange(LOOK, device=self._device)
        ahead.clamp_(max=self._uniforms.shape[1] - 1)  # a row past its end draws what is not used
        tables.state.uniform[:, : bucket.slots] = self._uniforms[numbers[:, None], ahead].T
        self._sampler.step.run(tables, bucket, self._rules, steps)
        return steps

    def look(self, steps: int) -> tuple[bool, list[int]]:
        """Log the last steps and empty the slots of what has ended -> whether all logits were sound, and what ended."""
        state, slots = self._tables.state, sorted(self._rows)
        at = torch.tensor(slots, device=self._device)
        seen = torch.cat([state.table[AGE, at], state.table[DONE, at], state.broken.long()]).tolist()
        state.broken.zero_()
        ages, done, unsound = seen[: len(slots)], seen[len(slots) : -1], bool(seen[-1])
        if unsound:
            return False, []
        over = {slot: age for slot, age, ended in zip(slots, ages, done, strict=True) if ended}
        over.update(self._ended_by_strings(slots, ages, steps))
        self._log(slots, at, steps, over)
        for slot, age in zip(slots, ages, strict=True):
            self._rows[slot].age = age
        finished = [self._leave(slot, length) for slot, length in over.items()]
        if finished:
            state.table[DONE, torch.tensor(list(over), device=self._device)] = 1
        if finished and self._rows:
            self._move_together()
            self._arrange()
        return True, finished

    def _log(self, slots: Sequence[int], at: Tensor, steps: int, over: dict[int, int]) -> None:
        """Write the steps since the last look to their completions; `over` has the lengths of those that have ended."""
        rows, state = [self._rows[slot] for slot in slots], self._tables.state
        for step in range(steps):
            if self._rules.sampling.truncates:
                self._outputs.append_support(state.support(step, at))
            if self._rules.top:
                self._outputs.append_top(state.top(step, at, self._rules.top))
            routes = state.routes(step, at)
            if routes is not None:
                self._outputs.append_routes(routes)
        lengths = [over.get(slot, row.end) for slot, row in zip(slots, rows, strict=True)]
        table = [[row.number for row in rows], [row.age + steps for row in rows], lengths]
        number, ran, length = torch.tensor(table, device=self._device)
        self._outputs.write(number, ran, length, ran, state.draws(steps, at))

    def _ended_by_strings(self, slots: Sequence[int], ages: Sequence[int], steps: int) -> dict[int, int]:
        """End the rows of which a new token completes a stop string -> the tokens of each, by slot."""
        strings, ended = self._rules.strings, dict[int, int]()
        if strings is None:
            return ended
        drawn = self._tables.state.draws(steps, torch.tensor(slots, device=self._device)).tokens.tolist()
        for slot, age, tokens in zip(slots, ages, drawn, strict=True):
            row = self._rows[slot]
            # The token that completes one is not among the first `least`.
            least = self._rules.sampling.min_new_tokens - row.age
            found = [step for step in strings.rows(tokens[: age - row.age]) if step >= least]
            if not found:
                continue
            number = torch.tensor([row.number], device=self._device)
            (before,) = self._outputs.sampled(number, torch.tensor([row.age]))
            completed = ((step, strings.completed(before + tuple(tokens[: step + 1]))) for step in found)
            step, stop = next(((step, stop) for step, stop in completed if stop), (0, ""))
            if stop:
                ended[slot] = row.age + step + 1
                self._outputs.end(number, torch.tensor([ended[slot]], device=self._device), [stop])
        return ended

    def _leave(self, slot: int, length: int) -> int:
        """Empty the slot of a completion that has `length` tokens -> its number."""
        row = self._rows.pop(slot)
        request = self._queue.requests[row.request]
        own = length - request.drawn - 1
        self.tokens_run += own
        if request.hold:
            at, tokens = (torch.tensor([x], device=self._device) for x in (row.number, length))
            sampled = self._outputs.sampled(at, tokens)[0]
            ids = request.tokens[: len(request.tokens) - request.drawn] + sampled[:-1]
            memory = self._tables.memory.sequence(row.place, len(request.tokens), slot, own)
            self.held[ids] = Held(ids, memory, self._outputs.routes(row.number, length))
        place = self._places[row.place]
        place.users -= 1
        if not place.users and not place.open:
            del self._places[place.number]
            heapq.heappush(self._free_places, place.number)
        return row.number

    def _move_together(self) -> None:
        """Move rows to the first slots once these are a smaller bucket, and nothing waits for the empty ones."""
        few = bucket_of(self.live)
        origin = [slot for slot in self._rows if slot >= few]
        if self._queue.waiting or not origin:
            return
        to = [slot for slot in range(few) if slot not in self._rows][: len(origin)]
        own = max(self._rows[slot].age - self._queue.requests[self._rows[slot].request].drawn for slot in origin)
        for new, old in zip(to, origin, strict=True):
            self._rows[new] = self._rows.pop(old)
        tables, at, behind = self._tables, torch.tensor(to, device=self._device), torch.tensor(origin)
        behind = behind.to(self._device)
        tables.state.move(at, behind)
        tables.memory.move(at, behind, own)

    def _arrange(self) -> None:
        """Give every row a seat at the place of its prompt."""
        at_place: dict[int, list[int]] = {}
        for slot in sorted(self._rows):
            at_place.setdefault(self._rows[slot].place, []).append(slot)
        self._seats = max(self._seats, *map(len, at_place.values()))
        seats, places = bucket_of(self._seats), bucket_of(self._most_places)
        seated = np.full((places, seats), -1)
        seat = np.zeros(self._tables.state.slots, dtype=np.int64)
        for place, slots in at_place.items():
            seated[place, : len(slots)] = slots
            seat[slots] = place * seats + np.arange(len(slots))
        tables = self._tables
        if tables.reserve_seats(places, seats):
            self._sampler.step.forget()
        tables.seated[:places, :seats] = torch.from_numpy(seated)
        tables.state.table[SEAT] = torch.from_numpy(seat)

    def _reserve_prompts(self, prompts: PrefilledPrompts) -> None:
        """Make room for all places; the first call of an engine makes the tables."""
        sampler, history = self._sampler, self._rules.sampling.repetition_penalty != 1
        if sampler.tables is None:
            sampler.tables = Tables(SlotState(self._slots, prompts.logits), SlotMemory())
        if history:
            sampler.tables.state.remember()
        places, columns = bucket_of(self._most_places), bucket_of(max(self._prompt_columns, LEAST_PROMPT))
        moved = sampler.tables.memory.reserve_prompts(prompts, places, columns)
        if moved | sampler.tables.reserve_seats(places, bucket_of(self._seats)):
            sampler.step.forget()
