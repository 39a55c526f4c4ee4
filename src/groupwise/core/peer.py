"""A process at the other end of a connection: it is asked with a deadline, and why it is lost is said in words."""

import contextlib
import select
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from groupwise.core.channel import Channel, FrameError


class Transport(Protocol):
    """End of a connection: a Channel in the other process, a Peer here."""

    def send(
        self, message: Mapping[str, Any], descriptors: Sequence[int] = (), seconds: float | None = None
    ) -> None: ...

    def receive(self, seconds: float | None = None) -> dict[str, Any]: ...

    def send_raw(self, data: memoryview | bytes, seconds: float | None = None) -> None: ...

    def receive_raw(self, count: int, seconds: float | None = None) -> bytearray: ...


class PeerLost(Exception):
    """Loss of the other process, which is of no further use; the message says why, in words.

    late    it runs, and did not answer in time
    killed  a signal ended it, as far as is known here
    """

    def __init__(self, why: str, late: bool = False, killed: bool = False) -> None:
        super().__init__(why)
        self.late, self.killed = late, killed

    @property
    def remedy(self) -> str:
        """The end of a message about a process that did not start: what to do, if it was no doing of its own."""
        return "; give the same command again" if self.late or self.killed else ""


class Peer:
    """Other process, over a channel to it.

    lost  whether an answer failed to come, so that the next one could be taken for it
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.lost = False

    def send(self, message: Mapping[str, Any], descriptors: Sequence[int] = (), seconds: float | None = None) -> None:
        """Send a message and copies of the descriptors. Raises PeerLost."""
        with self._says_why(seconds):
            self.channel.send(message, descriptors, seconds)

    def receive(self, seconds: float | None = None) -> dict[str, Any]:
        """Receive the next message from it. Raises PeerLost: it did not answer in time, sent no message, or ended."""
        with self._says_why(seconds):
            return self.channel.receive(seconds)

    def send_raw(self, data: memoryview | bytes, seconds: float | None = None) -> None:
        """Send bytes behind a message that says how many. Raises PeerLost."""
        with self._says_why(seconds):
            self.channel.send_raw(data, seconds)

    def receive_raw(self, count: int, seconds: float | None = None) -> bytearray:
        """Receive the bytes behind a message that said how many. Raises PeerLost as `receive` does."""
        with self._says_why(seconds):
            return self.channel.receive_raw(count, seconds)

    def speaks(self, seconds: float) -> bool:
        """Wait until there is a message from it, or its end; False if neither comes so soon."""
        if self.closed:
            return True  # `receive` says so
        poll = select.poll()
        poll.register(self.channel.connection, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    @property
    def closed(self) -> bool:
        """True if it was closed here."""
        return self.channel.connection.fileno() < 0

    def close(self) -> None:
        """Close the connection. Again does nothing."""
        self.channel.close()

    def _gone(self) -> str:
        return "it closed its connection"

    def _killed(self) -> bool:
        return False

    @contextlib.contextmanager
    def _says_why(self, seconds: float | None) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError, FrameError) as error:
            self.lost = True
            words = self._why(error, seconds)
            raise PeerLost(words, late=isinstance(error, TimeoutError), killed=self._killed()) from None
        except BaseException:  # an interrupt: the answer to what was asked would be taken for the next one's
            self.lost = True
            raise

    def _why(self, error: Exception, seconds: float | None) -> str:
        if self.closed:
            return "it was closed"
        if isinstance(error, TimeoutError):
            return f"it did not answer for {seconds:g} seconds"
        if isinstance(error, FrameError):
            return f"it sent {error}"
        return self._gone()
