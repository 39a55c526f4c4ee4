"""Engines that share the requests of each call, as one engine.

Request i of a call goes to engine i mod N, but where it goes on from what an engine holds, to that engine. What a
completion is depends on weights, tokens, seed and number alone, so it is the same with any N; its log-probabilities are
up to rounding, for rows are computed beside others.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from torch import Tensor

from groupwise.core.engine import Finished, OnFinish, Precision, Request, Sampling
from groupwise.core.records import Completion
from groupwise.engines.outside.client import Published, RemoteEngine

T = TypeVar("T")


class Replicas:
    """N engines of one kind, each of which answers part of the requests. They work side by side.

    members  at least one
    weights  where every member takes them from; closed with the members
    Raises what an engine raises; of several that do, the first one's.
    """

    def __init__(self, members: Sequence[RemoteEngine], weights: Published) -> None:
        self._members, self._weights = tuple(members), weights
        self._workers = ThreadPoolExecutor(len(members), thread_name_prefix="engine")
        self._holds: dict[int, int] = {}
        first = members[0]
        self.routes, self.keeps_support = first.routes, first.keeps_support
        self.options = first.options
        self.precision: Precision = first.precision

    @property
    def version(self) -> int:
        return self._members[0].version

    @property
    def restarts(self) -> int:
        return sum(engine.restarts for engine in self._members)

    @property
    def tokens_run(self) -> int:
        return sum(engine.tokens_run for engine in self._members)

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, on_finish: OnFinish | None = None
    ) -> list[tuple[Completion, ...]]:
        """Return the completions of each request, in order; `on_finish` is called by one engine at a time."""
        shares = self._shares(requests)
        lock = threading.Lock()

        def hear(share: Sequence[int], done: Finished) -> None:
            if on_finish is not None:
                with lock:
                    on_finish(done._replace(request=share[done.request]))

        asks = [
            partial(engine.generate, [requests[i] for i in share], sampling, on_finish and partial(hear, share))
            for engine, share in zip(self._members, shares, strict=True)
        ]
        groups: list[tuple[Completion, ...]] = [()] * len(requests)
        for share, answers in zip(shares, self._side_by_side(asks), strict=True):
            for i, answer in zip(share, answers, strict=True):
                groups[i] = answer
        self._holds = {
            hash(request.tokens + completion.tokens): number
            for number, share in enumerate(shares)
            for request, group in ((requests[i], groups[i]) for i in share)
            if request.hold
            for completion in group
        }
        return groups

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Publish them once, and have every engine take them."""
        self._weights.publish(dict(weights), version)
        self._holds = {}
        self._side_by_side([partial(engine.take_weights, version) for engine in self._members])

    def close(self) -> None:
        """End every engine. A second call does nothing."""
        for engine in self._members:
            engine.close()
        self._workers.shutdown()
        self._weights.close()

    def _shares(self, requests: Sequence[Request]) -> list[list[int]]:
        """Deal the numbers of requests to the engines."""
        shares: list[list[int]] = [[] for _ in self._members]
        for i, request in enumerate(requests):
            held = self._holds.get(hash(request.tokens[: request.held])) if request.held else None
            shares[i % len(shares) if held is None else held].append(i)
        return shares

    def _side_by_side(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Return what each call returns, once all have ended."""
        futures = [self._workers.submit(call) for call in calls]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]
