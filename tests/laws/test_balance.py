"""The routers' own losses: the same gradient however the batch is cut, 1 at an even load, closed forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from groupwise import record_routes
from groupwise.models.moe.record import routers
from groupwise.models.moe.settings import Balance, load_shares
from tests.laws.moe_models import BUILD, EXPERTS, build, text

CUTS = [1, 4, 16]


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def load_share(routes: torch.Tensor, experts: int) -> torch.Tensor:
    """Choices [M,K] of a single layer -> [E]."""
    return load_shares(routes[:, None], [experts])[0]


def test_the_gradient_does_not_depend_on_microbatches() -> None:
    logits = (3 * normal(0, 48, 6)).requires_grad_()
    share, part = load_share(logits.detach().topk(2).indices, 6), Balance(load=0.7, z=0.3)
    whole = torch.autograd.grad(part(logits, share, 48), logits)[0]
    for cuts in CUTS[1:]:
        loss = sum(part(rows, share, 48) for rows in logits.chunk(cuts))
        cut = torch.autograd.grad(loss, logits)[0]
        assert (cut - whole).norm() <= 1e-12 * whole.norm()


def router_gradients(model: Any, ids: Tensor, shares: list[Tensor], cuts: int) -> list[Tensor]:
    """Gradients at every router's weights, from `cuts` microbatches of rows."""
    part, found, told = Balance(load=1.0, z=0.1), routers(model), []
    handles = [r.module.register_forward_hook(lambda module, args, out: told.append(out[0])) for r in found]
    model.zero_grad()
    for rows in ids.chunk(cuts):
        told.clear()
        model(input_ids=rows)
        torch.stack([part(x, share, ids.numel()) for x, share in zip(told, shares, strict=True)]).sum().backward()
    for handle in handles:
        handle.remove()
    return [router.module.weight.grad for router in found]


@pytest.mark.parametrize("name", sorted(BUILD))
def test_the_gradient_through_real_routers_does_not_depend_on_microbatches(name: str) -> None:
    """Shares are of the whole batch; float64, but for what the models themselves compute in float32."""
    model, ids = build(name, dtype=torch.float64, experts_implementation="eager"), text(0, 16, 5)
    with torch.no_grad(), record_routes(model) as routes:
        model(input_ids=ids)
    shares = load_shares(routes.tensor.flatten(0, 1), [EXPERTS] * routes.tensor.shape[2])
    whole, *cut = [router_gradients(model, ids, shares, cuts) for cuts in CUTS]
    for grads in cut:
        for grad, reference in zip(grads, whole, strict=True):
            assert (grad - reference).norm() <= 1e-6 * reference.norm()


def test_an_even_load_is_worth_one_and_a_load_that_follows_the_probabilities_more() -> None:
    logits = 2 * normal(1, 10, 4)
    even = torch.full((4,), 0.25, dtype=torch.float64)
    torch.testing.assert_close(Balance(load=1.0)(logits, even, 10), torch.tensor(1.0, dtype=torch.float64))
    assert Balance(load=1.0)(logits, logits.softmax(-1).mean(0), 10) > 1.01


def test_the_load_gradient_is_the_closed_form() -> None:
    """E / tokens * p_e (f_e - sum_j f_j p_j), and none through the share."""
    logits = normal(2, 5, 4).requires_grad_()
    share = load_share(torch.tensor([[0, 1], [0, 1], [0, 2], [0, 3]]), 4)
    assert share.tolist() == [0.5, 0.25, 0.125, 0.125]
    Balance(load=1.0)(logits, share, 5).backward()
    p = logits.detach().softmax(-1)
    torch.testing.assert_close(logits.grad, 4 / 5 * p * (share - (p @ share)[:, None]))


def test_the_z_loss_is_the_closed_form() -> None:
    """E equal logits c: (c + log E)^2; its gradient is 2 (c + log E) / (E tokens) for each."""
    logits = torch.full((3, 4), 0.5, dtype=torch.float64, requires_grad=True)
    loss = Balance(z=2.0)(logits, torch.full((4,), 0.25), 3)
    loss.backward()
    height = torch.tensor(0.5, dtype=torch.float64) + torch.tensor(4.0, dtype=torch.float64).log()
    torch.testing.assert_close(loss, 2 * height.square())
    torch.testing.assert_close(logits.grad, (2 * 2 * height / (4 * 3)).expand(3, 4))


def test_bf16_logits_are_summed_in_float32() -> None:
    logits = normal(3, 512, 8).bfloat16()
    share = load_share(logits.topk(2).indices, 8)
    loss, exact = (Balance(load=1.0, z=1.0)(x, share, 512) for x in (logits, logits.double()))
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=0)


def test_nothing_is_nothing() -> None:
    assert Balance()(normal(4, 3, 4), torch.full((4,), 0.25), 3) == 0
    assert load_share(torch.zeros(0, 2), 4).tolist() == [0, 0, 0, 0]
