"""Messages between a run and its engine's process: `send` and `receive` messages of core/processes/codec.py.

The tokens, log-probabilities, supports, likely ids and routes of all completions of an answer lie one behind the other
in one array each. Shapes: N completions, T tokens of all of them, L routers, K experts a token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from groupwise.core.engine import Finished, Request, Sampling
from groupwise.core.files.dataclass_json import from_json, to_json
from groupwise.core.processes.codec import Arrays as Arrays
from groupwise.core.processes.codec import Message as Message
from groupwise.core.processes.codec import arrays_behind as arrays_behind
from groupwise.core.processes.codec import receive as receive
from groupwise.core.processes.codec import send as send
from groupwise.core.records import Completion, SamplerTop, Span, Support

#: Before the name of an array that is a file of a folder.
FILE = "file:"
#: The array that is a whole file of weights (shared_weights.py).
WEIGHTS = "weights"


def files_in(folder: Path) -> Arrays:
    """Return the bytes of each file of a folder, named by its path from there on."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {FILE + path.relative_to(folder).as_posix(): np.frombuffer(path.read_bytes(), np.uint8) for path in files}


def write_files(folder: Path, arrays: Arrays) -> None:
    """Write the files among the arrays into a folder. Raises ValueError for a name that leads out of it."""
    for name, data in arrays.items():
        if not name.startswith(FILE):
            continue
        place = folder / name.removeprefix(FILE)
        if not place.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"a file named {name!r}")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data.tobytes())


def question(requests: Sequence[Request], sampling: Sampling, listens: bool) -> dict[str, Any]:
    """Say what is asked of an engine; `listens`: completions are to be reported as they end."""
    return {"requests": [vars(r) for r in requests], "sampling": sampling.model_dump(mode="json"), "listens": listens}


def requests_of(content: Mapping[str, Any]) -> tuple[Request, ...]:
    """Read the requests of a question."""
    return tuple(Request(**{**request, "tokens": tuple(request["tokens"])}) for request in content["requests"])


def sampling_of(content: Mapping[str, Any]) -> Sampling:
    """Read the sampling of a question."""
    return Sampling.model_validate(content["sampling"])


def finished_message(done: Finished) -> dict[str, Any]:
    """Say that a completion has ended."""
    return {"finished": done._asdict()}


def finished_of(content: Mapping[str, Any]) -> Finished:
    """Read which completion has ended."""
    fields = content["finished"]
    return Finished(**{**fields, "tokens": tuple(fields["tokens"])})


@dataclass(frozen=True)
class Generated:
    """The completions of each request of a question, and how many tokens were computed for them."""

    groups: list[tuple[Completion, ...]]
    tokens_run: int


def answer_message(groups: Sequence[Sequence[Completion]], tokens_run: int) -> Message:
    """Write an engine's completions; the fields that a rollout writes later do not travel."""
    every = [c for group in groups for c in group]
    supports = [c.support for c in every if c.support is not None]
    routes = [c.routes for c in every if c.routes is not None]
    tops = [c.top for c in every if c.top is not None]
    content = {
        "tokens_run": tokens_run,
        "groups": [len(group) for group in groups],
        "tokens": [len(c.tokens) for c in every],
        "finish": [c.finish for c in every],
        "stop": [c.stop for c in every],
        "spans": [to_json(c.spans) for c in every],
        "support_ids": [None if c.support is None else len(c.support.ids) for c in every],
        "support_start": [None if c.support is None else len(c.support.start) for c in every],
        "routes": [None if c.routes is None else len(c.routes) for c in every],
        "top": [c.top is not None for c in every],
    }
    arrays = {
        "tokens": np.array([token for c in every for token in c.tokens], np.int64),
        "logp_engine": np.array([logp for c in every for logp in c.logp_engine], np.float64),
        **({"support_ids": _joined([s.ids for s in supports])} if supports else {}),
        **({"support_start": _joined([s.start for s in supports])} if supports else {}),
        **({"routes": _joined(routes)} if routes else {}),
        **({"top_ids": _joined([t.ids for t in tops]), "top_logp": _joined([t.logp for t in tops])} if tops else {}),
    }
    return Message(content, arrays)


def answer_of(message: Message) -> Generated:
    """Read an answer; its completions are what they were in the other process, to the bit."""
    content, take = message.content, _Taking(message.arrays)

    def completion(i: int) -> Completion:
        ids, start = (take.tensor(name, content[name][i]) for name in ("support_ids", "support_start"))
        count = content["tokens"][i] if content["top"][i] else None
        top_ids, top_logp = (take.tensor(name, count) for name in ("top_ids", "top_logp"))
        return Completion(
            tokens=tuple(take("tokens", content["tokens"][i]).tolist()),
            logp_engine=tuple(take("logp_engine", content["tokens"][i]).tolist()),
            finish=content["finish"][i],
            spans=from_json(tuple[Span, ...], content["spans"][i]),
            support=None if ids is None or start is None else Support(ids, start),
            routes=take.tensor("routes", content["routes"][i]),
            stop=content["stop"][i],
            top=None if top_ids is None or top_logp is None else SamplerTop(top_ids, top_logp),
        )

    every = map(completion, range(sum(content["groups"])))
    groups = [tuple(islice(every, count)) for count in content["groups"]]
    return Generated(groups, content["tokens_run"])


class _Taking:
    """Arrays from which one part after the other is taken."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays, self._taken = arrays, dict.fromkeys(arrays, 0)

    def __call__(self, name: str, count: int) -> np.ndarray:
        begin = self._taken[name]
        self._taken[name] = begin + count
        return self._arrays[name][begin : begin + count]

    def tensor(self, name: str, count: int | None) -> Tensor | None:
        """Copy the next part to memory of its own, for a view would hold the whole; None if there is none."""
        return None if count is None else torch.from_numpy(self(name, count).copy())


def _joined(tensors: Sequence[Tensor]) -> np.ndarray:
    return torch.cat(list(tensors)).numpy()
