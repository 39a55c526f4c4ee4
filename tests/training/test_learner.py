"""The learner: what it computes and how it moves; and that of adapters, beside its base."""

from __future__ import annotations

import copy
import dataclasses
import math
import re
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import groupwise
from groupwise.commands.build.learner import make_critic, make_learner
from groupwise.config import recipe
from groupwise.config.resolve import resolve
from groupwise.core.engine import Request, Sampling
from groupwise.core.errors import RunError, UsageError
from groupwise.core.numbers.metrics import Last, Max, Mean, Sum, merge, read
from groupwise.core.records import Batch, Group, Prompt
from groupwise.core.samples import Sample
from groupwise.core.updates import UpdateRecord
from groupwise.diagnostics.updates import loss_metrics, update_metrics
from groupwise.engines.local.engine import LocalEngine
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.models.load import Policy, digest, load_policy
from groupwise.models.moe.settings import ReplayFrom, RoutingSettings, routers_to_record
from groupwise.models.scalar_heads import from_policy
from groupwise.models.tiny import TinySpec
from groupwise.training import critic as training_critic
from groupwise.training import learner as training_learner
from groupwise.training.learner import AdaptedLearner, Learner, LearnerSettings
from groupwise.training.optimizer import Optimizer
from tests.laws.test_split import make_batch
from tests.moe_policy import save_moe
from tests.training.made import norm_of, stepped_with


def test_annotation_computes_only_what_is_read(policy):
    batch = make_batch()
    bare = type(batch)(**{**vars(batch), "logp_old": None, "logp_ref": None})
    learner = Learner(policy.model, None, LearnerSettings(), 1.0, 1)
    assert learner.annotate(bare, old=False, ref=False).logp_old is None
    done = learner.annotate(bare, old=True, ref=False)
    assert done.logp_old is not None
    assert done.logp_ref is None
    assert not done.logp_old.requires_grad


def test_an_update_moves_along_the_advantage(policy):
    """Tokens with positive advantage become likelier, the others less likely; gradients are clipped to the norm."""
    algo = groupwise.algorithm("dapo")
    batch = make_batch()
    learner = Learner(policy.model, None, LearnerSettings(learning_rate=1e-3, clip_norm=1e-3), 1.0, 1)
    fresh = type(batch)(**{**vars(batch), "logp_old": None})
    minibatch = algo.weigh(algo.credit(learner.annotate(fresh, old=True, ref=False)))
    steps = stepped_with(learner.optimizer.adamw, policy.model)
    done = learner.update(minibatch, algo)
    assert done.applied
    assert read(update_metrics(minibatch, done))["learning_rate"] == 1e-3
    assert [norm_of(gradients) for gradients in steps] == [pytest.approx(1e-3, rel=1e-3)]
    assert all(p.grad is None for p in policy.model.parameters())  # nothing is held of them while it samples
    with torch.no_grad():
        moved = learner.logprobs(policy.model, minibatch) - minibatch.logp_old
    assert float((moved * minibatch.advantage * minibatch.weight).sum()) > 0


@pytest.mark.parametrize("adapted", [False, True])
def test_a_reference_in_float16_is_not_renewed_by_a_weight_that_would_be_infinite_there(policy: Policy, adapted: bool):
    """It is named, whichever it is, and none is taken: the policy's last one here, merged where it has adapters."""
    model, reference = (copy.deepcopy(policy.model) for _ in range(2))
    name, last = list(model.named_parameters())[-1]
    common: dict[str, Any] = {"reference": reference.half(), "settings": LearnerSettings(), "temperature": 1.0}
    common["total_updates"] = 1
    own = (AdaptedLearner, (AdapterSettings(rank=2), 0)) if adapted else (Learner, ())
    learner = own[0](model, *own[1], **common)
    before = digest(reference)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.5  # all others would fit
        last.view(-1)[-1] = 7e4
    words = f"reference.precision = 'fp16': {name} has a number of size 70000, and float16 ends at 65,504: the"
    with pytest.raises(RunError, match=f"^{re.escape(words)} reference stays what it was; .*reference.every = 0"):
        learner.renew_reference()
    assert digest(reference) == before
    with torch.no_grad():
        last.view(-1)[-1] = 65504.0
    learner.renew_reference()
    assert digest(reference) != before
    assert all(weight.dtype == torch.float16 and weight.isfinite().all() for weight in reference.parameters())
    learner.reference = copy.deepcopy(policy.model)
    with torch.no_grad():
        last.view(-1)[-1] = 7e4
    learner.renew_reference()  # float32 holds it


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that each forward of a learner will add its number of rows to."""
    rows, real = list[int](), training_learner.layout_logprobs

    def logprobs(backbone, head, layout, *others, **named):
        rows.append(len(layout.place))
        return real(backbone, head, layout, *others, **named)

    monkeypatch.setattr(training_learner, "layout_logprobs", logprobs)
    return rows


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_an_update_without_a_trained_row_moves_on_momentum_to_the_bits_of_one_that_ran_a_row(
    policy_folder, weight_decay, monkeypatch
):
    algo, rows = groupwise.algorithm("dapo"), counted(monkeypatch)
    right = algo.weigh(algo.credit(make_batch()))
    silent = dataclasses.replace(right, advantage=torch.zeros_like(right.need("advantage")))
    ends, ran = [], []
    for runs_a_row in (False, True):
        with monkeypatch.context() as patch:
            if runs_a_row:
                patch.setattr(Optimizer, "set_gradient_to_zero", lambda self: False)
            model = load_policy(policy_folder).model
            unused = torch.nn.Parameter(torch.ones(3))
            model.register_parameter("unused", unused)
            learner = Learner(model, None, LearnerSettings(learning_rate=1e-3, weight_decay=weight_decay), 1.0, 4)
            for minibatch in (silent, right, silent, silent):
                rows.clear()
                done = learner.update(minibatch, algo)
                ran.append(sum(rows))
            assert (done.loss, done.gradient_norm, done.applied, done.seen) == (0, 0, True, None)
            assert unused.tolist() == [1, 1, 1]
            ends.append({name: p.detach().clone() for name, p in model.named_parameters()})
    assert ran == [1, ran[1], 0, 0, 1, ran[1], 1, 1]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_rows_without_a_token_that_counts_are_not_run(policy, monkeypatch):
    algo, rows, batch = groupwise.algorithm("dapo"), counted(monkeypatch), make_batch()
    empty = ~batch.mask.any(1)
    assert 0 < empty.sum() < len(batch)
    learner = Learner(policy.model, None, LearnerSettings(), 1.0, 1)
    logp = learner.logprobs(policy.model, batch)
    assert sum(rows) == (~empty).sum()
    assert (logp[~batch.mask] == 0).all()
    assert (logp[batch.mask] < 0).all()
    rows.clear()
    learner.update(algo.weigh(algo.credit(batch)), algo)
    assert sum(rows) == (~empty).sum()
    rows.clear()
    assert (learner.logprobs(policy.model, dataclasses.replace(batch, mask=torch.zeros_like(batch.mask))) == 0).all()
    assert rows == []


def test_bf16_computes_near_fp32_over_fp32_weights(policy):
    batch = make_batch()
    with torch.no_grad():
        exact = Learner(policy.model, None, LearnerSettings(), 1.0, 1).logprobs(policy.model, batch)
        rough = Learner(policy.model, None, LearnerSettings(precision="bf16"), 1.0, 1).logprobs(policy.model, batch)
    assert next(policy.model.parameters()).dtype == torch.float32
    assert 0 < (exact - rough).abs().mean() < 0.1


def test_metrics_reduce_as_they_say():
    parts = [
        {"mean": Mean(1.0, 1.0), "sum": Sum(1), "max": Max(3.0), "last": Last(1.0)},
        {"mean": Mean(6.0, 3.0), "sum": Sum(2), "max": Max(2.0), "last": Last(2.0)},
        {"only": Mean(0.0, 0.0)},
    ]
    found = read(merge(parts))
    assert {k: v for k, v in found.items() if k != "only"} == {"mean": 1.75, "sum": 3, "max": 3.0, "last": 2.0}
    assert math.isnan(found["only"])


def test_share_is_weighted_by_the_loss_and_split_by_sign():
    algo = groupwise.algorithm("grpo")
    minibatch = algo.weigh(make_batch().add(advantage=torch.where(make_batch().mask, 1.0, 0.0)))
    share = torch.zeros(minibatch.mask.shape)
    share[:16] = 1.0
    zeros = torch.zeros(minibatch.mask.shape)
    found = read(loss_metrics(minibatch, UpdateRecord(zeros, zeros, share, zeros, None)))
    rows = minibatch.mask.any(-1)
    assert found["share_passed"] == pytest.approx(float(rows[:16].sum() / rows.sum()))
    assert found["share_passed_positive"] == pytest.approx(found["share_passed"])
    assert math.isnan(found["share_passed_negative"])
    assert found["effective_sample_share"] == pytest.approx(1.0)
    assert found["ratio_max"] == 1.0


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


@pytest.mark.parametrize("wanted", [True, False])
def test_the_recipe_says_whether_updates_add_up_in_one_order(policy, wanted, monkeypatch):
    """Learner, with adapters too, and critic of a recipe; the plan's line says what a person gets."""
    asked = []

    @contextmanager
    def order(device, one_order=True):
        asked.append(one_order)
        yield

    for module in (training_learner, training_critic):
        monkeypatch.setattr(module, "reproducible", order)
    for keys in ({"algorithm.name": "ppo"}, {"algorithm.name": "dapo", "adapter.rank": 2}):
        plan = resolve(recipe.load("quickstart", {"deterministic": wanted, **keys}))
        learner = make_learner(plan.recipe, copy.deepcopy(policy), ())
        critic = make_critic(plan.recipe, from_policy(policy.model) if plan.recipe.critic else None)
        learner.logprobs(learner.model, make_batch())
        if critic is not None:
            critic.values(make_batch())
        assert asked == [wanted] * len(asked) != []
        on_gpu = dataclasses.replace(plan, recipe=plan.recipe.replace(device="cuda"))
        line = on_gpu.describe().splitlines()[0]
        assert (", deterministic" in line, ", not deterministic" in line) == (wanted, not wanted)
