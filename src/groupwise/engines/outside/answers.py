"""What an engine's answer must be, whatever process wrote it: as much as was asked for, and of the model asked."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from groupwise.core.engine import Finished, Request, Sampling
from groupwise.core.records import Completion, Support
from groupwise.engines.outside.wire import Generated

#: No vocabulary has more ids; an engine that has not said its model yet is held to that.
MOST_IDS = 2**19
#: How far above 0 a log-probability may be rounded, nats.
ROUNDING = 1e-3
FINISHES = ("stop", "length")


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
        own = all(span.own for span in completion.spans)
        versions = [span.version for span in completion.spans]
        support, routes, run = completion.support, completion.routes, len(request.tokens) + len(completion.tokens) - 1
        if wrong := self._wrong_ids(completion.tokens, self._limit(request)) or self._wrong_end(completion.finish):
            return wrong
        if bad := [x for x in completion.logp_engine if not (math.isfinite(x) and x <= ROUNDING)]:
            return f"a log-probability of {bad[0]:g}"
        if completion.stop not in ("", *self.sampling.stop):
            return "it ends with a stop string that was not asked for"
        if not own or any(type(version) is not int or not 0 <= version <= self.version for version in versions):
            return f"sampled by version {versions[-1]} of the weights, which has version {self.version}"
        if support is not None and not self._is_support(support):
            return f"its sampling supports are not ids from 0 to {self.vocabulary - 1} for each token"
        if routes is not None and (routes.dim() != 3 or len(routes) != run or routes.is_floating_point()):
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
        """Return the most new tokens of a completion."""
        return self.sampling.max_new_tokens if request.max_new_tokens is None else request.max_new_tokens

    def _is_support(self, support: Support) -> bool:
        ids, start = support.ids, support.start
        if ids.dim() != 1 or start.dim() != 1 or ids.is_floating_point() or start.is_floating_point():
            return False
        inside = not len(ids) or 0 <= int(ids.min()) <= int(ids.max()) < self.vocabulary
        return inside and int(start[0]) == 0 and int(start[-1]) == len(ids) and bool((start.diff() > 0).all())
