"""Episodes that are played: in the run's process, or in processes with a deadline. One that lives nowhere any more is
played again from what was said.
"""

import itertools
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from groupwise.core.code.trace import own_traceback
from groupwise.core.environment import ENVIRONMENT, Conversation, Reply, Says, ToolCall, fingerprint
from groupwise.core.processes.stop import Stopped
from groupwise.core.samples import Cause, ScoreResult
from groupwise.core.task import Starts
from groupwise.environments.adapt import Playable, begun, ended
from groupwise.environments.game import Game
from groupwise.rewards.functions.adapters import Bound, playing
from groupwise.rewards.pool.pool import Pool
from groupwise.rewards.pool.work import Limits, ScorePool


@dataclass
class _Episode:
    """Episode that lives here, after so many answers, the opening included."""

    playable: Playable
    answers: int


class LiveEpisodes:
    """Answers conversations. An answer is a function of the conversation, so that it does not matter where the episode
    was before; what it costs does.
    """

    def __init__(self, new: Callable[[], Playable]) -> None:
        self._new = new
        self._round = 0
        self._episodes: dict[int, _Episode] = {}

    def answer(self, conversation: Conversation) -> Reply:
        """Answer what was said last, or open the episode. A fault is a reply with its cause."""
        start = time.monotonic()
        if conversation.round != self._round:
            self._round = conversation.round
            self._leave(*self._episodes)
        try:
            reply = self._answer(conversation)
        except Stopped:
            raise
        except BaseException as error:  # sys.exit of a user's code is a fault like others
            cause = Cause.MEMORY if isinstance(error, MemoryError) else Cause.EXCEPTION
            reply = Reply(cause=cause, detail=own_traceback(error))
        # After a fault nothing is known of it; it is played again without what it failed on.
        if reply.done or conversation.last or reply.cause is not None:
            self._leave(conversation.episode)
        return replace(reply, seconds=time.monotonic() - start)

    def _answer(self, conversation: Conversation) -> Reply:
        episode = self._episodes.get(conversation.episode)
        if episode is None or episode.answers != len(conversation.said) + conversation.cut_off:
            self._leave(conversation.episode)
            episode = _Episode(self._new(), 0)
            self._episodes[conversation.episode] = episode
            if wrong := _play_again(episode, conversation):
                return wrong
        reply = Reply() if conversation.cut_off else _next(episode, conversation)
        return ended(episode.playable, reply) if conversation.last else reply

    def _leave(self, *numbers: int) -> None:
        """Close these episodes; an environment that holds something may have a `close`."""
        for number in numbers:
            episode = self._episodes.pop(number, None)
            close: Any = getattr(episode and episode.playable, "close", None)
            if close is not None:
                close()


class InlineEnvironments:
    """Episodes that are played in the run's own process: of environments that take microseconds and cannot hang."""

    def __init__(self, new: Callable[[], Playable], with_special: bool = False, tools: Sequence[str] = ()) -> None:
        self.with_special, self.tools = with_special, tools
        self._live = LiveEpisodes(new)
        self._tickets = itertools.count()
        self._replies: dict[int, Reply] = {}

    def begin(self, conversation: Conversation) -> int:
        """Answer -> the ticket of the answer."""
        ticket = next(self._tickets)
        self._replies[ticket] = self._live.answer(conversation)
        return ticket

    def wait(self, tickets: Sequence[int]) -> list[Reply]:
        """Return the answers. Each ticket is good for one wait."""
        return [self._replies.pop(ticket) for ticket in tickets]

    def close(self) -> None:
        """Do nothing: no process was started."""


@dataclass(frozen=True)
class _Loads:
    game: Game

    def bind(self) -> Bound:
        new = self.game.load()
        starts = next((one for one in (self.game.scorer, new) if isinstance(one, Starts)), None)
        live, form = LiveEpisodes(new), playing(self.game.description)
        return Bound(lambda attempt: _as_result(live.answer(attempt)), form, ENVIRONMENT, starts=starts)


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

    def begin(self, conversation: Conversation) -> int:
        """Hand a conversation over -> the ticket of its answer."""
        return self._pool.submit(ENVIRONMENT, [conversation])[0]

    def wait(self, tickets: Sequence[int]) -> list[Reply]:
        """Wait until all answers are there. Each ticket is good for one wait."""
        return [_as_reply(result) for result in self._pool.wait(tickets)]

    def close(self) -> None:
        """End every process."""
        self._pool.close()


def _play_again(episode: _Episode, conversation: Conversation) -> Reply | None:
    """Answer again everything that was answered before -> a fault if an answer is another than it was."""
    for number, before in enumerate(conversation.answered):
        if not before:  # a fault: the environment is taken to have heard nothing
            episode.answers += 1
            continue
        again = _next(episode, conversation)
        if again.cause is not None:
            return again
        if fingerprint(again) != before:
            return Reply(
                cause=Cause.EXCEPTION,
                detail=f"played again, its answer number {number} is another than before: an environment must be a "
                "function of its sample (sample.seed for random numbers) and of what was said",
            )
    return None


def _next(episode: _Episode, conversation: Conversation) -> Reply:
    number = episode.answers
    episode.answers += 1
    if number:
        return episode.playable.reply(conversation.said[number - 1])
    return begun(episode.playable, conversation.sample)


def _as_result(reply: Reply) -> ScoreResult:
    cost = {"seconds": reply.seconds, "calls": json.dumps([astuple(call) for call in reply.calls])}
    if reply.cause is not None:
        return ScoreResult(cause=reply.cause, detail=reply.detail, columns=cost)
    messages = json.dumps([[message.role, message.text] for message in reply.messages])
    columns = {"messages": messages, "done": float(reply.done), "state": reply.state, **cost}
    return ScoreResult(reply.reward, columns=columns)


def _as_reply(result: ScoreResult) -> Reply:
    columns: Mapping[str, Any] = result.columns
    calls = tuple(ToolCall(*call) for call in json.loads(columns.get("calls", "[]")))
    seconds = columns.get("seconds", 0.0)
    if result.cause is not None:
        return Reply(cause=result.cause, detail=result.detail, seconds=seconds, calls=calls)
    messages = tuple(Says(role, text) for role, text in json.loads(columns["messages"]))
    reward = 0.0 if math.isnan(result.value) else result.value
    return Reply(messages, reward, bool(columns["done"]), columns["state"], seconds=seconds, calls=calls)
