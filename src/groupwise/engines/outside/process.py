"""The process with an engine in it, as the run sees it: asked one thing at a time, watched while it works."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from groupwise.core.engine import OnFinish, Precision, Request, Sampling
from groupwise.core.errors import GroupwiseError, RunError, UsageError, one_line, shortened
from groupwise.core.files.dataclass_json import to_json
from groupwise.core.peer import PeerLost
from groupwise.engines.outside import wire
from groupwise.engines.outside.answers import MOST_IDS, Asked
from groupwise.engines.outside.line import EngineLine, Parcel
from groupwise.engines.outside.shared_weights import SharedWeights, Stamp
from groupwise.engines.outside.spec import EngineSpec
from groupwise.engines.outside.wire import Message

#: Seconds that one look for a message may take.
LOOK = 0.5
#: What is raised over an answer that has not the form of one.
NO_ANSWER = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, MemoryError)
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

    def __post_init__(self) -> None:
        """Raises ValueError for what no engine says."""
        kinds = [bool, bool, tuple, str, int, str]
        said = [self.routes, self.keeps_support, self.options, self.precision, self.version, self.library]
        if [type(each) for each in said] != kinds or self.precision not in get_args(Precision):
            raise ValueError("what it says of itself is not what an engine says")


class EngineProcess:
    """The process at the other end of a line, without an engine yet. After PeerLost, or an exception in the middle of
    an answer, close it.

    name      what a person knows it by
    pid       of the process, where it is one of this machine's
    answered  whether it owes nothing
    """

    def __init__(self, line: EngineLine, name: str = "the engine's process") -> None:
        self._line, self._name = line, name
        self._vocabulary, self._version = MOST_IDS, 0
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
        """Makes the engine. Raises PeerLost, and what the engine refuses; RunError where its answer is none."""
        with tempfile.TemporaryDirectory(prefix="groupwise-engine-") as folder:
            write_folder(Path(folder))
            files = wire.files_in(Path(folder))
        content = {"verb": "start", "spec": to_json(spec), "stamp": to_json(stamp)}
        arrays, descriptors = self._line.parcel(weights)
        answer = self._ask(content, seconds, Parcel({**arrays, **files}, descriptors))
        with self._no_answer():
            declared = Declared(**{**answer.content, "options": tuple(answer.content["options"])})
        self._vocabulary, self._version = spec.vocabulary, stamp.version
        return declared

    def load(self, weights: SharedWeights, stamp: Stamp, seconds: float) -> int:
        """Loads these weights -> the version that the engine has then. Raises as `start` does."""
        content = {"verb": "load", "stamp": to_json(stamp)}
        answer = self._ask(content, seconds, self._line.parcel(weights))
        with self._no_answer():
            version = answer.content["version"]
        self._version = stamp.version
        return version

    def generate(
        self, requests: list[Request], sampling: Sampling, on_finish: OnFinish | None, seconds: float
    ) -> wire.Generated:
        """The completions of each request; `on_finish` hears of them as they end. Raises as `start` does."""
        content = {"verb": "generate", **wire.question(requests, sampling, listens=on_finish is not None)}
        asked = Asked(requests, sampling, self._vocabulary, self._version)

        def finished(message: Message) -> None:
            with self._no_answer():
                done = wire.finished_of(message.content)
                asked.require_finished(done)
            if on_finish is not None:
                on_finish(done)

        message = self._ask(content, seconds, finished=None if on_finish is None else finished)
        with self._no_answer():
            answer = wire.answer_of(message)
            asked.require_answer(answer)
        return answer

    def close(self) -> None:
        """Ends it, and whatever it started."""
        self._line.close()

    def _ask(
        self,
        content: dict[str, Any],
        seconds: float,
        parcel: Parcel = NOTHING,
        finished: Callable[[Message], None] | None = None,
    ) -> Message:
        """The answer. `seconds` may pass without a sign of progress.

        Raises PeerLost, and the engine's own errors as they were raised there.
        """
        self.answered = False
        try:
            wire.send(self._line, content, parcel.arrays, seconds, parcel.descriptors)
            while True:
                message = self._next(seconds)
                if "finished" in message.content and finished is not None:
                    finished(message)
                if "answer" in message.content:
                    self.answered = True
                    return Message(message.content["answer"], message.arrays)
                if "error" in message.content:
                    with self._no_answer():
                        error = _error(**message.content["error"])
                    self.answered = True
                    raise error
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
        with self._no_answer():
            return wire.receive(self._line, seconds)

    @contextmanager
    def _no_answer(self) -> Iterator[None]:
        """Raises RunError for what the other process wrote, where it can be no answer: another make, or no engine."""
        try:
            yield
        except NO_ANSWER as error:
            raise RunError(f"{self._name}: what came back is no answer to what was asked: {in_words(error)}") from None


def in_words(error: Exception) -> str:
    """What is wrong with an answer that could not be read."""
    return shortened(one_line(error)) if isinstance(error, ValueError) else f"{type(error).__name__}: {one_line(error)}"


def _error(kind: str, message: str, notes: str) -> GroupwiseError:
    error = UsageError(message) if kind == "usage" else RunError(message)
    if notes:
        error.add_note(notes)
    return error
