"""The episodes that live in a process, and how one that lives nowhere any more is played again from what was said."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from groupwise.core.code.trace import own_traceback
from groupwise.core.environment import Conversation, Reply, fingerprint
from groupwise.core.processes.stop import Stopped
from groupwise.core.reward import Cause
from groupwise.environments.adapt import Playable, begun, ended


@dataclass
class _Episode:
    """One that lives here, after so many answers, the opening included."""

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
        """What the environment answers to what was said last, or how it opens. A fault is a reply with its cause."""
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
        """These episodes are over; an environment that holds something may have a `close`."""
        for number in numbers:
            episode = self._episodes.pop(number, None)
            close: Any = getattr(episode and episode.playable, "close", None)
            if close is not None:
                close()


def _play_again(episode: _Episode, conversation: Conversation) -> Reply | None:
    """Everything that was answered before is answered again -> a fault where an answer is another than it was."""
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
    """The answer that comes next in the episode."""
    number = episode.answers
    episode.answers += 1
    if number:
        return episode.playable.reply(conversation.said[number - 1])
    return begun(episode.playable, conversation.sample)
