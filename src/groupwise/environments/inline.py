"""Episodes that are played in the run's own process: of environments that take microseconds and cannot hang."""

import itertools
from collections.abc import Callable, Sequence

from groupwise.core.environment import Conversation, Reply
from groupwise.environments.adapt import Playable
from groupwise.environments.live import LiveEpisodes


class InlineEnvironments:
    """Answers at once."""

    def __init__(self, new: Callable[[], Playable], with_special: bool = False, tools: Sequence[str] = ()) -> None:
        self.with_special, self.tools = with_special, tools
        self._live = LiveEpisodes(new)
        self._tickets = itertools.count()
        self._replies: dict[int, Reply] = {}

    def begin(self, conversation: Conversation) -> int:
        """Answers -> the ticket of the answer."""
        ticket = next(self._tickets)
        self._replies[ticket] = self._live.answer(conversation)
        return ticket

    def wait(self, tickets: Sequence[int]) -> list[Reply]:
        """The answers. Each ticket is good for one wait."""
        return [self._replies.pop(ticket) for ticket in tickets]

    def close(self) -> None:
        """Nothing of it is left anywhere."""
