"""The process with an engine in it, as the run sees it: started, asked one thing at a time, watched while it works."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from groupwise.core.children import Child, ChildLost
from groupwise.core.dataclass_json import to_json
from groupwise.core.engine import OnFinish, Precision, Request, Sampling
from groupwise.core.errors import GroupwiseError, RunError, UsageError
from groupwise.core.records import Completion
from groupwise.core.tail import Tail
from groupwise.engines.child import wire
from groupwise.engines.child.shared_weights import SharedWeights, Stamp
from groupwise.engines.child.spec import EngineSpec
from groupwise.engines.child.wire import Message

#: The module that runs in the child.
SERVER = "groupwise.engines.child.server"
#: Seconds that one look for a message may take.
LOOK = 0.5
#: Seconds in which the rest of what an ended process printed must have come.
REST = 1.0


@dataclass(frozen=True)
class Declared:
    """What the engine says of itself (core/engine.py: Engine), and the library that computes."""

    routes: bool
    keeps_support: bool
    options: tuple[str, ...]
    precision: Precision
    version: int
    library: str


class EngineProcess:
    """A child without an engine yet. After ChildLost, or an exception in the middle of an answer, close it.

    python    the interpreter, which has libraries of its own; None is the run's
    pid       of the process
    answered  whether it owes nothing
    """

    def __init__(self, python: str | None) -> None:
        self._tail = Tail()
        command = [python, "-P"] if python else ()
        try:
            self._child = Child(SERVER, command=command, alone=python is not None, stderr=self._tail.writing)
        except OSError as error:
            raise ChildLost(f"it cannot be started: {error.strerror}") from None
        finally:
            self._tail.given()
        self.pid = self._child.process.pid
        self.answered = True

    def start(
        self,
        spec: EngineSpec,
        write_folder: Callable[[Path], None],
        weights: SharedWeights,
        stamp: Stamp,
        seconds: float,
    ) -> Declared:
        """Makes the engine. Raises ChildLost, and what the engine refuses."""
        with TemporaryDirectory(prefix="groupwise-engine-") as folder:
            write_folder(Path(folder))
            content = {"verb": "start", "spec": to_json(spec), "folder": folder, "stamp": to_json(stamp)}
            answer = self._ask(content, seconds, [weights.descriptor])
        return Declared(**{**answer.content, "options": tuple(answer.content["options"])})

    def load(self, weights: SharedWeights, stamp: Stamp, seconds: float) -> int:
        """Loads what lies in the shared memory -> the version that the engine has then."""
        return self._ask({"verb": "load", "stamp": to_json(stamp)}, seconds, [weights.descriptor]).content["version"]

    def generate(
        self, requests: list[Request], sampling: Sampling, on_finish: OnFinish | None, seconds: float
    ) -> list[tuple[Completion, ...]]:
        """The completions of each request; `on_finish` hears of them as they end."""
        content = {"verb": "generate", **wire.question(requests, sampling, listens=on_finish is not None)}
        return wire.completions_of(self._ask(content, seconds, on_finish=on_finish))

    def close(self) -> None:
        """Ends it, and whatever it started."""
        self._child.close()

    def _ask(
        self,
        content: dict[str, Any],
        seconds: float,
        descriptors: list[int] | None = None,
        on_finish: OnFinish | None = None,
    ) -> Message:
        """The answer. `seconds` may pass without a sign of progress.

        Raises ChildLost, and the engine's own errors as they were raised there.
        """
        self.answered = False
        try:
            self._child.send(content, descriptors or (), seconds)
            while True:
                message = self._next(seconds)
                if "finished" in message.content and on_finish is not None:
                    on_finish(wire.finished_of(message.content))
                if "answer" in message.content:
                    self.answered = True
                    return Message(message.content["answer"], message.arrays)
                if "error" in message.content:
                    self.answered = True
                    raise _error(**message.content["error"])
        except ChildLost as lost:
            raise self._with_words(lost) from None

    def _next(self, seconds: float) -> Message:
        """The next message. Time in which this process itself was stopped is none in which the child was silent: what
        counts is how often it was looked for in vain.
        """
        look = min(LOOK, seconds / 4)
        silent = 0.0
        while not self._child.speaks(look):
            silent += look
            if silent >= seconds:
                raise ChildLost(f"it gave no sign of progress for {seconds:g} seconds", late=True)
        return wire.receive(self._child, seconds)

    def _with_words(self, lost: ChildLost) -> ChildLost:
        """Why it was lost; of a program that failed with the last line that it printed, and all of it as a note."""
        printed = self._tail.text(0.0 if lost.late else REST)
        failed = (self._child.process.poll() or 0) > 0
        last = printed.strip().rpartition("\n")[2].strip()
        words = ChildLost(f"{lost} ({last})" if failed and last else str(lost), late=lost.late)
        if printed:
            words.add_note(printed)
        return words


def _error(kind: str, message: str, notes: str) -> GroupwiseError:
    error = UsageError(message) if kind == "usage" else RunError(message)
    if notes:
        error.add_note(notes)
    return error
