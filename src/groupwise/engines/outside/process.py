"""The process with an engine in it, as the run sees it: asked one thing at a time, watched while it works.

What it answers has to be an answer, whatever process wrote it: as much as was asked for, and of the model asked.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from groupwise.core.engine import Finished, OnFinish, Request, Sampling
from groupwise.core.errors import RunError, UsageError, one_line
from groupwise.core.files.atomic import temporary_folder
from groupwise.core.files.dataclass_json import to_json
from groupwise.core.numbers.precision import Precision
from groupwise.core.peer import PeerLost
from groupwise.core.records import Completion, SamplerTop, Support
from groupwise.engines.outside import wire
from groupwise.engines.outside.connection import EngineLine, printable
from groupwise.engines.outside.newest import NewestWeights
from groupwise.engines.outside.spec import EngineSpec
from groupwise.engines.outside.wire import Arrays, Generated, Message

#: No vocabulary has more ids; an engine that has not said its model yet is held to that.
MOST_IDS = 2**19
#: How far above 0 a log-probability may be rounded, nats.
ROUNDING = 1e-3
FINISHES = ("stop", "length")
#: Types that ids of experts and of the vocabulary have.
INTEGERS = (torch.uint8, torch.int16, torch.int32, torch.int64)
#: Seconds that one look for a message may take.
LOOK = 0.5
#: What is raised over an answer that has not the form of one.
NO_ANSWER = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, MemoryError)


class Asked(NamedTuple):
    """The question, and what is known of the engine that it went to.

    vocabulary  ids of its model
    version     of the newest weights that it was given
    """

    requests: Sequence[Request]
    sampling: Sampling
    vocabulary: int
    version: int

    def require_answer(self, answer: Generated) -> None:
        """Raise ValueError, in words, for what is no answer to it."""
        counts = [len(group) for group in answer.groups]
        if counts != [request.samples for request in self.requests]:
            asked = sum(request.samples for request in self.requests)
            raise ValueError(f"{sum(counts)} completions of {len(counts)} requests for {asked} of {len(self.requests)}")
        for number, (request, group) in enumerate(zip(self.requests, answer.groups, strict=True)):
            for sample, completion in enumerate(group):
                if wrong := self._wrong(request, completion):
                    raise ValueError(f"request {number}, completion {sample}: {wrong}")
        most = sum((len(r.tokens) + self._limit(r)) * r.samples for r in self.requests)
        if type(answer.tokens_run) is not int or not 0 <= answer.tokens_run <= most:
            raise ValueError(f"{answer.tokens_run} tokens were computed, where {most} can have been")

    def require_finished(self, done: Finished) -> None:
        """Raise ValueError, in words, for a completion that was not asked for, or is none."""
        numbers = type(done.request) is type(done.sample) is int and 0 <= done.request < len(self.requests)
        if not numbers or not 0 <= done.sample < self.requests[done.request].samples:
            raise ValueError(f"completion {done.sample} of request {done.request} was not asked for")
        request = self.requests[done.request]
        if wrong := self._wrong_end(done.finish) or self._wrong_ids(done.tokens, self._limit(request)):
            raise ValueError(f"request {done.request}, completion {done.sample}: {wrong}")

    def _wrong(self, request: Request, completion: Completion) -> str:
        """Tell what is wrong with a completion of the request; "" if nothing is."""
        numbers = [n for span in completion.spans for n in (span.start, span.stop, span.version)]
        marks = [(span.own, span.anew) for span in completion.spans]
        versions = [span.version for span in completion.spans]
        support, routes, run = completion.support, completion.routes, len(request.tokens) + len(completion.tokens) - 1
        if wrong := self._wrong_ids(completion.tokens, self._limit(request)) or self._wrong_end(completion.finish):
            return wrong
        if bad := [x for x in completion.logp_engine if not (math.isfinite(x) and x <= ROUNDING)]:
            return f"a log-probability of {bad[0]:g}"
        if completion.stop not in ("", *self.sampling.stop):
            return "it ends with a stop string that was not asked for"
        if any(type(n) is not int for n in numbers) or any(own is not True or type(a) is not bool for own, a in marks):
            return "spans that are no engine's"
        if any(not 0 <= version <= self.version for version in versions):
            return f"sampled by version {versions[-1]} of the weights, which has version {self.version}"
        if support is not None and not self._is_support(support):
            return f"its sampling supports are not ids from 0 to {self.vocabulary - 1} for each token"
        most = max(r.top for r in self.requests) if self.sampling.temperature else 0
        if not self._is_top(completion.top, min(most, self.vocabulary)):
            return f"its most likely ids are not {most} from 0 to {self.vocabulary - 1} for each token"
        if routes is not None and (routes.dim() != 3 or len(routes) != run or not _counts(routes)):
            return f"experts of shape {tuple(routes.shape)} for {run} tokens"
        return ""

    def _wrong_ids(self, tokens: Sequence[int], limit: int) -> str:
        if not 0 < len(tokens) <= limit:
            return f"{len(tokens)} tokens, where 1 to {limit} are due"
        bad = [token for token in tokens if type(token) is not int or not 0 <= token < self.vocabulary]
        return f"id {bad[0]} is not one of the model's, which are 0 to {self.vocabulary - 1}" if bad else ""

    def _wrong_end(self, finish: object) -> str:
        return "" if finish in FINISHES else f"finish is {finish!a:.40}, where it is one of {', '.join(FINISHES)}"

    def _limit(self, request: Request) -> int:
        return self.sampling.max_new_tokens if request.max_new_tokens is None else request.max_new_tokens

    def _is_support(self, support: Support) -> bool:
        ids, start = support.ids, support.start
        if ids.dim() != 1 or start.dim() != 1 or not _counts(ids) or not _counts(start):
            return False
        inside = not len(ids) or 0 <= int(ids.min()) <= int(ids.max()) < self.vocabulary
        return inside and int(start[0]) == 0 and int(start[-1]) == len(ids) and bool((start.diff() > 0).all())

    def _is_top(self, top: SamplerTop | None, k: int) -> bool:
        if top is None or not k:
            return top is None and not k
        if not top.ids.shape[1:] == top.logp.shape[1:] == (k,) or not _counts(top.ids):
            return False
        good = top.logp.is_floating_point() and bool((top.logp <= ROUNDING).all())  # NaN is not
        return good and int(top.ids.max()) < self.vocabulary


@dataclass(frozen=True)
class Declared:
    """The properties that an engine says of itself (core/engine.py: Engine), and the library that computes."""

    routes: bool
    keeps_support: bool
    keeps_top: bool
    options: tuple[str, ...]
    precision: Precision
    remark: str
    version: int
    library: str

    def __post_init__(self) -> None:
        """Raise ValueError for what no engine says."""
        kinds = [bool, bool, bool, tuple, str, str, int, str]
        if [type(each) for each in vars(self).values()] != kinds or self.precision not in get_args(Precision):
            raise ValueError("what it says of itself is not what an engine says")


class EngineProcess:
    """The process at the other end of a line, without an engine yet. After PeerLost, or an exception in the middle of
    an answer, close it.

    name       what a person knows it by
    explained  adds to a loss what is known of its cause
    pid        of the process, where it is one of this machine's
    answered   whether it owes nothing
    longest_silence  seconds that it was heard nothing of at most while it owed an answer
    """

    def __init__(
        self,
        line: EngineLine,
        name: str = "the engine's process",
        explained: Callable[[PeerLost], PeerLost] = lambda lost: lost,
    ) -> None:
        self._line, self._name, self._explained = line, name, explained
        self._vocabulary, self._version = MOST_IDS, 0
        self._gone: Callable[[], None] = lambda: None
        self.pid = line.pid
        self.answered, self.longest_silence = True, 0.0

    def start(
        self,
        spec: EngineSpec,
        write_folder: Callable[[Path], None],
        weights: NewestWeights,
        seconds: float,
    ) -> Declared:
        """Make the engine. Raises PeerLost, and what the engine refuses; RunError where its answer is none."""
        with temporary_folder("engine") as folder:
            write_folder(folder)
            files = wire.files_in(folder)
        answer = self._ask_with({"verb": "start", "spec": to_json(spec)}, weights, seconds, files)
        with self.no_answer():
            declared = Declared(**{**answer.content, "options": tuple(answer.content["options"])})
        self._vocabulary, self._version = spec.vocabulary, weights.stamp.version
        return declared

    def load(self, weights: NewestWeights, seconds: float) -> int:
        """Load these weights -> the version that the engine has then. Raises as `start` does."""
        answer = self._ask_with({"verb": "load"}, weights, seconds)
        with self.no_answer():
            version = answer.content["version"]
        self._version = weights.stamp.version
        return version

    def sleep(self, seconds: float) -> None:
        """Have the engine sleep until the next load. Raises as `start` does."""
        self.ask({"verb": "sleep"}, seconds)

    def generate(
        self, requests: list[Request], sampling: Sampling, on_finish: OnFinish | None, seconds: float
    ) -> wire.Generated:
        """Return the completions of each request; `on_finish` hears of them as they end. Raises as `start` does."""
        content = {"verb": "generate", **wire.question(requests, sampling, listens=on_finish is not None)}
        asked = Asked(requests, sampling, self._vocabulary, self._version)

        def finished(message: Message) -> None:
            with self.no_answer():
                done = wire.finished_of(message.content)
                asked.require_finished(done)
            if on_finish is not None:
                on_finish(done)

        message = self.ask(content, seconds, finished=None if on_finish is None else finished)
        with self.no_answer():
            answer = wire.answer_of(message)
            asked.require_answer(answer)
        return answer

    def close(self) -> None:
        """End it, and whatever it started."""
        self._line.close()
        self._gone()

    def _ask_with(
        self, content: Mapping[str, Any], weights: NewestWeights, seconds: float, files: Arrays = MappingProxyType({})
    ) -> Message:
        """Ask with the newest weights; again, with those in memory of the machine, where they cannot be read on the
        GPU.
        """
        self._gone = partial(weights.forget, self)
        parcel = weights.parcel(self, self._line.shares_memory)
        answer = self.ask({**content, **parcel.content}, seconds, {**parcel.arrays, **files}, parcel.descriptors)
        if "card" not in parcel.content or "declined" not in answer.content:
            return answer
        weights.decline(self, str(answer.content["declined"]))
        parcel = weights.parcel(self, self._line.shares_memory)
        return self.ask({**content, **parcel.content}, seconds, {**parcel.arrays, **files}, parcel.descriptors)

    def ask(
        self,
        content: Mapping[str, Any],
        seconds: float,
        arrays: Arrays = MappingProxyType({}),
        descriptors: Sequence[int] = (),
        finished: Callable[[Message], None] | None = None,
    ) -> Message:
        """Ask, and return the answer. `seconds` may pass without a sign of progress.

        Raises PeerLost, and the engine's own errors as they were raised there.
        """
        self.answered = False
        try:
            wire.send(self._line, content, arrays, seconds, descriptors)
            while True:
                message = self._next(seconds)
                if "finished" in message.content and finished is not None:
                    finished(message)
                if "answer" in message.content:
                    self.answered = True
                    return Message(message.content["answer"], message.arrays)
                if "error" in message.content:
                    with self.no_answer():
                        kind, words, notes = (message.content["error"][key] for key in ("kind", "message", "notes"))
                    self.answered = True
                    error = UsageError(words) if kind == "usage" else RunError(words)
                    if notes:
                        error.add_note(notes)
                    raise error
        except PeerLost as lost:
            raise self._explained(lost) from None

    def _next(self, seconds: float) -> Message:
        """Return the next message. Time in which this process itself was stopped is none in which the child was silent:
        what counts is how often it was looked for in vain.
        """
        look = min(LOOK, seconds / 4)
        silent = 0.0
        while not self._line.speaks(look):
            silent += look
            self.longest_silence = max(self.longest_silence, silent)
            if silent >= seconds:
                raise PeerLost(f"it gave no sign of progress for {seconds:g} seconds", late=True)
        with self.no_answer():
            return wire.receive(self._line, seconds)

    @contextmanager
    def no_answer(self) -> Iterator[None]:
        """Raise RunError for what the other process wrote, where it can be no answer: another make, or no engine."""
        try:
            yield
        except NO_ANSWER as error:
            raise RunError(f"{self._name}: what came back is no answer to what was asked: {in_words(error)}") from None


def in_words(error: Exception) -> str:
    """Tell what is wrong with an answer that could not be read, which may repeat what was in it."""
    return printable(one_line(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {one_line(error)}")


def _counts(ids: Tensor) -> bool:
    """Tell whether a tensor is of ids: whole numbers from 0 on, of a type that all of torch knows."""
    return ids.dtype in INTEGERS and (ids.dtype is torch.uint8 or not len(ids) or int(ids.min()) >= 0)
