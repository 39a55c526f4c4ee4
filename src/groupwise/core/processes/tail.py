"""The last of what another process prints, however much that is: it never waits for a reader, and no disk fills up."""

import os
import threading

#: Bytes that are remembered.
MOST = 1 << 14


class Tail:
    """A pipe that a thread of this process reads to its end.

        tail = Tail()
        subprocess.Popen(command, stderr=tail.writing)
        tail.given()       # from here on the other process alone can write
        tail.text()

    writing  the descriptor that the other process prints to
    """

    def __init__(self, most: int = MOST) -> None:
        self._most, self._last = most, bytearray()
        self._reading, self.writing = os.pipe()
        self._thread = threading.Thread(target=self._read, name="tail", daemon=True)
        self._thread.start()

    def given(self) -> None:
        """Closes the writing end here. Once only."""
        os.close(self.writing)

    def text(self, seconds: float = 0.0) -> str:
        """What was printed last; waits so long at most for the end of a process that is about to end."""
        self._thread.join(seconds)
        return bytes(self._last).decode(errors="replace")

    def _read(self) -> None:
        while data := os.read(self._reading, 1 << 16):
            self._last += data
            del self._last[: -self._most]
        os.close(self._reading)
