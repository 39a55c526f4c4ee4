"""What runs in the child: makes one engine, and answers what the run asks of it until the run is gone."""

import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groupwise.core.channel import Channel
from groupwise.core.dataclass_json import from_json
from groupwise.core.engine import Engine, Finished
from groupwise.core.errors import GroupwiseError, RunError, UsageError, listed, one_line
from groupwise.engines.child import wire
from groupwise.engines.child.builders import BUILDERS, library_of
from groupwise.engines.child.shared_weights import Stamp, read_weights
from groupwise.engines.child.spec import EngineSpec
from groupwise.engines.child.wire import Message

#: Seconds between two signs of progress at least.
BEAT = 0.25


def main(run: Channel) -> None:
    """Serves the run at the other end of the channel."""
    os.dup2(2, 1)  # whatever is printed goes where the run keeps its end
    Server(run).serve()


class Server:
    """One engine and its line to the run."""

    def __init__(self, run: Channel) -> None:
        self._run = run
        self._engine: Engine | None = None
        self._parameters: Sequence[str] = ()
        self._beat = 0.0
        self._verbs: Mapping[str, Callable[[dict[str, Any], Sequence[int]], Message]] = {
            "start": self._start,
            "load": self._load,
            "generate": self._generate,
        }

    def serve(self) -> None:
        """An answer, or what went wrong, to each message."""
        while True:
            try:
                content, descriptors = self._run.receive_with(1)
            except (EOFError, OSError):
                os._exit(0)  # the run is gone
            try:
                answer = self._verbs[content["verb"]](content, descriptors)
            except Exception as error:
                self._run.send({"error": _in_words(error)})
            else:
                wire.send(self._run, {"answer": answer.content}, answer.arrays)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _start(self, content: dict[str, Any], descriptors: Sequence[int]) -> Message:
        spec, stamp = from_json(EngineSpec, content["spec"]), from_json(Stamp, content["stamp"])
        torch.set_num_threads(spec.threads)
        self._parameters = spec.parameters
        weights = self._arrived(descriptors[0], stamp)
        build = BUILDERS[spec.settings["name"]]
        self._engine = build(spec, Path(content["folder"]), weights, self._progress)
        self._engine.load_weights(weights.items(), stamp.version)
        declared = {
            "routes": self._engine.routes,
            "keeps_support": self._engine.keeps_support,
            "options": sorted(self._engine.options),
            "precision": self._engine.precision,
            "version": self._engine.version,
            "library": library_of(spec.settings["name"]),
        }
        return Message(declared, {})

    def _load(self, content: dict[str, Any], descriptors: Sequence[int]) -> Message:
        stamp = from_json(Stamp, content["stamp"])
        self._started.load_weights(self._arrived(descriptors[0], stamp).items(), stamp.version)
        return Message({"version": self._started.version}, {})

    def _generate(self, content: dict[str, Any], _: Sequence[int]) -> Message:
        listener = self._tell if content["listens"] else None
        groups = self._started.generate(wire.requests_of(content), wire.sampling_of(content), listener)
        return wire.completions_message(groups)

    @property
    def _started(self) -> Engine:
        assert self._engine is not None, "the run starts an engine before it asks"
        return self._engine

    def _arrived(self, descriptor: int, stamp: Stamp) -> dict[str, Tensor]:
        """The weights in the shared memory. Raises RunError where one of the parameters is not among them."""
        weights = read_weights(descriptor, stamp, self._progress)
        missing = [name for name in self._parameters if name not in weights]
        if missing:
            keeps = f", which keeps version {self._engine.version}" if self._engine else ""
            words = listed(missing, most=3)
            raise RunError(f"these weights are not of the engine's model{keeps}: missing: {words}")
        return weights

    def _tell(self, done: Finished) -> None:
        self._run.send(wire.finished_message(done))

    def _progress(self) -> None:
        now = time.monotonic()
        if now >= self._beat:
            self._beat = now + BEAT
            self._run.send({"progress": True})


def _in_words(error: Exception) -> dict[str, str]:
    """What the run needs to raise the same error; what is no error of groupwise's is told with its traceback."""
    kind = "usage" if isinstance(error, UsageError) else "run"
    notes = "\n".join(getattr(error, "__notes__", ()))
    if isinstance(error, GroupwiseError):
        return {"kind": kind, "message": str(error), "notes": notes}
    message = f"in the engine's process: {type(error).__name__}: {one_line(error)}"
    return {"kind": kind, "message": message, "notes": traceback.format_exc()}
