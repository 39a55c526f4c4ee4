"""The learner over a mixture-of-experts policy: its routes, what a replay uses, and one gradient however it is cut."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

import groupwise
from groupwise.core.collate import microbatches
from groupwise.core.errors import RunError, UsageError
from groupwise.core.records import Batch
from groupwise.models.moe.record import record_routes, routers
from groupwise.models.moe.settings import ReplayFrom, RoutingSettings, require_engine_routes, routers_to_record
from groupwise.training.learner import Learner, LearnerSettings
from tests.laws import moe_models
from tests.laws.test_split import budget_for, make_batch

DAPO = groupwise.algorithm("dapo")


def learner(model, budget: int = 10**6, shared: bool = True, **routing) -> Learner:
    settings = RoutingSettings(**routing)
    return Learner(
        model,
        None,
        LearnerSettings(tokens_per_microbatch=budget, shared_prefixes=shared),
        1.0,
        1,
        settings,
        routers_to_record(model.base_model, settings),
    )


def bare_batch() -> Batch:
    return dataclasses.replace(make_batch(), logp_old=None)


def weighed(batch: Batch) -> Batch:
    return DAPO.weigh(DAPO.credit(batch))


def moved(model, size: float = 0.05) -> None:
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += size * torch.randn(weight.shape, generator=g, dtype=weight.dtype)


def alone(model, batch: Batch, row: int) -> Tensor:
    """The routes of a row that runs by itself, all but its last token."""
    with torch.no_grad(), record_routes(model.base_model) as routes:
        model.base_model(input_ids=batch.tokens[row : row + 1, : batch.length[row] - 1], use_cache=False)
    return routes.tensor[0]


def equal(rows, others) -> bool:
    return len(rows) == len(others) and all(torch.equal(a, b) for a, b in zip(rows, others, strict=True))


@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3"])
def test_annotation_records_what_each_row_chooses_by_itself(name):
    """Through padding, sorting and microbatches; the last token of a row is not run."""
    model = moe_models.build(name, dtype=torch.float64, experts_implementation="eager")
    batch = bare_batch()
    done = learner(model, budget=60).annotate(batch, old=True, ref=False)
    assert done.routes is not None
    assert done.routes_own is None
    assert equal(done.routes, [alone(model, batch, i) for i in range(len(batch))])


def test_kept_routes_hold_no_padding_in_memory():
    """A byte for each layer and expert of a token that was run, and nothing of the microbatch around it."""
    batch = bare_batch()
    engine = learner(moe_models.build("qwen3_moe")).annotate(batch, old=True, ref=False).routes
    batch = dataclasses.replace(batch, routes_engine=engine)
    done = learner(moe_models.build("qwen3_moe"), 60, replay=ReplayFrom.ENGINE).annotate(batch, old=True, ref=False)
    for rows in (done.routes, done.routes_own):
        assert rows is not None
        kept = {row.untyped_storage().data_ptr(): row.untyped_storage().nbytes() for row in rows}
        assert sum(kept.values()) == int((batch.length - 1).sum()) * 3 * 2


@pytest.mark.parametrize("replay", [ReplayFrom.LEARNER, ReplayFrom.ENGINE])
@pytest.mark.parametrize("budget", [10**6, 60])
@pytest.mark.parametrize("shared", [True, False])
def test_every_update_uses_the_routes_that_are_replayed(shared, replay, budget):
    model = moe_models.build("qwen3_moe")
    batch = bare_batch()
    g = torch.Generator().manual_seed(2)
    places = [torch.rand(n - 1, 3, 8, generator=g).argsort(-1) for n in batch.length.tolist()]
    engine = tuple(place[..., :2].to(torch.uint8) for place in places)
    trained = learner(model, budget, shared, replay=replay)
    done = trained.annotate(dataclasses.replace(batch, routes_engine=engine), old=True, ref=False)
    assert done.routes is not None
    if replay is ReplayFrom.ENGINE:
        assert equal(done.routes, engine), "logp_old is computed on the engine's experts already"
        assert done.routes_own is not None
        assert not equal(done.routes_own, engine)
    moved(model)
    minibatch = weighed(done).rows(torch.arange(31, -1, -1))
    _, seen = trained.gradients(minibatch, DAPO)
    assert seen.routing is not None
    assert equal(seen.routing.used, done.routes[::-1])
    assert not equal(seen.routing.own, done.routes[::-1])
    has_gradient = DAPO.trained_rows(minibatch)
    padded = [
        rows[part]
        for rows in (has_gradient.nonzero()[:, 0], (~has_gradient).nonzero()[:, 0])
        for part in microbatches(minibatch.length[rows], budget)
    ]
    shorter = sum(int((minibatch.length[rows] < minibatch.length[rows].max()).sum()) for rows in padded)
    assert shorter > 0
    assert seen.routing.live == (0 if shared else shorter), (
        "in a padded row that is not the longest the last token is run"
    )


def test_without_replay_the_routes_are_told_and_left_alone():
    model = moe_models.build("qwen3_moe")
    trained = learner(model)
    done = trained.annotate(bare_batch(), old=True, ref=False)
    moved(model)
    _, seen = trained.gradients(weighed(done), DAPO)
    assert seen.routing is not None
    assert equal(seen.routing.used, seen.routing.own)
    assert equal(seen.routing.used, [alone(model, done, i) for i in range(len(done))])
    assert done.routes is not None
    assert not equal(seen.routing.used, done.routes)


@pytest.mark.parametrize(
    ("routing", "passes"),
    [
        ({}, 0),
        ({"z_loss": 1.0}, 0),
        ({"replay": ReplayFrom.ENGINE}, 0),
        ({"replay": ReplayFrom.LEARNER}, 1),
        ({"load_balance": 1.0}, 1),
    ],
)
def test_a_pass_for_routes_alone_is_made_only_where_they_are_read_and_unknown(routing, passes):
    model = moe_models.build("qwen3_moe")
    batch = bare_batch()
    trained = learner(model, **routing)
    engine = tuple(alone(model, batch, i) for i in range(len(batch)))
    ran = []
    handle = model.base_model.register_forward_hook(lambda *args: ran.append(1))
    done = trained.annotate(dataclasses.replace(batch, routes_engine=engine), old=False, ref=False)
    handle.remove()
    assert len(ran) == passes
    assert done.logp_old is None
    assert (done.routes is not None) == trained.routing.reads_routes
    assert done.routes is None or equal(done.routes, engine)


def gradient(model, minibatch: Batch, budget: int, **routing) -> tuple[float, Tensor]:
    model.zero_grad(set_to_none=True)
    loss, _ = learner(model, budget, **routing).gradients(minibatch, DAPO)
    return loss, torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("replay", list(ReplayFrom)[:2])
def test_the_gradient_with_the_routers_losses_does_not_depend_on_the_split(replay):
    model = moe_models.build("qwen3_moe", dtype=torch.float64, experts_implementation="eager")
    on = {"replay": replay, "load_balance": 0.3, "z_loss": 0.2}
    minibatch = weighed(learner(model, **on).annotate(bare_batch().rows(torch.arange(16)), old=True, ref=False))
    moved(model, 0.01)
    loss, whole = gradient(model, minibatch, 10**6, **on)
    for parts in (4, 16):
        budget = 1 if parts == 16 else budget_for(minibatch.length, parts)
        assert len(microbatches(minibatch.length, budget)) == parts
        again, split = gradient(model, minibatch, budget, **on)
        assert again == pytest.approx(loss, rel=1e-6)
        assert (split - whole).norm() / whole.norm() < 1e-6
    for name in ("load_balance", "z_loss"):
        without = gradient(model, minibatch, 10**6, **{**on, name: 0.0})[1]
        assert (without - whole).norm() / whole.norm() > 1e-3, f"{name} does nothing"


def test_the_routers_losses_are_their_formulas_over_the_whole_batch():
    """Row by row, with softmax and logsumexp written out: the value and the gradient that they add.

    The model's own router computes its softmax in float32, whatever its weights are.
    """
    model = moe_models.build("qwen3_moe", dtype=torch.float64, experts_implementation="eager")
    on = {"load_balance": 0.3, "z_loss": 0.2}
    minibatch = weighed(learner(model, **on).annotate(bare_batch(), old=True, ref=False))
    moved(model, 0.01)
    routes = torch.cat(minibatch.routes)  # type: ignore[arg-type]
    found = routers(model.base_model)
    heard: list[list[Tensor]] = [[] for _ in found]
    hooks = [
        r.module.register_forward_hook(lambda m, a, out, layer=layer: heard[layer].append(out[0]))
        for layer, r in enumerate(found)
    ]
    for row, length in enumerate(minibatch.length.tolist()):
        model.base_model(input_ids=minibatch.tokens[row : row + 1, : length - 1], use_cache=False)
    for hook in hooks:
        hook.remove()
    balance, z = torch.zeros(()).double(), torch.zeros(()).double()
    for layer, parts in enumerate(heard):
        x = torch.cat(parts)
        share = torch.stack([(routes[:, layer] == e).double().mean() for e in range(8)])
        balance = balance + 8 * (share * (x.exp() / x.exp().sum(-1, keepdim=True)).mean(0)).sum() / len(found)
        z = z + x.exp().sum(-1).log().square().mean() / len(found)
    expected_loss, told = (0.3 * balance + 0.2 * z).item(), {"balance_loss": balance.item(), "z_loss": z.item()}
    model.zero_grad(set_to_none=True)
    (0.3 * balance + 0.2 * z).backward()
    expected = torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in model.parameters()])
    loss, whole = gradient(model, minibatch, 60, **on)
    bare_loss, bare = gradient(model, minibatch, 60)
    assert loss - bare_loss == pytest.approx(expected_loss, rel=1e-6)
    assert (whole - bare - expected).norm() / expected.norm() < 1e-5
    _, seen = learner(model, **on).gradients(minibatch, DAPO)
    assert seen.routing is not None
    assert seen.routing.losses == pytest.approx(told)


@pytest.mark.parametrize("name", list(moe_models.BUILD))
def test_every_architecture_is_understood(name):
    on = RoutingSettings(replay=ReplayFrom.LEARNER, load_balance=0.1, z_loss=0.1)
    found = routers_to_record(moe_models.build(name).base_model, on)
    assert [(r.chosen, r.experts) for r in found] == [(2, 8)] * 3


def test_a_dense_policy_is_left_alone_and_refused_where_its_routes_are_asked_for(policy):
    backbone = policy.model.base_model
    assert routers_to_record(backbone, RoutingSettings()) == ()
    for asked, words in (
        (RoutingSettings(replay=ReplayFrom.LEARNER), r"^routing.replay = 'learner': Qwen3Model has no routers"),
        (RoutingSettings(load_balance=0.1), r"^routing.load_balance = 0.1: .* dense"),
        (RoutingSettings(z_loss=0.1), r"^routing.z_loss = 0.1: .* dense"),
    ):
        with pytest.raises(UsageError, match=words):
            routers_to_record(backbone, asked)


class OddTopKRouter(torch.nn.Module):
    top_k, num_experts = 2, 8

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 32))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gates, chosen = (x.view(-1, 32) @ self.weight.T).softmax(-1).sort(descending=True)
        return gates[:, :3], gates[:, :2], chosen[:, :2]


def test_a_router_that_is_not_understood_is_refused_where_its_routes_are_asked_for():
    model = moe_models.build("qwen3_moe")
    model.model.layers[1].mlp.gate = OddTopKRouter()
    for asked in (RoutingSettings(replay=ReplayFrom.LEARNER), RoutingSettings(z_loss=0.1)):
        with pytest.raises(UsageError, match=r"^routing\..*layers.1.mlp.gate \(OddTopKRouter\)"):
            routers_to_record(model.base_model, asked)
    assert routers_to_record(model.base_model, RoutingSettings()) == ()


class Mute:
    version, routes = 0, False


def test_an_engine_that_returns_no_routes_cannot_be_replayed():
    with pytest.raises(UsageError, match=r"^routing.replay = 'engine': Mute does not return the experts"):
        require_engine_routes(Mute(), RoutingSettings(replay=ReplayFrom.ENGINE))  # type: ignore[arg-type]
    require_engine_routes(Mute(), RoutingSettings(replay=ReplayFrom.LEARNER))  # type: ignore[arg-type]


def test_routes_that_the_engine_forgot_stop_the_run():
    model = moe_models.build("qwen3_moe")
    with pytest.raises(RunError, match="32 of 32 completions came without routes"):
        learner(model, replay=ReplayFrom.ENGINE).annotate(bare_batch(), old=True, ref=False)
