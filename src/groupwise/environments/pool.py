"""Episodes that are played in processes with a deadline: a user's own environments."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, ClassVar

from groupwise.core.environment import ENVIRONMENT, Conversation, Reply, Says, ToolCall
from groupwise.core.reward import ScoreResult
from groupwise.core.samples import Sample
from groupwise.core.task import Starts
from groupwise.environments.game import Game
from groupwise.environments.live import LiveEpisodes
from groupwise.rewards.pool.pool import Pool
from groupwise.rewards.pool.work import Limits, ScorePool


@dataclass(frozen=True)
class _OneByOne:
    """The form of a player: it is called with one conversation after the other."""

    batched: ClassVar[bool] = False


class _Player:
    """A player, which answers conversations in a process of the pool."""

    form = _OneByOne()
    asynchronous = False

    def __init__(self, game: Game) -> None:
        self.description = game.description
        new = game.load()
        self.starts = next((one for one in (game.scorer, new) if isinstance(one, Starts)), None)
        self._live = LiveEpisodes(new)

    def check(self, sample: Sample) -> None:
        """Do nothing: no sample is needed before an episode begins."""

    def score(self, attempts: Sequence[Conversation], run: Callable[[Any], Any]) -> Iterator[list[ScoreResult]]:
        """Yield the answers as results, one after the other."""
        for conversation in attempts:
            yield [_as_result(self._live.answer(conversation))]


@dataclass(frozen=True)
class _Loads:
    """The message to the processes: the game, to be loaded there."""

    game: Game

    def bind(self) -> Any:
        return _Player(self.game)


class PoolEnvironments:
    """Episodes live in the pool's processes, each in the one that it began in, and are played again where that is lost.

    A call that takes longer than the deadline, or ends its process, is a fault of that turn alone.
    """

    def __init__(
        self, game: Game, limits: Limits, pool: Callable[[Mapping[str, Any], Limits], ScorePool] = Pool
    ) -> None:
        """Start the processes, which `pool` makes. Raises UsageError if the class or a tool cannot be played."""
        game.load()  # what is wrong with it is said here, and not by every process
        self.with_special, self.tools = game.with_special, game.tool_names
        self._pool = pool({ENVIRONMENT: _Loads(game)}, limits)

    def check(self) -> str:
        """Load the game in a process -> its description. Raises UsageError if that cannot be done."""
        return self._pool.check()[ENVIRONMENT]

    def begin(self, conversation: Conversation) -> int:
        """Hand a conversation over -> the ticket of its answer."""
        return self._pool.submit(ENVIRONMENT, [conversation])[0]

    def wait(self, tickets: Sequence[int]) -> list[Reply]:
        """Wait until all answers are there. Each ticket is good for one wait."""
        return [_as_reply(result) for result in self._pool.wait(tickets)]

    def close(self) -> None:
        """End every process."""
        self._pool.close()


def _as_result(reply: Reply) -> ScoreResult:
    """Write an answer as processes send results."""
    cost = {"seconds": reply.seconds, "calls": json.dumps([astuple(call) for call in reply.calls])}
    if reply.cause is not None:
        return ScoreResult(cause=reply.cause, detail=reply.detail, columns=cost)
    messages = json.dumps([[message.role, message.text] for message in reply.messages])
    columns = {"messages": messages, "done": float(reply.done), "state": reply.state, **cost}
    return ScoreResult(reply.reward, columns=columns)


def _as_reply(result: ScoreResult) -> Reply:
    """Read the answer that a result is."""
    columns: Mapping[str, Any] = result.columns
    calls = tuple(ToolCall(*call) for call in json.loads(columns.get("calls", "[]")))
    seconds = columns.get("seconds", 0.0)
    if result.cause is not None:
        return Reply(cause=result.cause, detail=result.detail, seconds=seconds, calls=calls)
    messages = tuple(Says(role, text) for role, text in json.loads(columns["messages"]))
    reward = 0.0 if math.isnan(result.value) else result.value
    return Reply(messages, reward, bool(columns["done"]), columns["state"], seconds=seconds, calls=calls)
