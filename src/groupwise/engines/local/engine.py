"""A rollout engine inside the training process: groups of completions from any Hugging Face causal language model.

A prompt goes through the model once; its keys and values, and the states of other layers, are then shared out to the
rows of its group. Each step draws one token per row. Rows that finished leave, and waiting completions take their
places.

Completion i of a request is a function of the weights, the prompt, the seed and i: its numbers come from a stream of
its own. What is left is floating point, as a row's sums can be ordered differently beside other rows. Of 512
completions of uneven random Qwen3 models in float32 on a CPU (20 and 4096 ids, all of them and top-p 0.9), alone
against all together, 510 have the same tokens, and log-probabilities within 1.2e-5, or 1.6e-4 where a token is on the
edge of top-p's set. The same call again gives the same bits.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from groupwise.core.engine import Finished, OnFinish, Progress, Request, Sampling, silent
from groupwise.core.errors import RunError, UsageError
from groupwise.core.numbers.precision import Precision, precision_of
from groupwise.core.numbers.reproducible import prepare
from groupwise.core.records import Completion
from groupwise.engines.inputs import broken, copy_weights, limits_of
from groupwise.engines.local.cache import PrefilledPrompts, RowCache, Store
from groupwise.engines.local.forward import ATTENTION, Prefill, Step, make_experts_recordable
from groupwise.engines.local.outputs import Outputs
from groupwise.engines.local.rules import Rules
from groupwise.engines.local.sampler import draw, end_sum
from groupwise.engines.local.scheduler import Queue, Scheduler, Take
from groupwise.engines.local.slots.make import make_slots
from groupwise.engines.local.slots.sampler import SlotSampler
from groupwise.engines.local.states import limit_time_steps
from groupwise.engines.local.texts import TextForward, TextPrefill, TextStep
from groupwise.engines.local.trial import WHOLE_TEXTS, require_sampled
from groupwise.engines.outside.spec import EngineSpec
from groupwise.engines.settings import EngineSettings
from groupwise.engines.stop_strings import Decode, StopStrings
from groupwise.models.causal import CausalLM
from groupwise.models.context import positions, positions_in_words
from groupwise.models.files.folder import loading, read_config
from groupwise.models.forward.adjustment import adjustment_of
from groupwise.models.load import Policy, load_tokenizer
from groupwise.models.precision import WeightPrecision, cast_weights, require_range

# Padded prompt tokens in one forward; bounds the memory of the first pass. On a CPU the allocator gives back what more
# of them need, and fresh pages take longer than a second pass (docs/dev/log.md).
PREFILL_TOKENS, PREFILL_TOKENS_CPU = 8192, 1024
# Of a pass behind held tokens: tokens, these included, for each one that may be run. What is held of a batch is copied
# once more for the pass.
PAST_SHARE = 16
# A cache up to this many bytes is kept for the next call: fresh pages can cost a small model a tenth of its time.
KEEP_BYTES = 2**26


class LocalEngine:
    """Samples from its own copy of `model`; what the learner does to the original arrives by load_weights only.

    eos        ids that end a completion; empty for none
    pad        any valid id, written where a shorter prompt has no token
    max_rows   completions sampled at the same time
    routes     say which experts were chosen (Completion.routes); a UsageError for a model that has none
    decode     the text of ids, for stop strings; without it they are refused
    precision  what the copy's weights are cast to, and the model computes in; log-probabilities are float32 at least
    progress   called at each step and each pass over prompts
    slots      rows are sampled in fixed slots (slots/): what a GPU does, one CUDA graph a step, where the model can be
               sampled so; None: on a GPU
    compiled   the layers of a step in slots are compiled by torch.compile
    why_rows   why slots were wanted and are not there; "" otherwise

    In tokens_run padding is not counted, nor what is computed in places that would be padding.
    """

    keeps_support = keeps_top = True
    restarts = 0

    def __init__(
        self,
        model: Any,
        eos: frozenset[int],
        pad: int,
        max_rows: int = 512,
        routes: bool = False,
        precision: WeightPrecision = "same",
        decode: Decode | None = None,
        progress: Progress = silent,
        slots: bool | None = None,
        compiled: bool = False,
    ) -> None:
        if max_rows < 1:
            raise UsageError(f"the engine's max_rows is {max_rows}; it must be 1 or more")
        self._model: Any = copy.deepcopy(model).eval().requires_grad_(False)
        self._model.zero_grad(set_to_none=True)
        own = self._model.config._attn_implementation
        if own == "sdpa":
            self._model.set_attn_implementation(ATTENTION)
        make_experts_recordable(self._model)
        limit_time_steps(self._model)
        self._windows = require_sampled(self._model)
        if self._windows.by_token or self._windows.uncached:
            self._model.set_attn_implementation(own)
        self._always_masked = self._model.config._attn_implementation != ATTENTION
        require_range("engine.precision", precision, self._model.named_parameters())
        cast_weights(self._model, precision)
        self.version, self.routes, self.tokens_run = 0, routes, 0
        self.precision: Precision = precision_of(self._model.dtype)
        config = self._model.config
        self._context, self._within = positions(config), positions_in_words(config)
        self._device = next(self._model.parameters()).device
        self._prefill_tokens = PREFILL_TOKENS_CPU if self._device.type == "cpu" else PREFILL_TOKENS
        self._step: Any
        self._prefill: Any
        self._step, self._prefill = self._forwards(routes, pad)
        self._vocabulary = config.get_text_config().vocab_size
        if outside := sorted(i for i in eos if not 0 <= i < self._vocabulary):
            raise UsageError(
                f"end ids {outside} are not among the model's {self._vocabulary} tokens; is the tokenizer its own?"
            )
        self._eos, self._text_of = eos, decode
        self._strings: dict[tuple[str, ...], StopStrings] = {}  # what they know of ids is kept from call to call
        self.options = frozenset(Sampling.model_fields) - (frozenset() if decode else {"stop"})
        self._max_rows, self._progress = max_rows, progress
        self._cache, self._held = RowCache(self._windows), Store()
        self._rules_of: dict[str, Rules] = {}
        self._slots, self.why_rows = None, ""
        on_gpu = self._device.type == "cuda"
        if (on_gpu if slots is None else slots) and not self._windows.uncached:
            made = (self._model, self._prefill, self._step.routers, self._context, max_rows, progress)
            self._slots, self.why_rows = make_slots(*made, graphs=on_gpu, compiled=compiled)
        elif compiled:
            why = self._windows.uncached or "the engine's steps are compiled on a GPU alone"
            raise UsageError(f"engine.compile: {why}; set it to false")

    def _forwards(self, routes: bool, pad: int) -> tuple[Any, Any]:
        """Make what runs a step of the rows, and what runs prompts."""
        if not self._windows.uncached:
            return Step(self._model, self._windows, routes), Prefill(self._model, self._windows, pad, routes)
        texts = TextForward(self._model, routes, self._prefill_tokens)
        return TextStep(texts), TextPrefill(texts, self._windows)

    @property
    def how(self) -> str:
        """Say in words how it samples."""
        if self._windows.uncached:
            return f"{WHOLE_TEXTS}: {self._windows.uncached}"
        return f"rows{self.why_rows and f': {self.why_rows}'}" if self._slots is None else self._slots.step.how

    @property
    def remark(self) -> str:
        """Say why it samples in rows where slots were wanted, or runs whole texts; "" elsewhere."""
        return self.how if self.why_rows or self._windows.uncached else ""

    def close(self) -> None:
        """Drop the copy of the model and the caches: it cannot sample any more. A second call does nothing."""
        self._model = self._step = self._prefill = self._slots = None
        self._cache, self._held = RowCache(self._windows), Store()

    def sleep(self) -> None:
        """Drop the caches, and what was recorded for them; the next call makes them anew."""
        self._cache, self._held = RowCache(self._windows), Store()
        if self._slots is not None:
            self._slots.clear()

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Replace every parameter, and buffers where named; nothing is changed if a name or shape does not match."""
        self._held = Store()
        copy_weights(self._model, weights, keeps=self.version)
        self.version = version

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, on_finish: OnFinish | None = None
    ) -> list[tuple[Completion, ...]]:
        """Sample the completions of each request, in order. Raises UsageError at once, RunError on bad logits."""
        if self._model is None:
            raise RunError("the engine is closed")
        rules = self._rules(sampling, max((request.top for request in requests), default=0))
        limits = limits_of(requests, sampling, self._context, self._vocabulary, self._within)
        longest = max((len(r.tokens) + limit for r, limit in zip(requests, limits, strict=True)), default=0)
        queue = Queue(requests, limits, self._held)
        self._held = Store()
        if not requests:
            return []
        outputs = Outputs([r.tokens[len(r.tokens) - r.drawn :] for r in queue.by_slot()], queue.longest, rules.stops)
        announce = partial(_announce, queue, outputs, on_finish)
        with torch.inference_mode():
            if self._slots is None or longest > self._windows.shortest:
                self._held = self._in_rows(queue, outputs, rules, announce)
            else:
                self._held = self._in_slots(self._slots, queue, outputs, rules, announce)
        completions = outputs.completions(self.version)
        return [tuple(completions[first : first + r.samples]) for first, r in zip(queue.offset, requests, strict=True)]

    def _rules(self, sampling: Sampling, top: int = 0) -> Rules:
        """Return the same object for the same sampling and number of likely ids. Raises UsageError, beginning with the
        key, for a sampling that the model cannot follow.
        """
        top = min(top, self._vocabulary) if sampling.temperature else 0
        key = f"{top} {sampling.model_dump_json()}"
        if key not in self._rules_of:
            self._rules_of[key] = replace(self._new_rules(sampling), top=top)
        return self._rules_of[key]

    def _new_rules(self, sampling: Sampling) -> Rules:
        adjustment = adjustment_of(sampling, self._eos, self._vocabulary).on(self._device)
        stops = torch.zeros(self._vocabulary, dtype=torch.bool, device=self._device)
        stops[adjustment.ends] = True
        stop = sampling.stop
        if stop and self._text_of is None:
            raise UsageError(f"stop = {list(stop)}: this engine was made without what decodes ids; take it out")
        if stop and self._text_of and stop not in self._strings:
            self._strings[stop] = StopStrings(stop, self._text_of)
        return Rules(sampling, adjustment, stops, self._strings.get(stop))

    def _in_slots(
        self,
        slots: SlotSampler,
        queue: Queue,
        outputs: Outputs,
        rules: Rules,
        announce: Callable[[Tensor], None],
    ) -> Store:
        """Sample every completion in slots -> what is held."""

        def run_prompts(takes: Sequence[Take]) -> tuple[PrefilledPrompts, list[int]]:
            return self._run_batch(queue, _prefill_batch(queue, takes, self._prefill_tokens))

        held, run = slots.sample(queue, outputs, rules, self.version, announce, run_prompts)
        self.tokens_run += run
        return held

    def _in_rows(self, queue: Queue, outputs: Outputs, rules: Rules, announce: Callable[[Tensor], None]) -> Store:
        """Sample every completion in rows that share a window -> what is held."""
        cache, self._cache = self._cache, RowCache(self._windows)
        scheduler = Scheduler(
            queue,
            outputs,
            cache,
            self._max_rows,
            strings=rules.strings,
            least=rules.sampling.min_new_tokens,
            history=rules.sampling.repetition_penalty != 1,
        )
        self._sample(scheduler, rules, announce)
        if cache.size <= KEEP_BYTES:
            self._cache = cache
        return scheduler.held

    def _sample(self, scheduler: Scheduler, rules: Rules, announce: Callable[[Tensor], None]) -> None:
        """Step until every completion is finished: admit rows, draw a token for each, retire rows, run the model."""
        logits = torch.empty(0, self._vocabulary, device=self._device)
        while scheduler.count or scheduler.queue.waiting:
            self._progress()
            if scheduler.admits:
                logits = torch.cat([logits, *self._admit(scheduler)])
            if rules.sampling.adjusts:
                logits = rules.adjusted(logits, scheduler.had, scheduler.age, scheduler.youngest)
            drawn = draw(logits, scheduler.uniform(), rules.sampling, top=rules.top)
            if not scheduler.record(drawn, end_sum(drawn, rules.stops)):
                raise broken(self.version, self.precision)
            tokens, finished = scheduler.retire(drawn.tokens)
            announce(finished)
            logits = self._decode(tokens, scheduler) if scheduler.count else logits[:0]

    def _decode(self, tokens: Tensor, scheduler: Scheduler) -> Tensor:
        """Run the rows' last tokens: their next logits [R,V]."""
        cache = scheduler.cache
        places, masks = cache.prepare(scheduler.ahead, self._context - 1)
        if not masks and self._always_masked:
            masks = cache.masks()
        logits, routes = self._step(tokens[:, None], places, masks, cache.views())
        scheduler.advance(routes)
        self.tokens_run += scheduler.live
        return logits

    def _admit(self, scheduler: Scheduler) -> list[Tensor]:
        """Start as many waiting completions as there is room for: their first logits, by prompt batch."""
        queue, takes, logits = scheduler.queue, scheduler.admit(), []
        while takes:
            self._progress()
            if queue.carried is not None:
                prompts, batch, which = queue.carried, takes[:1], [0]
                queue.carried = None
            else:
                batch = _prefill_batch(queue, takes, self._prefill_tokens)
                prompts, which = self._run_batch(queue, batch)
            takes = takes[len(batch) :]
            if queue.unfinished(batch[-1]):
                queue.carried = prompts.only(which[-1])
            source = torch.from_numpy(np.repeat(which, [t.count for t in batch])).to(self._device)
            scheduler.begin(prompts, source)
            logits.append(prompts.logits[source])
        return logits

    def _run_batch(self, queue: Queue, batch: Sequence[Take]) -> tuple[PrefilledPrompts, list[int]]:
        """Run the prompts of a batch, which all go on from what is held or all do not -> and which of them is whose."""
        numbers = [take.request for take in batch]
        # Requests may share a prompt, say where each completion has a limit of its own: one pass serves them.
        past = {queue.requests[number].tokens: queue.past[number] for number in numbers}
        for number in numbers:
            queue.past[number] = None
        prompts, held = list(past), [sequence for sequence in past.values() if sequence is not None]
        self.tokens_run += sum(map(len, prompts)) - sum(len(sequence.tokens) for sequence in held)
        number = {tokens: i for i, tokens in enumerate(prompts)}
        return self._prefill(prompts, held), [number[queue.requests[take.request].tokens] for take in batch]


def _announce(queue: Queue, outputs: Outputs, on_finish: OnFinish | None, slots: Tensor) -> None:
    """Hand out the completions in `slots`, which are finished and flushed."""
    if on_finish is None or not len(slots):
        return
    for slot, (tokens, finish, _) in zip(slots.tolist(), outputs.texts(slots), strict=True):
        request = queue.number(slot)
        on_finish(Finished(request, slot - queue.offset[request], tokens, finish))


def _prefill_batch(queue: Queue, takes: Sequence[Take], most: int) -> Sequence[Take]:
    """Take as many of the takes, from the front, as one forward of at most `most` padded tokens holds; one at least.

    Those that go on from what is held and those that do not are never in one batch.
    """
    held = queue.past[takes[0].request] is not None
    width = new = 0
    for count, take in enumerate(takes):
        past, tokens = queue.past[take.request], len(queue.requests[take.request].tokens)
        width, new = max(width, tokens), max(new, tokens - (0 if past is None else len(past.tokens)))
        full = new * (count + 1) > most or (held and width * (count + 1) > PAST_SHARE * most)
        if count and (full or (past is not None) != held):
            return takes[:count]
    return takes


def local_engine(
    policy: Policy,
    settings: EngineSettings,
    routes: bool,
    progress: Progress = silent,
) -> LocalEngine:
    """Make an engine with its own copy of the policy.

    Raises UsageError if the policy's model cannot be sampled, or has no experts to record.
    """
    return LocalEngine(
        policy.model,
        eos=policy.eos,
        pad=policy.pad,
        max_rows=settings.max_rows,
        routes=routes,
        precision=settings.precision,
        decode=policy.decode,
        progress=progress,
        compiled=settings.compile,
    )


def engine_of_spec(spec: EngineSpec, folder: Path, weights: Mapping[str, Tensor], progress: Progress) -> LocalEngine:
    """Make an engine of a model that is built from its configuration.

    It tries its ways to compute on the weights that it is made with, so they are in the model before.
    """
    what = "the model of the engine in a child"
    config = read_config(folder, what)
    tokenizer = load_tokenizer(folder, config)
    with loading(what):
        model = CausalLM.from_config(
            config,
            dtype=getattr(torch, spec.dtype),
            attn_implementation=spec.attention,
            experts_implementation=spec.experts,
        )
    progress()
    prepare(spec.device)
    model = model.eval().to(spec.device)
    copy_weights(model, weights.items(), keeps=0)
    policy = Policy(model, tokenizer, frozenset(spec.eos), spec.pad)
    return local_engine(policy, EngineSettings.model_validate(spec.settings), spec.routes, progress)
