"""An engine's process as a child of the run, on the same machine."""

from groupwise.core.children import Child
from groupwise.core.peer import PeerLost
from groupwise.core.tail import Tail
from groupwise.engines.outside.line import Parcel
from groupwise.engines.outside.shared_weights import SharedWeights

#: The module that runs in the child.
SERVER = "groupwise.engines.outside.server"
#: Seconds in which the rest of what an ended process printed must have come.
REST = 1.0


class EngineChild(Child):
    """A child without an engine yet.

    python  the interpreter, which has libraries of its own; None is the run's
    Raises PeerLost where it cannot be started.
    """

    def __init__(self, python: str | None) -> None:
        self._tail = Tail()
        command = [python, "-P"] if python else ()
        try:
            super().__init__(SERVER, command=command, alone=python is not None, stderr=self._tail.writing)
        except OSError as error:
            raise PeerLost(f"it cannot be started: {error.strerror}") from None
        finally:
            self._tail.given()
        self.pid: int | None = self.process.pid

    def parcel(self, weights: SharedWeights) -> Parcel:
        """The memory itself."""
        return Parcel({}, [weights.descriptor])

    def explained(self, lost: PeerLost) -> PeerLost:
        """Why it was lost; of a program that failed with the last line that it printed, and all of it as a note."""
        printed = self._tail.text(0.0 if lost.late else REST)
        failed = (self.process.poll() or 0) > 0
        last = printed.strip().rpartition("\n")[2].strip()
        words = PeerLost(f"{lost} ({last})" if failed and last else str(lost), late=lost.late)
        if printed:
            words.add_note(printed)
        return words
