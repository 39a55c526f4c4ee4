"""What must stay is read: the reference, the weights that train, what was put back, and replayed experts' weights."""

from __future__ import annotations

import copy
import dataclasses
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from groupwise.algorithms.settings import algorithm
from groupwise.core.records import Batch, Completion, Support
from groupwise.diagnostics.witness.fixed import FixedReading
from groupwise.diagnostics.witness.plain.gates import gates_under_replay
from groupwise.diagnostics.witness.reading import Disagreement, StepSeen
from groupwise.health.checks import TRAINS_WHAT_WAS_SAID
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.models.forward.heads import halves
from groupwise.models.load import load_policy
from groupwise.models.moe import replay
from groupwise.models.moe.record import router_logits, routers
from groupwise.models.moe.settings import ReplayFrom, RoutingSettings, routers_to_record
from groupwise.training import microbatch
from groupwise.training.learner import AdaptedLearner, Learner
from tests.diagnostics.witness.made import disagreements, groups, step
from tests.diagnostics.witness.test_plain import ROW, SETTINGS, dense, found, read, sampled
from tests.moe_policy import save_moe


def reading(learner: Any, renewed: int = 0, **files: Any) -> FixedReading:
    return FixedReading(learner, renewed, False, lambda: None, files)


def begun(fixed: FixedReading, batch: Batch, number: int = 1) -> list[str]:
    """What is disagreed with at the begin of a step."""
    none: Any = None
    said = list(fixed.begin(StepSeen(number, none, batch, none, False, slow=True)))
    return found([one for one in said if isinstance(one, Disagreement)])


def adapted(policy: Any) -> AdaptedLearner:
    return AdaptedLearner(policy.model, AdapterSettings(rank=2), 0, SETTINGS, 1.0, 10)


def test_a_reference_that_moves_with_the_policy_is_found(policy, monkeypatch):
    learner = adapted(policy)
    fixed, batch = reading(learner), sampled(learner)
    assert begun(fixed, batch) == []
    learner.update(batch, ROW)
    assert begun(fixed, batch, 2) == []
    monkeypatch.setattr(learner.adapters, "off", nullcontext)
    assert begun(fixed, batch, 3) == ["what the reference says of completions of an earlier step, which must stay"]


def test_a_reference_that_is_not_renewed_is_found(policy):
    learner = dense(policy)
    fresh = sampled(learner)
    learner.update(fresh, ROW)
    late = sampled(learner)  # the reference is still that of the start
    fixed = reading(learner, renewed=2)
    assert (begun(fixed, fresh, 3), begun(fixed, late, 2), begun(fixed, late, 1)) == ([], [], [])
    assert begun(fixed, late, 3) != []


def test_weights_that_train_beside_adapters_are_found(policy):
    learner = adapted(policy)
    fixed, batch = reading(learner), sampled(learner)
    assert begun(fixed, batch) == []
    learner.optimizer.adamw.add_param_group({"params": [learner.model.model.norm.weight.requires_grad_()]})
    assert begun(fixed, batch) == ["the optimizer of [learner]"]


def test_what_is_not_put_back_is_found(policy, tmp_path: Path):
    now = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    save_file({f"{name}": p for name, p in now.items()}, tmp_path / "a.safetensors")
    save_file({"another": torch.ones(2)}, tmp_path / "b.safetensors")
    files = {name: lambda: now for name in ("a.safetensors", "b.safetensors", "c.safetensors")}
    fixed = FixedReading(dense(policy), 0, False, lambda: None, files)
    assert list(fixed.put_back(tmp_path)) == []
    now.update({name: p + 1e-6 for name, p in now.items()})
    (said,) = fixed.put_back(tmp_path)
    assert isinstance(said, Disagreement)
    assert said.real
    assert "a.safetensors has another" in said.detail


def test_a_support_that_the_recipe_does_not_ask_for_is_found():
    def cut(one: Completion) -> Completion:
        count = one.length
        return dataclasses.replace(one, support=Support(torch.arange(count).int(), torch.arange(count + 1)))

    row = algorithm("grpo")
    those = [dataclasses.replace(g, completions=tuple(map(cut, g.completions))) for g in groups()]
    for truncates in (True, False):
        made = step(row, those)
        rules = dataclasses.replace(made.seen.rules, truncates=truncates)
        told = disagreements(row, dataclasses.replace(made, seen=dataclasses.replace(made.seen, rules=rules)))
        assert (TRAINS_WHAT_WAS_SAID.name in told) is not truncates


@pytest.mark.parametrize("architecture", ["qwen3_moe", "mixtral"])
def test_weights_of_other_experts_than_the_replayed_ones_are_found(architecture, tmp_path, monkeypatch, policy):
    model = load_policy(save_moe(tmp_path / "moe", architecture)).model
    known, rows = routers(halves(model)[0]), sampled(dense(policy))
    (sound,) = gates_under_replay(model, known, rows)
    assert isinstance(sound, Disagreement)
    assert not sound.real
    forced = replay._ForcedTopK.__torch_function__

    def of_own_choice(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = forced(self, func, types, args, kwargs)
        if func is not torch.topk:
            return out
        return torch.return_types.topk((args[0].gather(-1, self.own), out.indices))  # type: ignore[attr-defined]

    monkeypatch.setattr(replay._ForcedTopK, "__torch_function__", of_own_choice)
    (wrong,) = gates_under_replay(model, known, rows)
    assert isinstance(wrong, Disagreement)
    assert wrong.real


def test_a_balance_loss_without_a_gradient_is_found(tmp_path, monkeypatch):
    model = load_policy(save_moe(tmp_path / "moe", "qwen3_moe")).model
    routing = RoutingSettings(replay=ReplayFrom.LEARNER, load_balance=0.1)
    learner = Learner(
        *(model, copy.deepcopy(model), SETTINGS, 1.0, 10, routing),
        routers_to_record(halves(model)[0], routing),
    )
    minibatch = sampled(learner)

    @contextmanager
    def detached(known: Any) -> Any:
        with router_logits(known) as logits:
            yield Detached(logits)

    class Detached(list):  # type: ignore[type-arg]
        def __init__(self, logits: list[torch.Tensor]) -> None:
            self.logits = logits

        def __iter__(self) -> Any:
            return iter([x.detach() for x in self.logits])

    monkeypatch.setattr(microbatch, "router_logits", detached)
    assert any("the policy's gradient" in about for about in found(read(learner, minibatch)))
