"""The learner of adapters: its reference, what it trains, hands to the engine, and puts back from a checkpoint."""

from __future__ import annotations

import copy
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import groupwise
from groupwise.core.engine import Request, Sampling
from groupwise.core.errors import UsageError
from groupwise.core.records import Batch, Group, Prompt
from groupwise.core.samples import Sample
from groupwise.engines.local.engine import LocalEngine
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.models.load import Policy, digest, load_policy
from groupwise.models.moe.settings import ReplayFrom, RoutingSettings, routers_to_record
from groupwise.models.tiny import TinySpec
from groupwise.training.learner import AdaptedLearner, Learner, LearnerSettings
from tests.laws.test_split import make_batch
from tests.moe_policy import save_moe

GRPO = groupwise.algorithm("grpo")
SETTINGS = LearnerSettings(learning_rate=0.01, tokens_per_microbatch=200)


@pytest.fixture(scope="module")
def moe_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_moe(tmp_path_factory.mktemp("moe") / "policy", initializer_range=0.1)


@pytest.fixture(params=["dense", "moe"])
def either(request: pytest.FixtureRequest, moe_folder: Path, tmp_path: Path) -> Policy:
    """Policies whose distributions are not peaked: there rounding would be larger than what is looked for."""
    if request.param == "moe":
        return load_policy(moe_folder)
    TinySpec().build("0123456789+-=", tmp_path / "tiny", seed=3)
    return load_policy(tmp_path / "tiny")


def learner(policy: Policy, updates: int = 0, replay: ReplayFrom = ReplayFrom.NONE, **adapter: Any) -> AdaptedLearner:
    """After that many updates on one batch, with a rate at which they are seen."""
    routing = RoutingSettings(replay=replay)
    own = AdaptedLearner(
        policy.model,
        AdapterSettings(**{"rank": 4, "rate_factor": 4.0, **adapter}),
        seed=0,
        settings=SETTINGS,
        temperature=1.0,
        total_updates=8,
        routing=routing,
        routers=routers_to_record(policy.model.base_model, routing),
    )
    for _ in range(updates):
        step(own)
    return own


def step(own: Learner, batch: Batch | None = None) -> Batch:
    """One update -> the batch with what it was annotated with."""
    bare = dataclasses.replace(make_batch(), logp_old=None, logp_ref=None) if batch is None else batch
    done = own.annotate(bare, old=True, ref=True)
    result = own.update(GRPO.weigh(GRPO.credit(done)), GRPO)
    assert result.applied
    assert result.gradient_norm > 0
    return done


def test_the_reference_is_the_base_to_the_bit_and_no_copy_of_it(either: Policy):
    model, routing = copy.deepcopy(either.model), RoutingSettings()
    routers = routers_to_record(model, routing)  # both run the same rows: what experts round depends on their number
    plain = Learner(model, copy.deepcopy(model), SETTINGS, 1.0, 1, routing=routing, routers=routers)
    own = learner(either)
    assert own.reference is None
    before = digest(plain.model)
    first, last = step(own), step(own)
    reference = plain.annotate(dataclasses.replace(first, logp_old=None, logp_ref=None), old=False, ref=True)
    assert torch.equal(first.need("logp_ref"), reference.need("logp_ref"))
    assert torch.equal(last.need("logp_ref"), first.need("logp_ref"))
    assert torch.equal(first.need("logp_old"), first.need("logp_ref")), "B is zero before the first update"
    assert (last.need("logp_old") - last.need("logp_ref")).abs().max() > 0.01
    plain.model.load_state_dict({name: weight.detach() for name, weight in own.adapters.base.items()}, strict=False)
    assert digest(plain.model) == before, "no update touches the base"


def test_adapters_learn_at_their_own_rate_and_nothing_else_has_a_state(either: Policy):
    own = learner(either, updates=2)
    assert own.update(GRPO.weigh(GRPO.credit(step(own))), GRPO).learning_rate == pytest.approx(0.04)
    matrices = {id(matrix) for matrix in own.adapters.matrices.values()}
    assert {id(p) for group in own.optimizer.adamw.param_groups for p in group["params"]} == matrices
    assert {id(p) for p in own.optimizer.adamw.state} == matrices


def test_the_engine_answers_as_the_learner_does_after_a_push_of_merged_weights(either: Policy):
    """A copy of the base takes them under its own names, and samples from the adapters' distribution."""
    engine = LocalEngine(either.model, eos=either.eos, pad=either.pad, routes=either.model.config.model_type != "qwen3")
    own = learner(either, updates=3)
    prompt, request = Prompt(Sample("0", "1+2=", ""), (3, 4, 5)), Request((3, 4, 5), 8, 1, 12)
    sampling = Sampling(max_new_tokens=12)

    def gaps() -> torch.Tensor:
        completions = engine.generate([request], sampling)[0]
        ours = own.completion_logprobs([Group(prompt, completions)], either.pad)
        pairs = zip(ours, completions, strict=True)
        return torch.cat([(a - torch.tensor(b.logp_engine)).abs() for a, b in pairs])

    assert gaps().mean() > 0.01
    engine.load_weights(own.weights(), version=1)
    assert gaps().mean() < 1e-6
    assert gaps().max() < 1e-5


def test_routes_are_replayed_in_every_update(moe_folder: Path):
    own = learner(load_policy(moe_folder), updates=1, replay=ReplayFrom.LEARNER)
    bare = dataclasses.replace(make_batch(), logp_old=None, logp_ref=None)
    batch = own.annotate(bare, old=True, ref=True)
    step(own, bare)
    _, seen = own.gradients(GRPO.weigh(GRPO.credit(batch)), GRPO)
    assert seen.routing is not None
    assert batch.routes is not None
    assert all(torch.equal(a, b) for a, b in zip(seen.routing.used, batch.routes, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(seen.routing.own, batch.routes, strict=True))


def test_a_checkpoint_holds_adapters_only_and_goes_on_to_the_bit(either: Policy, tmp_path: Path):
    fresh = copy.deepcopy(either)
    own = learner(either, updates=2)
    own.save(tmp_path, either.tokenizer)
    assert sorted(path.name for path in (tmp_path / "policy").iterdir()) == ["adapters.json", "adapters.safetensors"]
    assert load_file(tmp_path / "policy" / "adapters.safetensors").keys() == own.adapters.matrices.keys()
    step(own)
    other = learner(fresh)
    other.restore(tmp_path, updates=2)
    step(other)
    assert other.optimizer.updates == own.optimizer.updates == 3
    assert all(torch.equal(m, other.adapters.matrices[name]) for name, m in own.adapters.matrices.items())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rank": 8}, "adapter.rank = 8 and these adapters have 4: it cannot change in a run; set it back, or"),
        ({"alpha": 4.0}, "adapter.alpha = 4.0 and these adapters have 32.0: it cannot change in a run"),
        ({"targets": ("q_proj",)}, "adapter.targets = ['q_proj'] and these adapters have []: it cannot change"),
    ],
)
def test_other_adapters_than_the_runs_are_refused(changes: dict[str, Any], words: str, policy: Policy, tmp_path: Path):
    other = copy.deepcopy(policy)
    learner(policy).save(tmp_path, policy.tokenizer)
    with pytest.raises(UsageError, match=re.escape(f"adapters.json: {words}")) as error:
        learner(other, **changes).restore(tmp_path, updates=0)
    assert "\n" not in str(error.value)


def test_another_base_a_run_without_adapters_and_damaged_files_are_refused(policy: Policy, tmp_path: Path):
    base, full = copy.deepcopy(policy), Learner(copy.deepcopy(policy.model), None, LearnerSettings(), 1.0, 1)
    own = learner(policy)
    own.save(tmp_path / "adapters", policy.tokenizer)
    full.save(tmp_path / "full", policy.tokenizer)
    with pytest.raises(UsageError, match=r"trained without adapters, so adapter.rank = 4 cannot go on with it: set it"):
        own.restore(tmp_path / "full", updates=0)
    with pytest.raises(UsageError, match=r"it holds adapters and no model; groupwise export RUN FOLDER makes a model"):
        full.restore(tmp_path / "adapters", updates=0)
    with torch.no_grad():
        base.model.lm_head.weight[0, 0] += 1e-6
    moved = learner(base)
    with pytest.raises(UsageError, match=rf"are of policy {own.adapters.base_digest}, and the base now is "):
        moved.restore(tmp_path / "adapters", updates=0)
    path = tmp_path / "adapters" / "policy" / "adapters.safetensors"
    save_file({name: m for name, m in load_file(path).items() if "layers.0" in name}, path)
    with pytest.raises(UsageError, match="not adapters of this model: the adapters are of other layers"):
        own.restore(tmp_path / "adapters", updates=0)
    for damaged in (b"", b"[]", b"{}", b'{"rank": 4}'):
        path.with_name("adapters.json").write_bytes(damaged)
        with pytest.raises(UsageError):
            own.restore(tmp_path / "adapters", updates=0)
