"""What processes are given to score: the text of attempts and turns of episodes as JSON, their tokens as raw numbers.

    {..., "samples": [...], "rows": [[sample, completion, finish], ...], "tokens": [12, 7]}    then 8 * 19 bytes

A row names its sample by its place among the samples, so that one of a whole group travels once. A turn of an episode
is a longer row, and has no tokens.
"""

import contextlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.core.channel import FrameError
from groupwise.core.environment import Conversation
from groupwise.core.errors import UsageError, one_line
from groupwise.core.peer import Transport
from groupwise.core.processes import parcel
from groupwise.core.samples import Attempt

_SIZE = 8  # bytes of a token


@dataclass(frozen=True)
class Given:
    """A message, and the tokens behind it: eight bytes each."""

    message: Mapping[str, Any]
    numbers: bytes = b""

    def send(self, line: Transport, seconds: float | None = None) -> None:
        """Raises as the line does."""
        line.send(self.message, seconds=seconds)
        if self.numbers:
            line.send_raw(self.numbers, seconds)

    @classmethod
    def received(cls, line: Transport) -> "Given":
        """The next message with its numbers. Raises as the line does."""
        message = line.receive()
        return cls(message, bytes(line.receive_raw(_SIZE * sum(message.get("tokens", ())))))

    def work(self) -> list[Attempt | Conversation]:
        """What is to be scored. What a user's class raises while its sample is made comes through."""
        samples, numbers, begin, work = parcel.unpack(self.message["samples"]), array("q", self.numbers), 0, []
        for row, count in zip(self.message["rows"], self.message["tokens"], strict=True):
            work.append(_work(samples, row, tuple(numbers[begin : begin + count])))
            begin += count
        return work


def packed(message: Mapping[str, Any], work: Sequence[Attempt | Conversation], what: str) -> Given:
    """The message with what is to be scored. Raises UsageError, naming `what`, where another process cannot have it."""
    samples = list({id(one.sample): one.sample for one in work}.values())
    places = {id(sample): place for place, sample in enumerate(samples)}
    rows = [[places[id(one.sample)], *_row(one)] for one in work]
    with _in_words(what):
        tokens = [array("q", one.tokens if isinstance(one, Attempt) else ()) for one in work]
        content = {"samples": parcel.pack(samples), "rows": rows, "tokens": [len(some) for some in tokens]}
        return Given({**message, **content}, b"".join(tokens))


def tree(value: Any, what: str) -> Any:
    """The tree of objects (core/processes/parcel.py). Raises UsageError, naming `what`, where they cannot be sent."""
    with _in_words(what):
        return parcel.pack(value)


@contextlib.contextmanager
def _in_words(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever a user's object raises
        raise UsageError(f"rewards: {what} cannot be sent to another process: {one_line(error)}") from None


def _row(one: Attempt | Conversation) -> list[Any]:
    if isinstance(one, Attempt):
        return [one.completion, one.finish]
    return [one.episode, one.round, one.said, one.answered, one.last, one.cut_off]


def _work(samples: Sequence[Any], row: Sequence[Any], tokens: tuple[int, ...]) -> Attempt | Conversation:
    match row:
        case [place, completion, finish]:
            return Attempt(samples[place], completion, finish, tokens)
        case [place, episode, number, said, answered, last, cut_off]:
            return Conversation(samples[place], episode, number, tuple(said), tuple(answered), last, cut_off)
    raise FrameError("what is neither an attempt nor a turn of an episode")
