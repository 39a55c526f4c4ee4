"""Models on the host: what comes back of them, and that reference, critic and reward model are on the device when used.

A machine without a GPU has one device. Here "meta" is named as the device, where nothing is, and what goes there is
copied: so a model is moved, and stays one that can be run.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from groupwise.core.records import Batch
from groupwise.models.load import Policy
from groupwise.models.on_host import on_device, put_on_host
from groupwise.models.scalar_heads import from_policy, reward_model_of
from groupwise.training import critic as critics
from groupwise.training import learner as learners
from groupwise.training.critic import Critic, CriticSettings
from groupwise.training.learner import Learner, LearnerSettings
from groupwise.training.ranks import sharded
from groupwise.training.ranks.sharded import RewardScorer
from tests.laws.test_split import make_batch
from tests.training.test_critic import credited, weights

ELSEWHERE = torch.device("meta")


class Journeys:
    """Copies to the device, as often as any was made."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, x: Tensor, device: torch.device) -> Tensor:
        assert device is ELSEWHERE
        self.count += 1
        return x.clone()

    def of(self, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make a module take a device for another one than that of its models."""
        monkeypatch.setattr(module, "on_device", lambda model, _: on_device(model, ELSEWHERE, self))


def places(model: nn.Module) -> list[int]:
    return [x.data_ptr() for x in (*model.parameters(), *model.buffers())]


def test_what_trains_comes_back_and_what_does_not_is_what_it_was():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 2).requires_grad_(False))
    home, before = places(model), copy.deepcopy(model.state_dict())
    with on_device(model, ELSEWHERE, Journeys()), torch.no_grad():
        assert not set(places(model)) & set(home)
        for p in model.parameters():
            p += 1
    assert places(model) == home
    for name, now in model.state_dict().items():
        trained = isinstance(p := dict(model.named_parameters()).get(name), nn.Parameter) and p.requires_grad
        assert torch.equal(now, before[name] + (1 if trained else 0)), name


def test_a_model_that_is_there_is_left_where_it_is_and_so_is_one_after_a_failure():
    model = nn.Linear(2, 2)
    home = places(model)
    put_on_host(model)
    with on_device(model, torch.device("cpu")):
        assert places(model) == home
    with pytest.raises(ZeroDivisionError), on_device(model, ELSEWHERE, Journeys()):
        _ = 1 / 0
    assert places(model) == home


def test_a_reference_on_the_host_gives_the_bits_of_one_that_is_not(policy: Policy, monkeypatch: pytest.MonkeyPatch):
    reference = copy.deepcopy(policy.model)
    learner = Learner(policy.model, reference, LearnerSettings(), 1.0, 1)
    batch = make_batch()
    with torch.no_grad():
        there, journeys = learner.reference_logprobs(batch), Journeys()
        journeys.of(learners, monkeypatch)
        assert torch.equal(learner.reference_logprobs(batch), there)
    assert journeys.count == len(places(reference))


def test_a_critic_on_the_host_gives_the_bits_of_one_that_is_not(policy: Policy, monkeypatch: pytest.MonkeyPatch):
    def trained() -> tuple[Tensor, Tensor]:
        critic, batch = Critic(from_policy(policy.model), CriticSettings(learning_rate=1e-2), 3), _batch()
        home = places(critic.model)
        for _ in range(3):
            critic.update(batch)
        values = critic.values(batch)
        assert places(critic.model) == home
        return values, weights(critic.model)

    there, journeys = trained(), Journeys()
    journeys.of(critics, monkeypatch)
    assert all(map(torch.equal, trained(), there))
    assert journeys.count == 4 * len(places(from_policy(policy.model)))


def test_a_reward_model_on_the_host_gives_the_bits_of_one_that_is_not(policy: Policy, monkeypatch: pytest.MonkeyPatch):
    reward = reward_model_of(policy)
    torch.manual_seed(0)
    nn.init.normal_(reward.model.score.weight)
    scores = partial(RewardScorer(reward).scores, [(3, 4), (5,)], [(6, 7, 8), (9,)])
    there, journeys = scores(), Journeys()
    journeys.of(sharded, monkeypatch)
    assert scores() == there
    assert journeys.count == len(places(reward.model))


def _batch() -> Batch:
    return credited(make_batch())
