"""Requests of a run, as its engine hears them."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor

from groupwise.core.engine import Engine, OnFinish, Request, Sampling
from groupwise.core.numbers.precision import Precision
from groupwise.core.records import Completion


class Heard(NamedTuple):
    """A request, the ids of each of its answers, and the weights that the engine had."""

    request: Request
    answers: tuple[tuple[int, ...], ...]
    version: int


class HeardEngine:
    """An engine that is heard: it does what the one inside does, and keeps what it was asked for training.

    A rollout may ask it in a thread of its own; what was heard is taken in another.
    """

    def __init__(self, engine: Engine, listens: bool = True) -> None:
        """Hear the engine; without `listens` nothing is kept, for nobody takes it."""
        self._engine, self._heard, self._listens = engine, list[Heard](), listens

    @property
    def restarts(self) -> int:
        return self._engine.restarts

    @property
    def remark(self) -> str:
        return self._engine.remark

    @property
    def tokens_run(self) -> int:
        return self._engine.tokens_run

    @property
    def version(self) -> int:
        return self._engine.version

    @property
    def routes(self) -> bool:
        return self._engine.routes

    @property
    def keeps_support(self) -> bool:
        return self._engine.keeps_support

    @property
    def keeps_top(self) -> bool:
        return self._engine.keeps_top

    @property
    def options(self) -> frozenset[str]:
        return self._engine.options

    @property
    def precision(self) -> Precision:
        return self._engine.precision

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, on_finish: OnFinish | None = None
    ) -> list[tuple[Completion, ...]]:
        """Generate as the engine inside does."""
        answers = self._engine.generate(requests, sampling, on_finish)
        if self._listens:
            pairs, version = zip(requests, answers, strict=False), self._engine.version
            self._heard += [Heard(request, tuple(c.tokens for c in answer), version) for request, answer in pairs]
        return answers

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Load weights as the engine inside does."""
        self._engine.load_weights(weights, version)

    def sleep(self) -> None:
        """Let the engine inside sleep."""
        self._engine.sleep()

    def close(self) -> None:
        """Close the engine inside."""
        self._engine.close()

    def take(self) -> list[Heard]:
        """Hand out what was heard since the last time."""
        heard, self._heard = self._heard, []
        return heard

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """Keep nothing of what is asked inside, as in an evaluation."""
        before, self._listens = self._listens, False
        try:
            yield
        finally:
            self._listens = before
