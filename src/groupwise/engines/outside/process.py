"""The process with an engine in it, as the run sees it: asked one thing at a time, watched while it works."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.core.dataclass_json import to_json
from groupwise.core.engine import OnFinish, Precision, Request, Sampling
from groupwise.core.errors import GroupwiseError, RunError, UsageError
from groupwise.core.peer import PeerLost
from groupwise.engines.outside import wire
from groupwise.engines.outside.line import EngineLine, Parcel
from groupwise.engines.outside.shared_weights import SharedWeights, Stamp
from groupwise.engines.outside.spec import EngineSpec
from groupwise.engines.outside.wire import Message

#: Seconds that one look for a message may take.
LOOK = 0.5
NOTHING = Parcel({}, ())


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
    """The process at the other end of a line, without an engine yet. After PeerLost, or an exception in the middle of
    an answer, close it.

    pid       of the process, where it is one of this machine's
    answered  whether it owes nothing
    """

    def __init__(self, line: EngineLine) -> None:
        self._line = line
        self.pid = line.pid
        self.answered = True

    def start(
        self,
        spec: EngineSpec,
        write_folder: Callable[[Path], None],
        weights: SharedWeights,
        stamp: Stamp,
        seconds: float,
    ) -> Declared:
        """Makes the engine. Raises PeerLost, and what the engine refuses."""
        with tempfile.TemporaryDirectory(prefix="groupwise-engine-") as folder:
            write_folder(Path(folder))
            files = wire.files_in(Path(folder))
        content = {"verb": "start", "spec": to_json(spec), "stamp": to_json(stamp)}
        arrays, descriptors = self._line.parcel(weights)
        answer = self._ask(content, seconds, Parcel({**arrays, **files}, descriptors))
        return Declared(**{**answer.content, "options": tuple(answer.content["options"])})

    def load(self, weights: SharedWeights, stamp: Stamp, seconds: float) -> int:
        """Loads these weights -> the version that the engine has then."""
        content = {"verb": "load", "stamp": to_json(stamp)}
        return self._ask(content, seconds, self._line.parcel(weights)).content["version"]

    def generate(
        self, requests: list[Request], sampling: Sampling, on_finish: OnFinish | None, seconds: float
    ) -> wire.Answer:
        """The completions of each request; `on_finish` hears of them as they end."""
        content = {"verb": "generate", **wire.question(requests, sampling, listens=on_finish is not None)}
        return wire.answer_of(self._ask(content, seconds, on_finish=on_finish))

    def close(self) -> None:
        """Ends it, and whatever it started."""
        self._line.close()

    def _ask(
        self, content: dict[str, Any], seconds: float, parcel: Parcel = NOTHING, on_finish: OnFinish | None = None
    ) -> Message:
        """The answer. `seconds` may pass without a sign of progress.

        Raises PeerLost, and the engine's own errors as they were raised there.
        """
        self.answered = False
        try:
            wire.send(self._line, content, parcel.arrays, seconds, parcel.descriptors)
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
        except PeerLost as lost:
            raise self._line.explained(lost) from None

    def _next(self, seconds: float) -> Message:
        """The next message. Time in which this process itself was stopped is none in which the child was silent: what
        counts is how often it was looked for in vain.
        """
        look = min(LOOK, seconds / 4)
        silent = 0.0
        while not self._line.speaks(look):
            silent += look
            if silent >= seconds:
                raise PeerLost(f"it gave no sign of progress for {seconds:g} seconds", late=True)
        return wire.receive(self._line, seconds)


def _error(kind: str, message: str, notes: str) -> GroupwiseError:
    error = UsageError(message) if kind == "usage" else RunError(message)
    if notes:
        error.add_note(notes)
    return error
