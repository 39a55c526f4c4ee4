"""A microbatch, once it lies on its device, never waits for that device: forward, loss and backward ask for no number.

On a GPU torch itself says if one does (tests/gpu); here the operations are seen that would make it wait.
"""

from __future__ import annotations

import dataclasses
import traceback
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import groupwise
from groupwise.core.records import Support
from groupwise.models.forward.adjustment import Adjustment
from groupwise.training.learner import Learner, LearnerSettings
from tests.laws.test_layout import MODELS, gradient, make_batch, require_same

ATEN = torch.ops.aten
#: A number for Python, or a size that depends on numbers.
ASK = {
    ATEN._local_scalar_dense.default,
    ATEN.nonzero.default,
    ATEN.masked_select.default,
    ATEN.masked_scatter_backward.default,
    ATEN._unique2.default,
}
#: Operations in which a mask is an index: as many places as it has True.
INDEX = {ATEN.index.Tensor, ATEN.index_put.default, ATEN.index_put_.default, ATEN._index_put_impl_.default}
TO_PYTHON = {Tensor.cpu, Tensor.tolist, Tensor.numpy, Tensor.item}
#: Where the ids that sampling kept, which stay on the CPU, are taken chunk by chunk.
ON_THE_CPU = "records.py"


class Waits(TorchDispatchMode):
    """The operations inside that would make the CPU wait for a device, by the line that asks for them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        by_mask = func in INDEX and any(x is not None and x.dtype == torch.bool for x in args[1])
        if func in ASK or by_mask:
            self.see(str(func))
        return func(*args, **(kwargs or {}))

    def see(self, name: str) -> None:
        stack = [frame for frame in traceback.extract_stack() if "/tests/" not in frame.filename]
        own = next(frame for frame in reversed(stack) if "groupwise" in frame.filename)
        if not own.filename.endswith(ON_THE_CPU):
            self.seen.append(f"{name}: {own.filename}:{own.lineno}")


class Calls(TorchFunctionMode):
    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self.waits = waits

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in TO_PYTHON:
            self.waits.see(str(func))
        return func(*args, **(kwargs or {}))


class Watched(Learner):
    """A learner whose microbatches are watched."""

    def run_microbatch(self, *args: Any) -> Any:
        waits = Waits()
        with waits, Calls(waits):
            found = super().run_microbatch(*args)
        assert waits.seen == []
        return found


def learners(adjustment: Adjustment, **settings: Any) -> tuple[Learner, Learner]:
    torch.manual_seed(0)
    model = MODELS["llama"]().double()
    own = LearnerSettings(tokens_per_microbatch=60, **settings)
    return tuple(kind(model, None, own, 0.8, 1, adjustment=adjustment) for kind in (Learner, Watched))  # type: ignore[return-value]


SETTINGS: list[dict[str, Any]] = [{}, {"recompute": True}, {"held_logits": 0}]
BARRED = Adjustment(torch.linspace(-1, 1, 32), torch.tensor([1, 5]), least=2)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("algorithm", ["grpo", "sapo"])
def test_no_microbatch_waits(settings: dict[str, Any], algorithm: str) -> None:
    algo = groupwise.algorithm(algorithm, {"entropy_coefficient": 0.01})
    batch = algo.weigh(algo.credit(make_batch()))
    for adjustment in (Adjustment(), BARRED):
        plain, watched = learners(adjustment, **settings)
        require_same(gradient(watched, algo, batch), gradient(plain, algo, batch))


def test_no_microbatch_of_a_truncated_distribution_waits() -> None:
    algo, batch = groupwise.algorithm("dapo"), make_batch()
    counts = batch.mask.sum(1).tolist()
    kept = [batch.tokens[i][batch.mask[i]] for i in range(len(batch))]
    support = tuple(Support(ids.int(), torch.arange(n + 1)) for ids, n in zip(kept, counts, strict=True))
    batch = algo.weigh(algo.credit(dataclasses.replace(batch, support=support)))
    plain, watched = learners(Adjustment())
    loss, grad, _ = gradient(watched, algo, batch)
    assert (loss, grad.tolist()) == (gradient(plain, algo, batch)[0], gradient(plain, algo, batch)[1].tolist())


def test_the_watch_sees_each_way_to_wait() -> None:
    x, waits = torch.ones(3), Waits()
    asks = (
        lambda: float(x.sum()),
        lambda: x[x > 0],
        lambda: x.tolist(),
        lambda: x.cpu(),
        lambda: (x > 0).nonzero(),
        lambda: x.unique(),
        lambda: bool(x.any()),
    )
    waits.see = waits.seen.append  # type: ignore[method-assign]
    with waits, Calls(waits):
        for i, ask in enumerate(asks):
            ask()
            assert len(waits.seen) > i
