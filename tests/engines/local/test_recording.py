"""A forward is replayed from a recording only where that gives what the forward gives."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor, nn

from groupwise.core.machine.free_memory import give_back, held_memory
from groupwise.engines.local.recording import recorded
from tests.engines.local.made import is_recorded


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (x @ self.weight, x.flatten(0, 1))


class WithTable(Plain):
    """A model with a buffer that no state_dict names, as rotary frequencies are, and only one output."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.tensor([1.0, 5.0]), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (x * (self.table.exp() + 1) * self.weight,)


class ByValue(Plain):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (x if bool(x.sum() > 0) else -x,)


class ByNumberOfRows(Plain):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (torch.stack([row * self.weight for row in x.unbind(0)]).sum(0),)


class ByItsCalls(Plain):
    calls = 0

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        self.calls += 1
        return (x * self.calls,)


def example(shape: tuple[int, int]) -> list[Tensor]:
    return [torch.arange(shape[0] * shape[1] * 2.0).view(*shape, 2)]


@pytest.mark.parametrize("kind", [Plain, WithTable])
def test_a_recording_serves_other_shapes_and_the_weights_and_buffers_of_now(kind: type[Plain]) -> None:
    plain = kind().eval()
    replay = recorded(plain, example, (3, 5), (5, 9), (1, 2))
    assert is_recorded(replay)
    with torch.no_grad():
        for tensor in (*plain.parameters(), *plain.buffers()):
            tensor.mul_(-7)
        for shape in ((3, 5), (4, 1), (1, 1)):
            for one, other in zip(plain(*example(shape)), replay(*example(shape)), strict=True):
                assert torch.equal(one, other)


@pytest.mark.parametrize("kind", [ByValue, ByNumberOfRows, ByItsCalls])
def test_a_forward_that_a_recording_cannot_stand_for_runs_itself(kind: type[Plain]) -> None:
    plain = kind().eval()
    with torch.inference_mode():
        assert recorded(plain, example, (3, 5), (5, 9), (1, 2)) is plain


def test_a_recording_goes_with_what_was_recorded() -> None:
    """torch.jit.trace would keep 5 MiB of each of these."""

    def record() -> None:
        layers = nn.Sequential(*(nn.Linear(2, 2) for _ in range(100)))
        replay = recorded(AsTuple(layers).eval(), example, (3, 5), (5, 9))
        assert is_recorded(replay)
        for _ in range(3):  # torch prepares a recording when it is first called
            replay(*example((2, 2)))

    record()
    before = _held()
    for _ in range(6):
        record()
    assert _held() - before < 4 * 2**20


class AsTuple(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.inner(x),)


def _held() -> int:
    gc.collect()
    give_back()
    return held_memory("cpu")
