"""Value models of several architectures and starts, and what one update of the critic does and says."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GPT2Config,
    LlamaConfig,
    Qwen3Config,
)

from groupwise.core.errors import UsageError
from groupwise.core.numbers.metrics import read
from groupwise.core.records import Batch
from groupwise.diagnostics.updates import value_metrics
from groupwise.diagnostics.witness.plain.forward import values
from groupwise.models.scalar_heads import from_folder, from_policy, token_values
from groupwise.training.critic import Critic, CriticSettings, clipped
from tests.laws.test_split import make_batch
from tests.training.made import norm_of, stepped_with

SHAPE = {"vocab_size": 15, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
CONFIGS = {
    "qwen3, tied": Qwen3Config(**SHAPE, num_key_value_heads=1, head_dim=8, tie_word_embeddings=True, pad_token_id=0),
    "llama": LlamaConfig(**SHAPE, pad_token_id=0),
    "gpt2": GPT2Config(vocab_size=15, n_layer=2, n_head=2, n_embd=16, n_positions=32, pad_token_id=0),
}


def causal(name: str):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIGS[name]).eval()


def credited(batch: Batch, value: float = 0.0) -> Batch:
    filled = torch.where(batch.mask, value, 0.0)
    return batch.add(value=filled, returns=torch.where(batch.mask, batch.score[:, None], 0.0))


def weights(model) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


@pytest.mark.parametrize("name", CONFIGS)
def test_a_critic_of_the_policy_starts_at_0_over_a_backbone_of_its_own(name: str):
    policy, batch = causal(name), make_batch()
    before, random = weights(policy), torch.random.get_rng_state()
    model = from_policy(policy)
    assert torch.equal(torch.random.get_rng_state(), random)
    critic = Critic(model, CriticSettings(learning_rate=1e-2), 2)
    assert (critic.values(batch) == 0).all()
    for ours, theirs in zip(model.base_model.parameters(), policy.base_model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    for _ in range(2):  # the first moves the head only, the second the backbone too
        critic.update(credited(batch))
    assert (critic.values(batch)[batch.mask] != 0).all()
    assert not torch.equal(weights(model.base_model), weights(policy.base_model))
    assert torch.equal(weights(policy), before)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_reward_models_head_goes_on_as_the_critics(name: str, tmp_path: Path):
    """At the last token the value model says what the reward model says."""
    torch.manual_seed(1)
    CONFIGS[name].num_labels = 1
    reward = AutoModelForSequenceClassification.from_config(CONFIGS[name]).eval()
    reward.save_pretrained(tmp_path)
    model = from_folder(tmp_path, causal(name))
    tokens = torch.randint(2, 15, (3, 9))
    with torch.no_grad():
        score = reward(input_ids=tokens).logits[:, 0]
        value = token_values(model, torch.cat([tokens, tokens[:, :1]], 1), torch.ones(3, 10, dtype=torch.bool))
    assert score.abs().min() > 1e-3
    torch.testing.assert_close(value[:, -1], score, rtol=0, atol=1e-5)


def test_a_causal_models_folder_gives_its_backbone_and_a_head_of_zeros(policy, policy_folder: Path):
    model = from_folder(policy_folder, policy.model)
    assert torch.equal(weights(model), weights(from_policy(policy.model)))


def test_a_folder_that_cannot_be_a_critic_is_told(policy, tmp_path: Path):
    with pytest.raises(UsageError, match=r"critic.start = .*: does not load as a reward model"):
        from_folder(tmp_path, policy.model)
    two = LlamaConfig(**SHAPE, num_labels=2)
    AutoModelForSequenceClassification.from_config(two).save_pretrained(tmp_path / "two")
    with pytest.raises(UsageError, match=r"critic.start = .*two.*does not load"):
        from_folder(tmp_path / "two", policy.model)
    few = LlamaConfig(**{**SHAPE, "vocab_size": 5}, num_labels=1)
    AutoModelForSequenceClassification.from_config(few).save_pretrained(tmp_path / "few")
    with pytest.raises(UsageError, match="fewer embeddings than the policy"):
        from_folder(tmp_path / "few", policy.model)


def test_the_first_update_in_closed_form(policy):
    """At V = 0: loss = mean R^2 / 2 and the gradient of the head's bias is -mean R."""
    model, batch = from_policy(policy.model), credited(make_batch())
    critic = Critic(model, CriticSettings(clip_norm=0.0), 1)
    steps = stepped_with(critic.optimizer.adamw, model)
    found = read(critic.update(batch))
    returns = batch.need("returns")[batch.mask]
    assert found["value_loss"] == pytest.approx(float((returns**2).mean() / 2), rel=1e-5)
    (gradients,) = steps
    assert float(gradients["score.bias"]) == pytest.approx(-float(returns.mean()), rel=1e-5)
    assert found["critic_gradient_norm"] == pytest.approx(norm_of(gradients), rel=1e-5)
    assert found["value_clipped_share"] == 0
    assert found["critic_updates_skipped"] == 0


def test_updates_bring_the_values_to_the_returns(policy):
    batch = make_batch()
    critic = Critic(from_policy(policy.model), CriticSettings(learning_rate=3e-3, clip=0.0), 40)
    losses = [read(critic.update(credited(batch)))["value_loss"] for _ in range(40)]
    assert losses[-1] < 0.1 * losses[0]
    done = batch.add(value=critic.values(batch), returns=credited(batch).returns)
    assert read(value_metrics(done))["explained_variance"] > 0.8


def test_the_clip_stops_a_value_that_has_moved_far_enough(policy):
    """V - V_old = 0.5 towards the return for every token: all are held back, and nothing has a gradient."""
    model, batch = from_policy(policy.model), make_batch()
    with torch.no_grad():
        model.score.bias.fill_(0.5)
    far = batch.add(value=torch.zeros(batch.mask.shape), returns=torch.where(batch.mask, 1.0, 0.0))
    found = read(Critic(model, CriticSettings(learning_rate=0.0), 1).update(far))
    assert found["value_clipped_share"] == 1
    assert found["critic_gradient_norm"] == 0
    assert found["value_loss"] == pytest.approx(0.5 * 0.8**2)
    found = read(Critic(model, CriticSettings(learning_rate=0.0, clip=0.0), 1).update(far))
    assert found["value_clipped_share"] == 0
    assert found["value_loss"] == pytest.approx(0.5 * 0.5**2)


def test_only_the_larger_clipped_branch_counts_as_clipped():
    value, old = torch.tensor([[0.5, 0.5, 0.1, 0.5]]), torch.zeros(1, 4)
    returns, mask = torch.tensor([[1.0, -1.0, 1.0, 1.0]]), torch.tensor([[True, True, True, False]])
    assert clipped(value, old, returns, mask, 0.2).tolist() == [[True, False, False, False]]


def test_an_update_that_is_not_finite_is_skipped_and_counted(policy):
    model, batch = from_policy(policy.model), credited(make_batch())
    before = weights(model)
    broken = torch.where(batch.mask, math.nan, 0.0)
    found = read(Critic(model, CriticSettings(), 1).update(type(batch)(**{**vars(batch), "returns": broken})))
    assert found["critic_updates_skipped"] == 1
    assert torch.equal(weights(model), before)


def test_a_batch_without_a_trained_token_changes_nothing(policy):
    model, batch = from_policy(policy.model), credited(make_batch())
    empty = type(batch)(**{**vars(batch), "mask": torch.zeros_like(batch.mask)})
    critic = Critic(model, CriticSettings(), 1)
    steps = stepped_with(critic.optimizer.adamw, model)
    found = read(critic.update(empty))
    assert found["value_loss"] == 0
    assert math.isnan(found["value_clipped_share"])
    assert [norm_of(gradients) for gradients in steps] == [0.0]


def test_value_metrics_are_over_the_trained_tokens():
    mask = torch.tensor([[False, True, True, False]])
    batch = make_batch().rows([0], width=4)
    columns = {
        "mask": mask,
        "value": torch.tensor([[9.0, 1.0, 2.0, 9.0]]),
        "returns": torch.tensor([[9.0, 1.0, 4.0, 9.0]]),
    }
    found = read(value_metrics(type(batch)(**{**vars(batch), **columns})))
    assert found["value_mean"] == 1.5
    assert found["returns_mean"] == 2.5
    assert found["explained_variance"] == pytest.approx(1 - 1.0 / 2.25)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_row_of_several_parts_has_the_values_and_the_gradient_of_its_parts_alone(name: str):
    """And so does the reading of the witness, which makes its parts by itself."""
    model, batch = from_policy(causal(name)), make_batch()
    torch.nn.init.normal_([*model.children()][-1].weight)
    length, width = batch.length.tolist(), batch.tokens.shape[1]
    read_from, mask = torch.zeros(batch.tokens.shape, dtype=torch.long), batch.mask.clone()
    cuts = [[0, n] if n < 5 else [0, n // 2, n] for n in length]
    for i, (_, *later) in enumerate(cuts):
        for cut in later[:-1]:
            read_from[i, cut:], mask[i, cut] = cut, False  # a part begins with what is read
    batch = dataclasses.replace(batch, mask=mask, read_from=read_from)
    critic = Critic(model, CriticSettings(clip=0.0), 1)
    expected = torch.zeros(len(batch), width)
    for i, of_row in enumerate(cuts):
        for start, stop in itertools.pairwise(of_row):
            columns = slice(start, stop)
            expected[i, columns] = token_values(model, batch.tokens[i : i + 1, columns], mask[i : i + 1, columns])[0]
    got = critic.values(batch)
    torch.testing.assert_close(got, expected.detach(), rtol=0, atol=1e-5)
    assert (
        got - Critic(model, CriticSettings(), 1).values(dataclasses.replace(batch, read_from=None))
    ).abs().max() > 1e-2
    torch.testing.assert_close(values(model, batch).detach(), got, rtol=0, atol=1e-5)

    batch, count = credited(batch), int(mask.sum())
    critic.gradients(batch, count)
    own = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    ((expected - batch.need("returns"))[mask] ** 2).sum().div(2 * count).backward()
    for ours, theirs in zip(own, (p.grad for p in model.parameters() if p.grad is not None), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
