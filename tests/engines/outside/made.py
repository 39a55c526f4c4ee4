"""What engines in other processes are asked, servers for them, and completions compared."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from groupwise.core.engine import Request, Sampling
from groupwise.core.records import Completion
from groupwise.engines.outside.connection import Address
from groupwise.engines.outside.serving import EngineServer
from groupwise.models.load import Policy

REQUESTS = [
    Request((4, 5, 6), samples=3, seed=1),
    Request((7,), samples=4, seed=2**62),
    Request((4, 5, 6, 12, 2), samples=2, seed=3, max_new_tokens=5),
]
#: Eight completions that end in the first eight steps, and many that go on for a while after them, some in each of
#: three engines that share the requests.
LONG = [
    *(Request((4, 5, 6), samples=1, seed=limit, max_new_tokens=limit) for limit in range(1, 9)),
    *(Request((7, 8), samples=16, seed=seed) for seed in (9, 10, 11)),
]
ENDLESS = Sampling(max_new_tokens=200, logit_bias={1: -100.0})
SAMPLINGS = {
    "plain": Sampling(max_new_tokens=20),
    "colder, over a support": Sampling(max_new_tokens=12, temperature=0.7, top_p=0.8, top_k=6, min_p=0.01),
    "ends of its own": Sampling(max_new_tokens=20, stop=("1", "=2"), stop_ids=(3,), min_new_tokens=2),
    "greedy with biases": Sampling(max_new_tokens=9, temperature=0, logit_bias={5: -100.0, 7: 0.1}),
    "penalised": Sampling(max_new_tokens=9, repetition_penalty=1.3),
}
#: A key, as a file with a line has it.
KEY = b"a key of thirty-two characters.."
MANY = [Request((2 + i, 5, 6 + i % 4), samples=1 + i % 3, seed=i) for i in range(11)]


def weights(policy: Policy, scale: float) -> dict[str, torch.Tensor]:
    """The policy's weights, each a little different."""
    return {name: parameter.detach() * scale for name, parameter in policy.model.named_parameters()}


def assert_same(some: Sequence[Sequence[Completion]], others: Sequence[Sequence[Completion]]) -> None:
    assert [len(group) for group in some] == [len(group) for group in others]
    for group, other in zip(some, others, strict=True):
        for one, two in zip(group, other, strict=True):
            assert fields(one) == fields(two)


def fields(value: Any) -> Any:
    """A record as nested values that compare; of a tensor its type, its shape and its bytes."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().view(torch.uint8).numpy().tobytes()
    if dataclasses.is_dataclass(value):
        return {field.name: fields(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return repr(value)  # NaN is not equal to itself


def assert_alike(some: Any, others: Any) -> None:
    """The same tokens; log-probabilities up to rounding."""
    assert [len(group) for group in some] == [len(group) for group in others]
    for one, other in zip(sum(map(tuple, some), ()), sum(map(tuple, others), ()), strict=True):
        assert (one.tokens, one.finish, one.stop, one.version) == (
            other.tokens,
            other.finish,
            other.stop,
            other.version,
        )
        assert one.logp_engine == pytest.approx(other.logp_engine, abs=1e-5)


@contextlib.contextmanager
def listening(port: int = 0, key: bytes | None = None, **program: Any) -> Iterator[SimpleNamespace]:
    """A server, and what it has noted."""
    notes: list[str] = []
    place, threads = Address("127.0.0.1", port), torch.get_num_threads()
    server = EngineServer(place, None, "cpu", threads, notes.append, key, **program)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield SimpleNamespace(server=server, notes=notes, address=str(server.address))
    finally:
        server.close()
        thread.join(5)
        assert not thread.is_alive()


def made_key(file: Path) -> Path:
    """A file with the key that nobody else can read."""
    file.touch(0o600)
    file.write_bytes(KEY + b"\n")
    return file


def process_of(server: EngineServer) -> int:
    """The engine's process that the server has now."""
    assert server._child is not None
    return server._child.process.pid


def noted(there: Any, words: str) -> list[str]:
    """The server's notes with these words, of which one may be still to come."""
    end = time.monotonic() + 5
    while not (some := [note for note in there.notes if words in note]) and time.monotonic() < end:
        time.sleep(0.01)
    return some
