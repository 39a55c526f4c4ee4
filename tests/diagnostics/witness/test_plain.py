"""The second reading of models and gradients: plain forwards agree with a sound learner, and see each slip."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import groupwise
from groupwise.algorithms.algorithm import Algorithm
from groupwise.core.records import Batch, Support
from groupwise.core.updates import UpdateRecord
from groupwise.diagnostics.tolerance import FLOAT32, Limits, NumericalNoise, Tolerance
from groupwise.diagnostics.witness.plain import forward
from groupwise.diagnostics.witness.plain.gradient import GradientReading
from groupwise.diagnostics.witness.plain.model import ModelReading
from groupwise.diagnostics.witness.plain.slopes import Found, read_policy
from groupwise.diagnostics.witness.reading import Disagreement, StepSeen
from groupwise.health.checks import MODEL_IS_TRAINED, UPDATE_AS_ASKED
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.models.forward.adjustment import Adjustment
from groupwise.models.forward.heads import halves
from groupwise.models.load import load_policy
from groupwise.models.moe.settings import ReplayFrom, RoutingSettings, routers_to_record
from groupwise.models.scalar_heads import from_policy
from groupwise.training.critic import Critic, CriticSettings
from groupwise.training.learner import AdaptedLearner, Learner, LearnerSettings
from groupwise.training.optimizer import Optimizer
from tests.laws.test_split import make_batch
from tests.models.test_what_is_refused import CHANGED, model_of
from tests.moe_policy import save_moe

SETTINGS = LearnerSettings(learning_rate=1e-3, clip_norm=0.05, weight_decay=0.1, tokens_per_microbatch=60)
CRITIC = CriticSettings(learning_rate=1e-2, tokens_per_microbatch=60)
ROW = groupwise.algorithm("grpo", {"entropy_coefficient": 0.1})


def sampled(learner: Learner, critic: Critic | None = None, row: Algorithm = ROW, **columns: Any) -> Batch:
    """A weighted minibatch whose log-probabilities are the learner's."""
    bare = dataclasses.replace(make_batch(), logp_old=None, logp_ref=None, **columns)
    batch = learner.annotate(bare, old=True, ref=True)
    batch = dataclasses.replace(batch, logp_engine=batch.logp_old)
    if critic is not None:
        batch = batch.add(value=critic.values(batch))
    return row.weigh(row.credit(batch))


def read(
    learner: Learner,
    minibatch: Batch,
    critic: Critic | None = None,
    spoil: Callable[[Batch], Batch] = lambda minibatch: minibatch,
    row: Algorithm = ROW,
    tolerance: Tolerance = FLOAT32,
) -> list[Disagreement]:
    """What is said of one update of policy and critic; `spoil` changes what the learner is given."""
    limits = Limits(tolerance, lambda groups: tolerance, lambda tolerance: None)
    model = ModelReading(MODEL_IS_TRAINED, row, learner, critic, limits, lambda: learner.model)
    gradient = GradientReading(UPDATE_AS_ASKED, model, row, learner, critic, (SETTINGS, CRITIC))
    none: Any = None
    seen, said, readings = StepSeen(1, none, minibatch, none, False, slow=True), [], (model, gradient)
    for reading in readings:
        said += reading.begin(seen)
    for reading in readings:
        said += reading.minibatch(seen, minibatch)
    if critic is not None:
        metrics = critic.update(spoil(minibatch))
        for reading in readings:
            said += reading.critic_updated(seen, minibatch, metrics)
    update = learner.update(spoil(minibatch), row)
    for reading in readings:
        said += reading.updated(seen, minibatch, update)
        said += reading.end(seen)
    assert not learner.optimizer.adamw._optimizer_step_pre_hooks
    assert learner.bf16 or all(isinstance(one, Disagreement) for one in said), said
    return [one for one in said if isinstance(one, Disagreement)]


def found(said: list[Disagreement]) -> list[str]:
    return [one.about for one in said if one.real]


def dense(policy: Any, **changes: Any) -> Learner:
    reference = copy.deepcopy(policy.model)
    return Learner(policy.model, reference, SETTINGS, 0.7, 10, **changes)


def supports(batch: Batch) -> tuple[Support, ...]:
    """Every token was drawn from four ids, its own among them."""
    each = []
    for tokens, mask in zip(batch.tokens, batch.mask, strict=True):
        own = tokens[mask]
        ids = torch.stack([own, (own + 3) % 15, (own + 5) % 15, (own + 7) % 15], 1)
        each.append(Support(ids.flatten().int(), torch.arange(len(own) + 1) * 4))
    return tuple(each)


def test_a_sound_update_is_what_plain_autograd_says(policy):
    learner = dense(policy)
    said = read(learner, sampled(learner))
    about = " ".join(one.about for one in said)
    assert not found(said)
    for what in ("logp_old", "logp_engine", "logp_ref", "logp_live", "the policy's gradient", "the policy's weights"):
        assert what in about


def test_supports_biases_and_barred_ends_are_read(policy):
    bias = torch.zeros(policy.model.config.vocab_size)
    bias[4] = 1.5
    learner = dense(policy, adjustment=Adjustment(bias, torch.tensor([1]), 2))
    assert not found(read(learner, sampled(learner)))
    learner = dense(policy)
    assert not found(read(learner, sampled(learner, support=supports(make_batch()))))


def test_rows_that_are_read_anew_are_read_from_there(policy):
    read_from = torch.zeros_like(make_batch().tokens)
    read_from[::2, 5:] = 5
    mask = make_batch().mask
    mask[:, 5] = False
    learner = dense(policy)
    minibatch = sampled(learner, read_from=read_from, mask=mask)
    assert not found(read(learner, minibatch))
    assert "logp_old" in found(read(learner, dataclasses.replace(minibatch, read_from=None)))


def test_of_rows_that_are_read_anew_only_what_is_asked_of_is_run(policy, monkeypatch):
    """An agent's own prompt stands before that of the sample's, of which no token trains."""
    ran, run = list[forward.RowPart](), forward.run

    def heard(model: Any, rows: Batch, parts: Any) -> Any:
        ran.extend(parts)
        return run(model, rows, parts)

    monkeypatch.setattr(forward, "run", heard)
    batch = make_batch()
    read_from, mask = torch.zeros_like(batch.tokens), batch.mask.clone()
    read_from[:, 5:] = 5
    mask[:, :6] = False
    learner = dense(policy)
    assert not found(read(learner, sampled(learner, read_from=read_from, mask=mask)))
    assert {part.start for part in ran} == {5}


@pytest.mark.parametrize(("tokens", "times"), [(10_000, 1), (4, 2)])
def test_a_row_beyond_the_budget_is_run_again_in_the_backward_pass(policy, monkeypatch, tokens, times):
    """Its activations are more than the update's own, which the plan of memory has room for."""
    learner = dense(policy)
    minibatch = sampled(learner)
    learner.tokens_per_microbatch = tokens
    calls = list[int]()
    rows, layer = len(list(forward.chunks(minibatch, tokens))), halves(policy.model)[0].layers[0]
    plain = layer.forward
    monkeypatch.setattr(layer, "forward", lambda *args, **how: (calls.append(1), plain(*args, **how))[1])
    read_policy(forward.Plain(policy.model, 0.7, learner.adjustment), minibatch, True, ROW, learner, True, True)
    assert len(calls) == times * rows


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_a_kl_of_almost_0_in_bfloat16_is_rounding_and_one_that_is_there_is_read(estimator, policy):
    """Of an untrained policy every completion is wrong: the KL trains alone, of a reference that is the policy."""
    row = groupwise.algorithm("grpo", {"kl.beta": 0.04, "kl.estimator": estimator})
    reference, settings = copy.deepcopy(policy.model), SETTINGS.replace(precision="bf16")
    learner, exact = Learner(policy.model, reference, settings, 0.7, 10), dense(policy)
    minibatch = sampled(learner, row=row, score=torch.zeros(len(make_batch())))
    assert not minibatch.need("advantage").any()
    off = (minibatch.need("logp_old") - exact.logprobs(policy.model, minibatch))[minibatch.mask]
    noise = NumericalNoise(mean=float(off.abs().mean()), spread=float(off.abs().std()))
    assert noise.mean > 1e-4
    tolerance = Tolerance(passes=noise, engine=noise, reference=noise)
    assert not found(read(learner, minibatch, row=row, tolerance=tolerance))

    def far(minibatch: Batch) -> Batch:
        return dataclasses.replace(minibatch, logp_ref=minibatch.need("logp_ref") - 1.0)

    said = found(read(learner, minibatch, spoil=far, row=row, tolerance=tolerance))
    assert "the loss of an update" in said


def rounded(policy: Any, row: Algorithm, seed: int) -> tuple[Learner, Batch, Tolerance]:
    """A learner in bfloat16, a minibatch whose log-probabilities another packing of its rows gave, and the rounding."""
    settings = SETTINGS.replace(precision="bf16", tokens_per_microbatch=30)
    model, reference = policy.model, copy.deepcopy(policy.model)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        for parameter in model.parameters():
            parameter.mul_(1 + 0.1 * torch.randn_like(parameter))
    minibatch = sampled(Learner(model, reference, settings.replace(tokens_per_microbatch=400), 0.7, 10), row=row)
    off = (minibatch.need("logp_old") - dense(policy).logprobs(model, minibatch))[minibatch.mask] * 2**0.5
    noise = NumericalNoise(mean=float(off.abs().mean()), spread=float(off.abs().std()))
    tolerance = Tolerance(passes=noise, engine=noise, reference=noise)
    return Learner(model, reference, settings, 0.7, 10), minibatch, tolerance


@pytest.mark.parametrize("name", ["gspo", "gspo-token", "grpo", "cispo", "sapo", "vespo", "dppo-tv"])
@pytest.mark.parametrize("seed", [0, 7, 14])
def test_a_ratio_of_1_is_rounding_in_bfloat16_and_stops_no_sound_run(name, seed, policy):
    """A clip may be nearer than rounding, GSPO's lies at 3e-4; and a loss may be as far off as its ratios."""
    row = groupwise.algorithm(name)
    learner, minibatch, tolerance = rounded(policy, row, seed)
    assert not found(read(learner, minibatch, row=row, tolerance=tolerance))


def test_a_rare_token_that_16_bits_put_elsewhere_is_slack_of_a_loss_whose_ratio_nothing_bounds(policy):
    """A token's loss is weight x advantage x ratio x logp, and 0.25 nats off it has a ratio of e^0.25."""
    row = groupwise.algorithm("dppo-tv")
    learner, minibatch, _ = rounded(policy, row, 0)
    old, advantage = minibatch.need("logp_old"), minibatch.need("advantage")
    size = minibatch.need("weight") * advantage
    at = torch.where(size != 0, old, 0.0).argmin()
    live = old.flatten().index_add(0, at, torch.tensor([0.25])).view_as(old)
    answer: Any = None
    plain = Found(minibatch, True, answer, loss=-float((size * old).sum()))
    model: Any = None
    reading = GradientReading(UPDATE_AS_ASKED, model, row, learner, None, (SETTINGS, None))

    def slack(live: torch.Tensor) -> float:
        record = UpdateRecord(live, live - old, torch.ones_like(old), torch.zeros_like(old), None)
        return reading._of_rounded(minibatch, record, plain)

    assert slack(old) == pytest.approx(0.0, abs=1e-6)
    before, after = (float((size * logp).flatten()[at]) for logp in (old, live))
    assert slack(live) == pytest.approx(abs(math.exp(0.25) * after - before), rel=1e-3)


@pytest.mark.parametrize("name", ["grpo", "cispo", "sapo"])
def test_advantages_of_another_sign_are_seen_in_bfloat16(name, policy):
    row = groupwise.algorithm(name, {"kl.beta": 0.0})
    learner, minibatch, tolerance = rounded(policy, row, 0)

    def turned(minibatch: Batch) -> Batch:
        return dataclasses.replace(minibatch, advantage=-minibatch.need("advantage"))

    said = found(read(learner, minibatch, spoil=turned, row=row, tolerance=tolerance))
    assert any(one.startswith("the policy's gradient") for one in said)


@pytest.mark.parametrize("name", ["cap", "multiplied"])
def test_logits_that_a_model_caps_or_scales_are_read(name):
    config = type(CHANGED[name])(**{**CHANGED[name].to_dict(), "initializer_range": 0.5})
    learner = Learner(model_of(config), model_of(config), SETTINGS, 0.7, 10)
    assert not found(read(learner, sampled(learner)))


@pytest.mark.parametrize("architecture", ["qwen3_moe", "mixtral"])
def test_experts_and_their_losses_are_read(architecture, tmp_path):
    model = load_policy(save_moe(tmp_path / "moe", architecture)).model
    routing = RoutingSettings(replay=ReplayFrom.LEARNER, load_balance=0.1, z_loss=0.1)
    learner = Learner(
        *(model, copy.deepcopy(model), SETTINGS, 1.0, 10, routing),
        routers_to_record(halves(model)[0], routing),
    )
    minibatch = sampled(learner)
    assert not found(read(learner, minibatch))
    minibatch = sampled(learner)
    object.__setattr__(learner.routing, "z_loss", 0.2)
    said = found(read(learner, minibatch, spoil=lambda m: object.__setattr__(learner.routing, "z_loss", 0.1) or m))
    assert "the loss of an update" in said


def test_adapters_and_what_they_are_over_are_read(policy):
    learner = AdaptedLearner(policy.model, AdapterSettings(rank=2), 0, SETTINGS, 1.0, 10)
    learner.update(sampled(learner), ROW)  # B is 0 at the start, and so is A's gradient
    minibatch = sampled(learner)
    said = read(learner, minibatch)
    assert not found(said)
    spoilt = dataclasses.replace(minibatch, logp_ref=minibatch.logp_old)
    assert "logp_ref" in found(read(learner, spoilt))


def test_a_critic_is_read(policy):
    learner, critic = dense(policy), Critic(from_policy(policy.model), CRITIC, 10)
    critic.update(sampled(learner, critic))  # its head is 0 at the start, and so is the gradient behind it
    said = read(learner, sampled(learner, critic), critic)
    assert not found(said)
    assert {"value, the critic's", "the loss of the critic's update"} <= {one.about for one in said}
    minibatch = sampled(learner, critic)
    other = dataclasses.replace(minibatch, returns=minibatch.need("returns").roll(1, 0).where(minibatch.mask, 0.0))
    assert any("critic" in about for about in found(read(learner, minibatch, critic, lambda m: other)))


def test_a_part_of_a_minibatch_is_read_by_the_learners_own_passes(policy, monkeypatch):
    for name in ("WHOLE", "MORE"):
        monkeypatch.setattr(f"groupwise.diagnostics.witness.plain.model.{name}", 0.5)
    learner = dense(policy)
    before = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
    minibatch = sampled(learner)
    said = read(learner, minibatch)
    after = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
    assert not found(said)
    assert any("of some groups" in one.about for one in said)
    learner.model.load_state_dict(before)
    alone = Learner(learner.model, None, SETTINGS, 0.7, 10)
    alone.update(minibatch, ROW)
    assert all(torch.equal(p, after[name]) for name, p in learner.model.named_parameters())  # no bit is another


def _halved_by_microbatch(learner: Learner, monkeypatch: Any) -> None:
    true = learner.run_microbatch

    def run(micro: Any, algorithm: Any, trains: bool):
        columns = micro.rows
        micro.rows = dataclasses.replace(columns, weight=columns.weight / 2)
        value, seen = true(micro, algorithm, trains)
        return value * 2, seen

    monkeypatch.setattr(learner, "run_microbatch", run)


def _gradient_of_one_layer_is_lost(learner: Learner, monkeypatch: Any) -> None:
    true = learner.gradients

    def gradients(*given: Any):
        out = true(*given)
        next(p for p in learner.model.parameters() if p.dim() == 2 and p.grad is not None).grad.zero_()
        return out

    monkeypatch.setattr(learner, "gradients", gradients)


def _gradients_add_up_over_updates(learner: Learner, monkeypatch: Any) -> None:
    def begin(self: Optimizer) -> float:
        for p in learner.model.parameters():
            p.grad = torch.ones_like(p)
        return self.adamw.param_groups[0]["lr"]

    monkeypatch.setattr(Optimizer, "begin", begin)


def _other_betas(learner: Learner, monkeypatch: Any) -> None:
    learner.update(sampled(learner), ROW)
    for group in learner.optimizer.adamw.param_groups:
        group["betas"] = (0.5, 0.999)


def _decay_is_forgotten(learner: Learner, monkeypatch: Any) -> None:
    for group in learner.optimizer.adamw.param_groups:
        group["weight_decay"] = 0.0


def _moments_are_not_put_back(learner: Learner, monkeypatch: Any) -> None:
    learner.optimizer.updates = 8


def _norm_is_of_a_part(learner: Learner, monkeypatch: Any) -> None:
    true = torch.nn.utils.clip_grad_norm_
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda of, limit: true(list(of)[1:], limit))


def _weights_stay(learner: Learner, monkeypatch: Any) -> None:
    for group in learner.optimizer.adamw.param_groups:
        group["params"] = group["params"][1:]


@pytest.mark.parametrize(
    ("spoil", "about"),
    [
        (_halved_by_microbatch, "the policy's gradient"),
        (_gradient_of_one_layer_is_lost, "the policy's gradient"),
        (_gradients_add_up_over_updates, "the policy's gradient"),
        (_moments_are_not_put_back, "the moments of the policy"),
        (_norm_is_of_a_part, "the norm of the policy's gradient"),
        (_weights_stay, "the policy's weights"),
        (_other_betas, "the policy's weights"),
        (_decay_is_forgotten, "the policy's weights"),
    ],
)
def test_an_update_that_is_not_the_gradients_is_found(spoil, about, policy, monkeypatch):
    learner = dense(policy)
    spoil(learner, monkeypatch)
    assert any(about in one for one in found(read(learner, sampled(learner))))


@pytest.mark.parametrize(
    ("about", "spoil"),
    [
        ("logp_old", lambda m: {"logp_old": m.logp_old * 1.01}),
        ("logp_engine", lambda m: {"logp_engine": m.logp_engine.roll(1, 0).where(m.mask, 0.0)}),
        ("logp_ref", lambda m: {"logp_ref": m.logp_ref - 0.01}),
    ],
)
def test_log_probabilities_of_other_weights_are_found(about, spoil, policy):
    learner = dense(policy)
    minibatch = sampled(learner)
    said = found(read(learner, dataclasses.replace(minibatch, **spoil(minibatch))))
    assert any(one.startswith(about) for one in said)
