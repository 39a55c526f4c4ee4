"""Compiled layers: the gradient, and the routes, of the layers as they are."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

import groupwise
from groupwise.core.errors import UsageError
from groupwise.models.forward import forwards
from groupwise.models.forward.forwards import CompiledLayers
from groupwise.models.moe.settings import ReplayFrom, RoutingSettings
from tests.laws.test_layout import gradient, make_batch, make_learner, model_of, require_same

#: torch's own, where it looks at what it compiles.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


def compiled_layers(learner: Any) -> int:
    """How many graphs of its layers were made; 0 where they run as they are."""
    assert isinstance(learner.fused, CompiledLayers)
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", {}),
        ("llama", {"shared_prefixes": False}),
        ("llama", {"recompute": True}),
        ("mistral, window 5", {}),
        ("gpt2", {}),
    ],
)
def test_the_gradient_of_compiled_layers_is_that_of_the_layers_in_float64(name: str, changes: dict[str, Any]) -> None:
    """In a dozen microbatches of as many lengths, which share their graphs but for a few."""
    torch._dynamo.reset()
    model, algo = model_of(name), groupwise.algorithm("grpo")
    batch = algo.weigh(algo.credit(make_batch()))
    plain = gradient(make_learner(model, shared_prefixes=False), algo, batch)
    learner = make_learner(model, 60, compile=True, **changes)
    require_same(gradient(learner, algo, batch), plain)
    graphs = compiled_layers(learner)
    assert graphs > 0
    other = algo.weigh(algo.credit(make_batch(seed=1)))
    require_same(gradient(learner, algo, other), gradient(make_learner(model, shared_prefixes=False), algo, other))
    assert compiled_layers(learner) <= graphs + 4, "each length was compiled for itself"


@pytest.mark.slow
@pytest.mark.parametrize("replay", [ReplayFrom.NONE, ReplayFrom.LEARNER])
def test_routes_are_recorded_and_replayed_in_compiled_layers(replay: ReplayFrom) -> None:
    torch._dynamo.reset()
    model, algo = model_of("qwen3-moe"), groupwise.algorithm("dapo")
    routing = RoutingSettings(replay=replay, load_balance=0.3, z_loss=0.2)
    bare = dataclasses.replace(make_batch(), logp_old=None)
    seen = {}
    for compile in (False, True):
        learner = make_learner(model, 60, routing=routing, compile=compile)
        annotated = learner.annotate(bare, old=True, ref=False)
        seen[compile] = gradient(learner, algo, algo.weigh(algo.credit(annotated))), annotated.routes
    assert compiled_layers(learner) > 0
    assert all(torch.equal(a, b) for a, b in zip(seen[True][1], seen[False][1], strict=True))
    require_same(seen[True][0], seen[False][0])


def test_what_cannot_be_compiled_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UsageError, match=r"learner.compile: Linear has no layers that can be compiled; set it to false"
    ):
        CompiledLayers(nn.Linear(2, 2))

    def no_compiler(*args: Any, **kwargs: Any) -> Any:
        def raises(numbers: Any) -> Any:
            raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found\nin torch._inductor.config")

        return raises

    monkeypatch.setattr(forwards, "multiplies_bf16", lambda device: False)
    with pytest.raises(UsageError, match="this processor has no instructions for bfloat16"):
        CompiledLayers(model_of("llama"), bf16=True)
    monkeypatch.setattr(forwards.torch, "compile", no_compiler)
    with pytest.raises(
        UsageError, match=r"cannot compile for cpu here \(InvalidCxxCompiler: .* install a C\+\+ compil"
    ):
        CompiledLayers(model_of("llama"))
