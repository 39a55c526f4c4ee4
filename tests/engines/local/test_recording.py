"""A forward is replayed from a recording only where that gives what the forward gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from groupwise.engines.local.recording import Forward, recorded


def is_recorded(forward: Forward) -> bool:
    return not isinstance(forward, nn.Module)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (x @ self.weight, x.flatten(0, 1))


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


def test_a_recording_serves_other_shapes_and_the_weights_of_now() -> None:
    plain = Plain().eval()
    replay = recorded(plain, example, (3, 5), (5, 9), (1, 2))
    assert is_recorded(replay)
    with torch.no_grad():
        plain.weight.mul_(-7)
        for shape in ((3, 5), (4, 1), (1, 1)):
            for one, other in zip(plain(*example(shape)), replay(*example(shape)), strict=True):
                assert torch.equal(one, other)


@pytest.mark.parametrize("kind", [ByValue, ByNumberOfRows, ByItsCalls])
def test_a_forward_that_a_recording_cannot_stand_for_runs_itself(kind: type[Plain]) -> None:
    plain = kind().eval()
    with torch.inference_mode():
        assert recorded(plain, example, (3, 5), (5, 9), (1, 2)) is plain
