"""One step of the slots: draw a token for each, log it, and run it through the model; on a GPU as a CUDA graph.

A step reads and writes tensors that last, and no number is looked at on its way. So it can be recorded once for each
bucket (how many slots, columns, places it computes) and replayed; the host looks once in LOOK steps.

Shapes: R slots, V vocabulary, L routers, K experts a token, Q = LOOK.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from groupwise.core.numbers.precision import Precision, precision_of
from groupwise.engines.local.forward import logits_and_experts
from groupwise.engines.local.rules import Rules
from groupwise.engines.local.sampler import Draw, draw
from groupwise.engines.local.slots.attention import SLOTS, Attend, Seating, SlotCache
from groupwise.engines.local.slots.compiled import CompiledStepLayers
from groupwise.engines.local.slots.memory import SlotMemory
from groupwise.models.forward.forwards import replaced
from groupwise.models.forward.fused_layers import one_kernel_norms
from groupwise.models.forward.heads import wide_head
from groupwise.models.forward.packed_attention import attending
from groupwise.models.moe.record import Router

#: Steps between two looks of the host.
LOOK = 16
#: Rows of SlotState.table.
TOKEN, NUMBER, SEAT, PROMPT, FILLED, AGE, END, DONE = range(8)


class Bucket(NamedTuple):
    """Amounts that a step computes: slots, their columns, places of prompts, seats and columns of each place."""

    slots: int
    columns: int
    places: int
    seats: int
    prompt_columns: int


class SlotState:
    """State of the slots, on the device, at addresses that last.

    table    [8,R] int64: the last token drawn; the number of the completion; its seat; tokens of its prompt; columns of
             its own that are filled; tokens drawn, those before this call included; how many it draws at most; 1 where
             it is finished or empty
    logits   [R,V] of the next token
    had      [R,V] bool, the ids that a row has had; None where nothing asks for them
    broken   [1] bool: a living row's logits were not sound
    at       [1] int64, the step since the last look
    uniform  [Q,R] float64, the numbers that the next steps draw with
    """

    def __init__(self, slots: int, logits: Tensor) -> None:
        """logits  [..., V], of the kind that there will be"""
        device, vocabulary = logits.device, logits.shape[1]
        self.table = torch.zeros(8, slots, dtype=torch.long, device=device)
        self.empty()
        self.logits = logits.new_zeros(slots, vocabulary)
        self.had: Tensor | None = None
        self.broken = torch.zeros(1, dtype=torch.bool, device=device)
        self.at = torch.zeros(1, dtype=torch.long, device=device)
        self.uniform = torch.zeros(LOOK, slots, dtype=torch.float64, device=device)
        self._tokens = torch.zeros(LOOK, slots, dtype=torch.long, device=device)
        self._chance = torch.zeros(LOOK, slots, device=device)
        self._total = torch.ones(LOOK, slots, dtype=torch.float64, device=device)
        self._support: Tensor | None = None
        self._routes: Tensor | None = None
        #: By K, so that what was recorded for one stays where it is.
        self._top: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def slots(self) -> int:
        return self.table.shape[1]

    def remember(self) -> None:
        """Keep which ids each row has had, from now on."""
        if self.had is None:
            self.had = torch.zeros(self.logits.shape, dtype=torch.bool, device=self.logits.device)

    def empty(self) -> None:
        """Empty all slots."""
        self.table.zero_()
        self.table[DONE] = 1

    def move(self, to: Tensor, origin: Tensor) -> None:
        """Copy slots `origin` over slots `to`, and empty them."""
        self.table[:, to] = self.table[:, origin]
        self.table[DONE, origin] = 1
        for rows in (self.logits, self.had):
            if rows is not None:
                rows[to] = rows[origin]

    def log(self, drawn: Draw) -> None:
        """Keep a step's draw until the host looks."""
        for ring, value in ((self._tokens, drawn.tokens), (self._chance, drawn.chance), (self._total, drawn.total)):
            ring[:, : len(value)].index_copy_(0, self.at, value[None])
        if drawn.support is not None:
            bits = packed_bits(drawn.support)
            if self._support is None:
                self._support = bits.new_zeros(LOOK, self.slots, bits.shape[1])
            self._support[:, : len(bits)].index_copy_(0, self.at, bits[None])

        if drawn.top is not None:
            k = drawn.top[0].shape[1]
            if k not in self._top:
                ids, logp = (part.new_zeros(LOOK, self.slots, k) for part in drawn.top)
                self._top[k] = ids, logp
            for ring, part in zip(self._top[k], drawn.top, strict=True):
                ring[:, : len(part)].index_copy_(0, self.at, part[None])

    def log_routes(self, routes: Tensor) -> None:
        """Keep the experts [R,L,K] that a step chose until the host looks."""
        if self._routes is None:
            self._routes = routes.new_zeros(LOOK, self.slots, *routes.shape[1:])
        self._routes[:, : len(routes)].index_copy_(0, self.at, routes[None])

    def draws(self, steps: int, rows: Tensor) -> Draw:
        """Return the draws of the steps since the last look, for some slots, [n,steps] each and without supports."""
        rings = (self._tokens, self._chance, self._total)
        tokens, chance, total = (ring[:steps].index_select(1, rows).T for ring in rings)
        return Draw(tokens, chance, total, None)

    def support(self, step: int, rows: Tensor) -> Tensor:
        """Return the support [n,V] of a step since the last look, for some slots."""
        assert self._support is not None
        return unpacked_bits(self._support[step, rows], self.logits.shape[1])

    def top(self, step: int, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the k most likely ids of a step since the last look, and their log-probabilities, for some slots."""
        ids, logp = self._top[k]
        return ids[step, rows], logp[step, rows]

    def routes(self, step: int, rows: Tensor) -> Tensor | None:
        """Return the experts [n,L,K] that a step since the last look chose, for some slots."""
        return None if self._routes is None else self._routes[step, rows]


class Tables:
    """All that a step reads and writes beside the model.

    seated  [P,G] the slots of each place of a prompt; -1 for an empty seat
    length  [P] tokens of each place's prompt; 1 at least
    """

    def __init__(self, state: SlotState, memory: SlotMemory) -> None:
        self.state, self.memory = state, memory
        self.seated = state.table.new_zeros(0, 0)
        self.length = state.table.new_ones(0)

    def wider(self, slots: int) -> Tables:
        """Return tables of more slots, all empty, that keep the memory of prompts and of what is sampled."""
        return Tables(SlotState(slots, self.state.logits), self.memory)

    def reserve_seats(self, places: int, seats: int) -> bool:
        """Make room for so many -> whether the tables moved; what was in `seated` is gone then."""
        have_places, have_seats = self.seated.shape
        if places <= have_places and seats <= have_seats:
            return False
        places = max(places, have_places)
        self.seated = self.seated.new_full((places, max(seats, have_seats)), -1)
        length = self.length.new_ones(places)
        length[: len(self.length)] = self.length
        self.length = length
        return True


class SlotStep:
    """Steps of one model.

    attend    of a Seating
    graphs    steps are recorded as CUDA graphs
    compiled  layers are compiled; for an attention of slots only
    """

    def __init__(
        self,
        model: Any,
        routers: Sequence[Router],
        context: int,
        attend: Attend | None,
        graphs: bool = False,
        compiled: bool = False,
    ) -> None:
        self._model, self._routers, self._context, self._attend = model, routers, context, attend
        self._recorded: dict[tuple[Bucket, int], tuple[Callable[[], None], Rules]] = {}
        self._graphs, self._pool = graphs, None
        self._head = wide_head(model)
        self._layers = CompiledStepLayers(model) if compiled else None
        self._norms = [] if compiled else one_kernel_norms(model)
        #: Why steps run without a graph though they should; "" if they do not.
        self.refused = ""

    @property
    def precision(self) -> Precision:
        """The precision that the model computes in."""
        return precision_of(self._model.dtype)

    @property
    def how(self) -> str:
        """Say in words how steps run."""
        own = self._attend is None and "a copy of each prompt"
        ways = [own or getattr(self._attend, "__name__", ""), self._layers and "compiled layers"]
        ways.append(self._graphs and (f"no CUDA graphs ({self.refused})" if self.refused else "CUDA graphs"))
        return ", ".join(["slots", *(way for way in ways if way)])

    def forget(self) -> None:
        """Drop what was recorded: memory has moved."""
        self._recorded.clear()

    def sampling(self) -> AbstractContextManager[None]:
        """Make the head's logits float32 inside, those of prompts too: a model of 16 bits would round them."""
        return replaced(self._head)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make the model run by slots inside: it attends as they do, and its layers have few kernels."""
        slots = nullcontext() if self._attend is None else attending(self._model, SLOTS)
        layers = nullcontext() if self._layers is None else self._layers.running()
        with slots, layers, replaced(self._norms):
            yield

    def run(self, tables: Tables, bucket: Bucket, rules: Rules, steps: int) -> None:
        """Run some steps, at most LOOK; inside `running`. Rules are compared by identity: the same object again runs
        what was recorded.
        """
        step = partial(self._step, tables, bucket, rules)
        tables.state.at.zero_()
        for number in range(steps):
            replay, _ = self._recorded.get((bucket, id(rules)), (None, rules))
            if replay is None and number and self._graphs and not self.refused:
                # Not the first of a bucket, which loads what a recording may not load.
                replay = self._record(step)
                self._recorded[bucket, id(rules)] = replay, rules  # kept, so that no other has its identity
            (replay or step)()

    def _step(self, tables: Tables, bucket: Bucket, rules: Rules) -> None:
        state, memory, slots = tables.state, tables.memory, bucket.slots
        tokens = _draw(state, slots, rules)
        _, _, seat, prompt, filled, *_ = state.table[:, :slots]
        column = filled.clamp(max=bucket.columns - 1)
        seating = Seating(
            column=column,
            length=tables.length[: bucket.places],
            seated=tables.seated[: bucket.places, : bucket.seats],
            seat=seat,
            own=[m[:slots, :, : bucket.columns] for m in memory.own],
            prompts=[m[: bucket.places, :, : bucket.prompt_columns] for m in memory.prompts],
            attend=self._attend,
        )
        logits, experts = logits_and_experts(
            self._model,
            self._routers,
            input_ids=tokens[:, None],
            position_ids=(prompt + filled).clamp(max=self._context - 1)[:, None],
            attention_mask=seating.mask(self._model.dtype) if self._attend is None else None,
            past_key_values=SlotCache(seating),
            use_cache=True,
            **({} if self._attend is None else {"slots": seating}),
        )
        state.logits[:slots] = logits[:, -1]
        if experts is not None:
            state.log_routes(experts)
        filled += 1  # of a finished row too: it stays at the bucket's last column
        state.at += 1

    def _record(self, step: Callable[[], None]) -> Callable[[], None]:
        """Record a step, which has been run before, as a CUDA graph; the step itself where it cannot be recorded."""
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may use the device meanwhile: one that samples ahead records while the learner trains.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                step()
        except Exception as error:  # whatever a model does that cannot be recorded, the plain step can do
            torch.cuda.synchronize()
            self.refused = f"{type(error).__name__}: {error}".splitlines()[0]
            return step
        self._pool = graph.pool()
        return graph.replay


def _draw(state: SlotState, slots: int, rules: Rules) -> Tensor:
    """Draw the next token of each slot, log it, and note which rows end -> the tokens [R]."""
    token, _, _, _, _, age, end, done = state.table[:, :slots]
    had = None if state.had is None or rules.sampling.repetition_penalty == 1 else state.had[:slots]
    logits = state.logits[:slots]
    if rules.sampling.adjusts:
        logits = rules.adjusted(logits, had, age)
    uniform = state.uniform.index_select(0, state.at)[0, :slots]
    drawn = draw(logits, uniform, rules.sampling, looks=False, top=rules.top)
    state.log(drawn)
    living = done == 0
    state.broken |= (living & ~drawn.total.isfinite()).any()
    age += living
    done |= (rules.stops.index_select(0, drawn.tokens) | (age >= end)).long()
    token.copy_(drawn.tokens)
    if had is not None:
        had.scatter_(1, drawn.tokens[:, None], True)
    return drawn.tokens


def packed_bits(mask: Tensor) -> Tensor:
    """Pack [R,V] bool -> [R,ceil(V/8)] uint8.

    >>> packed_bits(torch.tensor([[True, False, True] + [False] * 6])).tolist()
    [[5, 0]]
    """
    padded = torch.nn.functional.pad(mask, (0, -mask.shape[1] % 8)).unflatten(1, (-1, 8))
    return (padded << torch.arange(8, dtype=torch.uint8, device=mask.device)).sum(-1, dtype=torch.uint8)


def unpacked_bits(bits: Tensor, count: int) -> Tensor:
    """Unpack what `packed_bits` made of [R,count] bool."""
    each = bits[..., None] >> torch.arange(8, dtype=torch.uint8, device=bits.device) & 1
    return each.flatten(1)[:, :count].bool()
