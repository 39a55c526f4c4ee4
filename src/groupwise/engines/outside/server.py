"""Program of the child: it makes one engine, and answers what the run asks of it until the run is gone."""

import dataclasses
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from groupwise.core.channel import Channel, FrameError
from groupwise.core.engine import Engine, Finished
from groupwise.core.errors import GroupwiseError, RunError, UsageError, listed, one_line
from groupwise.core.files.atomic import temporary_folder
from groupwise.core.files.dataclass_json import from_json
from groupwise.core.machine.cards import alone_on, failure_of
from groupwise.core.machine.free_memory import give_back_card
from groupwise.engines.kinds import KINDS
from groupwise.engines.outside import wire
from groupwise.engines.outside.card import Unshareable
from groupwise.engines.outside.card_weights import CardParcel, CardReader, settle
from groupwise.engines.outside.shared_weights import Stamp, mapped, read_weights
from groupwise.engines.outside.spec import EngineSpec
from groupwise.engines.outside.wire import Arrays, Message

#: Seconds between two signs of progress at least.
BEAT = 0.25
#: Bytes of a model's weights.
MOST_WEIGHTS = 1 << 43


def main(channel: Channel, machine: tuple[str, int] | None = None) -> None:
    """Serve the run at the other end; for a server, which says its `machine`, the run whose connection it sends."""
    os.dup2(2, 1)  # whatever is printed goes where the run, or the server, shows it
    if machine is not None:
        _, descriptors = channel.receive_with(1)
        channel = Channel(socket.socket(fileno=descriptors[0]))
    Server(channel, machine).serve()


class Server:
    """One engine and its line to the run.

    machine  device and threads on which the engine computes, if that is not for the run to say
    """

    def __init__(self, run: Channel, machine: tuple[str, int] | None = None) -> None:
        self._run, self._machine = run, machine
        self._engine: Engine | None = None
        self._parameters: Sequence[str] = ()
        self._card, self._device = CardReader(), torch.device("cpu")
        self._beat = 0.0
        self._verbs: Mapping[str, Callable[[Message, Sequence[int]], Message]] = {
            "start": self._start,
            "load": self._load,
            "sleep": self._sleep,
            "generate": self._generate,
        }

    def serve(self) -> None:
        """Answer each message, or tell what went wrong."""
        while True:
            try:
                content, descriptors = self._run.receive_with(1)
                question = Message(content, wire.arrays_behind(self._run, content, most=MOST_WEIGHTS))
            except (EOFError, OSError):
                os._exit(0)  # the run is gone
            except FrameError as error:  # whoever is there is no run
                sys.exit(f"what came is no question to an engine: {error}")
            try:
                answer = self._verbs[content["verb"]](question, descriptors)
            except Unshareable as why:
                self._send({"answer": {"declined": str(why)}})
            except Exception as error:
                if failed := failure_of(error):  # another process may still use the card; this one cannot
                    sys.exit(f"error: its GPU failed: {failed}")
                self._send({"error": _in_words(error)})
            else:
                self._send({"answer": answer.content}, answer.arrays)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _start(self, question: Message, descriptors: Sequence[int]) -> Message:
        content = question.content
        spec, stamp = from_json(EngineSpec, content["spec"]), from_json(Stamp, content["stamp"])
        if self._machine is not None:
            device, threads = self._machine
            spec = dataclasses.replace(spec, device=device, threads=threads)
        spec = dataclasses.replace(spec, device=alone_on(spec.device, os.environ))
        torch.set_num_threads(spec.threads)
        self._parameters, self._device = spec.parameters, torch.device(spec.device)
        weights = self._arrived(question, descriptors, stamp)
        kind = KINDS[spec.settings["name"]]
        with temporary_folder("engine") as folder:
            wire.write_files(folder, question.arrays)
            self._engine = resolve_name(kind.build)(spec, folder, weights, self._progress)
        engine = self._started
        engine.load_weights(weights.items(), stamp.version)
        settle(self._device)
        declared = {
            "routes": engine.routes,
            "keeps_support": engine.keeps_support,
            "keeps_top": engine.keeps_top,
            "options": sorted(engine.options),
            "precision": engine.precision,
            "remark": engine.remark,
            "version": engine.version,
            "library": f"{kind.library} {sys.modules[kind.library].__version__}",
        }
        return Message(declared, {})

    def _load(self, question: Message, descriptors: Sequence[int]) -> Message:
        stamp = from_json(Stamp, question.content["stamp"])
        self._started.load_weights(self._arrived(question, descriptors, stamp).items(), stamp.version)
        settle(self._device)  # the run may write again
        return Message({"version": self._started.version}, {})

    def _sleep(self, question: Message, _: Sequence[int]) -> Message:
        self._started.sleep()
        give_back_card()
        return Message({}, {})

    def _generate(self, question: Message, _: Sequence[int]) -> Message:
        content = question.content
        engine = self._started
        before = engine.tokens_run
        listener = self._tell if content["listens"] else None
        groups = engine.generate(wire.requests_of(content), wire.sampling_of(content), listener)
        return wire.answer_message(groups, engine.tokens_run - before)

    @property
    def _started(self) -> Engine:
        assert self._engine is not None, "the run starts an engine before it asks"
        return self._engine

    def _arrived(self, question: Message, descriptors: Sequence[int], stamp: Stamp) -> dict[str, Tensor]:
        """Return the weights that came with a question, or lie on the GPU.

        Raises RunError if one of the parameters is not among them, Unshareable if they cannot be read there.
        """
        if "card" in question.content:
            if self._machine is not None:
                raise Unshareable("it is at an address, where a handle is as good as whoever sent it")
            weights = self._card.read(from_json(CardParcel, question.content["card"]), self._device, stamp.version)
        else:
            self._card.close()
            memory = mapped(descriptors[0]) if descriptors else question.arrays[wire.WEIGHTS].data
            weights = read_weights(memory, stamp, self._progress)
        missing = [name for name in self._parameters if name not in weights]
        if missing:
            keeps = f", which keeps version {self._engine.version}" if self._engine else ""
            words = listed(missing, most=3)
            raise RunError(f"these weights are not of the engine's model{keeps}: missing: {words}")
        return weights

    def _tell(self, done: Finished) -> None:
        self._send(wire.finished_message(done))

    def _progress(self) -> None:
        now = time.monotonic()
        if now >= self._beat:
            self._beat = now + BEAT
            self._send({"progress": True})

    def _send(self, content: Mapping[str, Any], arrays: Arrays = MappingProxyType({})) -> None:
        try:
            wire.send(self._run, content, arrays)
        except OSError:
            os._exit(0)  # the run is gone


def _in_words(error: Exception) -> dict[str, str]:
    """Tell what the run needs to raise the same error; what is no error of groupwise's is told with its traceback."""
    kind = "usage" if isinstance(error, UsageError) else "run"
    notes = "\n".join(getattr(error, "__notes__", ()))
    if isinstance(error, GroupwiseError):
        return {"kind": kind, "message": str(error), "notes": notes}
    message = f"in the engine's process: {type(error).__name__}: {one_line(error)}"
    return {"kind": kind, "message": message, "notes": traceback.format_exc()}
