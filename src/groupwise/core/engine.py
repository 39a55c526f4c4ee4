"""Protocol of rollout engines: an engine says what it can do, generates, loads weights, and is closed at the end."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Protocol

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer
from torch import Tensor

from groupwise.core.numbers.precision import Precision
from groupwise.core.records import Completion
from groupwise.core.settings import Settings


def _zero_or_warm(temperature: float) -> float:
    """Raise ValueError for one so low that logits divided by it are not finite."""
    if 0 < temperature < 0.01:
        raise ValueError("must be 0, which is greedy, or at least 0.01")
    return temperature


def _token_id(key: object) -> object:
    """Convert the key of a TOML table to a token id. Raises ValueError for text that is no whole number."""
    if isinstance(key, str) and not (key.isdecimal() and key.isascii()):
        raise ValueError("a token's id is expected before the bias, such as 198 = -5.0")
    return int(key) if isinstance(key, str) else key


def _biases(table: object) -> object:
    """Raise ValueError for what is no table."""
    if not isinstance(table, dict):
        raise ValueError("a table of token id = bias is expected, such as {198 = -5.0}")
    return table


def _listed(stops: object) -> object:
    """Raise ValueError for one text, which would be read as its characters."""
    if isinstance(stops, str):
        raise ValueError(f"a list is expected, such as [{json.dumps(stops)}]")
    return stops


def _possible_text(stop: str) -> str:
    """Raise ValueError for what no finished text holds."""
    if "\ufffd" in stop:
        raise ValueError("holds U+FFFD, which stands for half a character until the next token completes it")
    return stop


Temperature = Annotated[float, Field(ge=0, le=100), AfterValidator(_zero_or_warm)]
TokenId = Annotated[int, BeforeValidator(_token_id), Field(ge=0), PlainSerializer(str)]
Stops = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_possible_text)], ...],
    Field(strict=False, max_length=64),
    BeforeValidator(_listed),
]
StopIds = Annotated[tuple[Annotated[int, Field(strict=True, ge=0)], ...], Field(strict=False, max_length=1024)]


class Distribution(Settings):
    """Distribution that each token of a completion is drawn from. z_j are the model's logits, in this order:

        x_j = z_j + logit_bias_j;   x_j / r where x_j > 0, else x_j * r, for ids j that the row has had already;
        -inf for end ids among the first min_new_tokens;   x_j / temperature;   what top_k, top_p and min_p leave

    temperature         divisor of the logits, at least 0.01; 0: the most likely token
    top_p               keep the most likely tokens whose probability adds up to top_p; 1: all
    top_k               keep the k most likely tokens; 0: all
    min_p               keep tokens at least min_p times as likely as the most likely one; 0: all
    logit_bias          token id -> number added to its logit
    repetition_penalty  penalty r on tokens already in the prompt or completion; 1: none. For evaluation only
    min_new_tokens      tokens before a completion may end
    """

    temperature: Temperature = 1.0
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    min_p: float = Field(default=0.0, ge=0, le=1)
    logit_bias: Annotated[dict[TokenId, Annotated[float, Field(ge=-100, le=100)]], BeforeValidator(_biases)] = Field(
        default={}
    )
    repetition_penalty: float = Field(default=1.0, ge=0.1, le=10)
    min_new_tokens: int = Field(default=0, ge=0, le=2**24)

    @property
    def truncates(self) -> bool:
        """True if tokens can be left out of the sampling support."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0 or self.min_p > 0)

    @property
    def adjusts(self) -> bool:
        """True if logits are changed before they are divided by the temperature."""
        return bool(self.logit_bias) or self.repetition_penalty != 1 or self.min_new_tokens > 0


class Sampling(Distribution):
    """Sampling of completions, and where they end.

    stop            texts that end a completion with finish "stop"; the token that completes one is kept
    stop_ids        token ids that end a completion, besides the model's own
    max_new_tokens  longest completion; one that reaches it has finish "length"
    """

    stop: Stops = ()
    stop_ids: StopIds = ()
    max_new_tokens: int = Field(default=64, ge=1, le=2**24)


@dataclass(frozen=True)
class Request:
    """One prompt to be answered `samples` times. Completion i depends on weights, tokens, seed and first + i alone.

    A completion that was begun before goes on where its `drawn` last tokens end: they count in min_new_tokens, a stop
    string may have begun in them, and its random numbers are those that follow theirs. What comes back is new.

    max_new_tokens  new tokens at most, a limit of this request's own; None takes the sampling's
    first           the number of its first completion
    drawn           how many of the last tokens are its completions' own
    hold            whether a later call may go on from its completions, as the next turn of an episode does: what was
                    computed for them is worth keeping until the next call, be it one without requests
    top             how many of the most likely ids its completions carry for each token (Completion.top), all where the
                    vocabulary has fewer; of a call the largest holds for all its requests; greedy samples carry none
    held            how many of its first tokens were a prompt with one of its completions in the call before, which
                    asked to hold it; an engine that does not have them any more computes them again
    """

    tokens: tuple[int, ...]
    samples: int
    seed: int
    max_new_tokens: int | None = None
    first: int = 0
    drawn: int = 0
    hold: bool = False
    held: int = 0
    top: int = 0


class Finished(NamedTuple):
    """A completion that has just ended, while others are still being sampled: completion `sample` of request number
    `request`, its new ids, and "stop" or "length".
    """

    request: int
    sample: int
    tokens: tuple[int, ...]
    finish: str


OnFinish = Callable[[Finished], None]
#: Called by what works, now and then, as a sign that it gets on.
Progress = Callable[[], None]


def silent() -> None:
    """Show no progress."""


@dataclass(frozen=True)
class WeightStream:
    """Weights by name, each of which is there when it is taken and can go before the next one is.

    like   tensors with their names, shapes and types, of which no number is read
    whole  makes them, in the order of `like`
    """

    like: Mapping[str, Tensor]
    whole: Callable[[], Iterator[tuple[str, Tensor]]]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return self.whole()


def streamed(weights: Iterable[tuple[str, Tensor]] | Mapping[str, Tensor]) -> WeightStream:
    """Return weights as a stream; those that are no stream are there already."""
    if isinstance(weights, WeightStream):
        return weights
    there = dict(weights)
    return WeightStream(there, lambda: iter(there.items()))


class Engine(Protocol):
    """Samples completions and says under which weights and with which log-probabilities.

    version        which weights it samples from
    routes         whether its completions carry the experts that were chosen (Completion.routes)
    keeps_support  whether its completions carry the ids that top-p, top-k or min-p left (Completion.support)
    keeps_top      whether its completions carry the most likely ids if a request asks for them (Request.top)
    options        the keys of Sampling that it follows
    precision      what it computes in
    remark         how it samples, and why, where that is otherwise than it was to; "" elsewhere
    restarts       how often its process was started again; 0 of one that lives in the run's
    tokens_run     how many tokens it has computed: of prompts, each once for its group and without what was held, and
                   of completions all but the last
    """

    @property
    def restarts(self) -> int: ...

    @property
    def tokens_run(self) -> int: ...

    @property
    def version(self) -> int: ...

    @property
    def routes(self) -> bool: ...

    @property
    def keeps_support(self) -> bool: ...

    @property
    def keeps_top(self) -> bool: ...

    @property
    def options(self) -> frozenset[str]: ...

    @property
    def precision(self) -> Precision: ...

    @property
    def remark(self) -> str: ...

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, on_finish: OnFinish | None = None
    ) -> list[tuple[Completion, ...]]:
        """Generate the completions of each request, in order; `logp_engine` is under the distribution sampled.

        Raises UsageError, beginning with the key, for a sampling that its model cannot follow, without requests too.
        `on_finish` is called with completions as they end, in any order, so that scoring can begin; an engine that does
        not know so early need not call it.
        """
        ...

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Replace the weights, drop everything computed under the old ones, and stamp later completions."""

    def sleep(self) -> None:
        """Give back the memory that it needs only to sample, until new weights are loaded, which the next `generate`
        waits for. A second call does nothing.
        """

    def close(self) -> None:
        """Give back what it holds; it cannot generate any more. A second call does nothing."""
