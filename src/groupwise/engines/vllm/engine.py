"""A rollout engine that is vLLM: ids in, ids and log-probabilities of the sampled distribution out.

Each completion is a request of its own, and vLLM computes a prompt's whole blocks once for its group. Completion i of a
request draws from a generator of its own, seeded by (seed, i). Its logits can differ in the last bits with what else is
in the batch, as the local engine's can; the same call again gives the same completions, for what an earlier call left
in the prefix cache is dropped first.

A call that goes on from the one before (Request.held) drops nothing: what whole blocks of its prompts are in the cache
still, by their ids, vLLM does not compute again.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from groupwise.core.engine import Finished, OnFinish, Progress, Request, Sampling
from groupwise.core.errors import RunError
from groupwise.core.numbers.precision import Precision
from groupwise.core.numbers.seeds import derive
from groupwise.core.records import Completion, SamplerTop
from groupwise.engines.inputs import Shapes, broken, limits_of, require_in_float16, require_whole, shapes_of
from groupwise.engines.stop_strings import Decode, StopStrings
from groupwise.engines.vllm.heads import Widening
from groupwise.models.forward.adjustment import adjustment_of


@dataclass(frozen=True)
class Library:
    """The parts of vLLM that are used.

    params     makes SamplingParams
    at_end     its kind of output that comes when a completion has ended
    each_step  its kind of output that comes at each step, with what is new
    """

    params: Any
    at_end: Any
    each_step: Any


@dataclass(frozen=True)
class ModelFacts:
    """The facts of a model that the engine needs.

    eos         ids that end a completion under every sampling
    vocabulary  ids, of which context may be in a sequence
    parameters  their shapes, of which every load must have all
    buffers     their shapes; vLLM makes its own
    tied_to     the parameter that the output head shares, where vLLM has to be given it as the head's too
    widening    of its heads
    """

    eos: frozenset[int]
    vocabulary: int
    context: int
    parameters: Shapes
    buffers: Shapes
    tied_to: str | None = None
    widening: Widening | None = None


class VllmEngine:
    """Samples with a vLLM that lives in this process.

    llm        vLLM's LLM, whose engine runs in this process
    decode     the text of ids, for stop strings
    progress   called at each step
    sleeps     whether vLLM was made to give its memory back
    """

    keeps_support = routes = False
    keeps_top = True
    restarts = 0
    remark = ""
    options = frozenset(Sampling.model_fields)

    def __init__(
        self,
        llm: Any,
        library: Library,
        model: ModelFacts,
        decode: Decode,
        precision: Precision,
        progress: Progress,
        sleeps: bool = False,
    ) -> None:
        self._llm: Any = llm
        self._sleeps, self._asleep = sleeps, False
        self._library, self._model = library, model
        self._decode, self._progress = decode, progress
        self.precision: Precision = precision
        self.version = 0
        self._calls, self.tokens_run = 0, 0

    def close(self) -> None:
        """Leave vLLM to the end of its process. A second call does nothing."""
        self._llm = None

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Replace every parameter in place, and drop the keys and values of the old ones; one that sleeps wakes.

        Raises RunError if a name or a shape does not match, or a number is beyond float16 where vLLM computes in that,
        and nothing is changed.
        """
        self._require_open()
        given = dict(weights)
        require_whole(shapes_of(given), self._model.parameters, self._model.buffers, keeps=self.version)
        if self.precision == "fp16":
            require_in_float16(self._renamed(given), keeps=self.version)
        if self._asleep:
            self._llm.wake_up(tags=["weights"])
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": self._renamed(given)})
        if self._asleep:
            self._llm.wake_up(tags=["kv_cache"])  # last, so that what a load takes by the way has its room
            self._asleep = False
        self._drop_prefixes()
        self.version = version

    def sleep(self) -> None:
        """Give back weights and cache: level 2 of vLLM's sleep, for level 1 would keep weights on the host that the
        next load replaces. One that was not made to sleep keeps what it has.
        """
        self._require_open()
        if self._sleeps and not self._asleep:
            self._llm.sleep(level=2)
            self._asleep = True

    def _renamed(self, given: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Return the parameters as vLLM's model has them; buffers it makes itself."""
        widen = self._model.widening or (lambda name, tensor: tensor)
        for name in self._model.parameters:
            yield name, widen(name, given[name])
            if name == self._model.tied_to:
                yield "lm_head.weight", given[name]

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, on_finish: OnFinish | None = None
    ) -> list[tuple[Completion, ...]]:
        """Sample the completions of each request, in order. Raises UsageError at once, RunError on bad logits."""
        self._require_awake()
        model = self._model
        adjustment_of(sampling, model.eos, model.vocabulary)
        limits = limits_of(requests, sampling, model.context, model.vocabulary)
        if not requests:
            return []
        if not any(request.held for request in requests):
            self._drop_prefixes()
        rows = self._begin(requests, limits, sampling)
        self._sample(rows, sampling, on_finish)
        every = iter(rows.values())  # in the order of requests and their samples
        return [tuple(next(every).completion(self.version) for _ in range(r.samples)) for r in requests]

    def _begin(self, requests: Sequence[Request], limits: Sequence[int], sampling: Sampling) -> dict[str, "LiveRow"]:
        """Return every completion as a request of vLLM's: its name there -> what there is of it."""
        library, ends = self._library, self._model.eos.union(sampling.stop_ids)
        streamed = library.each_step if sampling.stop else library.at_end
        most = min(max(r.top for r in requests), self._model.vocabulary) if sampling.temperature else 0
        rows = {}
        self._calls += 1
        for number, (request, limit) in enumerate(zip(requests, limits, strict=True)):
            for sample in range(request.samples):
                params = params_of(sampling, library.params, ends, limit, request, sample, streamed, most)
                name = f"{self._calls}-{number}-{sample}"
                self._llm.llm_engine.add_request(name, {"prompt_token_ids": list(request.tokens)}, params)
                drawn = request.tokens[len(request.tokens) - request.drawn :]
                rows[name] = LiveRow(number, sample, prompt=len(request.tokens), before=drawn, most=most)
        return rows

    def _sample(self, rows: Mapping[str, "LiveRow"], sampling: Sampling, on_finish: OnFinish | None) -> None:
        """Step until every completion has ended."""
        engine = self._llm.llm_engine
        strings = StopStrings(sampling.stop, self._decode) if sampling.stop else None
        while engine.has_unfinished_requests():
            self._progress()
            for output in engine.step():
                row, new = rows[output.request_id], output.outputs[0]
                if row.finish:
                    continue
                begun = len(row.tokens)
                row.append(new)
                if not all(map(math.isfinite, row.logp[begun:])):
                    self.close()  # NaN that lies in its cache would reach later completions, whatever is loaded
                    raise broken(self.version, self.precision)
                if strings is not None and row.end_with(strings, begun, sampling.min_new_tokens) and not new.finished():
                    engine.abort_request([output.request_id])
                if row.finish:
                    self.tokens_run += row.prompt - (output.num_cached_tokens or 0) + len(row.tokens) - 1
                if row.finish and on_finish is not None:
                    on_finish(Finished(row.request, row.sample, tuple(row.tokens), row.finish))

    def _require_open(self) -> None:
        if self._llm is None:
            raise RunError("the engine is closed")

    def _require_awake(self) -> None:
        self._require_open()
        if self._asleep:
            raise RunError("the engine sleeps, and has no weights until the next load")

    def _drop_prefixes(self) -> None:
        if not self._llm.reset_prefix_cache():
            raise RunError("vLLM did not drop its prefix cache, which holds keys and values of older weights")


@dataclass
class LiveRow:
    """Completion `sample` of request number `request`, as far as it is sampled.

    prompt  how many tokens it goes on from
    before  its tokens that were drawn before
    most    how many of the most likely ids are kept of each token
    top     of each token these ids, and their log-probabilities
    finish  "" while it goes on
    """

    request: int
    sample: int
    prompt: int
    before: tuple[int, ...] = ()
    most: int = 0
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    finish: str = ""
    stop: str = ""

    def append(self, new: Any) -> None:
        """Append what vLLM's output brings."""
        self.tokens += new.token_ids
        self.logp += [chances[token].logprob for token, chances in zip(new.token_ids, new.logprobs, strict=True)]
        for chances in new.logprobs if self.most else ():  # the drawn token is there too, likely or not
            likely = sorted(chances.items(), key=lambda pair: (-pair[1].logprob, pair[0]))[: self.most]
            self.top.append([(token, chance.logprob) for token, chance in likely])
        self.finish = new.finish_reason or ""

    def end_with(self, strings: StopStrings, begun: int, least: int) -> bool:
        """Tell whether a stop string is completed by a token from number `begun` on; then it ends there.

        The first `least` tokens end nothing.
        """
        for place in strings.rows(self.tokens[begun:]):
            length = begun + place + 1
            drawn = (*self.before, *self.tokens[:length])
            if len(drawn) > least and (stop := strings.completed(drawn)):
                del self.tokens[length:], self.logp[length:], self.top[length:]
                self.finish, self.stop = "stop", stop
                return True
        return False

    def completion(self, version: int) -> Completion:
        """Return the whole of it, sampled by weights `version`."""
        top = None
        if self.most:
            ids, logp = zip(*(zip(*token, strict=True) for token in self.top), strict=True)
            top = SamplerTop(torch.tensor(ids, dtype=torch.int32), torch.tensor(logp))
        return Completion.of_one_turn(
            tuple(self.tokens),
            logp_engine=tuple(self.logp),
            finish=self.finish,
            version=version,
            stop=self.stop,
            top=top,
        )


def params_of(
    sampling: Sampling,
    make: Callable[..., Any],
    ends: Iterable[int],
    limit: int,
    request: Request,
    sample: int,
    streamed: Any,
    most: int = 0,
) -> Any:
    """Make vLLM's parameters of completion `sample` of a request: each is a request of its own, with its own seed.

    make      vLLM's SamplingParams
    ends      ids that end it; vLLM knows of no others
    limit     most new tokens of it
    streamed  vLLM's kind of output: all at the end, or what is new at each step
    most      how many of the most likely ids are returned of each token
    """
    # vLLM's generators cannot begin in the middle: what goes on has numbers of its own.
    turn = (request.drawn,) if request.drawn else ()
    return make(
        n=1,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        logit_bias=dict(sampling.logit_bias) or None,
        repetition_penalty=sampling.repetition_penalty,
        min_tokens=min(max(0, sampling.min_new_tokens - request.drawn), limit),
        max_tokens=limit,
        stop_token_ids=sorted(ends),
        ignore_eos=True,
        seed=derive(request.seed, request.first + sample, *turn),
        logprobs=most,
        detokenize=False,
        output_kind=streamed,
    )
