"""What a rollout engine is to the loop: it says what it can do, generates, loads weights, and is closed at the end."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, Protocol

from pydantic import AfterValidator, Field
from torch import Tensor

from groupwise.core.records import Completion
from groupwise.core.settings import Settings


def _zero_or_warm(temperature: float) -> float:
    """Raises ValueError for one so low that logits divided by it are not finite."""
    if 0 < temperature < 0.01:
        raise ValueError("must be 0, which is greedy, or at least 0.01")
    return temperature


Temperature = Annotated[float, Field(ge=0, le=100), AfterValidator(_zero_or_warm)]
TopP = Annotated[float, Field(gt=0, le=1)]
TopK = Annotated[int, Field(ge=0)]


class Sampling(Settings):
    """The section [sampling]: the distribution completions are drawn from.

    temperature     logits are divided by it; 0 takes the most likely token, the lowest other is 0.01
    top_p           keep the most likely tokens whose probability adds up to top_p; 1 keeps all
    top_k           keep the k most likely tokens; 0 keeps all
    max_new_tokens  a completion that reaches it ends with finish "length"
    """

    temperature: Temperature = 1.0
    top_p: TopP = 1.0
    top_k: TopK = 0
    max_new_tokens: int = Field(default=64, ge=1, le=2**24)

    @property
    def truncates(self) -> bool:
        """Whether tokens can be left out of the sampling support."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0)


@dataclass(frozen=True)
class Request:
    """One prompt to be answered `samples` times. Completion i is a function of (weights, tokens, seed, i) alone.

    max_new_tokens  a limit of this request's own; None takes the sampling's
    """

    tokens: tuple[int, ...]
    samples: int
    seed: int
    max_new_tokens: int | None = None


class Finished(NamedTuple):
    """A completion that has just ended, while others are still being sampled: completion `sample` of request number
    `request`, its ids, and "stop" or "length".
    """

    request: int
    sample: int
    tokens: tuple[int, ...]
    finish: str


OnFinish = Callable[[Finished], None]
Precision = Literal["fp32", "bf16"]


class Engine(Protocol):
    """Samples completions and says under which weights and with which log-probabilities.

    version        which weights it samples from
    routes         whether its completions carry the experts that were chosen (Completion.routes)
    keeps_support  whether its completions carry the ids that top-p or top-k left (Completion.support)
    precision      what it computes in
    """

    @property
    def version(self) -> int: ...

    @property
    def routes(self) -> bool: ...

    @property
    def keeps_support(self) -> bool: ...

    @property
    def precision(self) -> Precision: ...

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, on_finish: OnFinish | None = None
    ) -> list[tuple[Completion, ...]]:
        """The completions of each request, in order; `logp_engine` is under the distribution sampled.

        `on_finish` is called with completions as they end, in any order, so that scoring can begin; an engine that does
        not know so early need not call it.
        """
        ...

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Replace the weights, drop everything computed under the old ones, and stamp later completions."""

    def close(self) -> None:
        """Give back what it holds; it cannot generate any more. A second call does nothing."""
