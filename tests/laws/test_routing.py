"""Routes as data: replaying a model's own changes nothing, others are what picking them by hand gives."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from groupwise import record_routes, replay_routes
from groupwise.models.forward import layout
from groupwise.models.moe.metrics import changed
from groupwise.models.moe.record import routers
from groupwise.models.moe.replay import place_routes
from tests.laws.moe_models import BUILD, CHOSEN, EXPERTS, LAYERS, build, checkpoint_activations, text

NAMES = sorted(BUILD)
EXPERTS_CODE = ["eager", "batched_mm", "grouped_mm"]
architectures = pytest.mark.parametrize("name", NAMES)


def padded(rows: int, width: int, side: str) -> dict[str, Tensor]:
    """Ids and attention mask of rows of unequal lengths, as a tokenizer pads them."""
    lengths = torch.tensor([width - 2 * i for i in range(rows)])[:, None]
    place = torch.arange(width)
    mask = place < lengths if side == "right" else place >= width - lengths
    return {"input_ids": text(1, rows, width).where(mask, 0), "attention_mask": mask.long()}


def logits(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    return model(**inputs, use_cache=False).logits


def other_routes(seed: int, rows: int, width: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.rand(rows, width, LAYERS, EXPERTS, generator=g).argsort(-1)[..., :CHOSEN].to(torch.uint8)


def gradients(model: Any, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def loss_of(model: Any, ids: Tensor) -> Tensor:
    out = logits(model, {"input_ids": ids})
    return out.log_softmax(-1).gather(-1, ids[..., None]).mean()


# Its own routes change nothing


@architectures
@pytest.mark.parametrize("code", EXPERTS_CODE)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "autocast"])
def test_replaying_a_models_own_routes_changes_no_bit(name: str, code: str, side: str, precision: str) -> None:
    model = build(name, dtype=torch.bfloat16 if precision == "bfloat16" else torch.float32, experts_implementation=code)
    inputs = padded(3, 9, side)
    cast: AbstractContextManager[Any] = (
        torch.autocast("cpu", torch.bfloat16) if precision == "autocast" else nullcontext()
    )
    with torch.no_grad(), cast:
        plain = logits(model, inputs)
        with record_routes(model) as routes:
            recorded = logits(model, inputs)
        with replay_routes(model, routes, watch=True) as replay:
            replayed = logits(model, inputs)
    assert plain.isfinite().all()
    assert torch.equal(plain, recorded)
    assert torch.equal(plain, replayed)
    assert torch.equal(replay.own, routes.tensor)
    assert routes.tensor.shape == (3, 9, LAYERS, CHOSEN)


@architectures
def test_routes_follow_their_rows_into_sorted_microbatches(name: str) -> None:
    """Recorded in one batch, cut to rows; laid out anew in pairs of like length, without a row's last token."""
    model = build(name, experts_implementation="grouped_mm")
    lengths, ids = [11, 5, 9, 6, 8, 3], text(2, 6, 11)
    with torch.no_grad(), record_routes(model) as routes:
        logits(model, {"input_ids": ids})
    rows = [routes.tensor[i, :length] for i, length in enumerate(lengths)]
    order = sorted(range(6), key=lambda i: lengths[i])
    for pair in (order[0:2], order[2:4], order[4:6]):
        width = max(lengths[i] for i in pair) - 1
        inputs = {"input_ids": torch.stack([ids[i].where(torch.arange(11) < lengths[i], 0) for i in pair])[:, :width]}
        place = layout.padded(ids[pair, : width + 1], torch.tensor([lengths[i] for i in pair]))
        laid, present = place_routes([rows[i][:-1] for i in pair], place)
        with torch.no_grad():
            plain = logits(model, inputs)
            with replay_routes(model, laid, present, watch=True) as replay:
                replayed = logits(model, inputs)
        assert torch.equal(plain, replayed)
        assert not changed(laid, replay.own)[present].any()
        assert replay.live == sum(width + 1 - lengths[i] for i in pair)


@architectures
@pytest.mark.parametrize("code", EXPERTS_CODE)
def test_own_routes_change_no_gradient_with_and_without_activation_checkpointing(name: str, code: str) -> None:
    model = build(name, experts_implementation=code).train()
    ids = text(3, 2, 7)
    plain = gradients(model, loss_of(model, ids))
    for checkpointing in (False, True):
        if checkpointing:
            checkpoint_activations(model)
        with record_routes(model) as routes:
            recorded = gradients(model, loss_of(model, ids))
        with replay_routes(model, routes):
            replayed = gradients(model, loss_of(model, ids))
        for parameter, grad in plain.items():
            assert torch.equal(grad, recorded[parameter]), parameter
            assert torch.equal(grad, replayed[parameter]), parameter


# Other routes


def gates(name: str, router: Any, hidden: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Router logits, and the weights of experts picked by hand, in each router's own formula and dtypes."""
    if name == "deepseek_v3":
        scores = F.linear(hidden.float(), router.weight.float())
        picked = scores.sigmoid().gather(1, chosen)
        return scores, picked / (picked.sum(-1, keepdim=True) + 1e-20) * 2.5
    scores = F.linear(hidden, router.weight, getattr(router, "bias", None))
    if name == "gpt_oss":
        return scores, scores.gather(1, chosen).softmax(-1)
    picked = scores.float().softmax(-1) if name == "mixtral" else scores.softmax(-1, dtype=torch.float32)
    picked = picked.gather(1, chosen)
    if name != "olmoe":
        picked = picked / picked.sum(-1, keepdim=True)
    return scores, picked if name == "mixtral" else picked.to(scores.dtype)


@architectures
@pytest.mark.parametrize("code", ["eager", "batched_mm"])  # grouped_mm has no float64
def test_other_routes_give_what_picking_those_experts_by_hand_gives(name: str, code: str) -> None:
    model = build(name, dtype=torch.float64, experts_implementation=code)
    ids, routes = text(4, 2, 7), other_routes(0, 2, 7)
    with torch.no_grad():
        plain = logits(model, {"input_ids": ids})
        with replay_routes(model, routes):
            replayed = logits(model, {"input_ids": ids})
        for layer, router in enumerate(routers(model)):
            chosen = routes[:, :, layer].flatten(0, 1).long()

            def by_hand(hidden: Tensor, module: Any = router.module, chosen: Tensor = chosen) -> tuple[Tensor, ...]:
                return *gates(name, module, hidden.reshape(-1, 32), chosen), chosen

            router.module.forward = by_hand
        reference = logits(model, {"input_ids": ids})
    assert (replayed - reference).abs().max() <= 1e-10
    assert (replayed - plain).abs().max() > 0.1


class Wide(TorchFunctionMode):
    """A router's casts to float32 become casts to float64: the real formula, smooth enough for finite differences."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.float or (func in (Tensor.type, Tensor.to) and args[1:2] == (torch.float32,)):
            return args[0].double()
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


@architectures
def test_the_gradient_at_routers_is_that_of_the_fixed_choice(name: str) -> None:
    """Central differences in float64 through the real routers' code, their float32 widened; then as they are."""
    model = build(name, dtype=torch.float64, experts_implementation="eager")
    ids, routes = text(5, 2, 6), other_routes(1, 2, 6)
    weights = [router.module.weight for router in routers(model)]
    g = torch.Generator().manual_seed(0)
    with replay_routes(model, routes), Wide():
        exact = torch.autograd.grad(loss_of(model, ids), weights)
    with replay_routes(model, routes):
        as_it_is = torch.autograd.grad(loss_of(model, ids), weights)
    for weight, grad, narrow in zip(weights, exact, as_it_is, strict=True):
        way, sides = torch.randn(weight.shape, generator=g, dtype=torch.float64), []
        for step in (1e-5, -1e-5):
            with torch.no_grad(), replay_routes(model, routes), Wide():
                weight += step * way
                sides.append(loss_of(model, ids))
                weight -= step * way
        slope, told = (sides[0] - sides[1]) / 2e-5, (grad * way).sum()
        assert abs(slope - told) <= 1e-6 * (grad.norm() * way.norm())
        assert (narrow - grad).norm() <= 1e-3 * grad.norm()


@architectures
def test_an_expert_outside_todays_choice_keeps_a_gradient(name: str) -> None:
    """One token is sent to an expert that no token chooses, in any of today's groups or none: its row gets gradient."""
    model = build(name, dtype=torch.float64, experts_implementation="eager")
    ids = text(6, 1, 4)
    with record_routes(model) as routes:
        logits(model, {"input_ids": ids})
    forced = routes.tensor.clone()
    unused = next(e for e in range(EXPERTS) if not (forced[:, :, 0] == e).any())
    forced[0, 2, 0, 1] = unused
    row = routers(model)[0].module.weight
    with replay_routes(model, routes):
        before = torch.autograd.grad(loss_of(model, ids), row)[0][unused]
    with replay_routes(model, forced, watch=True) as replay:
        after = torch.autograd.grad(loss_of(model, ids), row)[0][unused]
    assert after.norm() > 1e-3
    if name == "olmoe":  # its weights are not normalised: the softmax's denominator reaches every row
        assert (after - before).norm() > 1e-3
    else:
        assert before.norm() < 1e-6
    assert changed(forced, replay.own)[0, 2, 0] == 0.5


# Positions without a route


@architectures
def test_positions_without_a_route_choose_for_themselves_and_are_counted(name: str) -> None:
    model = build(name)
    ids, routes = text(7, 2, 6), other_routes(2, 2, 6)
    present = torch.zeros(2, 6, dtype=torch.bool)
    with torch.no_grad():
        with record_routes(model) as plain_routes:
            plain = logits(model, {"input_ids": ids})
        with replay_routes(model, routes, present) as replay:
            assert torch.equal(logits(model, {"input_ids": ids}), plain)
        assert replay.live == 12
        present[:, :4] = True
        with replay_routes(model, routes, present, watch=True) as replay, record_routes(model) as ran:
            logits(model, {"input_ids": ids})
        assert replay.live == 4
    # In the first layer nothing was replayed before the router ran: its own choice is the plain one.
    assert torch.equal(replay.own[:, :, 0], plain_routes.tensor[:, :, 0])
    assert torch.equal(ran.tensor[:, :4], routes[:, :4])
    assert torch.equal(ran.tensor[:, 4:], replay.own[:, 4:])


def test_a_choice_is_not_taken_for_the_question_inside_a_group() -> None:
    """With one group of all experts, a limited router asks about the group's best two, as about a choice of two."""
    model = build("deepseek_v3", n_group=1, topk_group=1)
    ids, routes = text(8, 1, 5), other_routes(3, 1, 5)
    with torch.no_grad(), replay_routes(model, routes), record_routes(model) as ran:
        logits(model, {"input_ids": ids})
    assert torch.equal(ran.tensor, routes)


# Twice, nested, and afterwards


@architectures
def test_checkpointing_runs_the_routers_twice_on_the_same_routes(name: str) -> None:
    model = build(name, experts_implementation="grouped_mm").train()
    ids, routes = text(9, 2, 6), other_routes(4, 2, 6)
    with replay_routes(model, routes):
        plain = gradients(model, loss_of(model, ids))
    checkpoint_activations(model)
    with replay_routes(model, routes, watch=True) as replay, record_routes(model) as ran:
        loss = loss_of(model, ids)
        own = replay.own
        again = gradients(model, loss)
    assert all(torch.equal(grad, again[parameter]) for parameter, grad in plain.items())
    assert torch.equal(ran.tensor, routes)
    assert torch.equal(replay.own, own)


def left_behind(model: Any) -> list[str]:
    return [
        name
        for name, module in model.named_modules()
        if "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks
    ]


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_stays_on_the_model(fails: bool) -> None:
    model, ids = build("olmoe"), text(10, 1, 4)
    plain = logits(model, {"input_ids": ids})
    routes = other_routes(5, 1, 4)
    with pytest.raises(KeyboardInterrupt) if fails else nullcontext():  # noqa: SIM117
        with replay_routes(model, routes), record_routes(model):
            logits(model, {"input_ids": ids})
            assert len(left_behind(model)) == LAYERS + 1
            if fails:
                raise KeyboardInterrupt
    assert left_behind(model) == []
    assert torch.equal(logits(model, {"input_ids": ids}), plain)


def test_a_forward_that_a_router_had_of_its_own_comes_back() -> None:
    model, ids = build("qwen3_moe"), text(11, 1, 4)
    module = routers(model)[0].module
    calls, inner = [], module.forward

    def wrapped(*args: Any) -> Any:
        calls.append(1)
        return inner(*args)

    module.forward = wrapped
    with replay_routes(model, other_routes(6, 1, 4)):
        logits(model, {"input_ids": ids})
    assert module.forward is wrapped
    assert calls == [1]


def test_routes_are_small_integers_on_the_cpu() -> None:
    ids = text(12, 1, 4)
    for experts, dtype in ((EXPERTS, torch.uint8), (300, torch.int16)):
        model = build("qwen3_moe", num_experts=experts)
        with torch.no_grad(), record_routes(model) as routes:
            plain = logits(model, {"input_ids": ids})
        assert routes.tensor.dtype == dtype
        assert routes.tensor.device.type == "cpu"
        with torch.no_grad(), replay_routes(model, routes):
            assert torch.equal(logits(model, {"input_ids": ids}), plain)
    assert int(routes.tensor.max()) > 255
