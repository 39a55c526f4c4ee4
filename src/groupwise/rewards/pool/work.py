"""Work of the pool: its limits, what waits for a worker, how much of it one is given, and how that travels.

The text of attempts and turns of episodes goes as JSON, their tokens as raw numbers:

    {..., "samples": [...], "rows": [[sample, completion, finish], ...], "tokens": [12, 7]}    then 8 * 19 bytes

A row names its sample by its place among the samples, so that one of a whole group travels once. A turn of an episode
is a longer row, and has no tokens.
"""

import contextlib
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any, Protocol

from groupwise.core.channel import FrameError
from groupwise.core.environment import Conversation, Visit
from groupwise.core.errors import UsageError, one_line
from groupwise.core.peer import Transport
from groupwise.core.processes import codec
from groupwise.core.samples import Attempt, Cause, Sample, ScoreResult
from groupwise.rewards.isolation import Isolation

#: The most attempts a worker is given at once: for one call, and one by one.
MANY, FEW = 32, 8
#: What a process is given: a completion, a turn of an episode, or a session that an agent plays.
Work = Attempt | Conversation | Visit
_CAUSES = frozenset(cause.value for cause in Cause)


class ScorePool(contextlib.AbstractContextManager["ScorePool"], Protocol):
    """Pool of processes that scores, wherever its processes are: a Pool here, a RemotePool elsewhere."""

    def submit(self, name: str, attempts: Sequence[Work]) -> list[int]: ...

    def wait(self, tickets: Sequence[int]) -> list[ScoreResult]: ...

    @property
    def seconds(self) -> float: ...

    def check(self, samples: Sequence[Sample] = ()) -> dict[str, str]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Limits:
    """Limits of the worker processes of a pool.

    workers  processes; they start with the first submit
    seconds  for one completion, or for one call of a reward that takes many at once
    memory   bytes of address space a worker may have; 0 for no limit
    load     seconds that loading a user's code may take
    isolation    what keeps a worker's processes together; None for the strongest that this machine gives
    """

    workers: int = 2
    seconds: float = 10.0
    memory: int = 4 << 30
    load: float = 120.0
    isolation: Isolation | None = None

    def __post_init__(self) -> None:
        if self.workers < 1 or self.seconds <= 0 or self.load <= 0 or self.memory < 0:
            raise UsageError("rewards: workers must be 1 or more, seconds above 0 and memory 0 (no limit) or more")


@dataclass(frozen=True)
class Entry:
    """One attempt, or a turn of an episode, on its way to a worker; without either, a reward that is to be loaded and
    tried on `rows`.

    alone  sent by itself, because a call for many that it was in failed
    failed  how that call failed, in words; "" where there was none
    fresh  sent to a process that has scored nothing yet, because what failed might be another's doing
    begin  makes the session that a process is given, each time that one is; None of what is no session
    """

    ticket: int
    name: str
    attempt: Work | None
    rows: Sequence[Attempt] = ()
    alone: bool = False
    fresh: bool = False
    failed: str = ""
    begin: Callable[[], Work] | None = None

    def begun(self) -> "Entry":
        """Return the entry as a process is given it."""
        return self if self.begin is None else replace(self, attempt=self.begin())

    @property
    def by_itself(self) -> bool:
        return self.attempt is None or self.alone or self.fresh or isinstance(self.attempt, Visit)

    @property
    def episode(self) -> int | None:
        """Number of the episode that it is a turn of; None of an attempt."""
        return self.attempt.episode if isinstance(self.attempt, Conversation) else None


def take(queue: deque[Entry], workers: int, single: Mapping[str, bool], may: Callable[[Entry], bool]) -> list[Entry]:
    """Take what the next worker gets: an even share of the entries that are like the first that it `may` have.

    Entries of several rewards come interleaved, as each completion is handed over when it ends.

    single  by reward: whether it scores one by one

    >>> from groupwise.core.samples import Attempt, Sample
    >>> queue = deque(Entry(i, name, Attempt(Sample("k", "", ""), "")) for i, name in enumerate("abba"))
    >>> [entry.ticket for entry in take(queue, 1, {}, lambda entry: True)]
    [0, 3]
    """
    head = next(filter(may, queue), None)
    if head is None:
        return []
    together = [entry for entry in queue if entry.name == head.name and not entry.by_itself and may(entry)]
    together = [head] if head.by_itself else together
    even = -(-len(together) // workers)
    one_by_one = single.get(head.name)
    share = together[: min(FEW, even) if one_by_one else rounded_to_groups(together, min(MANY, even))]
    tickets = {entry.ticket for entry in share}
    rest = [entry for entry in queue if entry.ticket not in tickets]
    queue.clear()
    queue.extend(rest)
    return share


def rounded_to_groups(entries: Sequence[Entry], count: int) -> int:
    """Return `count`, or as many entries as make it end with a group: with the one before, else with this.

    >>> from groupwise.core.samples import Attempt, Sample
    >>> entries = [Entry(i, "mine", Attempt(Sample(key, "", ""), "")) for i, key in enumerate("aabbb")]
    >>> rounded_to_groups(entries, 4), rounded_to_groups(entries[2:], 2)
    (2, 3)
    """
    groups = [entry.attempt.sample.key if entry.attempt else None for entry in entries[: MANY + 1]]
    if count >= len(groups) or groups[count] is None or groups[count] != groups[count - 1]:
        return count
    same = [i for i, group in enumerate(groups) if group == groups[count]]
    return same[0] or min(same[-1] + 1, MANY)


def results_of(said: Any) -> list[ScoreResult]:
    """Return the results that a process which scored says. Raises FrameError where it says anything else.

    >>> results_of([[0.5, None, "", {"guess": "7"}, {}, 1]])[0].columns
    {'guess': '7'}
    """
    if not isinstance(said, list):
        raise FrameError("what is no list of results")
    return [_result(one) for one in said]


def _result(said: Any) -> ScoreResult:
    match said:
        case [float() | int() as value, cause, str(detail), dict(columns), dict(metrics), int(of_call)]:
            known = cause is None or (isinstance(cause, str) and cause in _CAUSES)
            logged = all(isinstance(one, (float, int, str, NoneType)) for one in columns.values())
            numbers = (isinstance(one, list) and set(map(type, one)) <= {float, int} for one in metrics.values())
            if known and logged and all(numbers):
                return ScoreResult(value, Cause(cause) if cause else None, detail, columns, metrics, of_call)
    raise FrameError(f"what is no result: {said!r:.80}")


_SIZE = 8  # bytes of a token


@dataclass(frozen=True)
class Given:
    """A message, and the tokens behind it: eight bytes each."""

    message: Mapping[str, Any]
    numbers: bytes = b""

    def send(self, line: Transport, seconds: float | None = None) -> None:
        """Raise as the line does."""
        line.send(self.message, seconds=seconds)
        if self.numbers:
            line.send_raw(self.numbers, seconds)

    @classmethod
    def received(cls, line: Transport) -> "Given":
        """Receive the next message with its numbers. Raises as the line does."""
        message = line.receive()
        return cls(message, bytes(line.receive_raw(_SIZE * sum(message.get("tokens", ())))))

    def work(self) -> list[Work]:
        """Return what is to be scored. What a user's class raises while its sample is made comes through."""
        samples, numbers, begin, work = codec.unpack(self.message["samples"]), array("q", self.numbers), 0, []
        for row, count in zip(self.message["rows"], self.message["tokens"], strict=True):
            work.append(_work(samples, row, tuple(numbers[begin : begin + count])))
            begin += count
        return work


def packed(message: Mapping[str, Any], work: Sequence[Work], what: str) -> Given:
    """Pack what is to be scored. Raises UsageError, naming `what`, where another process cannot have it."""
    samples = list({id(one.sample): one.sample for one in work}.values())
    places = {id(sample): place for place, sample in enumerate(samples)}
    rows = [[places[id(one.sample)], *_row(one)] for one in work]
    with _in_words(what):
        tokens = [array("q", one.tokens if isinstance(one, Attempt) else ()) for one in work]
        content = {"samples": codec.pack(samples), "rows": rows, "tokens": [len(some) for some in tokens]}
        return Given({**message, **content}, b"".join(tokens))


def tree(value: Any, what: str) -> Any:
    """Return the tree of objects. Raises UsageError, naming `what`, where they cannot be sent."""
    with _in_words(what):
        return codec.pack(value)


@contextlib.contextmanager
def _in_words(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever a user's object raises
        raise UsageError(f"rewards: {what} cannot be sent to another process: {one_line(error)}") from None


def _row(one: Work) -> list[Any]:
    if isinstance(one, Attempt):
        return [one.completion, one.finish]
    if isinstance(one, Visit):
        return ["visit", one.base_url, one.key]
    return [one.episode, one.round, one.said, one.answered, one.last, one.cut_off]


def _work(samples: Sequence[Any], row: Sequence[Any], tokens: tuple[int, ...]) -> Work:
    match row:
        case [place, completion, finish]:
            return Attempt(samples[place], completion, finish, tokens)
        case [place, "visit", base_url, key]:
            return Visit(samples[place], base_url, key)
        case [place, episode, number, said, answered, last, cut_off]:
            return Conversation(samples[place], episode, number, tuple(said), tuple(answered), last, cut_off)
    raise FrameError("what is neither an attempt nor a turn of an episode nor a session")
