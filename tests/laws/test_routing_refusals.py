"""Routes that do not fit and routers that are not understood: one clear line each, and nothing left on the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

from groupwise import UsageError, record_routes, replay_routes
from groupwise.models.moe.record import routers
from tests.laws.moe_models import BUILD, EXPERTS, build, checkpoint_activations, text
from tests.tiny_models import causal

IDS = text(0, 2, 4)
ROUTES = torch.tensor([0, 1], dtype=torch.uint8).expand(2, 4, 3, 2)


def refusal(model: Any, routes: Tensor = ROUTES, present: Tensor | None = None, ids: Tensor = IDS) -> str:
    """What is said to a replay, one line; and the model is as it was."""
    with pytest.raises(UsageError) as told, replay_routes(model, routes, present):
        model(input_ids=ids)
    assert all("forward" not in vars(module) and not module._forward_pre_hooks for module in model.modules())
    assert "\n" not in str(told.value)
    return str(told.value)


class Toy(nn.Module):
    def __init__(self, router: nn.Module) -> None:
        super().__init__()
        self.embed, self.router = nn.Embedding(32, 8), router

    def forward(self, input_ids: Tensor) -> Any:
        return self.router(self.embed(input_ids).flatten(0, 1))


class PlainTopKRouter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.top_k, self.num_experts = 2, EXPERTS
        self.weight = nn.Parameter(torch.randn(EXPERTS, 8, generator=torch.Generator().manual_seed(0)))

    def forward(self, hidden: Tensor) -> Any:
        logits = hidden @ self.weight.T
        weights, indices = torch.topk(logits, 2)
        return logits, weights, indices


class SortTopKRouter(PlainTopKRouter):
    def forward(self, hidden: Tensor) -> Any:
        logits = hidden @ self.weight.T
        weights, indices = logits.sort(-1, descending=True)
        return logits, weights[:, :2], indices[:, :2]


class TwiceTopKRouter(PlainTopKRouter):
    def forward(self, hidden: Tensor) -> Any:
        super().forward(hidden)
        return super().forward(hidden)


class DeafTopKRouter(PlainTopKRouter):
    def forward(self, hidden: Tensor) -> Any:
        logits, weights, indices = super().forward(hidden)
        return logits, weights, (indices + 1) % EXPERTS


class SilentTopKRouter(PlainTopKRouter):
    def forward(self, hidden: Tensor) -> Any:
        return super().forward(hidden)[:2]


class NamelessTopKRouter(PlainTopKRouter):
    def __init__(self) -> None:
        super().__init__()
        del self.top_k


class HalfTopKRouter(PlainTopKRouter):
    def forward(self, hidden: Tensor) -> Any:
        return super().forward(hidden[::2])


ONE = ROUTES[:, :, :1]


def test_a_router_that_answers_by_one_topk_is_understood() -> None:
    with record_routes(model := Toy(PlainTopKRouter())) as routes:
        plain = model(IDS)
    assert torch.equal(routes.tensor.flatten(0, 2).long(), plain[2])
    with replay_routes(model, ONE):
        assert torch.equal(model(IDS)[2], ONE.reshape(-1, 2).long())


@pytest.mark.parametrize("kind", [SortTopKRouter, TwiceTopKRouter, DeafTopKRouter])
def test_a_router_that_chooses_otherwise_is_not_replayed(kind: type[PlainTopKRouter]) -> None:
    told = refusal(Toy(kind()), ONE)
    assert told.startswith(f"router ({kind.__name__}) does not choose its experts by one torch.topk over all 8")


def test_a_router_that_does_not_tell_its_choice_is_refused() -> None:
    assert "does not return the 2 experts" in refusal(Toy(SilentTopKRouter()), ONE)
    with (
        pytest.raises(UsageError, match="does not return the 2 experts"),
        record_routes(model := Toy(SilentTopKRouter())),
    ):
        model(IDS)
    assert "has no top_k and num_experts" in refusal(Toy(NamelessTopKRouter()), ONE)


def test_a_router_that_sees_other_tokens_than_the_forward_is_refused() -> None:
    assert "router ran over 4 tokens of a forward over 8" in refusal(Toy(HalfTopKRouter()), ONE)
    with record_routes(model := Toy(HalfTopKRouter())) as routes:
        model(IDS)
    with pytest.raises(UsageError, match="router ran over 4 tokens of a forward over 8"):
        _ = routes.tensor


def test_layers_that_choose_different_numbers_are_refused() -> None:
    model = Toy(nn.Sequential(PlainTopKRouter(), PlainTopKRouter()))
    model.router[1].top_k = 3
    with pytest.raises(UsageError, match=r"different numbers of experts \(router.0 2, router.1 3\)"):
        routers(model)


def test_a_dense_model_has_nothing_to_record_or_replay() -> None:
    dense = causal("qwen3")
    assert routers(dense) == ()
    assert "Qwen3ForCausalLM has no routers" in refusal(dense)
    with pytest.raises(UsageError, match="it is dense"), record_routes(dense):
        pass


@pytest.mark.parametrize(
    ("routes", "told"),
    [
        (ROUTES[:, :, :2], "shape (2, 4, 2, 2); this model needs [rows, tokens, 3, 2]"),
        (ROUTES[..., :1], "shape (2, 4, 3, 1); this model needs [rows, tokens, 3, 2]"),
        (ROUTES[0], "shape (4, 3, 2); this model needs"),
        (ROUTES[:, :3], "the routes are of 2 rows of 3 tokens, the forward of 2 of 4"),
        (ROUTES[:1], "the routes are of 1 rows of 4 tokens, the forward of 2 of 4"),
        (ROUTES + 7, "name experts 7 to 8 for model.layers.0.mlp.gate, which has 0 to 7"),
        (ROUTES.long() - 1, "name experts -1 to 0 for model.layers.0.mlp.gate"),
        (ROUTES * 0, "name an expert twice in one layer, for 8 tokens of 8"),
        (ROUTES.float(), "the routes are torch.float32"),
    ],
)
def test_routes_that_do_not_fit(routes: Tensor, told: str) -> None:
    assert told in refusal(build("qwen3_moe"), routes)


def test_presence_that_does_not_fit() -> None:
    model = build("qwen3_moe")
    assert "`present` has shape (2, 3)" in refusal(model, present=torch.ones(2, 3, dtype=torch.bool))
    assert "present holds 2; it must be bool" in refusal(model, present=torch.full((2, 4), 2))
    assert "routes is a str (" in refusal(model, routes="recorded")  # type: ignore[arg-type]


def test_experts_of_tokens_without_a_route_are_not_looked_at() -> None:
    model, present = build("qwen3_moe"), torch.ones(2, 4, dtype=torch.bool)
    present[:, -1] = False
    routes = ROUTES.clone()
    routes[:, -1] = 255
    for columns in ((routes, present), (routes, present.long()), (routes.tolist(), present.tolist())):
        with torch.no_grad(), replay_routes(model, *columns) as replay:
            model(input_ids=IDS)
        assert replay.live == 2


def test_a_part_of_the_model_is_not_the_model() -> None:
    model = build("qwen3_moe")
    with pytest.raises(UsageError, match="a part of the model ran"), replay_routes(model, ROUTES):
        model.model(input_ids=IDS)
    with record_routes(model) as routes:
        model.model(input_ids=IDS)
    with pytest.raises(UsageError, match="the very model that was given"):
        _ = routes.tensor


def test_one_forward_for_each_recording_and_one_replay_at_a_time() -> None:
    model = build("qwen3_moe")
    with record_routes(model):
        model(input_ids=IDS)
        with pytest.raises(UsageError, match="one forward for each"):
            model(input_ids=IDS)
    with (
        pytest.raises(UsageError, match="already going on"),
        replay_routes(model, ROUTES),
        replay_routes(model, ROUTES),
    ):
        pass
    with pytest.raises(UsageError, match="did not watch"), replay_routes(model, ROUTES) as replay:
        _ = replay.own
    with pytest.raises(ValueError, match="input_ids"), record_routes(model):
        model()  # the model's own words


def test_a_backward_after_the_replay_is_refused_where_it_would_choose_anew() -> None:
    model = build("qwen3_moe", experts_implementation="grouped_mm").train()
    with replay_routes(model, ROUTES):
        loss = model(input_ids=IDS).logits.logsumexp(-1).sum()
    loss.backward()  # without checkpointing nothing is chosen anew
    checkpoint_activations(model)
    with replay_routes(model, ROUTES):
        loss = model(input_ids=IDS).logits.logsumexp(-1).sum()
    with pytest.raises(CheckpointError):  # torch's own: the routers that chose anew saved other tensors
        loss.backward()


def test_a_router_that_gives_no_weight_outside_todays_groups_is_refused_when_that_matters() -> None:
    """DeepSeek-V2's group-limited choice takes its weights from scores that are 0 outside the best groups."""
    torch.manual_seed(0)
    own = dict(BUILD["deepseek_v3"], num_hidden_layers=1, topk_group=1, first_k_dense_replace=0, q_lora_rank=None)
    model = causal("deepseek_v2", topk_method="group_limited_greedy", num_experts_per_tok=2, **own)
    with torch.no_grad():
        with record_routes(model) as routes:
            plain = model(input_ids=IDS).logits
        with replay_routes(model, routes):
            assert torch.equal(model(input_ids=IDS).logits, plain)
    assert "gives weight 0 to experts outside today's best groups" in refusal(model, (routes.tensor + 2) % EXPERTS)
